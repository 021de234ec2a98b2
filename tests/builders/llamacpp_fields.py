"""Fields of llama.cpp's answers that tests compare."""

from __future__ import annotations

from dataclasses import replace

from shadowspec.types import (
    VerifyRule,
)
from tests.builders.server_blocks import CONFIG

COMPARED = replace(CONFIG, verify_rule=VerifyRule.EXACT_MATCH)

"""Sample messages of each format."""

from __future__ import annotations

from shadowspec.tap.formats import MessageFormat
from tests.fuzz.harness import SEEDS


def seeds(format: MessageFormat) -> list[bytes]:
    return [path.read_bytes() for path in sorted((SEEDS / format).iterdir())]

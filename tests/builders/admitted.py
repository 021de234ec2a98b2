"""Requests that the admission lets in."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from shadowspec.tap.admission import Admitted
from shadowspec.types import (
    OUTPUT_CONSTRAINT,
    ShadowPrompt,
)
from tests.tap.mirror import RULE, fates, first_only

SERVED = replace(first_only(RULE), takes_constraints=True)
CANARY = "canary_field"


def admitted(record: dict[str, Any], rule: Any = SERVED) -> ShadowPrompt:
    decided = fates([record], rule)[0]
    assert isinstance(decided, Admitted), decided.record
    assert CANARY not in repr(decided), "the schema is shown"
    assert CANARY not in repr(decided.record.labels)
    assert decided.record.slice_key == ",".join(f"{name}={value}" for name, value in _slice(decided).items())
    return decided.prompt


def _slice(decided: Admitted) -> dict[str, str]:
    """Which slice a record has to be in."""
    labels = decided.record.labels or {}
    found = {name: labels[name] for name in ("prompt_class", "sampling_regime")}
    return found | ({OUTPUT_CONSTRAINT: labels[OUTPUT_CONSTRAINT]} if OUTPUT_CONSTRAINT in labels else {})

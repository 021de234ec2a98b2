"""The values made of every message: frozen, equal by their fields, sent between processes, and silent about texts."""

from __future__ import annotations

import pickle
from datetime import UTC, datetime
from typing import Any

import pytest
from msgspec.structs import replace

from shadowspec.types import (
    Arm,
    Block,
    FunnelCounter,
    LoggedResponse,
    RecordKey,
    SamplingParameters,
    ShadowPrompt,
    StoredRecord,
)

KEY = RecordKey("topic", 1, 2)
RESPONSE = LoggedResponse((987654,), (-0.123456,), "stop", 1)
PROMPT = ShadowPrompt(KEY, "chat", datetime(2026, 1, 1, tzinfo=UTC), {}, (987654,), SamplingParameters(), "s")
RECORD = StoredRecord(KEY, FunnelCounter.MEASURED, None, "chat")
BLOCK = Block("b", 1, "chat", "", 4, (PROMPT,), (), Arm.BASELINE)
VALUES = (RESPONSE, PROMPT, PROMPT.sampling, RECORD, BLOCK)


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_they_are_frozen_and_equal_after_a_journey(value: Any) -> None:
    assert pickle.loads(pickle.dumps(value)) == value == replace(value)
    with pytest.raises(AttributeError):
        setattr(value, value.__struct_fields__[0], None)


def test_they_are_looked_up_by_their_fields() -> None:
    assert {SamplingParameters(seed=1): "found"}[SamplingParameters(seed=1)] == "found"
    assert SamplingParameters(seed=1) != SamplingParameters(seed=2)


def test_two_records_share_no_labels() -> None:
    assert RECORD.labels is not StoredRecord(KEY, FunnelCounter.MEASURED).labels


def test_no_text_shows() -> None:
    shown = repr(replace(BLOCK, requests=(replace(PROMPT, response=RESPONSE),)))
    assert "chat" in shown
    assert "987654" not in shown + repr(RESPONSE)
    assert "0.123456" not in repr(RESPONSE)

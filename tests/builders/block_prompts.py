"""Prompts of which blocks are formed."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from shadowspec.types import RecordKey, SamplingParameters, ShadowPrompt

NOON = datetime(2025, 1, 1, 12, tzinfo=UTC)


def prompt(line: int, minute: float = 0.0, endpoint: str = "one", prompt_class: str = "code") -> ShadowPrompt:
    return ShadowPrompt(
        key=RecordKey("f" * 64, 0, line),
        endpoint=endpoint,
        event_time=NOON + timedelta(minutes=minute),
        labels={"prompt_class": prompt_class},
        prompt_token_ids=(line,),
        sampling=SamplingParameters(),
    )

"""Blocks of requests for the engine in process."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime

from shadowspec.types import (
    Arm,
    Block,
    RecordKey,
    SamplingParameters,
    ShadowPrompt,
)

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def prompt(line: int, temperature: float = 0.0, max_tokens: int = 12) -> ShadowPrompt:
    return ShadowPrompt(
        key=RecordKey("f" * 64, 0, line),
        endpoint="e",
        event_time=NOON,
        labels={},
        prompt_token_ids=(0, *(2 + (line + i) % 9 for i in range(3 + line % 5))),
        sampling=SamplingParameters(temperature=temperature, max_tokens=max_tokens),
    )


def block(prompts: Iterable[ShadowPrompt], fillers: Iterable[ShadowPrompt] = (), first: Arm = Arm.BASELINE) -> Block:
    shadow_prompts, copies = tuple(prompts), tuple(fillers)
    return Block("b" * 64, 0, "e", "", len(shadow_prompts) + len(copies), shadow_prompts, copies, first)

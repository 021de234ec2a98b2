"""What the benchmarks of the engine share: an arm, requests in batches, a block of prompts, and a process's memory."""

from __future__ import annotations

import resource
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from kernels.benchmarks.harness import Prompt
from shadowspec.engine.batch import Request
from shadowspec.engine.decode import ArmResult, Decoded, decode_batch
from shadowspec.engine.proposers.draft_model import DraftModelProposer
from shadowspec.types import Arm, Block, RecordKey, SamplingParameters, ShadowPrompt, VerifyRule

BATCH = 64


def one_arm(target: Any, draft: Any, requests: Sequence[Request], depth: int, **further: Any) -> ArmResult[Decoded]:
    """The arm of a draft model, or (None) the baseline, to the requests' full lengths; `further`: of `decode_batch`."""
    is_greedy = requests[0].sampling.temperature == 0.0
    proposer = None if draft is None else DraftModelProposer(draft, depth, is_sampling=not is_greedy)
    return decode_batch(
        target, requests, proposer=proposer, num_speculative_tokens=depth,
        verify_rule=VerifyRule.GREEDY if is_greedy else VerifyRule.REJECTION, end_token_ids=frozenset(), **further,
    )  # fmt: skip


def in_batches(
    target: Any, requests: Sequence[Request], proposer: Callable[[], Any] = lambda: None, **further: Any
) -> list[Decoded]:
    """Every request decoded by the engine's loop, prompts of like length in a batch; `further`: of `decode_batch`."""
    order = sorted(range(len(requests)), key=lambda row: len(requests[row].prompt))
    decoded: dict[int, Decoded] = {}
    for rows in (order[start : start + BATCH] for start in range(0, len(order), BATCH)):
        result = decode_batch(target, [requests[row] for row in rows], proposer=proposer(), **further)
        decoded.update(zip(rows, result.decoded, strict=True))
    return [decoded[row] for row in range(len(requests))]


def block_of(
    name: str, number: int, prompts: Sequence[Prompt], sampling: SamplingParameters, concurrency: int, turn: int
) -> Block:
    """A block of these prompts; an even turn begins with the baseline."""
    at, first = datetime(2026, 1, 1, tzinfo=UTC), (Arm.BASELINE, Arm.SPECULATIVE)[turn % 2]
    shadow_prompts = tuple(
        ShadowPrompt(RecordKey(name, 0, number * len(prompts) + place), name, at, {}, prompt, sampling)
        for place, prompt in enumerate(prompts)
    )
    per_slot = len(prompts) // concurrency
    return Block(f"{name}-{number}", number, name, "", concurrency, shadow_prompts, (), first, per_slot)


def resident_bytes() -> int:
    """Memory of this process, now."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * resource.getpagesize()

"""A report's world with a profiled device."""

from __future__ import annotations

from shadowspec.types import (
    CostKey,
    ProfiledCosts,
    StepCost,
)
from tests.reports.worlds import NOW, MemorySource, add_slice, config

CODE = "prompt_class=code,sampling_regime=greedy"
CHAT = "prompt_class=chat,sampling_regime=low"


def profiled(*, is_greedy: bool = True, contexts: tuple[int, ...] = (64, 512)) -> ProfiledCosts:
    points = tuple(
        StepCost(b, k, c, prefill_ms=0.3 * c, draft_ms=1.0 * k, verify_ms=14.0 + 0.5 * b * (k + 1), other_ms=0.2)
        for b in (1, 4, 16)
        for k in (0, 2, 4, 8)
        for c in contexts
    )
    return ProfiledCosts(CostKey.of(config(), is_greedy=is_greedy), NOW, points)


def world(*costs: ProfiledCosts) -> MemorySource:
    source = MemorySource(profiles={cost.key: cost for cost in costs})
    add_slice(source, "editor", CODE, num_blocks=20, speedup=1.4, rate=0.7, seed=3)
    add_slice(source, "editor", CHAT, num_blocks=6, speedup=1.1, rate=0.5, seed=4)
    return source

"""Values of the board."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from typing import Any

from shadowspec.gate.policy import GatePolicy
from shadowspec.reports.pages.board import (
    Board,
    BoardValues,
    build_board,
)
from shadowspec.rollout.check.answer import EndpointTerms
from shadowspec.store import GroupSums, RollupSums, Traffic
from shadowspec.types import Decision, EvidenceSummary, Override, TestResult, Verdict
from tests.reports.worlds import NOW, config

DAY = date(2026, 3, 2)
CONFIG = config()


def decision(
    endpoint: str = "chat",
    slice_key: str = "",
    verdict: Verdict = Verdict.HOLD,
    *,
    concurrency: int = 4,
    lower: float = 1.1,
    clusters_needed: int | None = None,
    **changes: Any,
) -> Decision:
    tests = (
        TestResult("speedup", "open", 1.3, lower, 1.5, 1.05, 0.01, "window", 30, 16),
        TestResult("parity_faults", "pass", 0.0, None, 0.02, 0.05, 0.01, "request", 120, 113),
        TestResult("parity_sampled", "open", 0.001, -0.03, 0.03, 0.02, 0.01, "cluster", 20, 52),
    )
    judged = Decision(
        endpoint=endpoint,
        slice_key=slice_key,
        concurrency=concurrency,
        config=CONFIG.config,
        fingerprint=CONFIG.fingerprint,
        verdict=verdict,
        reason_code="too_few_units",
        reason="not yet proven",
        tests=tests,
        num_clusters=100,
        num_blocks=30,
        clusters_needed=clusters_needed,
        decided_at=NOW,
        evidence=EvidenceSummary(span_s=86_400.0, newest_evidence=NOW),
    )
    return replace(judged, **changes)


def sums(endpoint: str, slice_key: str, back: int, **figures: float) -> GroupSums:
    start = datetime(DAY.year, DAY.month, DAY.day, tzinfo=UTC) - timedelta(days=back)
    return GroupSums(endpoint, slice_key, CONFIG.fingerprint, 4, start, replace(RollupSums(), **figures))  # type: ignore[arg-type]


def values(
    decisions: list[Decision], days: list[GroupSums] | None = None, *, price: float | None = None
) -> BoardValues:
    return BoardValues(
        endpoints=["chat"],
        decisions=decisions,
        configs={CONFIG.fingerprint: CONFIG},
        days=days or [],
        rollouts=[],
        newest_day=DAY,
        prices={"chat": price},
        traffic={
            "chat": [Traffic(d.slice_key, d.fingerprint, d.concurrency, 1.0, d.start, d.start) for d in days or []]
        },
        terms={"chat": EndpointTerms(GatePolicy(window_s=0.0), {4: 1.0, 16: 3.0})},
    )


def board(*decisions: Decision, overrides: tuple[Override, ...] = ()) -> Board:
    return build_board(values(list(decisions)), overrides, NOW)

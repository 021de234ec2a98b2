"""What a run found: the product's own report of each engine, with plain intervals beside the gate's bounds."""

from __future__ import annotations

import sqlite3
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from scipy.stats import binom

from kernels.benchmarks.engines.comparing import Rate, half_width
from kernels.benchmarks.engines.real_model.prompts import LABEL

LEVEL: Final = 0.95
TEST: Final = "speedup"


@dataclass(frozen=True, slots=True)
class Estimate:
    """A ratio with its interval at LEVEL over requests; one request has none."""

    value: float
    lower: float | None
    upper: float | None


@dataclass(frozen=True, slots=True)
class ResultCell:
    """A candidate on an engine in a class ("": all of them)."""

    engine: str
    candidate: str
    prompt_class: str
    num_requests: int
    num_failed: int
    num_drafts: int
    num_draft_tokens: int
    num_accepted_tokens: int
    num_output_tokens: int
    acceptance: Estimate | None  # accepted over drafted tokens
    mean_acceptance_length: float | None  # of the steps with a draft
    tokens_per_step: float | None  # of all steps, those without a draft included
    speedup: Estimate | None  # median of the requests' own, end to end
    total_speedup: float | None  # total baseline over total speculative time, which a single hitch can decide
    gate_speedup: Estimate | None  # the gate's, which holds however often one looks
    verdict: str | None
    reason: str | None
    num_diverged: int | None  # greedy requests whose two outputs differ
    num_faults: int | None  # of these, where the target was in no doubt


_RUNS: Final = """\
select runs.slice_key, runs.fingerprint, num_drafts, num_draft_tokens, num_accepted_tokens, num_plain_steps,
  num_output_tokens,
  baseline_queue_ms + baseline_prefill_ms + baseline_decode_ms as baseline_ms,
  speculative_queue_ms + speculative_prefill_ms + speculative_decode_ms as speculative_ms
from runs where failure is null"""


def cells(engine: str, folder: Path, report: dict[str, Any]) -> Iterator[ResultCell]:
    """Every candidate and class of one run, from its report and the rows of its store."""
    with sqlite3.connect(folder / "shadow.db") as connection:
        connection.row_factory = sqlite3.Row
        rows = [dict(row) for row in connection.execute(_RUNS)]
    for hypothesis in report["endpoints"][0]["hypotheses"]:
        name = hypothesis["slice"].get(LABEL, "")
        mine = [
            row
            for row in rows
            if row["fingerprint"] == hypothesis["fingerprint"] and name in ("", row["slice_key"].partition("=")[2])
        ]
        yield _cell(engine, name, hypothesis, mine)


def _cell(engine: str, name: str, found: dict[str, Any], rows: Sequence[dict[str, Any]]) -> ResultCell:
    def column(key: str) -> list[float]:
        return [float(row[key]) for row in rows]

    def total(key: str) -> int:
        return int(sum(column(key)))

    steps, drafted, accepted = total("num_drafts"), total("num_draft_tokens"), total("num_accepted_tokens")
    every_step = steps + total("num_plain_steps")
    decision, parity = found["decision"] or {}, found["parity"] or {}
    gate = next((test for test in decision.get("tests", []) if test["name"] == TEST), None)
    return ResultCell(
        engine=engine,
        candidate=found["config"],
        prompt_class=name,
        num_requests=found["num_requests"],
        num_failed=found["num_failed"],
        num_drafts=steps,
        num_draft_tokens=drafted,
        num_accepted_tokens=accepted,
        num_output_tokens=total("num_output_tokens"),
        acceptance=_estimate(column("num_accepted_tokens"), column("num_draft_tokens"), 1.0),
        mean_acceptance_length=1.0 + accepted / steps if steps else None,
        tokens_per_step=1.0 + accepted / every_step if every_step else None,
        speedup=median([row["baseline_ms"] / row["speculative_ms"] for row in rows]),
        total_speedup=sum(column("baseline_ms")) / sum(column("speculative_ms")) if rows else None,
        gate_speedup=None if gate is None or gate["estimate"] is None
        else Estimate(gate["estimate"], gate["lower"], gate["upper"]),
        verdict=found["verdict"],
        reason=decision.get("reason"),
        num_diverged=parity.get("num_diverged"),
        num_faults=parity.get("num_faults"),
    )  # fmt: skip


def _estimate(over: Sequence[float], under: Sequence[float], most: float) -> Estimate | None:
    """A ratio of sums; its interval ends where the ratio can: at 0 and at `most`."""
    if not sum(under):
        return None
    rate = Rate.of(over, under)
    if rate is None:
        return Estimate(sum(over) / sum(under), None, None)
    half = half_width(rate.moves, LEVEL)
    return Estimate(rate.value, max(0.0, rate.value - half), min(most, rate.value + half))


def median(values: Sequence[float]) -> Estimate | None:
    """The median with its distribution-free interval: the order statistics that the sign test at LEVEL leaves.

    Too few values (below 6) have no such interval.
    """
    if not values:
        return None
    ordered, number = sorted(values), len(values)
    # The largest rank that lies above the median with a chance of at most half of what LEVEL leaves.
    rank = int(binom.ppf((1.0 - LEVEL) / 2.0, number, 0.5))
    while rank and binom.cdf(rank - 1, number, 0.5) > (1.0 - LEVEL) / 2.0:
        rank -= 1
    value = statistics.median(ordered)
    return Estimate(value, ordered[rank - 1], ordered[number - rank]) if rank else Estimate(value, None, None)

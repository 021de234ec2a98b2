"""What two runs found: the verdicts of the first, and the truth that the second run's other sessions are.

The figures are those of the product's own reports, with plain intervals beside the gate's bounds.
"""

from __future__ import annotations

import json
import sqlite3
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from scipy.stats import binom

from kernels.benchmarks.engines.comparing import Rate, half_width
from kernels.benchmarks.engines.real_model.prompts import LABEL
from shadowspec.types import Verdict

LEVEL: Final = 0.95
RUNS: Final = "first", "second"
TEST: Final = "speedup"
# The tests with a truth, and whether their figure must lie above its limit.
LIMITS: Final = {"speedup": True, "acceptance": True, "tail": False}
Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Estimate:
    """A ratio with its interval at LEVEL over requests; one request has none."""

    value: float
    lower: float | None
    upper: float | None


@dataclass(frozen=True, slots=True)
class ResultCell:
    """A candidate in a class ("": all of them)."""

    version: str  # the engine with its version
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
    gate_speedup: Estimate | None  # the gate's, which holds however often one looks
    verdict: str | None
    reason: str | None
    num_diverged: int | None  # greedy requests whose two outputs differ
    num_faults: int | None  # of these, where the target was in no doubt
    second_speedup: Estimate | None  # of the second run's requests, likewise
    second_figures: Mapping[str, float]  # the gate's estimates on the second run, by test
    is_true: bool | None  # whether the second run's figures keep an ENABLE's limits, or break one of a DISABLE's


_RUNS: Final = """\
select runs.slice_key, runs.fingerprint, num_drafts, num_draft_tokens, num_accepted_tokens, num_plain_steps,
  num_output_tokens,
  baseline_queue_ms + baseline_prefill_ms + baseline_decode_ms as baseline_ms,
  speculative_queue_ms + speculative_prefill_ms + speculative_decode_ms as speculative_ms
from runs where failure is null"""


def cells(first: Path, second: Path | None) -> Iterator[ResultCell]:
    """Every class of the runs of a candidate, from their reports and the rows of their stores; None: not run yet."""
    deciding, rows = _run(first)
    truth, others = ({}, []) if second is None else _run(second)
    for name, found in deciding.items():
        yield _cell(name, found, _of_class(rows, name), truth.get(name, {"decision": None}), _of_class(others, name))


def _run(folder: Path) -> tuple[dict[str, Row], list[Row]]:
    """What a report says of each class, and the rows of the store."""
    report = json.loads((folder / "report.json").read_text(encoding="utf-8"))
    found = {entry["slice"].get(LABEL, ""): entry for entry in report["endpoints"][0]["hypotheses"]}
    with sqlite3.connect(folder / "shadow.db") as connection:
        connection.row_factory = sqlite3.Row
        return found, [dict(row) for row in connection.execute(_RUNS)]


def _of_class(rows: Sequence[Row], name: str) -> list[Row]:
    return [row for row in rows if name in ("", row["slice_key"].partition("=")[2])]


def _cell(name: str, found: Row, rows: Sequence[Row], truth: Row, others: Sequence[Row]) -> ResultCell:
    def column(key: str) -> list[float]:
        return [float(row[key]) for row in rows]

    def total(key: str) -> int:
        return int(sum(column(key)))

    steps, drafted, accepted = total("num_drafts"), total("num_draft_tokens"), total("num_accepted_tokens")
    every_step = steps + total("num_plain_steps")
    decision, parity = found["decision"] or {}, found["parity"] or {}
    gate = _tests(found).get(TEST)
    figures = {test: of["estimate"] for test, of in _tests(truth).items() if of["estimate"] is not None}
    return ResultCell(
        version=found["engine"],
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
        speedup=_speedup(rows),
        gate_speedup=None if gate is None or gate["estimate"] is None
        else Estimate(gate["estimate"], gate["lower"], gate["upper"]),
        verdict=found["verdict"],
        reason=decision.get("reason"),
        num_diverged=parity.get("num_diverged"),
        num_faults=parity.get("num_faults"),
        second_speedup=_speedup(others),
        second_figures=figures,
        is_true=_is_true(found["verdict"], _tests(truth)),
    )  # fmt: skip


def _tests(found: Row) -> dict[str, Row]:
    """Those with a truth, by name."""
    return {test["name"]: test for test in (found["decision"] or {}).get("tests", []) if test["name"] in LIMITS}


def _is_true(verdict: str | None, truth: Mapping[str, Row]) -> bool | None:
    """Whether the second run's figures are on the side of their limits that the verdict says; None: it says nothing."""
    kept = [
        (test["estimate"] > test["threshold"]) is LIMITS[name]
        for name, test in truth.items()
        if test["estimate"] is not None
    ]
    if verdict not in (Verdict.ENABLE, Verdict.DISABLE) or len(kept) < len(LIMITS):
        return None
    return all(kept) is (verdict == Verdict.ENABLE)


def _speedup(rows: Sequence[Row]) -> Estimate | None:
    return median([row["baseline_ms"] / row["speculative_ms"] for row in rows])


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

"""The plan of one hypothesis: how many more measured sessions its tests want together, and how it may end.

All tests of a hypothesis are carried forward on one clock, measured sessions ("clusters"): a block counts as so many
as it holds.  ENABLE comes when the last required test passes, DISABLE when the first opposite bound crosses.  The
tests' futures are drawn independently of each other, which makes the last of several a little late.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from shadowspec.gate.evidence.betting_tests import applies, score_units
from shadowspec.gate.evidence.hypothesis import HypothesisEvidence
from shadowspec.gate.policy import GatePolicy
from shadowspec.gate.stats.betting import Floats
from shadowspec.gate.stats.levels import FIRST_RUN_SHARE
from shadowspec.gate.verdict.decision import Hypothesis
from shadowspec.gate.verdict.effective_decisions import is_valid_for_engine
from shadowspec.gate.verdict.trial import DRIFT
from shadowspec.planning.first_passage import NUM_PATHS, first_passage_times, outlook
from shadowspec.types import Decision, Verdict

REQUESTS_PER_LOAD = 4  # a full block is a queue of so many requests per request in flight
LATE = 0.9  # the quantile that is shown beside the median


@dataclass(frozen=True, slots=True)
class TestForecast:
    """Units that one test still wants until it passes; None: more than `max_clusters` leaves."""

    __test__ = False

    name: str
    unit: str
    num_units: int
    median: float | None
    late: float | None  # 90%
    passes_share: float  # of the futures in which it passes within the horizon
    is_required: bool
    is_assumed: bool  # nothing seen yet: planned by what is typical


@dataclass(frozen=True, slots=True)
class HypothesisPlan:
    """How one hypothesis may end.  Clusters are measured sessions; times are seconds at the rate so far.

    `enable_share`, `disable_share` and the rest (undecided at `max_clusters`) are shares of the futures; `median` and
    `late` (90%) are over all of them, None where that is beyond the horizon or cannot be said.
    """

    hypothesis: Hypothesis
    verdict: Verdict
    is_open: bool
    num_clusters: int  # in evidence
    tests: tuple[TestForecast, ...]
    clusters_median: float | None
    clusters_late: float | None
    enable_share: float
    disable_share: float
    clusters_per_s: float | None
    seconds_median: float | None
    seconds_late: float | None
    span_missing_s: float = 0.0  # event time that ENABLE must still see
    note: str = ""


def plan_hypothesis(
    hypothesis: Hypothesis,
    evidence: HypothesisEvidence,
    policy: GatePolicy,
    *,
    level: float | None,
    has_entered: bool,
    previous: Decision | None,
    num_paths: int = NUM_PATHS,
) -> HypothesisPlan:
    """The plan of a hypothesis as it stands; decided ones want nothing more."""
    verdict = previous.verdict if previous is not None else Verdict.HOLD
    seen = evidence.num_clusters
    rate = seen / evidence.span_s if evidence.span_s > 0.0 else None
    # A drift alarm ends a run with a verdict that stands only until the next run, which is open, has its own.
    other = policy.other_engine(hypothesis.config.engine)
    if (
        previous is not None
        and previous.reason_code != DRIFT
        and is_valid_for_engine(verdict, previous.reason_code, other)
    ):
        return _close(hypothesis, verdict, seen, rate, "decided")
    if other is not None:
        return _close(hypothesis, Verdict.HOLD, seen, rate, f"held: {other}", math.inf)
    if has_entered and level is None:
        return _close(
            hypothesis, verdict, seen, rate, "no level left: raise max_hypotheses, or ask fewer questions", math.inf
        )
    if evidence.num_clusters >= policy.max_clusters:
        return _close(hypothesis, verdict, seen, rate, "undecidable: max_clusters is reached", math.inf)

    judged = [own for own in policy.clashes() if own.test != "parity_sampled" or evidence.runs.num_sampled]
    if judged:
        return _close(hypothesis, verdict, seen, rate, f"unprovable: {policy.unprovable(judged[0].test)}", math.inf)

    # 1. Each test on its own, in units and on the common clock.
    seed = zlib.crc32(repr((hypothesis.endpoint, hypothesis.slice_key, hypothesis.config.fingerprint)).encode())
    rng = np.random.default_rng([seed, hypothesis.concurrency])
    shown_level = level or policy.alpha / policy.max_hypotheses * FIRST_RUN_SHARE
    horizon = policy.max_clusters - evidence.num_clusters
    entry = 0 if has_entered else max(policy.entry_clusters - evidence.num_closed_clusters, 0)
    enabled, disabled = np.full(num_paths, float(entry)), np.full(num_paths, np.inf)
    forecasts = []
    runs = evidence.runs
    for test in score_units((), (), policy):
        if not applies(test, has_greedy=runs.num_greedy > 0, has_sampled=runs.num_sampled > 0):
            continue
        own = evidence.tests.get(test.name)
        ahead = outlook(test, own, shown_level)
        per_unit = _clusters_per_unit(hypothesis, evidence, test.name, test.unit)
        found = first_passage_times(ahead, max(math.ceil(horizon / per_unit), 1), rng, num_paths)
        if test.is_required:
            enabled = np.maximum(enabled, found.passes * per_unit)
        if test.disables:
            disabled = np.minimum(disabled, np.maximum(found.fails * per_unit, entry))
        units = found.passes * ahead.merged_units
        num_units = 0 if own is None else own.num_units
        forecasts.append(_forecast(test.name, test.unit, num_units, units, test.is_required, ahead.is_assumed))
    if runs.num_greedy:
        wanted = math.ceil(math.log(shown_level) / math.log1p(-policy.max_fault_share)) - runs.num_known_greedy
        units = np.full(num_paths, float(max(wanted, 0)))
        enabled = np.maximum(enabled, units * evidence.num_clusters / runs.num_greedy)
        forecasts.append(_forecast("parity_faults", "request", runs.num_known_greedy, units, True, False))

    # 2. Which comes first; what is beyond the horizon is never.
    enabled[enabled > horizon] = np.inf
    disabled[disabled > horizon] = np.inf
    ends = np.minimum(enabled, disabled)
    missing_s = max(policy.min_span_s - evidence.span_s, 0.0)
    seconds = None if rate is None else np.minimum(np.maximum(enabled / rate, missing_s), disabled / rate)
    return HypothesisPlan(
        hypothesis=hypothesis,
        verdict=verdict,
        is_open=True,
        num_clusters=evidence.num_clusters,
        tests=tuple(forecasts),
        clusters_median=_quantile(ends, 0.5),
        clusters_late=_quantile(ends, LATE),
        enable_share=float(np.mean(np.isfinite(enabled) & (enabled < disabled))),
        disable_share=float(np.mean(np.isfinite(disabled) & (disabled <= enabled))),
        clusters_per_s=rate,
        seconds_median=None if seconds is None else _quantile(seconds, 0.5),
        seconds_late=None if seconds is None else _quantile(seconds, LATE),
        span_missing_s=missing_s,
        note="" if has_entered else f"enters with {entry} more closed sessions",
    )


def wanted_clusters(plans: Sequence[HypothesisPlan], *, is_late: bool) -> Mapping[tuple[str, int], float]:
    """Clusters wanted by slice and load: those of its slowest open config, since all run on the same requests."""
    wanted: dict[tuple[str, int], float] = {}
    for plan in plans:
        key = (plan.hypothesis.slice_key, plan.hypothesis.concurrency)
        own = plan.clusters_late if is_late else plan.clusters_median
        wanted[key] = max(wanted.get(key, 0.0), math.inf if own is None else own)
    return wanted


def _clusters_per_unit(hypothesis: Hypothesis, evidence: HypothesisEvidence, name: str, unit: str) -> float:
    own = evidence.tests.get(name)
    if own is not None and own.num_seen and evidence.num_clusters:
        return evidence.num_clusters / own.num_seen * own.state.merged_units
    requests = evidence.runs.max_block_requests or REQUESTS_PER_LOAD * hypothesis.concurrency
    return float(requests) if unit == "block" else 1.0


def _forecast(name: str, unit: str, num_units: int, units: Floats, is_required: bool, is_assumed: bool) -> TestForecast:
    return TestForecast(
        name=name,
        unit=unit,
        num_units=num_units,
        median=_quantile(units, 0.5),
        late=_quantile(units, LATE),
        passes_share=float(np.isfinite(units).mean()),
        is_required=is_required,
        is_assumed=is_assumed,
    )


def _quantile(values: Floats, share: float) -> float | None:
    """The smallest value that this share of `values` does not exceed; None for infinity."""
    value = float(np.quantile(values, share, method="inverted_cdf"))
    return value if math.isfinite(value) else None


def _close(
    hypothesis: Hypothesis, verdict: Verdict, num_clusters: int, rate: float | None, note: str, wanted: float = 0.0
) -> HypothesisPlan:
    """The plan of a hypothesis that is decided (nothing wanted), or that nothing will decide (infinity)."""
    clusters = wanted if math.isfinite(wanted) else None
    return HypothesisPlan(
        hypothesis=hypothesis,
        verdict=verdict,
        is_open=False,
        num_clusters=num_clusters,
        tests=(),
        clusters_median=clusters,
        clusters_late=clusters,
        enable_share=float(verdict is Verdict.ENABLE),
        disable_share=float(verdict is Verdict.DISABLE),
        clusters_per_s=rate,
        seconds_median=clusters,
        seconds_late=clusters,
        note=note,
    )

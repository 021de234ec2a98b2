"""The gate's output: the required tests at one look, and the decision that rests on them.

Every part that code reads is a typed field.  `shadowspec.types.decision_documents` writes and reads them as JSON.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import datetime
from enum import StrEnum

from shadowspec.types.consumed_records import StoredRecord
from shadowspec.types.measurement import Run
from shadowspec.types.requests import parse_slice_key
from shadowspec.types.serving_engines import verdict_engine, verdict_engine_text
from shadowspec.types.speculation import SpeculationConfig

Figure = float | int | str | None


class Verdict(StrEnum):
    """The gate's recommendation for one hypothesis."""

    ENABLE = "ENABLE"
    DISABLE = "DISABLE"
    HOLD = "HOLD"


@dataclass(frozen=True, slots=True)
class TestState:
    """From which unit on a test counts, and how many consecutive units it merges into one."""

    __test__ = False  # a value, not a pytest class

    start_unit: int = 0
    merged_units: int = 1


@dataclass(frozen=True, slots=True)
class Dependence:
    """How the units of a series depend on each other.

    `r1` is their autocorrelation at lag 1 (None: too few units, or no spread); `state` is the state after restarts
    (None: the series has no units to merge).  `batch_agreement` is by how many standard errors the means of batches
    show the outcome, divided by the required number: below 1 they do not (None: the outcome is open).
    """

    r1: float | None = None
    state: TestState | None = None
    batch_agreement: float | None = None


@dataclass(frozen=True, slots=True)
class BettingFigures:
    """A betting test's figures beside its bounds.

    `mean` and `observed_weight` are of the observed units, on their scale; the capitals are those against the test's
    nulls, the smaller one for passing at `TestResult.alpha` and the larger one for failing at `fail_alpha`.
    `num_missing` values count at their worst.  `is_undecidable`: the bounds lie within the indifference zone.
    `unprovable` is why no evidence can prove the limit; None where evidence can.
    """

    mean: float | None
    observed_weight: float
    log10_capital_pass: float
    log10_capital_fail: float
    fail_alpha: float
    num_missing: int = 0
    is_undecidable: bool = False
    unprovable: str | None = None


@dataclass(frozen=True, slots=True)
class TestResult:
    """One required test of a hypothesis at one look.

    `outcome` is "pass", "fail" or "open"; the bounds are simultaneous over all looks.  `unit` names the unit that
    `num_units` counts ("block", "cluster", "request" or "document"); `min_units` is the smallest number at which
    this test could pass; `units_needed` estimates how many more it needs (None: no estimate, or decided).  A test
    that is not required is shown beside those that are.  `dependence` is None unless the units are a series,
    `betting` unless it is a betting test.  `figures` are only for people: they are shown by their names, and no rule
    reads one.
    """

    __test__ = False  # a value, not a pytest class

    name: str
    outcome: str
    estimate: float | None
    lower: float | None
    upper: float | None
    threshold: float | None
    alpha: float
    unit: str
    num_units: int
    min_units: int
    units_needed: int | None = None
    is_required: bool = True
    dependence: Dependence | None = None
    betting: BettingFigures | None = None
    figures: Mapping[str, Figure] = field(default_factory=dict)

    @property
    def state(self) -> TestState | None:
        """From where on it counts; None where its units cannot be merged."""
        return None if self.dependence is None else self.dependence.state


@dataclass(frozen=True, slots=True)
class LevelGraph:
    """How an endpoint's alpha is shared, fixed when its first hypothesis enters.

    Half of it is for the whole endpoint, in equal parts for its `num_endpoints` pairs of load and candidate; half is
    for slices, in `num_slots` equal parts.  Without slots all of it is for the whole endpoint.  Of the slices' half the
    part `reused` is for slices that take the places of others; slots have that much less for their restarts.
    """

    alpha: float
    num_endpoints: int
    num_slots: int
    reused: float = 0.0

    @property
    def endpoint_share(self) -> float:
        """Of the whole endpoint at one load and with one candidate."""
        return self.alpha * (0.5 if self.num_slots else 1.0) / self.num_endpoints

    @property
    def slot_share(self) -> float:
        """Of a slice."""
        return 0.5 * self.alpha / self.num_slots


@dataclass(frozen=True, slots=True)
class Trial:
    """One run of a hypothesis's tests.

    `share` is the hypothesis's part of alpha at its entry, `level` the level of this run (None: the share is used up).
    Evidence counts from `start_blocks` blocks and `start_clusters` clusters of the fingerprint on, and from
    `start_lost` lost records of the slice.  `supersedes` is the fingerprint whose verdict ended with the run before
    (None: the first run, or a restart after an alarm).  `reopens`: it follows a DISABLE that new evidence refuted, and
    that stays in force until this run decides.  `reuse` is of a slice in the place of another that left the traffic:
    its part is the `reuse`-th that the graph has for such slices.

    `graph` is the whole of which the share is a part, from restart `num_before` on: a slice that had its endpoint's
    part gets a slot when another slice appears.  `in_slot`: it is a slice's part.  `has_passed`: the first run with
    this part ended in ENABLE, and the level of that run has gone to the slices that are left.
    """

    share: float
    level: float | None
    graph: LevelGraph
    num_restarts: int = 0
    start_blocks: int = 0
    start_clusters: int = 0
    start_lost: int = 0
    supersedes: str | None = None
    num_before: int = 0
    in_slot: bool = False
    has_passed: bool = False
    reopens: bool = False
    reuse: int = 0


@dataclass(frozen=True, slots=True)
class CachedPrompts:
    """Prompt tokens of requests, and how many of them production and the two arms found in their prefix caches.

    Only of measured requests of which all three say so.
    """

    num_requests: int = 0
    num_prompt_tokens: int = 0
    production_cached_tokens: int = 0
    baseline_cached_tokens: int = 0
    speculative_cached_tokens: int = 0

    @classmethod
    def of(cls, record: StoredRecord, run: Run) -> CachedPrompts | None:
        """That of one request; None where production or an arm does not say."""
        pair = None if run.served is None else run.served.cached_tokens
        if record.num_cached_tokens is None or pair is None or run.counts is None:
            return None
        num_tokens = run.counts.num_prompt_tokens
        return cls(1, num_tokens, min(record.num_cached_tokens, num_tokens), *pair)

    def __add__(self, other: CachedPrompts) -> CachedPrompts:
        return CachedPrompts(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))


@dataclass(frozen=True, slots=True)
class SliceCounts:
    """Counts of a slice, for any load, config and run; only `num_lost` is of a run, and prompts are of a fingerprint.

    `num_lost` are the records since the run began that failed or were shed without a measured request.  Of the
    clusters in evidence, measured or not: `num_closed_clusters`, and their records, `num_members`.  `num_late` records
    came too late for their cluster; `num_left_out` of them belonged to it and came out of order.  `num_dominant_keys`
    are cut for dominating.  `num_arrived` are all usable requests; `num_beyond` of these come later in their session
    than any request that is timed.  Production's server counted `num_compared_prompts` of the measured prompts that
    were rendered here, and found another length of `num_other_prompts`; `cached` is of those of which it says how much
    it found in its cache.  `recent_share` is the slice's share of its endpoint's requests of the last week, by which it
    enters (None: unknown).  Of the endpoint, retention had removed `num_removed_runs` when its evidence began with the
    rows that were left.
    """

    num_closed_clusters: int = 0
    num_lost: int = 0
    num_members: int = 0
    num_late: int = 0
    num_left_out: int = 0
    num_dominant_keys: int = 0
    num_arrived: int = 0
    num_beyond: int = 0
    num_compared_prompts: int = 0
    num_other_prompts: int = 0
    cached: CachedPrompts = CachedPrompts()
    recent_share: float | None = None
    num_removed_runs: int = 0


@dataclass(frozen=True, slots=True)
class EvidenceSummary:
    """The evidence of a decision, in numbers.

    The run's requests (`num_failed` of them failed), and the counts of the slice.  `num_capped_clusters` came after
    `max_clusters`; `num_late_blocks` came after their window had entered, and count in no test.  `num_days` are the UTC
    days on which measured clusters began.  `late_share` is the larger share of records that their cluster left out, or
    of late blocks; `missing_share` and `late_share` are None without records.  `span_s` lies between the first and the
    last measured cluster; `newest_evidence` is the time of the last.  `newest_record` is the watermark, which
    `watermark_held_by` holds back (None: nothing does).
    """

    num_requests: int = 0
    num_failed: int = 0
    counts: SliceCounts = field(default_factory=SliceCounts)
    num_capped_clusters: int = 0
    num_late_blocks: int = 0
    num_days: int = 0
    missing_share: float | None = None
    late_share: float | None = None
    span_s: float = 0.0
    newest_evidence: datetime | None = None
    newest_record: datetime | None = None
    watermark_held_by: str | None = None


@dataclass(frozen=True, slots=True)
class WatchedMean:
    """A mean that a drift detector holds to `promise`, on the scale of the unit values; `best` is their best end."""

    promise: float
    best: float


@dataclass(frozen=True, slots=True)
class ProvenBounds:
    """A required test's bounds as shown at the look that gave ENABLE (None: not found); they hold for all limits."""

    lower: float | None
    upper: float | None


@dataclass(frozen=True, slots=True)
class Watch:
    """What a verdict rests on: the promises by detector, and the run's blocks and clusters before they are watched.

    The rest is of an ENABLE: `proven` has the bounds of each required test at that look, `reason` its sentence.  They
    stay where the policy changes; the promises are those of the limits under which ENABLE was last in force.
    """

    num_blocks: int
    num_clusters: int
    promises: Mapping[str, WatchedMean]
    proven: Mapping[str, ProvenBounds] = field(default_factory=dict)
    reason: str = ""
    noise_share: float = 0.0  # of requests, that noise alone slowed; the promise of the tail's detector is beside it


@dataclass(frozen=True, slots=True)
class DetectorFigures:
    """Units that a drift detector has folded, and the highest that its statistic has been (None of no units)."""

    num_units: int
    log10: float | None


@dataclass(frozen=True, slots=True)
class DriftFigures:
    """How near the drift detectors are to their alarm, at `threshold_log10`, by detector.

    `advice` names the tests whose advisory detectors have alarmed; None: none has.
    """

    threshold_log10: float | None
    advice: str | None = None
    detectors: Mapping[str, DetectorFigures] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Supersession:
    """The fingerprint that replaced a decision's, and the verdict that went out of force with it."""

    by: str
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class WeightedBounds:
    """Bounds of an endpoint's mean under its current shares; `known_share` of the weight has bounds."""

    lower: float
    upper: float
    known_share: float


@dataclass(frozen=True, slots=True)
class SliceState:
    """A slice up to a look: all of its closed clusters, and the sums of its measured units."""

    num_closed: float
    num_measured: float  # clusters
    speedup_total: float  # of clipped log speedups
    speedup_weight: float
    acceptance_total: float
    acceptance_weight: float


@dataclass(frozen=True, slots=True)
class RateChange:
    """How a mean of the endpoint has changed: by the traffic's mix, and within its slices; `text` says it."""

    mix_part: float
    within_part: float
    text: str


@dataclass(frozen=True, slots=True)
class MixChange:
    """Whether the traffic comes from other slices than at ENABLE, and how the means have changed, by name."""

    log10_evidence: float
    has_shifted: bool
    rates: Mapping[str, RateChange] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SliceCover:
    """A slice beside its endpoint: its share of the current traffic (None: not known), and the verdict on it.

    A slice without a level is shown under its endpoint, whose verdict then covers it.
    """

    traffic_share: float | None
    is_shown_under_parent: bool
    covering_verdict: Verdict | None


@dataclass(frozen=True, slots=True)
class Composition:
    """The findings across all decisions of a look, for one of them.

    `is_named`: of all configs that are enabled here, this one has the best lower bound.  `cover` is of a slice, the
    rest of the whole endpoint: `bounds` by test, as they are shown; the slices at its ENABLE; the changes since.
    """

    is_named: bool
    cover: SliceCover | None = None
    bounds: Mapping[str, WeightedBounds] = field(default_factory=dict)
    mix_reference: Mapping[str, SliceState] | None = None
    mix_change: MixChange | None = None


@dataclass(frozen=True, slots=True)
class OverriddenVerdict:
    """The override over a decision (`expires_at` None: until it is cleared), and the measured verdict under it."""

    override_id: int
    expires_at: datetime | None
    verdict: Verdict
    reason: str


@dataclass(frozen=True, slots=True)
class Reservations:
    """A report's reasons not to act on a verdict: a load that is no longer configured, and the slices for which DISABLE
    is in force (None: not checked).
    """

    is_load_configured: bool = True
    forbidden_by: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class Decision:
    """The gate's decision on one hypothesis (endpoint x slice x load x speculation config) at one look.

    An empty `slice_key` is the whole endpoint.  `reason` is a sentence for people; `reason_code` a stable
    short code ("all_tests_pass", "slowdown", "too_few_units", "no_level_left", "missing_data", ...).
    `decision_id` is the store's number for it, None until it has been appended.

    `engine` is the engine on which its latency was measured, by name and version ("unknown" where not stored),
    `serving_engine` the endpoint's (None where the configuration named none).  `recording_only`: a trial policy decided
    it, so that it speaks of its recording and promotes nothing.  `run` is None where the hypothesis has no level, and
    `frozen_parameters` of the policy with it.  `watch` and `drift` are of a verdict that is watched, and of the alarm
    that ends it; `ends_run`: the next look begins a run.  `override` and `reservations` are never stored: they are of
    decisions with the operator's overrides applied, and of those in a report.
    """

    endpoint: str
    slice_key: str
    concurrency: int
    config: SpeculationConfig
    fingerprint: str
    verdict: Verdict
    reason_code: str
    reason: str
    tests: tuple[TestResult, ...]
    num_clusters: int
    num_blocks: int
    clusters_needed: int | None
    decided_at: datetime
    decision_id: int | None = field(default=None, compare=False)
    engine: str = "unknown"
    serving_engine: str | None = None
    run: Trial | None = None
    frozen_parameters: Mapping[str, Figure] | None = None
    evidence: EvidenceSummary = field(default_factory=EvidenceSummary)
    verdict_since: datetime | None = None  # None: not kept
    watch: Watch | None = None
    drift: DriftFigures | None = None
    ends_run: bool = False
    supersession: Supersession | None = None
    composition: Composition | None = None
    recording_only: bool = False
    override: OverriddenVerdict | None = None
    reservations: Reservations | None = None

    @property
    def slice_labels(self) -> dict[str, str]:
        return parse_slice_key(self.slice_key)

    def find_test(self, name: str) -> TestResult | None:
        """Its test of this name; None where it has none."""
        return next((test for test in self.tests if test.name == name), None)

    @property
    def level(self) -> float | None:
        """Level of its run; None where it has none."""
        return None if self.run is None else self.run.level

    @property
    def since(self) -> datetime:
        """Since when the verdict is in force; where that was not stored, when it was decided."""
        return self.verdict_since or self.decided_at

    @property
    def verdict_engine(self) -> str:
        """The engine that the verdict is for."""
        return verdict_engine(self.serving_engine, self.engine)

    @property
    def verdict_engine_text(self) -> str:
        """The same, with the remark that no engine is named."""
        return verdict_engine_text(self.serving_engine, self.engine)

    @property
    def traffic_share(self) -> float | None:
        """A slice's share of the current traffic; None where the gate did not write it, and of a whole endpoint."""
        cover = None if self.composition is None else self.composition.cover
        return None if cover is None else cover.traffic_share

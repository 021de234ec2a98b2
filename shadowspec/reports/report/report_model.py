"""The values of a gating report: what was measured and decided, with no trace of how it is drawn.

Every figure says over what it was taken.  Acceptance figures are POOLED: counts are added up over requests
(weighted by the inverse of each session's sampling rate where rates differ), then one ratio is formed.
Undefined is None; the text beside it says why.  No value here holds prompt text.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from operator import attrgetter

from shadowspec.gate.verdict.curves import SequencePoint
from shadowspec.gate.verdict.reasons import overridden
from shadowspec.planning.demand import EndpointLoads
from shadowspec.reports.content.definitions import find_test
from shadowspec.reports.figures.by_turn import ProductionCache, TurnRow
from shadowspec.reports.figures.chats import PartRow, StreamFigures
from shadowspec.reports.figures.failure_rows import Failures
from shadowspec.reports.figures.frontiers import SliceFrontier
from shadowspec.reports.figures.funnel import CacheRow, Funnel, PromptRow, cache_rows, prompt_rows
from shadowspec.reports.figures.predictions import Prediction
from shadowspec.reports.figures.replay_rows import AuditRow, ReplayRow
from shadowspec.reports.figures.tally import ContextRow, SpeedupBin
from shadowspec.text import distinct_slices
from shadowspec.types import Arm, Decision, FingerprintedConfig, Override, SpeculationCounts, TestResult, Verdict


@dataclass(frozen=True, slots=True)
class Acceptance:
    """Acceptance pooled over requests.  `counts` is the plain sum; rates are formed by `shadowspec.metrics`."""

    num_requests: int
    counts: SpeculationCounts
    is_weighted: bool  # sampling rates differ, so the rates below weigh requests by 1 / rate
    draft_acceptance_rate: float | None
    first_position_acceptance_rate: float | None
    mean_acceptance_length: float | None
    tokens_per_target_pass: float | None  # prefill and plain steps counted in
    mean_of_requests_acceptance_length: float | None  # mean of the requests' own ratios: another figure
    marginal_acceptance_rates: tuple[float | None, ...]
    conditional_acceptance_rates: tuple[float | None, ...]
    histogram_shares: tuple[float | None, ...]  # share of steps that accepted exactly j
    target_passes_saved: int


@dataclass(frozen=True, slots=True)
class OrderStatistic:
    """An exact order statistic; `value` is None below `needs` observations."""

    probability: float
    value: float | None
    needs: int


@dataclass(frozen=True, slots=True)
class Distribution:
    """One latency measure of one arm over requests, milliseconds.  `ecdf` is (value, share at or below)."""

    measure: str  # "end_to_end_ms", "ttft_ms", "tpot_ms", "longest_gap_ms", "queue_ms"
    arm: Arm
    num_requests: int
    mean: float | None
    quantiles: tuple[OrderStatistic, ...]
    ecdf: tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True)
class Latency:
    """Both arms' latency over the same requests.  Queue time is a part of TTFT."""

    num_requests: int
    distributions: tuple[Distribution, ...]
    ratio_of_total_times: float | None  # pooled: total baseline over total speculative end-to-end time
    speedup_quantiles: tuple[OrderStatistic, ...]  # of the requests' own speedups
    speedup_histogram: tuple[SpeedupBin, ...]
    draft_share: float | None  # of the speculative arm's decode time, pooled
    verify_share: float | None
    other_share: float | None
    baseline_concurrency: float | None  # realised: mean over requests of those in progress beside each, itself included
    speculative_concurrency: float | None


@dataclass(frozen=True, slots=True)
class ParityFigures:
    """How far the speculative output was the target's own."""

    num_greedy: int  # greedy requests whose two outputs were compared
    num_diverged: int
    num_near_ties: int | None  # diverged at a top-2 gap at or below the limit; None: no limit known
    num_faults: int | None
    num_unknown_gaps: int  # diverged, but the gap was not measured: neither near-tie nor fault
    num_rerun_differs: int  # diverged, and the baseline differs from itself at another batch shape
    largest_gap: float | None  # top-2 logit gap at a first divergence
    near_tie_logit: float | None
    num_sampled: int
    z: float | None  # pooled mean of 1[y = argmax] - target(argmax) per token
    z_tokens: int
    baseline_z: float | None  # the same of the baseline: the noise floor
    baseline_z_tokens: int


@dataclass(frozen=True, slots=True)
class MemoryFigures:
    """Largest peaks over blocks, bytes, and what the draft displaces."""

    num_blocks: int
    baseline_peak_bytes: int
    speculative_peak_bytes: int
    extra_peak_bytes: int  # largest difference on one block
    displaced_kv_tokens: int  # largest over blocks
    displaced_requests: float | None  # of the block's mean length; largest over blocks
    draft_weight_bytes: int
    kv_bytes_per_token: int
    draft_kv_bytes_per_token: int


@dataclass(frozen=True, slots=True)
class KvCacheFigures:
    """What two servers' KV caches hold, of the block on which they differ the most; requests are of full length."""

    num_blocks: int
    baseline_tokens: int
    speculative_tokens: int
    displaced_tokens: int
    displaced_share: float | None  # of the baseline's
    baseline_requests: float | None
    speculative_requests: float | None
    source: str  # the engine that said so


@dataclass(frozen=True, slots=True)
class ReportedHypothesis:
    """Endpoint x slice x load x speculation config, with its decision and what was measured for it.

    `slice_key` "" is the whole endpoint, whose figures pool its slices' requests.  `decision` is the one in force: an
    `override` in force has changed its verdict and reason; it is None where the gate has not spoken yet.  A figure
    is None where nothing was measured.
    """

    endpoint: str
    slice_key: str
    concurrency: int
    fingerprint: str
    config_name: str
    engine: str  # what its latency was measured on; "unknown" where that was not kept
    decision: Decision | None
    override: Override | None
    speedup: TestResult | None
    acceptance_interval: TestResult | None
    num_requests: int  # runs, failed ones included
    num_failed: int
    num_blocks: int
    num_short_blocks: int  # blocks that ran with fewer own requests, or conversations, than places
    acceptance: Acceptance | None
    latency: Latency | None
    parity: ParityFigures | None
    memory: MemoryFigures | None  # in process
    kv_cache: KvCacheFigures | None  # through servers
    num_repetition_loops: int
    repetition_loop_share: float | None
    by_context: tuple[ContextRow, ...]
    by_turn: tuple[TurnRow, ...]  # prefix caches; () where nothing is known, or nothing was cached
    streams: StreamFigures | None  # of chats through servers
    by_part: tuple[PartRow, ...]  # reasoning and answer; () where none came apart
    failures: Failures
    sequences: Mapping[str, tuple[SequencePoint, ...]]  # by test name

    @property
    def verdict(self) -> Verdict | None:
        """The verdict in force; None where neither the gate nor an operator has spoken."""
        if self.override is not None:
            return self.override.verdict
        return self.decision.verdict if self.decision else None

    @property
    def reason(self) -> str:
        """Its reason, in a sentence."""
        if self.decision is not None:
            return self.decision.reason
        return overridden(self.override) if self.override else "measured, but the gate has not judged it yet"

    def test(self, name: str) -> TestResult | None:
        """The decision's test of that name, or None."""
        return find_test(self.decision, name)


@dataclass(frozen=True, slots=True)
class EndpointReport:
    """One endpoint: its own hypotheses first (one per load and config), then its slices'.

    `overrides` are those in force on any part of it, whether anything was measured there or not.  `loads` is None where
    no load was judged.
    """

    name: str
    hypotheses: tuple[ReportedHypothesis, ...]
    overrides: tuple[Override, ...]
    first_event: datetime | None
    last_event: datetime | None
    first_measured: datetime | None
    last_measured: datetime | None
    policy: Mapping[str, bool | float | int | str | None]
    predictions: tuple[Prediction, ...]  # of the slices' cells
    frontiers: tuple[SliceFrontier, ...]
    price_per_hour: float | None  # of the device
    production_cache: ProductionCache | None  # None: no production answer says what was cached
    loads: EndpointLoads | None
    replays: tuple[ReplayRow, ...] = ()  # what logged responses say; in no test
    audits: tuple[AuditRow, ...] = ()  # of loop against replay

    @property
    def shown(self) -> list[ReportedHypothesis]:
        """The hypotheses for readers.  An only slice is left out, unless an order makes it differ."""
        return distinct_slices(
            self.hypotheses, attrgetter("slice_key"), lambda hypothesis: hypothesis.override is not None
        )


@dataclass(frozen=True, slots=True)
class Report:
    """The whole gating report at one moment."""

    title: str
    data_note: str  # what the data is and is not, in a sentence
    generated_at: datetime
    endpoints: tuple[EndpointReport, ...]
    funnels: tuple[Funnel, ...]
    total_funnel: Funnel
    configs: tuple[FingerprintedConfig, ...]

    @property
    def hypotheses(self) -> tuple[ReportedHypothesis, ...]:
        """Those for readers."""
        return tuple(hypothesis for endpoint in self.endpoints for hypothesis in endpoint.shown)

    @property
    def prompts(self) -> tuple[PromptRow, ...]:
        """How many prompts production's server counts otherwise, by endpoint and config."""
        decided = (shown.decision for endpoint in self.endpoints for shown in endpoint.hypotheses)
        return prompt_rows(decision for decision in decided if decision is not None)

    @property
    def caches(self) -> tuple[CacheRow, ...]:
        """What production and the servers found in prefix caches, by endpoint and config."""
        decided = (shown.decision for endpoint in self.endpoints for shown in endpoint.hypotheses)
        return cache_rows(decision for decision in decided if decision is not None)

    @property
    def last_measured(self) -> datetime | None:
        """When the newest block ran."""
        return max((e.last_measured for e in self.endpoints if e.last_measured), default=None)

    @property
    def newest_evidence(self) -> datetime | None:
        """When the newest traffic of any decision happened, whenever it was measured."""
        decisions = [hypothesis.decision for hypothesis in self.hypotheses if hypothesis.decision is not None]
        return max(
            (decision.evidence.newest_evidence for decision in decisions if decision.evidence.newest_evidence),
            default=None,
        )

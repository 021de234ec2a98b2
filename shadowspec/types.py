"""The values that travel between packages: frozen, typed, free of I/O.

Counts are stored, ratios are formed in `shadowspec.metrics` alone.  Names are the serving field's own
(vLLM's where it has one).  Prompt text never enters a value of this module: a prompt is its token ids, and
those are kept out of every repr.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum


class VerifyRule(StrEnum):
    """How a drafted token is accepted; every rule leaves the target's distribution unchanged."""

    REJECTION = "rejection"
    GREEDY_DRAFT = "greedy_draft"
    EXACT_MATCH = "exact_match"
    GREEDY = "greedy"


class Arm(StrEnum):
    """The two ways each prompt is run."""

    BASELINE = "baseline"
    SPECULATIVE = "speculative"


class Verdict(StrEnum):
    """What the gate recommends for one hypothesis."""

    ENABLE = "ENABLE"
    DISABLE = "DISABLE"
    HOLD = "HOLD"


class FunnelCounter(StrEnum):
    """Where a consumed record ended.  Every record ends in exactly one."""

    MEASURED = "measured"
    FAILED = "failed"
    SAMPLED_OUT = "sampled_out"
    SHED = "shed"
    UNSUPPORTED = "unsupported"
    MALFORMED = "malformed"
    DUPLICATE = "duplicate"
    EXPIRED = "expired"


class SamplingRegime(StrEnum):
    """Coarse sampling regime of a request: temperature 0, up to 0.5, above."""

    GREEDY = "greedy"
    LOW = "low"
    HIGH = "high"


@dataclass(frozen=True, slots=True)
class SamplingParameters:
    """How the production engine sampled; the field's own parameters with the field's own neutral values."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0  # 0: off
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    max_tokens: int = 256
    min_tokens: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    seed: int | None = None

    @property
    def regime(self) -> SamplingRegime:
        if self.temperature == 0.0:
            return SamplingRegime.GREEDY
        return SamplingRegime.LOW if self.temperature <= 0.5 else SamplingRegime.HIGH


@dataclass(frozen=True, slots=True, order=True)
class RecordKey:
    """Identity of one consumed record: topic id or file sha256, partition, offset or line, own timestamp.

    `offset` of a file is the 1-based line; `partition` is 0; `timestamp_ms` is the record's own (0 if none).
    """

    source: str
    partition: int
    offset: int
    timestamp_ms: int = 0

    def __str__(self) -> str:
        return f"{self.source}[{self.partition}]@{self.offset}/{self.timestamp_ms}"


@dataclass(frozen=True, slots=True)
class LoggedResponse:
    """What production answered, where the record holds it."""

    token_ids: tuple[int, ...] | None = field(default=None, repr=False)
    token_logprobs: tuple[float, ...] | None = field(default=None, repr=False)
    finish_reason: str | None = None
    num_output_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class ShadowPrompt:
    """One request to measure.  Hashes are HMAC-SHA256 hex; `labels` holds every slice label by name."""

    key: RecordKey
    endpoint: str
    event_time: datetime  # aware, UTC
    labels: Mapping[str, str]  # prompt_class, sampling_regime, context_bucket and the user's own
    prompt_token_ids: tuple[int, ...] = field(repr=False)
    sampling: SamplingParameters
    session_hash: str | None = None
    user_hash: str | None = None
    request_id_hash: str | None = None
    response: LoggedResponse | None = None


@dataclass(frozen=True, slots=True)
class SpeculationConfig:
    """A target with a way of drafting for it; its fingerprint identifies every figure measured with it."""

    name: str  # the operator's name for it, unique within the endpoint
    target: str  # path or id
    draft: str | None  # None: the proposer needs no model
    proposer: str  # "draft_model" | "ngram"
    num_speculative_tokens: int
    verify_rule: VerifyRule  # rule for sampled requests; a greedy request is always verified by `greedy`
    backend: str = "torch"
    ngram_min: int = 2  # shortest suffix looked up by the n-gram proposer
    ngram_max: int = 4


@dataclass(frozen=True, slots=True)
class FingerprintedConfig:
    """A speculation config with everything else that its figures depend on (revisions, tokenizer, engine)."""

    config: SpeculationConfig
    engine: str  # name and version of the engine that measures, e.g. "shadowspec-torch/0.1.0 torch/2.13.0"
    device: str
    dtype: str
    details: Mapping[str, str]  # weights and tokenizer digests, chat-template digest
    fingerprint: str  # sha256 hex of all of the above


@dataclass(frozen=True, slots=True)
class Block:
    """Requests that go through both arms together, at one load.  `fillers` are untimed copies."""

    block_id: str  # hash of endpoint, slice, load and its own requests' keys: the same on every pass over the input
    sequence: int  # start order within the endpoint and input
    endpoint: str
    slice_key: str
    concurrency: int  # the load b; also n_max here
    requests: tuple[ShadowPrompt, ...]  # 1..n_max, each an independent session
    fillers: tuple[ShadowPrompt, ...]
    first_arm: Arm

    @property
    def n_max(self) -> int:
        return self.concurrency


@dataclass(frozen=True, slots=True)
class SpeculationCounts:
    """Counters of one speculative run, after the cut at the last emitted token.

    With K = num_speculative_tokens: `num_accepted_tokens_per_pos` has K entries and
    `acceptance_histogram` K + 1 (index j: steps that accepted exactly j).
    Identity: num_output_tokens = 1 + num_drafts + num_plain_steps + num_accepted_tokens - num_cut_steps.
    """

    num_drafts: int
    num_draft_tokens: int
    num_accepted_tokens: int
    num_accepted_tokens_per_pos: tuple[int, ...]
    acceptance_histogram: tuple[int, ...]
    num_output_tokens: int
    num_prompt_tokens: int
    num_plain_steps: int = 0
    num_cut_steps: int = 0
    num_cut_draft_tokens: int = 0
    num_cut_accepted_tokens: int = 0

    @property
    def target_passes(self) -> int:
        return 1 + self.num_drafts + self.num_plain_steps


@dataclass(frozen=True, slots=True)
class ArmTiming:
    """Latency of one request in one arm, milliseconds.  Queue time is the shadow's own and never judged."""

    queue_ms: float
    prefill_ms: float  # time to first token, without queue
    decode_ms: float
    draft_ms: float = 0.0  # wall time of drafting while this request was active, as are the next two
    verify_ms: float = 0.0  # the target's pass, with the accept test
    other_ms: float = 0.0
    num_output_tokens: int = 0

    @property
    def end_to_end_ms(self) -> float:
        """Prefill and decode of this arm; what a verdict judges."""
        return self.prefill_ms + self.decode_ms


@dataclass(frozen=True, slots=True)
class Parity:
    """Whether the speculative output is the target's own.

    Greedy requests: `first_divergence` is the output position at which the arms differ (None: equal),
    `divergence_gap` the target's top-2 logit gap there, `rerun_differs` whether the baseline at another
    batch shape differs from itself (only measured where the arms differ).
    Sampled requests: sums over emitted tokens of 1[y = argmax] - target(argmax), teacher-forced.
    """

    first_divergence: int | None = None
    divergence_gap: float | None = None
    rerun_differs: bool | None = None
    z_sum: float | None = None
    z_tokens: int | None = None
    baseline_z_sum: float | None = None
    baseline_z_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Run:
    """One request measured with one speculation config beside its baseline.

    A failed run has `failure` set (a short code such as "out_of_memory") and no counts or timings.
    """

    key: RecordKey
    fingerprint: str
    block_id: str
    failure: str | None = None
    counts: SpeculationCounts | None = None
    baseline: ArmTiming | None = None
    speculative: ArmTiming | None = None
    parity: Parity | None = None
    is_repetition_loop: bool = False
    finish_reason: str | None = None


@dataclass(frozen=True, slots=True)
class Memory:
    """Peak bytes of both arms on one block, and the draft's cost expressed in the target's KV-cache tokens."""

    baseline_peak_bytes: int
    speculative_peak_bytes: int
    kv_bytes_per_token: int  # the target's
    draft_weight_bytes: int
    draft_kv_bytes_per_token: int
    source: str = "accounted"  # "cuda_peak": the allocator's peak; "accounted": weights and caches added up

    @property
    def displaced_kv_tokens(self) -> int:
        """KV-cache tokens of the target that the speculative arm's extra memory would have held."""
        extra = max(0, self.speculative_peak_bytes - self.baseline_peak_bytes)
        return extra // self.kv_bytes_per_token if self.kv_bytes_per_token else 0


@dataclass(frozen=True, slots=True)
class BlockResult:
    """All runs of a block: one per own request and candidate config, with the memory of each candidate."""

    block: Block
    started_at: datetime
    runs: tuple[Run, ...]
    memory: Mapping[str, Memory]  # by fingerprint


@dataclass(frozen=True, slots=True)
class StoredRecord:
    """What is kept of one consumed record: its key, where it ended, and what units are made of.

    A record that could not be read has no endpoint, slice or event time.  `session_position` counts the
    usable requests of the session at this endpoint in the order of delivery, from 1.
    """

    key: RecordKey
    counter: FunnelCounter
    reason: str | None = None  # short code, e.g. "not_timed", "image_content"; never prompt text
    endpoint: str | None = None
    slice_key: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    event_time: datetime | None = None  # aware, UTC
    session_hash: str | None = None
    user_hash: str | None = None
    session_position: int | None = None
    sampling_rate: float | None = None  # inclusion probability of its session
    num_prompt_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class StoredBlock:
    """A measured block; `sequence` is its start order within the endpoint."""

    block_id: str
    sequence: int
    endpoint: str
    slice_key: str
    concurrency: int
    n_max: int
    first_arm: Arm
    started_at: datetime
    memory: Mapping[str, Memory]  # by fingerprint


@dataclass(frozen=True, slots=True)
class TestResult:
    """One required test of a hypothesis at one look.

    `outcome` is "pass", "fail" or "open"; the bounds are simultaneous over all looks.  `unit` says what
    `num_units` counts ("block", "cluster" or "request"); `min_units` is the smallest number at which this
    test could pass; `units_needed` estimates how many more it takes (None: cannot be said, or decided).
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
    details: Mapping[str, float | int | str | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Decision:
    """The gate's word on one hypothesis (endpoint x slice x load x speculation config) at one look.

    An empty `slice_key` is the whole endpoint.  `reason` is a sentence for people; `reason_code` a stable
    short code ("all_tests_pass", "slowdown", "too_few_units", "no_level_left", "missing_data", ...).
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
    details: Mapping[str, float | int | str | None] = field(default_factory=dict)

    @property
    def slice_labels(self) -> dict[str, str]:
        return parse_slice_key(self.slice_key)


def format_slice_key(labels: Mapping[str, str], slice_by: tuple[str, ...]) -> str:
    """The canonical name of a slice: `label=value` joined by commas in the order of `slice_by`."""
    return ",".join(f"{name}={labels.get(name, 'unknown')}" for name in slice_by)


def parse_slice_key(slice_key: str) -> dict[str, str]:
    """The labels of a canonical slice name; {} for the whole endpoint."""
    return dict(part.split("=", 1) for part in slice_key.split(",")) if slice_key else {}

"""The sections of the configuration file as pydantic models: which keys there are and what each may hold."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, Self

from pydantic import Field, model_validator

from shadowspec.config.base import Name, Positive, Section, Text
from shadowspec.config.schedule_sections import ScheduleSection
from shadowspec.scoring import CONTRACT_VALID, JSON_VALID
from shadowspec.tap.endpoints import DEFAULT_SLICE_BY
from shadowspec.tap.kafka.settings import DEFAULT_DEAD_LETTER_TOPIC
from shadowspec.tap.sources import DEFAULT_MAX_RECORD_BYTES
from shadowspec.types import SUFFIX_OPTIONS, Contract

DEFAULT_DATABASE_URL: Final = "sqlite:///shadowspec.db"
BUILT_IN_LABELS: Final = ("prompt_class", "sampling_regime", "context_bucket", "tenant")
LAST_PORT: Final = 65_535
PERSONAL_METADATA: Final = ("session_id", "user", "user_id", "request_id")
LOOKUPS: Final = ("ngram", "suffix")  # proposers that look up what stands in texts: they need no draft
PROPOSER_OPTIONS: Final = {
    "draft_model": ("draft_confidence_threshold",),
    "ngram": ("ngram_min", "ngram_max"),
    "suffix": SUFFIX_OPTIONS,
}

_TOPIC = r"^[A-Za-z0-9._-]{1,249}$"
_LABEL = r"^[A-Za-z_][A-Za-z0-9_.-]{0,63}$"
_DIALECT = r"^[a-z][a-z0-9_]{0,31}$"
_URL = r"^https?://(\[[0-9a-fA-F:]+\]|[A-Za-z0-9._-]+)(:\d{1,5})?(/[A-Za-z0-9._~/-]*)?$"  # neither login nor query
_VARIABLE = r"^[A-Za-z_][A-Za-z0-9_]*$"
_SCORE = r"^(json_valid|contract_valid|[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*)$"
Topic = Annotated[str, Field(pattern=_TOPIC)]
Milliseconds = Annotated[int, Field(ge=1, lt=2**31)]


class DatabaseSection(Section):
    """[database]"""

    url: Text = DEFAULT_DATABASE_URL


class PrivacySection(Section):
    """[privacy]"""

    hash_secret_file: Text | None = None


class EngineSection(Section):
    """[engine]"""

    device: Annotated[str, Field(pattern=r"^(auto|cpu|cuda(:\d+)?)$")] = "auto"
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    passes: Literal["auto", "dynamic", "graphs"] = "dynamic"
    kernels: Literal["auto", "torch", "triton"] = "torch"
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    warmup_blocks: Annotated[int, Field(ge=0)] = 2
    audit_share: Annotated[float, Field(ge=0, le=1)] = 0.05


class KafkaSection(Section):
    """[kafka]"""

    bootstrap_servers: Annotated[list[Text], Field(min_length=1)]
    topics: Annotated[list[Topic], Field(min_length=1)]
    retry_topics: list[Topic] = []
    dead_letter_topic: Topic = DEFAULT_DEAD_LETTER_TOPIC
    group_id: Text = "shadowspec"
    group_instance_id: Annotated[str, Field(pattern=_TOPIC)] | None = None
    format: Literal["auto", "openai", "litellm", "cloudevents", "kong"] = "auto"
    session_from: Annotated[str, Field(pattern=r"^(body|key|header:.+)$")] = "body"
    endpoint_from: Annotated[str, Field(pattern=r"^(body|topic|header:.+)$")] = "body"
    auto_offset_reset: Literal["earliest", "latest"] = "earliest"
    session_timeout_ms: Milliseconds = 45_000
    heartbeat_interval_ms: Milliseconds = 3_000
    max_poll_interval_ms: Milliseconds = 300_000
    max_poll_records: Positive = 500
    connect_timeout_ms: Milliseconds = 30_000
    max_record_bytes: Positive = DEFAULT_MAX_RECORD_BYTES
    security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = "PLAINTEXT"
    sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] | None = None
    username: Text | None = None
    password_file: Text | None = None
    ssl_ca_file: Text | None = None
    ssl_certificate_file: Text | None = None
    ssl_key_file: Text | None = None


class WorkerSection(Section):
    """[worker]"""

    devices: list[Annotated[str, Field(pattern=r"^(cpu|cuda(:\d+)?)$")]] = []
    max_queued_blocks: Positive = 8
    build_timeout_s: Annotated[float, Field(gt=0)] = 1_800.0
    block_timeout_s: Annotated[float, Field(gt=0)] = 600.0
    max_attempts: Positive = 3
    overload: Literal["pause", "shed"] = "pause"
    max_unfinished_messages: Positive = 50_000
    flush_interval_s: Annotated[float, Field(gt=0)] = 1.0
    refresh_rates_s: Annotated[float, Field(gt=0)] = 30.0
    drain_timeout_s: Annotated[float, Field(ge=0)] = 60.0
    health_address: Annotated[str, Field(pattern=r"^(\[[0-9a-fA-F:]+\]|[^:/\s]+):\d{1,5}$")] = "127.0.0.1:8080"

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if len(set(self.devices)) != len(self.devices):
            raise ValueError("devices: the same one stands there twice")
        if int(self.health_address.rpartition(":")[2]) > LAST_PORT:
            raise ValueError(f"health_address: a port is at most {LAST_PORT}")
        return self


class RolesSection(Section):
    """[dashboard.roles]"""

    claim: Text = "email"
    operators: list[Text] = []
    viewers: list[Text] | None = None


class DashboardSection(Section):
    """[dashboard]"""

    host: Text = "127.0.0.1"
    port: Annotated[int, Field(ge=1, le=LAST_PORT)] = 8501
    title: Text = "ShadowSpec"
    refresh_s: Annotated[float, Field(ge=1)] = 30.0
    stale_after_s: Annotated[float, Field(gt=0)] = 86_400.0
    price_per_gpu_hour: Annotated[float, Field(gt=0)] | None = None
    currency: Annotated[str, Field(pattern=r"^[A-Z]{3}$")] = "USD"
    data_note: Text | None = None
    auth_file: Text | None = None
    override_url: Text | None = None
    local_role: Literal["viewer", "operator"] = "viewer"
    roles: RolesSection = RolesSection()


class MatchSection(Section):
    """[endpoints.NAME] match"""

    endpoint: Text | None = None
    model: Text | None = None
    path: Text | None = None


class LoadSection(Section):
    """[endpoints.NAME] loads"""

    concurrency: Positive
    share: Annotated[float, Field(gt=0)] = 1.0


class CandidateSection(Section):
    """[[endpoints.NAME.candidates]]"""

    name: Name
    proposer: Literal[
        "draft_model", "heterogeneous_draft_model", "ngram", "suffix", "medusa", "mlp_speculator", "eagle3"
    ] = "draft_model"
    draft: Text | None = None
    num_speculative_tokens: Annotated[int, Field(ge=1, le=64)]
    verify_rule: Literal["rejection", "greedy_draft", "exact_match"] | None = None
    ngram_min: Positive = 2
    ngram_max: Positive = 4
    suffix_decoding_max_tree_depth: Annotated[int, Field(ge=2, le=1_024)] = 24
    suffix_decoding_max_spec_factor: Annotated[float, Field(gt=0)] = 1.0
    suffix_decoding_min_token_prob: Annotated[float, Field(ge=0, le=1)] = 0.1
    suffix_memory_tokens: Annotated[int, Field(ge=0, lt=2**31)] = 100_000
    draft_confidence_threshold: Annotated[float, Field(ge=0, lt=1)] = 0.0

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if (self.proposer in LOOKUPS) != (self.draft is None):
            raise ValueError(f"{self.proposer} {'takes no draft' if self.draft is not None else 'needs a draft'}")
        for proposer, options in PROPOSER_OPTIONS.items():
            if proposer != self.proposer and (given := [name for name in options if name in self.model_fields_set]):
                raise ValueError(f"{given[0]} is for the proposer {proposer}")
        if self.ngram_min > self.ngram_max:
            raise ValueError("ngram_min must not exceed ngram_max")
        if int((self.suffix_decoding_max_tree_depth - 1) * self.suffix_decoding_max_spec_factor) < 1:
            raise ValueError(
                "suffix_decoding_max_spec_factor allows no drafted token even for the longest match, of "
                f"{self.suffix_decoding_max_tree_depth - 1} tokens"
            )
        if self.proposer in LOOKUPS and self.verify_rule == "rejection":
            raise ValueError(
                f"{self.proposer} proposes no probabilities: verify_rule must be greedy_draft or exact_match"
            )
        return self


class DefaultSamplingSection(Section):
    """[endpoints.NAME.default_sampling]"""

    temperature: Annotated[float, Field(ge=0)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Field(gt=0)] | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None


class ServersSection(Section):
    """[endpoints.NAME.servers]"""

    baseline_url: Annotated[str, Field(pattern=_URL)]
    speculative_url: Annotated[str, Field(pattern=_URL)]
    model: Text | None = None
    device: Text
    dtype: Literal["float32", "bfloat16", "float16"]
    api_key_variable: Annotated[str, Field(pattern=_VARIABLE)] | None = None
    ca_file: Text | None = None
    max_model_len: Positive | None = None
    connect_timeout_s: Annotated[float, Field(gt=0)] = 5.0
    first_token_timeout_s: Annotated[float, Field(gt=0)] = 60.0
    token_timeout_s: Annotated[float, Field(gt=0)] = 30.0
    total_timeout_s: Annotated[float, Field(gt=0)] = 300.0
    max_attempts: Annotated[int, Field(ge=1, le=10)] = 3
    reachable_within_s: Annotated[float, Field(ge=0)] = 60.0
    score_logprobs: Annotated[int, Field(ge=0, le=1_000_000)] = 20

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        for name, url in (("baseline_url", self.baseline_url), ("speculative_url", self.speculative_url)):
            if url.rstrip("/").endswith("/v1"):
                raise ValueError(f"{name}: is the server's root, without /v1")
        if self.baseline_url.rstrip("/") == self.speculative_url.rstrip("/"):
            raise ValueError("baseline_url and speculative_url: a server cannot be both arms")
        return self


class EndpointSection(Section):
    """[endpoints.NAME]"""

    target: Text
    served_models: Annotated[list[Text], Field(min_length=1)]
    match: MatchSection | None = None
    slice_by: Annotated[list[str], Field(min_length=1)] = list(DEFAULT_SLICE_BY)
    labels: list[Annotated[str, Field(pattern=_LABEL)]] = []
    sample_rate: Annotated[float, Field(gt=0, le=1)] = 1.0
    loads: Annotated[list[LoadSection], Field(min_length=1)] = [LoadSection(concurrency=4)]
    requests_per_slot: Annotated[int, Field(ge=1, le=64)] = 1
    max_age_s: Annotated[float, Field(gt=0)] | None = None
    max_new_tokens: Positive | None = None
    default_sampling: DefaultSamplingSection = DefaultSamplingSection()
    scores: list[Annotated[str, Field(pattern=_SCORE)]] = []
    contract: str | dict[str, str] = {}
    sql_dialect: Annotated[str, Field(pattern=_DIALECT)] | None = None
    engine: Literal["in_process", "openai"] = "in_process"
    servers: ServersSection | None = None
    candidates: Annotated[list[CandidateSection], Field(min_length=1)]
    gate: dict[str, Any] = {}

    @property
    def contracts(self) -> dict[str, str]:
        """What outputs have to be, by prompt class; under "" for every class."""
        return {"": self.contract} if isinstance(self.contract, str) else self.contract

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if taken := set(self.labels) & {*BUILT_IN_LABELS, *PERSONAL_METADATA}:
            raise ValueError(f"labels: {sorted(taken)[0]} is not the operator's to define")
        if unknown := [name for name in self.slice_by if name not in (*BUILT_IN_LABELS, *self.labels)]:
            raise ValueError(f"slice_by: {unknown[0]} is no label; add it to labels to take it from the metadata")
        _check_contract(self.contracts, self.sql_dialect)
        if (self.engine == "openai") != (self.servers is not None):
            raise ValueError('engine = "openai" and the table servers belong together')
        if self.servers is not None and len(self.candidates) != 1:
            raise ValueError("candidates: there is one speculative server, and so one candidate")
        if self.servers is not None and "draft_confidence_threshold" in self.candidates[0].model_fields_set:
            raise ValueError("candidates: draft_confidence_threshold is for the engine in this process")
        if len([name for name in self.scores if ":" in name]) > 1:
            raise ValueError("scores: one function of yours at most, beside json_valid or contract_valid")
        if {JSON_VALID, CONTRACT_VALID} <= set(self.scores):
            raise ValueError("scores: json_valid or contract_valid: both give the same figure")
        for what, names in (
            ("slice_by", self.slice_by),
            ("candidates", [candidate.name for candidate in self.candidates]),
            ("loads", [load.concurrency for load in self.loads]),
            ("scores", self.scores),
        ):
            if len(set(names)) != len(names):
                raise ValueError(f"{what}: the same one stands there twice")
        return self


def _check_contract(contracts: dict[str, str], dialect: str | None) -> None:
    if unknown := [kind for kind in contracts.values() if kind not in tuple(Contract)]:
        raise ValueError(f"contract: {unknown[0]!r} is none; there are {', '.join(Contract)}")
    if contracts and set(contracts) != {""}:
        from shadowspec.slicing import PROMPT_CLASSES  # compiles the rules of every class

        if wrong := [name for name in contracts if name not in PROMPT_CLASSES]:
            raise ValueError(f"contract: {wrong[0]!r} is no class of prompts; there are {', '.join(PROMPT_CLASSES)}")
    if dialect is not None and Contract.SQL not in contracts.values():
        raise ValueError("sql_dialect: is for the contract sql")


class FileSection(Section):
    """The whole file."""

    database: DatabaseSection = DatabaseSection()
    privacy: PrivacySection = PrivacySection()
    kafka: KafkaSection | None = None
    engine: EngineSection = EngineSection()
    worker: WorkerSection = WorkerSection()
    dashboard: DashboardSection = DashboardSection()
    schedule: ScheduleSection = ScheduleSection()
    policy: Text | None = None
    gate: dict[str, Any] = {}
    endpoints: dict[Name, EndpointSection] = {}

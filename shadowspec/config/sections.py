"""The sections of the configuration file as pydantic models: which keys there are and what each may hold."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, JsonValue, model_validator

from shadowspec.config.dashboard_settings import DashboardSettings
from shadowspec.quality.custom_scores import CONTRACT_VALID, JSON_VALID
from shadowspec.rollout.export.routes import Pools
from shadowspec.scheduler.job_settings import LiveSettings, ScheduleSettings
from shadowspec.servers.engines.rules import ENGINE_OPTIONS
from shadowspec.servers.server_settings import ServerSettings
from shadowspec.tap.endpoints import EndpointRule, Load, MatchRule
from shadowspec.tap.kafka import KafkaSettings
from shadowspec.tap.language import LANGUAGE
from shadowspec.types import OWN_SLICES, SUFFIX_OPTIONS, Contract, SpeculationConfig
from shadowspec.types.served_methods import (
    DEPTH_KEYS,
    DRAFT_KEYS,
    LOOKUPS,
    METHOD_KEYS,
    contradiction,
    exported_settings,
    setting,
    settings_text,
)
from shadowspec.types.serving_engines import parse_engines
from shadowspec.types.settings import (
    EngineSettings,
    Name,
    PathText,
    Positive,
    Seconds,
    Text,
    WorkerSettings,
    keys_of,
    require_distinct,
)
from shadowspec.types.speculation import DEPLOYMENT

DEFAULT_DATABASE_URL: Final = "sqlite:///shadowspec.db"
BUILT_IN_LABELS: Final = ("prompt_class", "sampling_regime", "context_bucket", "tenant", *OWN_SLICES, LANGUAGE)
CONTRACTS: Final = (Contract.JSON, Contract.TOOL_CALL, Contract.SQL)  # a grammar is a request's to state
PERSONAL_METADATA: Final = ("session_id", "user", "user_id", "request_id")
PROPOSER_OPTIONS: Final = {
    "draft_model": ("draft_confidence_threshold",),
    "ngram": ("ngram_min", "ngram_max", "ngram_occurrence"),
    "suffix": SUFFIX_OPTIONS,
}
IN_PROCESS_OPTIONS: Final = ("draft_confidence_threshold", *ENGINE_OPTIONS)  # a server has its own rules

_RULE: Final = keys_of(EndpointRule)  # with their defaults
_DRAFTING: Final = keys_of(SpeculationConfig)
_LABEL = r"^[A-Za-z_][A-Za-z0-9_.-]{0,63}$"
_LABEL_VALUE = r"^[A-Za-z0-9_.:/+-]{1,64}$"  # short words, of which slices' names are made
_DIALECT = r"^[a-z][a-z0-9_]{0,31}$"
_METHOD = r"^[A-Za-z][A-Za-z0-9_.,-]{0,63}$"  # a server's own name: any; llama.cpp chains names with commas
_SCORE = r"^(json_valid|contract_valid|[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*)$"


class ConfigSection(BaseModel):
    """Unknown keys are errors, and so are values of another type, in the dataclasses within as well."""

    # Strict: "4" is not 4, and 1 is not true.  Values are kept out of messages, a URL may hold a password.
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False, hide_input_in_errors=True)


class DatabaseSection(ConfigSection):
    """[database]"""

    url: Text = DEFAULT_DATABASE_URL


class PrivacySection(ConfigSection):
    """[privacy]"""

    hash_secret_file: PathText | None = None
    hash_secret_previous_file: PathText | None = None


class CandidateSection(ConfigSection):
    """[[endpoints.NAME.candidates]]"""

    name: Name
    proposer: Literal[
        "draft_model", "heterogeneous_draft_model", "ngram", "suffix", "medusa", "mlp_speculator", "eagle3"
    ] = "draft_model"
    method: Annotated[str, Field(pattern=_METHOD)] | None = Field(
        default=None, description="the speculative server's name of its method, in place of `proposer`"
    )
    draft: Text | None = None
    num_speculative_tokens: Annotated[int, Field(ge=0, le=64)]
    kind: Literal["speculation", "deployment"] = Field(
        default="speculation", description='"deployment": the second server is another deployment of the target'
    )
    exported: PathText | None = Field(
        default=None, description="file of `shadowspec export` that the speculative server runs, in place of a method"
    )
    speculative_config: dict[str, JsonValue] = Field(
        default={}, description="other settings of the speculative server's method, by its names"
    )
    verify_rule: Literal["rejection", "greedy_draft", "exact_match"] | None = None
    ngram_min: Positive = _DRAFTING["ngram_min"]
    ngram_max: Positive = _DRAFTING["ngram_max"]
    # None: as the serving engine, else as by default.
    ngram_occurrence: Literal["latest", "earliest", "latest_followed", "latest_filled"] | None = None
    suffix_decoding_max_tree_depth: Annotated[int, Field(ge=2, le=1_024)] = _DRAFTING["suffix_decoding_max_tree_depth"]
    suffix_decoding_max_spec_factor: Annotated[float, Field(gt=0)] = _DRAFTING["suffix_decoding_max_spec_factor"]
    suffix_decoding_min_token_prob: Annotated[float, Field(ge=0, le=1)] = _DRAFTING["suffix_decoding_min_token_prob"]
    suffix_memory_tokens: Annotated[int, Field(ge=0, lt=2**31)] = _DRAFTING["suffix_memory_tokens"]
    draft_confidence_threshold: Annotated[float, Field(ge=0, lt=1)] = _DRAFTING["draft_confidence_threshold"]
    draft_sampling: Literal["request", "temperature"] | None = None  # likewise
    drafts_within_limit: bool | None = None  # likewise

    @model_validator(mode="before")
    @classmethod
    def _read_export(cls, values: Any) -> Any:
        """The candidate that an exported file describes."""
        if not isinstance(values, dict) or not isinstance(path := values.get("exported"), str):
            return values
        if given := sorted(values.keys() - {"name", "exported", "verify_rule"}):
            raise ValueError(f"{given[0]}: the exported file says it; remove the key")
        try:
            settings = exported_settings(Path(path).read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            raise ValueError(f"exported: {path} cannot be read ({type(error).__name__})") from None
        except ValueError as error:
            raise ValueError(f"exported: {path}: {error}") from None
        draft = setting(settings, DRAFT_KEYS)
        return values | {
            "method": setting(settings, METHOD_KEYS),
            "num_speculative_tokens": setting(settings, DEPTH_KEYS),
            "speculative_config": settings,
            **({} if draft is None else {"draft": draft}),
        }

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.kind == DEPLOYMENT:
            allowed = {"name", "kind", "num_speculative_tokens"}
            if given := sorted(self.model_fields_set - allowed):
                raise ValueError(f"{given[0]} is not for a second deployment: its server has its settings; remove it")
            return self
        if not self.num_speculative_tokens:
            raise ValueError('num_speculative_tokens: must be at least 1; only a kind = "deployment" may draft nothing')
        if self.method == DEPLOYMENT:
            raise ValueError('method: "deployment" is a kind; write kind = "deployment"')
        if self.method is not None:
            self._check_method(self.method)
            return self
        if self.speculative_config:
            raise ValueError("speculative_config: needs a method; add the server's name for it")
        if (self.proposer in LOOKUPS) != (self.draft is None):
            raise ValueError(f"{self.proposer} {'takes no draft' if self.draft is not None else 'needs a draft'}")
        for proposer, options in PROPOSER_OPTIONS.items():
            if proposer != self.proposer and (given := [name for name in options if name in self.model_fields_set]):
                raise ValueError(f"{given[0]} is only for the proposer {proposer}; remove it")
        if self.draft_sampling is not None and self.draft is None:
            raise ValueError(f"draft_sampling is only for proposers with a draft; remove it from {self.proposer}")
        if self.ngram_min > self.ngram_max:
            raise ValueError("ngram_min must not be above ngram_max")
        if int((self.suffix_decoding_max_tree_depth - 1) * self.suffix_decoding_max_spec_factor) < 1:
            raise ValueError(
                "suffix_decoding_max_spec_factor is too small: it allows no drafted token for the longest match, of "
                f"{self.suffix_decoding_max_tree_depth - 1} tokens"
            )
        if self.proposer in LOOKUPS and self.verify_rule == "rejection":
            raise ValueError(
                f"{self.proposer} proposes no probabilities: verify_rule must be greedy_draft or exact_match"
            )
        return self

    def _check_method(self, method: str) -> None:
        """A server's method takes no options of the engine in this process."""
        if "proposer" in self.model_fields_set:
            raise ValueError("method and proposer exclude each other; a method is the server's name, a proposer ours")
        options = [name for names in PROPOSER_OPTIONS.values() for name in names]
        if given := [name for name in options if name in self.model_fields_set]:
            raise ValueError(f"{given[0]} is only for a proposer; write the server's settings into speculative_config")
        if _has_null(self.speculative_config):
            raise ValueError("speculative_config: JSON has no dates; write a string")
        try:
            settings_text(self.speculative_config)
        except ValueError:
            raise ValueError("speculative_config: numbers must be finite") from None
        if (conflict := contradiction(self.speculative_config, method, self.num_speculative_tokens)) is not None:
            raise ValueError(f"speculative_config: {conflict}")


def _has_null(value: JsonValue) -> bool:
    """Whether a null is anywhere in it: TOML has no null, so a date was there."""
    if isinstance(value, dict):
        return any(map(_has_null, value.values()))
    return value is None or (isinstance(value, list) and any(map(_has_null, value)))


class DefaultSamplingSection(ConfigSection):
    """[endpoints.NAME.default_sampling]"""

    temperature: Annotated[float, Field(ge=0)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1)] | None = Field(default=None, description="as in a request; default: off")
    min_p: Annotated[float, Field(ge=0, le=1)] | None = Field(default=None, description="as in a request; default: 0")
    repetition_penalty: Annotated[float, Field(gt=0)] | None = Field(
        default=None, description="as in a request; default: 1"
    )
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = Field(
        default=None, description="as in a request; default: 0"
    )
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = Field(
        default=None, description="as in a request; default: 0"
    )


class EndpointSection(ConfigSection):
    """[endpoints.NAME]"""

    target: Text | None = None
    served_models: Annotated[tuple[Text, ...], Field(min_length=1)]
    match: MatchRule | None = None
    slice_by: Annotated[tuple[str, ...], Field(min_length=1)] = _RULE["slice_by"]
    labels: dict[
        Annotated[str, Field(pattern=_LABEL)],
        Annotated[tuple[Annotated[str, Field(pattern=_LABEL_VALUE)], ...], Field(min_length=1)],
    ] = {}
    client_labels: bool = False
    sample_rate: Annotated[float, Field(gt=0, le=1)] = _RULE["sample_rate"]
    loads: Annotated[tuple[Load, ...], Field(min_length=1)] = _RULE["loads"]
    requests_per_slot: Annotated[int, Field(ge=1, le=64)] = _RULE["requests_per_slot"]
    max_age_s: Seconds | None = None
    max_new_tokens: Positive | None = None
    applies_generation_config: bool | None = None
    default_sampling: DefaultSamplingSection = DefaultSamplingSection()
    scores: tuple[Annotated[str, Field(pattern=_SCORE)], ...] = ()
    contract: str | dict[str, str] = {}
    sql_dialect: Annotated[str, Field(pattern=_DIALECT)] | None = None
    engine: Literal["in_process", "openai"] = "in_process"
    serving_engine: Text | None = None
    owner: Text | None = None
    servers: ServerSettings | None = None
    live: LiveSettings | None = None
    pools: Pools | None = None
    candidates: Annotated[tuple[CandidateSection, ...], Field(min_length=1)]
    gate: dict[str, Any] = Field(default={}, description="keys of the policy for this endpoint, without a policy file")

    @property
    def contracts(self) -> dict[str, str]:
        """The required form of outputs, by prompt class; under "" for every class."""
        return {"": self.contract} if isinstance(self.contract, str) else self.contract

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        # A label "language" of the operator replaces the detected one.
        if taken := set(self.labels) & ({*BUILT_IN_LABELS, *PERSONAL_METADATA} - {LANGUAGE}):
            raise ValueError(f"labels: {sorted(taken)[0]} is a built-in label or personal data; choose another name")
        if unknown := [name for name in self.slice_by if name not in (*BUILT_IN_LABELS, *self.labels)]:
            raise ValueError(f"slice_by: {unknown[0]} is not a label; add it to labels to read it from the metadata")
        _check_contract(self.contracts, self.sql_dialect)
        if self.serving_engine is not None and len(parse_engines(self.serving_engine)) != 1:
            raise ValueError("serving_engine: give one engine, such as vllm, or vllm 0.32")
        if (self.engine == "openai") != (self.servers is not None):
            raise ValueError('engine = "openai" needs the table servers, and servers need engine = "openai"; give both')
        if self.target is None and self.servers is None:
            raise ValueError('target: is missing; for example target = "models/target"')
        if self.target is None and self.servers is not None and self.servers.audit_share:
            raise ValueError("servers.audit_share: audits load the target's weights; give target, their folder")
        if self.servers is not None:
            _check_servers(self.servers, self.candidates)
        if self.servers is None and any(candidate.kind == DEPLOYMENT for candidate in self.candidates):
            raise ValueError('candidates: kind = "deployment" is only for engine = "openai"')
        if self.servers is None and (
            named := [candidate.name for candidate in self.candidates if candidate.method is not None]
        ):
            raise ValueError(f'candidates: {named[0]}: method is only for engine = "openai"; give a proposer instead')
        if len([name for name in self.scores if ":" in name]) > 1:
            raise ValueError("scores: give at most one function, beside json_valid or contract_valid")
        if {JSON_VALID, CONTRACT_VALID} <= set(self.scores):
            raise ValueError("scores: json_valid and contract_valid exclude each other; give one")
        require_distinct(
            slice_by=self.slice_by,
            candidates=[candidate.name for candidate in self.candidates],
            loads=[load.concurrency for load in self.loads],
            scores=self.scores,
        )
        return self


def _check_servers(servers: ServerSettings, candidates: Sequence[CandidateSection]) -> None:
    """Each candidate has one server, which no other one has."""
    names, served = [candidate.name for candidate in candidates], [server.candidate for server in servers.speculative]
    if servers.speculative_url is not None and len(names) > 1:
        raise ValueError(
            f"servers: speculative_url is one server, and there are {len(names)} candidates: replace it by a table "
            "[[endpoints.NAME.servers.speculative]] for each, with candidate and url"
        )
    if servers.speculative:
        if twice := [name for name in served if served.count(name) > 1]:
            raise ValueError(f"servers.speculative: candidate {twice[0]!r} has two servers; remove one")
        if lacking := [name for name in names if name not in served]:
            raise ValueError(f"servers.speculative: candidate {lacking[0]!r} has no server; add its table")
        if unknown := [name for name in served if name not in names]:
            raise ValueError(f"servers.speculative: no candidate is named {unknown[0]!r}; correct or remove its table")
    if (keys := servers.shared_root) is not None:
        raise ValueError(
            f"servers: {keys[0]} and {keys[1]} must be two servers: no server changes its drafts by request"
        )
    options = [(candidate, name) for candidate in candidates for name in IN_PROCESS_OPTIONS]
    if in_process := [name for candidate, name in options if name in candidate.model_fields_set]:
        raise ValueError(f"candidates: {in_process[0]} is only for the engine in this process; remove it")
    if len({candidate.kind for candidate in candidates}) > 1:
        raise ValueError(
            'candidates: kind = "deployment" asks another question than speculation; define another endpoint for it'
        )


def _check_contract(contracts: dict[str, str], dialect: str | None) -> None:
    if unknown := [kind for kind in contracts.values() if kind not in CONTRACTS]:
        raise ValueError(f"contract: unknown contract {unknown[0]!r}; choose {', '.join(CONTRACTS)}")
    if contracts and set(contracts) != {""}:
        from shadowspec.tap.prompt_class import PROMPT_CLASSES  # compiles the rules of every class

        if wrong := [name for name in contracts if name not in PROMPT_CLASSES]:
            raise ValueError(f"contract: unknown prompt class {wrong[0]!r}; choose {', '.join(PROMPT_CLASSES)}")
    if dialect is not None and Contract.SQL not in contracts.values():
        raise ValueError("sql_dialect: is only for the contract sql; remove it")


class FileSection(ConfigSection):
    """The whole file."""

    database: DatabaseSection = DatabaseSection()
    privacy: PrivacySection = PrivacySection()
    kafka: KafkaSettings | None = None
    engine: EngineSettings = EngineSettings()
    worker: WorkerSettings = WorkerSettings()
    dashboard: DashboardSettings = DashboardSettings()
    schedule: ScheduleSettings = ScheduleSettings()
    policy: Text | None = None
    gate: dict[str, Any] = Field(default={}, description="keys of the policy, without a policy file")
    endpoints: dict[Name, EndpointSection] = {}

"""The configuration: one TOML file, read strictly and turned into the values of the inner layers.

A key that is not known is an error, wherever it stands.  Nothing is read when this module is imported; the
environment is an argument.  Paths in the file are relative to the working directory.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Final

from pydantic import ValidationError

from shadowspec.config.dashboard import DashboardSettings, dashboard_settings
from shadowspec.config.kafka import kafka_settings
from shadowspec.config.live import LiveSettings, live_settings
from shadowspec.config.policy import (
    EndpointPolicy,
    PolicyTables,
    default_policy,
    endpoint_policy,
    inline_tables,
    read_policy_file,
    read_toml,
)
from shadowspec.config.schedule import schedule_settings
from shadowspec.config.sections import CandidateSection, EndpointSection, FileSection, ServersSection
from shadowspec.errors import ConfigError
from shadowspec.gate.policy import GatePolicy
from shadowspec.gate.rollout_policy import RolloutPolicy
from shadowspec.scheduler.settings import ScheduleSettings
from shadowspec.servers.settings import ServerSettings, Waits
from shadowspec.tap.endpoints import EndpointRule, Load, MatchRule
from shadowspec.tap.hashing import MIN_SECRET_BYTES
from shadowspec.tap.kafka import KafkaSettings
from shadowspec.types import Contract, OutputContract, SpeculationConfig, VerifyRule

CONFIG_VARIABLE: Final = "SHADOWSPEC_CONFIG"
DATABASE_VARIABLE: Final = "SHADOWSPEC_DATABASE_URL"
SECRET_VARIABLE: Final = "SHADOWSPEC_HASH_SECRET"  # noqa: S105 - the name of a variable, not its value
DEFAULT_CONFIG_NAME: Final = "shadowspec.toml"
MAKE_A_SECRET: Final = "head -c 32 /dev/urandom | base64"  # noqa: S105 - how to make one


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """How the engine runs.

    "auto": a GPU if there is one; bfloat16 on a GPU, float32 on a CPU; on a GPU CUDA graphs of the models' steps, and
    Triton's kernels where it can run them.  These two have not run on a GPU yet, and so are no defaults.
    """

    device: str = "auto"
    dtype: str = "auto"
    passes: str = "dynamic"
    kernels: str = "torch"
    seed: int = 0
    warmup_blocks: int = 2  # blocks run and thrown away before the first that counts
    audit_share: float = 0.05  # of the measured requests whose outputs are replayed after their block; 0: none


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """How `shadowspec worker` works off the mirror.  Times in seconds."""

    devices: tuple[str, ...] = ()  # an engine process on each; none: one on the engine's device
    max_queued_blocks: int = 8
    build_timeout_s: float = 1_800.0  # to load and warm up the models; an engine that takes longer is ended
    block_timeout_s: float = 600.0  # an engine that takes longer is ended, and the block's requests tried alone
    max_attempts: int = 3  # of a request that ends the engine
    overload: str = "pause"  # "pause" the partitions where the engine is behind, or "shed" requests
    max_unfinished_messages: int = 50_000  # consumed, and not measured and written yet
    flush_interval_s: float = 1.0
    refresh_rates_s: float = 30.0  # how often decisions are looked up that lower a slice's sampling rate
    drain_timeout_s: float = 60.0  # to finish what is begun, when asked to stop
    health_address: str = "127.0.0.1:8080"


@dataclass(frozen=True, slots=True)
class EndpointConfig:
    """One endpoint: what the tap, the engine and the gate each take of it."""

    rule: EndpointRule
    target: str  # path or id of the target model
    candidates: tuple[SpeculationConfig, ...]
    policy: GatePolicy
    rollout: RolloutPolicy = field(default_factory=RolloutPolicy)
    scores: tuple[str, ...] = ()  # what both arms' outputs are scored by: "json_valid", "package.module:function"
    servers: ServerSettings | None = None  # through which it is measured; None: by the engine in this process
    live: LiveSettings | None = None  # None: production is not read


@dataclass(frozen=True, slots=True)
class Config:
    """The whole configuration.  `path` is the file that it came from, `policy_path` the one with the policy."""

    path: Path
    database_url: str = field(repr=False)  # may hold a password
    hash_secret_file: Path | None
    kafka: KafkaSettings | None
    engine: EngineSettings
    worker: WorkerSettings
    dashboard: DashboardSettings
    schedule: ScheduleSettings
    policy_path: Path
    policy: GatePolicy
    rollout: RolloutPolicy
    endpoints: Mapping[str, EndpointConfig]

    @property
    def slice_by(self) -> dict[str, tuple[str, ...]]:
        """The labels that slices have, by endpoint."""
        return {name: own.rule.slice_by for name, own in self.endpoints.items()}


def find_config(explicit: Path | None, environment: Mapping[str, str] | None = None) -> Path:
    """The configuration file: the one given, else SHADOWSPEC_CONFIG, else ./shadowspec.toml.

    Raises:
        ConfigError: there is none.
    """
    environment = os.environ if environment is None else environment
    named = environment.get(CONFIG_VARIABLE)
    path = explicit or (Path(named) if named else Path(DEFAULT_CONFIG_NAME))
    if path.is_file():
        return path
    if explicit is None and not named:
        raise ConfigError(
            f"no configuration: there is no {DEFAULT_CONFIG_NAME} here; write one with `shadowspec init`, "
            f"or name one with --config or {CONFIG_VARIABLE}"
        )
    raise ConfigError(f"{path}: {'is a folder' if path.is_dir() else 'no such file'}")


def load_config(path: Path, environment: Mapping[str, str] | None = None) -> Config:
    """Read and check a configuration file.

    Raises:
        ConfigError: the file cannot be read, is not TOML (with its line), or a key is wrong (with its name).
    """
    environment = os.environ if environment is None else environment
    document = read_toml(path)
    try:
        sections = FileSection.model_validate(document)
    except ValidationError as error:
        raise ConfigError(_explained(path, error)) from None
    served = [name for name, section in sections.endpoints.items() if section.servers is not None]
    if served and len(sections.worker.devices) > 1:
        raise ConfigError(
            f"{path}: worker.devices: endpoints.{served[0]} is measured through servers, on which blocks of several "
            "devices would lie at once"
        )
    tables = _policy_tables(path, sections)
    default = default_policy(tables)
    return Config(
        path=path,
        database_url=environment.get(DATABASE_VARIABLE) or sections.database.url,
        hash_secret_file=Path(sections.privacy.hash_secret_file) if sections.privacy.hash_secret_file else None,
        kafka=None if sections.kafka is None else kafka_settings(path, sections.kafka, environment),
        engine=EngineSettings(**sections.engine.model_dump()),
        worker=WorkerSettings(**sections.worker.model_dump() | {"devices": tuple(sections.worker.devices)}),
        dashboard=dashboard_settings(sections.dashboard, environment),
        schedule=schedule_settings(path, sections.schedule),
        policy_path=tables.path,
        policy=default.gate,
        rollout=default.rollout,
        endpoints={
            name: _endpoint(name, section, endpoint_policy(tables, name))
            for name, section in sections.endpoints.items()
        },
    )


def load_hash_secret(config: Config, environment: Mapping[str, str] | None = None) -> bytes:
    """The secret under which ids are hashed: from SHADOWSPEC_HASH_SECRET, else from the configured file.

    Raises:
        ConfigError: there is none, or it is too short; the message says how to make one.
    """
    environment = os.environ if environment is None else environment
    if given := environment.get(SECRET_VARIABLE):
        secret, origin = given.encode("utf-8", "surrogateescape"), SECRET_VARIABLE
    elif config.hash_secret_file is not None:
        origin = str(config.hash_secret_file)
        try:
            secret = config.hash_secret_file.read_bytes().strip()
        except OSError as error:
            raise ConfigError(
                f"{config.path}: privacy.hash_secret_file: {origin} cannot be read ({error.strerror}); "
                f"make one with: {MAKE_A_SECRET} > {origin}"
            ) from error
    else:
        raise ConfigError(
            f"no secret to hash session ids with: set {SECRET_VARIABLE}, or privacy.hash_secret_file in "
            f"{config.path}; make one with: {MAKE_A_SECRET}"
        )
    if len(secret) < MIN_SECRET_BYTES:
        raise ConfigError(
            f"{origin}: the secret must have at least {MIN_SECRET_BYTES} bytes; make one with: {MAKE_A_SECRET}"
        )
    return secret


def _policy_tables(path: Path, sections: FileSection) -> PolicyTables:
    inline = {name: section.gate for name, section in sections.endpoints.items() if section.gate}
    if sections.policy is None:
        return inline_tables(path, sections.gate, inline)
    if sections.gate or inline:
        table = "gate" if sections.gate else f"endpoints.{min(inline)}.gate"
        raise ConfigError(
            f"{path}: {table}: the policy is in {sections.policy} (key policy); move these keys there, "
            f"to [{'default' if sections.gate else f'endpoints.{min(inline)}'}]"
        )
    policy_path = Path(sections.policy)
    if not policy_path.is_file():
        raise ConfigError(f"{path}: policy: {policy_path}: no such file")
    return read_policy_file(policy_path, list(sections.endpoints))


def _endpoint(name: str, section: EndpointSection, own: EndpointPolicy) -> EndpointConfig:
    policy = replace(own.gate, serving_engine=section.serving_engine)
    # Without a match rule an endpoint takes the records that name it.
    match = MatchRule(**section.match.model_dump()) if section.match else MatchRule(endpoint=name)
    rule = EndpointRule(
        name=name,
        served_models=tuple(section.served_models),
        match=match,
        slice_by=tuple(section.slice_by),
        labels=tuple(section.labels),
        sample_rate=section.sample_rate,
        min_rate=policy.min_rate,
        timed_positions=policy.timed_positions,
        loads=tuple(Load(load.concurrency, load.share) for load in section.loads),
        requests_per_slot=section.requests_per_slot,
        block_max_wait=timedelta(seconds=policy.block_max_wait_s),
        time_block=timedelta(seconds=policy.time_block_s),
        forget_unit_after=timedelta(seconds=policy.cluster_max_age_s + policy.cluster_reopen_after_s),
        max_age=None if section.max_age_s is None else timedelta(seconds=section.max_age_s),
        max_new_tokens=section.max_new_tokens,
        default_sampling=section.default_sampling.model_dump(exclude_none=True),
        contracts={
            name: OutputContract(Contract(kind), dialect=section.sql_dialect)
            for name, kind in section.contracts.items()
        },
    )
    backend = "torch" if section.servers is None else "openai"
    candidates = tuple(_speculation_config(section.target, candidate, backend) for candidate in section.candidates)
    return EndpointConfig(
        rule=rule,
        target=section.target,
        candidates=candidates,
        policy=policy,
        rollout=own.rollout,
        scores=tuple(section.scores),
        servers=None if section.servers is None else _servers(section.servers, section.served_models[0]),
        live=None if section.live is None else live_settings(section.live, section.served_models[0], policy),
    )


def _servers(section: ServersSection, served_model: str) -> ServerSettings:
    return ServerSettings(
        baseline_url=section.baseline_url,
        speculative_url=section.speculative_url,
        model=section.model or served_model,
        device=section.device,
        dtype=section.dtype,
        api_key_variable=section.api_key_variable,
        ca_file=Path(section.ca_file) if section.ca_file else None,
        waits=Waits(
            connect_s=section.connect_timeout_s,
            first_token_s=section.first_token_timeout_s,
            token_s=section.token_timeout_s,
            total_s=section.total_timeout_s,
        ),
        max_model_len=section.max_model_len,
        max_attempts=section.max_attempts,
        reachable_within_s=section.reachable_within_s,
        score_logprobs=section.score_logprobs,
    )


def _speculation_config(target: str, candidate: CandidateSection, backend: str) -> SpeculationConfig:
    default_rule = VerifyRule.REJECTION if candidate.proposer == "draft_model" else VerifyRule.GREEDY_DRAFT
    return SpeculationConfig(
        name=candidate.name,
        target=target,
        draft=candidate.draft,
        proposer=candidate.proposer,
        num_speculative_tokens=candidate.num_speculative_tokens,
        verify_rule=VerifyRule(candidate.verify_rule) if candidate.verify_rule else default_rule,
        backend=backend,
        ngram_min=candidate.ngram_min,
        ngram_max=candidate.ngram_max,
        suffix_decoding_max_tree_depth=candidate.suffix_decoding_max_tree_depth,
        suffix_decoding_max_spec_factor=candidate.suffix_decoding_max_spec_factor,
        suffix_decoding_min_token_prob=candidate.suffix_decoding_min_token_prob,
        suffix_memory_tokens=candidate.suffix_memory_tokens,
        draft_confidence_threshold=candidate.draft_confidence_threshold,
    )


def _explained(path: Path, error: ValidationError) -> str:
    """Every fault of the file, one line each, by the key's full name."""
    lines = []
    for fault in error.errors(include_url=False, include_context=False, include_input=False):
        key = ".".join(str(part) for part in fault["loc"] if part != "[key]")
        message = {
            "extra_forbidden": "is not a known key",
            "missing": "is missing",
            "string_pattern_mismatch": "must be one of the known values, or a name of letters, digits, _ . -",
        }.get(fault["type"], re.sub(r"^(Value error, |Input )", "", fault["msg"]))
        lines.append(f"{path}: {key}: {message}" if key else f"{path}: {message}")
    return "\n".join(lines)

"""The configuration: one TOML file, read strictly and turned into the values of the inner layers.

An unknown key is an error in every table.  Nothing is read when this module is imported; the environment is an
argument.  Paths in the file are relative to the working directory.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from shadowspec.config.dashboard_settings import OVERRIDE_VARIABLE, DashboardSettings
from shadowspec.config.policy_file import (
    EndpointPolicy,
    PolicyTables,
    default_policy,
    endpoint_policy,
    inline_tables,
    read_policy_file,
    read_toml,
)
from shadowspec.config.sections import CandidateSection, EndpointSection, FileSection
from shadowspec.config.served_sampling import ServedSampling, served_sampling
from shadowspec.config.template import suggest_key
from shadowspec.errors import ConfigError, ModelError
from shadowspec.gate.policy import GatePolicy
from shadowspec.rollout.check.answer import EndpointTerms
from shadowspec.rollout.export.routes import Pools
from shadowspec.rollout.rollout_policy import RolloutPolicy
from shadowspec.scheduler.job_settings import RECEIVERS, LiveSettings, ScheduleSettings
from shadowspec.scheduler.target_settings import TARGETS, FileTarget
from shadowspec.servers.engines import known_engine, prompt_rules_of, with_engine_rules
from shadowspec.servers.engines.rules import ENGINE_OPTIONS
from shadowspec.servers.server_settings import ServerSettings
from shadowspec.tap.asked_output import ToolCallFormat
from shadowspec.tap.endpoints import EndpointRule, MatchRule
from shadowspec.tap.formats import FieldMap, MessageFormat
from shadowspec.tap.hashing import MIN_SECRET_BYTES
from shadowspec.tap.kafka import KafkaSettings
from shadowspec.tap.load_trace import LoadTrace
from shadowspec.text import plain_text, suggestion
from shadowspec.types import UNSEEDED, Contract, OutputContract, SpeculationConfig, VerifyRule
from shadowspec.types.served_methods import settings_text
from shadowspec.types.settings import EngineSettings, WorkerSettings, nest_table
from shadowspec.types.speculation import DEPLOYMENT

CONFIG_VARIABLE: Final = "SHADOWSPEC_CONFIG"
DATABASE_VARIABLE: Final = "SHADOWSPEC_DATABASE_URL"
SECRET_VARIABLE: Final = "SHADOWSPEC_HASH_SECRET"  # noqa: S105 - the name of a variable, not its value
PREVIOUS_SECRET_VARIABLE: Final = "SHADOWSPEC_HASH_SECRET_PREVIOUS"  # noqa: S105 - likewise
PASSWORD_VARIABLE: Final = "SHADOWSPEC_KAFKA_PASSWORD"  # noqa: S105 - likewise
DEFAULT_CONFIG_NAME: Final = "shadowspec.toml"
MAKE_A_SECRET: Final = "head -c 32 /dev/urandom | base64"  # noqa: S105 - how to make one


@dataclass(frozen=True, slots=True)
class EndpointConfig:
    """One endpoint: the settings of tap, engine, gate, rollout and live guard."""

    rule: EndpointRule
    target: str  # folder of the target model; where it has none, the name under which its servers serve it
    candidates: tuple[SpeculationConfig, ...]
    policy: GatePolicy
    rollout: RolloutPolicy = field(default_factory=RolloutPolicy)
    scores: tuple[str, ...] = ()  # scorers of both outputs: "json_valid", "package.module:function"
    servers: ServerSettings | None = None  # through which it is measured; None: by the engine in this process
    live: LiveSettings | None = None  # None: production is not read
    pools: Pools | None = None  # None: named when its routes are exported
    sampling: ServedSampling = field(default_factory=ServedSampling)  # from which the rule has its defaults
    has_folder: bool = True  # else only its servers know its tokenizer
    owner: str = ""  # who answers for it

    @property
    def loads_models(self) -> bool:
        """Whether this process needs the weights of target and drafts: to measure, or to audit what servers answer."""
        return self.servers is None or self.servers.audit_share > 0.0

    @property
    def folder(self) -> Path | None:
        """The target's folder, if there is one."""
        return Path(self.target) if self.has_folder else None

    @property
    def terms(self) -> EndpointTerms:
        """What a check of the endpoint needs of the configuration."""
        shares = {load.concurrency: load.share for load in self.rule.loads}
        return EndpointTerms(self.policy, shares, tuple(candidate.name for candidate in self.candidates))


@dataclass(frozen=True, slots=True)
class Config:
    """The whole configuration.  `path` is the file that it came from, `policy_path` the one with the policy."""

    path: Path
    database_url: str = field(repr=False)  # may hold a password
    hash_secret_file: Path | None
    hash_secret_previous_file: Path | None
    kafka: KafkaSettings | None
    engine: EngineSettings
    worker: WorkerSettings
    dashboard: DashboardSettings
    schedule: ScheduleSettings
    policy_path: Path
    policy: GatePolicy
    rollout: RolloutPolicy
    endpoints: Mapping[str, EndpointConfig]
    given_format: FieldMap | None = None  # of files, by an option
    given_arrivals: LoadTrace | None = None  # whose times the records of files take, by an option

    @property
    def file_format(self) -> MessageFormat | FieldMap:
        """How the lines of files are written: as the option says, else as the mirror's map says, else recognised."""
        if self.given_format is not None:
            return self.given_format
        return self.kafka.message_format if self.kafka is not None and self.kafka.map else MessageFormat.AUTO

    @property
    def slice_by(self) -> dict[str, tuple[str, ...]]:
        """The labels that slices may have, by endpoint."""
        return {name: endpoint.rule.slice_labels for name, endpoint in self.endpoints.items()}

    @property
    def concurrencies(self) -> dict[str, tuple[int, ...]]:
        """The configured loads, by endpoint."""
        return {
            name: tuple(load.concurrency for load in endpoint.rule.loads) for name, endpoint in self.endpoints.items()
        }

    @property
    def terms(self) -> dict[str, EndpointTerms]:
        """What checks need of each endpoint's configuration."""
        return {name: endpoint.terms for name, endpoint in self.endpoints.items()}

    def chosen(self, endpoint: str | None) -> Mapping[str, EndpointConfig]:
        """The endpoint of this name, or every one.

        Raises:
            ConfigError: no endpoint has the name.
        """
        if endpoint is None:
            return self.endpoints
        if endpoint not in self.endpoints:
            known = ", ".join(self.endpoints) or "none"
            alike = suggestion(endpoint, self.endpoints)
            raise ConfigError(f"{self.path}: no endpoint {endpoint!r} is configured{alike} (configured: {known})")
        return {endpoint: self.endpoints[endpoint]}

    def live_jobs(self, endpoint: str | None = None) -> dict[str, LiveSettings]:
        """The live settings of each endpoint (or of one) that has them.

        Raises:
            ConfigError: no endpoint has the name.
        """
        return {name: chosen.live for name, chosen in self.chosen(endpoint).items() if chosen.live is not None}


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
            f"there is no {DEFAULT_CONFIG_NAME} in this folder; write one with `shadowspec init`, or give one with "
            f"--config FILE or {CONFIG_VARIABLE}"
        )
    raise ConfigError(f"{path}: {'is a folder' if path.is_dir() else 'no such file'}; give a configuration file")


def load_config(path: Path, environment: Mapping[str, str] | None = None) -> Config:
    """Read and check a configuration file.

    Raises:
        ConfigError: the file cannot be read, is not TOML (with its line), or a key is wrong (with its name).
    """
    environment = os.environ if environment is None else environment
    document = read_toml(path)
    try:
        # As JSON, in which strict means what it does in TOML: an array is a tuple, a string a path or a name.  TOML's
        # dates become what no key takes.
        sections = FileSection.model_validate_json(json.dumps(_nest_document(document), default=lambda _: [None]))
    except ValidationError as error:
        raise ConfigError(_explain(path, error, document)) from None
    except ConfigError as error:  # parts that do not fit together
        raise ConfigError(f"{path}: {error}") from error
    tables = _policy_tables(path, sections)
    default = default_policy(tables)
    return Config(
        path=path,
        database_url=environment.get(DATABASE_VARIABLE) or sections.database.url,
        hash_secret_file=sections.privacy.hash_secret_file,
        hash_secret_previous_file=sections.privacy.hash_secret_previous_file,
        kafka=None if sections.kafka is None else _with_password(sections.kafka, environment),
        engine=sections.engine,
        worker=sections.worker,
        dashboard=_with_override_url(sections.dashboard, environment),
        schedule=sections.schedule,
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
    secret = _read_secret(config, "hash_secret_file", config.hash_secret_file, SECRET_VARIABLE, environment)
    if secret is None:
        raise ConfigError(
            f"there is no secret to hash session ids with: set {SECRET_VARIABLE}, or privacy.hash_secret_file in "
            f"{config.path}; make one with: {MAKE_A_SECRET}"
        )
    return secret


def load_previous_secret(config: Config, environment: Mapping[str, str] | None = None) -> bytes | None:
    """The secret before the present one, under which known sessions keep their identity; None outside a rotation.

    Raises:
        ConfigError: it cannot be read, or is too short.
    """
    path = config.hash_secret_previous_file
    return _read_secret(config, "hash_secret_previous_file", path, PREVIOUS_SECRET_VARIABLE, environment)


def _read_secret(
    config: Config, key: str, path: Path | None, variable: str, environment: Mapping[str, str] | None
) -> bytes | None:
    if given := (os.environ if environment is None else environment).get(variable):
        secret, origin = given.strip().encode("utf-8", "surrogateescape"), variable
    elif path is not None:
        origin = str(path)
        try:
            secret = path.read_bytes().strip()
        except OSError as error:
            raise ConfigError(
                f"{config.path}: privacy.{key}: {origin} cannot be read ({error.strerror}); "
                f"make one with: {MAKE_A_SECRET} > {origin}"
            ) from error
    else:
        return None
    if len(secret) < MIN_SECRET_BYTES:
        raise ConfigError(
            f"{origin}: the secret must have at least {MIN_SECRET_BYTES} bytes; make one with: {MAKE_A_SECRET}"
        )
    return secret


def _with_password(settings: KafkaSettings, environment: Mapping[str, str]) -> KafkaSettings:
    """With the environment's password, if it has one; that of the file is read when a client connects."""
    return replace(settings, security=replace(settings.security, password=environment.get(PASSWORD_VARIABLE) or None))


def _with_override_url(settings: DashboardSettings, environment: Mapping[str, str]) -> DashboardSettings:
    url = environment.get(OVERRIDE_VARIABLE) or settings.access.override_url
    return replace(settings, access=replace(settings.access, override_url=url))


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
        raise ConfigError(f"{path}: policy: {policy_path}: no such file; create it, or remove the key `policy`")
    return read_policy_file(policy_path, list(sections.endpoints))


def _endpoint(name: str, section: EndpointSection, endpoint_policy: EndpointPolicy) -> EndpointConfig:
    is_upgrade = any(candidate.kind == DEPLOYMENT for candidate in section.candidates)
    policy = replace(endpoint_policy.gate, serving_engine=section.serving_engine, is_upgrade=is_upgrade)
    sampling, engine = _served_sampling(section), known_engine(section.serving_engine)
    limits = [limit for limit in (section.max_new_tokens, sampling.max_new_tokens) if limit is not None]
    # Without a match rule an endpoint takes the records that name it.
    rule = EndpointRule(
        name=name,
        served_models=section.served_models,
        match=section.match or MatchRule(endpoint=name),
        slice_by=section.slice_by,
        labels=section.labels,
        client_labels=section.client_labels,
        sample_rate=section.sample_rate,
        loads=section.loads,
        requests_per_slot=section.requests_per_slot,
        max_age=None if section.max_age_s is None else timedelta(seconds=section.max_age_s),
        max_new_tokens=min(limits, default=None),
        default_sampling=sampling.defaults,
        unseeded=UNSEEDED if engine is None else engine.unseeded,
        contracts={
            name: OutputContract(Contract(kind), dialect=section.sql_dialect)
            for name, kind in section.contracts.items()
        },
        takes_constraints=section.servers is not None,
        takes_chats=section.servers is not None and section.servers.api == "chat",
        tool_call_format=_tool_call_format(section.servers),
        measures_conversations=section.servers is not None and section.servers.measures_conversations,
        prompt_rules=prompt_rules_of(section.serving_engine),
        **policy.rule_parts(),
    )
    if rule.max_turns > policy.max_requests_per_cluster:
        raise ConfigError(
            f"endpoint {name!r}: where conversations are measured, timed_positions ({rule.timed_positions}) must not "
            f"exceed max_requests_per_cluster ({policy.max_requests_per_cluster}); lower it in the policy, or set "
            'servers.prefix_cache = "off"'
        )
    backend = "torch" if section.servers is None else "openai"
    candidates = tuple(_speculation_config(section, candidate, backend) for candidate in section.candidates)
    opaque = [candidate.name for candidate in candidates if not candidate.drafts_follow_from_output]
    if section.servers is not None and section.servers.audit_share and opaque:
        raise ConfigError(
            f"endpoint {name!r}: servers.audit_share: drafts of candidate {opaque[0]!r} do not follow from an "
            "output, so that replay cannot audit them; remove the key"
        )
    return EndpointConfig(
        rule=rule,
        target=_target_of(section),
        has_folder=section.target is not None,
        candidates=candidates,
        policy=policy,
        rollout=replace(endpoint_policy.rollout, has_control=bool(section.live and section.live.source.plain_urls)),
        scores=section.scores,
        servers=section.servers,
        live=None if section.live is None else _with_guard(section.live, policy),
        pools=section.pools,
        sampling=sampling,
        owner=section.owner or "",
    )


def _served_sampling(section: EndpointSection) -> ServedSampling:
    """How production samples; a damaged folder is left to what measures with it, because others need no models."""
    target = None if section.target is None else Path(section.target)
    applies = section.applies_generation_config
    configured = section.default_sampling.model_dump(exclude_none=True)
    try:
        return served_sampling(target, section.serving_engine, applies=applies, configured=configured)
    except ModelError:
        return ServedSampling(configured, engine=section.serving_engine, applies=applies)


def _tool_call_format(servers: ServerSettings | None) -> ToolCallFormat | None:
    return None if servers is None or servers.tool_call_format is None else ToolCallFormat(servers.tool_call_format)


def _with_guard(live: LiveSettings, policy: GatePolicy) -> LiveSettings:
    guard = replace(live.guard, metric=policy.acceptance_metric, num_replicas=len(live.source.urls))
    return replace(live, guard=guard)


def _target_of(section: EndpointSection) -> str:
    """The target's folder, else its name on the servers: figures are known by it."""
    if section.target is not None:
        return section.target
    assert section.servers is not None, "without servers a folder is needed"
    return section.servers.model


def _speculation_config(section: EndpointSection, candidate: CandidateSection, backend: str) -> SpeculationConfig:
    """The candidate with the serving engine's rules, where the operator sets no other."""
    method = DEPLOYMENT if candidate.kind == DEPLOYMENT else candidate.method
    if method is not None:
        return SpeculationConfig(
            name=candidate.name,
            target=_target_of(section),
            draft=candidate.draft,
            proposer=method,
            num_speculative_tokens=candidate.num_speculative_tokens,
            verify_rule=VerifyRule(candidate.verify_rule or VerifyRule.SERVER),
            backend=backend,
            speculative_config=settings_text(candidate.speculative_config),
        )
    rule = candidate.verify_rule or ("rejection" if candidate.proposer == "draft_model" else "greedy_draft")
    given = candidate.model_dump(
        exclude={"verify_rule", "method", "kind", "exported", "speculative_config", *ENGINE_OPTIONS}
    )
    config = SpeculationConfig(target=_target_of(section), verify_rule=VerifyRule(rule), backend=backend, **given)
    chosen = {name: value for name in ENGINE_OPTIONS if (value := getattr(candidate, name)) is not None}
    return SpeculationConfig.read(asdict(with_engine_rules(config, section.serving_engine)) | chosen)


def _nest_document(document: Mapping[str, Any]) -> dict[str, Any]:
    """The document as the settings nest it, with the names of tables in them."""
    nested = dict(document)
    for name, kind in (("kafka", KafkaSettings), ("dashboard", DashboardSettings), ("schedule", ScheduleSettings)):
        if name in nested:
            nested[name] = nest_table(kind, nested[name])
    if isinstance(schedule := nested.get("schedule"), dict):
        zone = {key: schedule[key] for key in ("time_zone",) if key in schedule}
        _each_table(schedule, "jobs", lambda name, job: {**zone, **job, "(name)": name})
        _each_table(schedule, "receivers", lambda name, receiver: {**receiver, "(name)": name})
        _each_table(schedule, "targets", lambda name, target: {**nest_table(FileTarget, target), "(name)": name})
    _each_table(nested, "endpoints", lambda _, endpoint: _nest_endpoint(endpoint))
    return nested


def _nest_endpoint(endpoint: Mapping[str, Any]) -> dict[str, Any]:
    nested = dict(endpoint)
    served = nested.get("served_models")
    model = {"model": served[0]} if isinstance(served, list) and served else {}
    for name, kind in (("servers", ServerSettings), ("live", LiveSettings)):
        if isinstance(nested.get(name), dict):
            nested[name] = nest_table(kind, {**model, **nested[name]})
    return nested


def _each_table(parent: dict[str, Any], key: str, arranged: Callable[[str, dict[str, Any]], dict[str, Any]]) -> None:
    if isinstance(tables := parent.get(key), dict):
        parent[key] = {
            name: arranged(name, table) if isinstance(table, dict) else table for name, table in tables.items()
        }


# Examples for keys that are missing or hold another kind of value, by the key's last name.
EXAMPLES: Final = {
    "candidates": '{ name = "ngram-k4", proposer = "ngram", num_speculative_tokens = 4 }',
    "loads": "loads = [{ concurrency = 4 }]",
    "match": 'match = { model = "my-model" }',
    "served_models": 'served_models = ["my-model"]',
    "target": 'target = "models/target"',
}
MISSING: Final = ("missing", "missing_argument")
# Of a string that its pattern refuses, by the key's last name.
PATTERNS: Final = {
    **dict.fromkeys(("[key]", "name"), "a name of at most 64 letters, digits, _ . -, with a letter or digit first"),
    **dict.fromkeys(("to", "sender"), "an address, such as team@example.org"),
    "currency": "a currency's code of three capitals, such as USD",
    "device": "auto, cpu, cuda or cuda:NUMBER",
    "devices": "cpu, cuda or cuda:NUMBER",
    "health_address": "HOST:PORT, such as 127.0.0.1:8080",
    "method": "a name of letters, digits, _ . -",
    "labels": "a name of letters, digits, _ . -",
    "scores": "json_valid, contract_valid, or MODULE:FUNCTION",
    "sql_dialect": "a name of small letters, digits and _",
}
TOML_TYPES: Final = {bool: "a boolean", int: "an integer", float: "a float", str: "a string", list: "an array"}


def _explain(path: Path, error: ValidationError, document: Mapping[str, Any]) -> str:
    """Every fault of the file, one line each, by the key's full name.  Values are left out: they may be secret."""
    faults = error.errors(include_url=False, include_context=False)
    lines = []
    for fault in faults:
        place = fault["loc"]
        if fault["type"] == "too_short" and any(
            other_fault is not fault and other_fault["loc"][: len(place)] == place for other_fault in faults
        ):
            continue  # pydantic leaves out faulty entries, then misses them
        message, parts = _describe(fault), _key_parts(fault["loc"], document)
        if len(parts) > 2 and parts[0] == "schedule" and parts[1] in ("receivers", "targets"):
            if fault["type"].startswith("union_tag"):
                parts.append("kind")
            elif len(parts) > 3 and (kind := parts.pop(3)) and fault["type"] == "unexpected_keyword_argument":
                message += f" of a {parts[1][:-1]} of kind {kind!r}"
        if message.endswith("is not a known key") and parts:
            missing = [
                str(other_fault["loc"][-1])
                for other_fault in faults
                if other_fault["type"] in MISSING and other_fault["loc"][:-1] == place[:-1]
            ]
            is_misplaced = len(parts) > 1 and parts[-1] == "policy"
            message += "; it belongs before the first table" if is_misplaced else suggest_key(parts[-1], missing)
        example = next((EXAMPLES[part] for part in reversed(parts[-2:]) if part in EXAMPLES), None)
        if example is not None and (message == "is missing" or ", not a" in message):
            message += f"; for example {example}"
        key = plain_text(".".join(parts))
        lines.append(f"{path}: {key}: {message}" if key else f"{path}: {message}")
    return "\n".join(lines)


def _describe(fault: Mapping[str, Any]) -> str:
    """One fault in TOML's terms."""
    given = TOML_TYPES.get(type(fault["input"]), "a table")
    wanted = next((PATTERNS[part] for part in reversed(fault["loc"]) if part in PATTERNS), "a known value")
    messages = {
        **dict.fromkeys(("extra_forbidden", "unexpected_keyword_argument"), "is not a known key"),
        **dict.fromkeys((*MISSING, "union_tag_not_found"), "is missing"),
        **dict.fromkeys(("dict_type", "dataclass_type", "model_type"), f"must be a table, not {given}"),
        **dict.fromkeys(("tuple_type", "list_type", "frozen_set_type"), f"must be an array, not {given}"),
        **dict.fromkeys(("int_type", "int_from_float"), f"must be an integer, not {given}"),
        "bool_type": f"must be true or false, not {given}",
        "float_type": f"must be a number, not {given}",
        "string_type": f"must be a string, not {given}",
        "string_pattern_mismatch": f"must be {wanted}",
        "union_tag_invalid": f"must be one of {', '.join(TARGETS if 'targets' in fault['loc'] else RECEIVERS)}",
    }
    text = re.sub(r"^(Value error, )?(\w+ should )?", lambda match: "must " if match[2] else "", fault["msg"])
    message = messages.get(fault["type"], text.replace(" after validation", ""))
    if fault["type"] == "literal_error" and isinstance(fault["input"], str):
        message += suggestion(fault["input"], re.findall("'([^']+)'", message))
    return re.sub(r"^invalid timezone: (.*)$", r"there is no time zone '\1'", message)


def _key_parts(place: Sequence[int | str], document: Mapping[str, Any]) -> list[str]:
    """The names of a key; an entry of an array goes by its name if it has one, else by its number."""
    parts: list[str] = []
    value: Any = document
    for part in place:
        try:
            value = value[part]
        except (KeyError, IndexError, TypeError):
            value = None
        if part != "[key]" and not str(part).startswith("("):
            name = value.get("name") if isinstance(part, int) and isinstance(value, dict) else None
            parts.append(name if isinstance(name, str) else str(part))
    return parts

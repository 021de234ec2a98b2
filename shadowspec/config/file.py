"""The configuration: one TOML file, read strictly and turned into the values of the inner layers.

A key that is not known is an error, wherever it stands.  Nothing is read when this module is imported; the
environment is an argument.  Paths in the file are relative to the working directory.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from shadowspec.config.sections import CandidateSection, EndpointSection, FileSection
from shadowspec.errors import ConfigError
from shadowspec.gate.policy import GatePolicy
from shadowspec.tap.endpoints import EndpointRule, Load, MatchRule
from shadowspec.tap.hashing import MIN_SECRET_BYTES
from shadowspec.types import SpeculationConfig, VerifyRule

CONFIG_VARIABLE: Final = "SHADOWSPEC_CONFIG"
DATABASE_VARIABLE: Final = "SHADOWSPEC_DATABASE_URL"
SECRET_VARIABLE: Final = "SHADOWSPEC_HASH_SECRET"  # noqa: S105 - the name of a variable, not its value
DEFAULT_CONFIG_NAME: Final = "shadowspec.toml"
MAKE_A_SECRET: Final = "head -c 32 /dev/urandom | base64"  # noqa: S105 - how to make one


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """How the engine runs.  "auto": a GPU if there is one; bfloat16 on a GPU, float32 on a CPU."""

    device: str = "auto"
    dtype: str = "auto"
    seed: int = 0
    warmup_blocks: int = 2  # blocks run and thrown away before the first that counts


@dataclass(frozen=True, slots=True)
class EndpointConfig:
    """One endpoint: what the tap, the engine and the gate each take of it."""

    rule: EndpointRule
    target: str  # path or id of the target model
    candidates: tuple[SpeculationConfig, ...]
    policy: GatePolicy


@dataclass(frozen=True, slots=True)
class Config:
    """The whole configuration.  `path` is the file that it came from."""

    path: Path
    database_url: str = field(repr=False)  # may hold a password
    hash_secret_file: Path | None
    engine: EngineSettings
    policy: GatePolicy
    endpoints: Mapping[str, EndpointConfig]


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
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ConfigError(f"{path}: no such file") from error
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: is not text in UTF-8") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: not valid TOML: {error}") from error
    try:
        sections = FileSection.model_validate(document)
    except ValidationError as error:
        raise ConfigError(_explained(path, error)) from None
    policy = _policy(path, "gate", sections.gate)
    return Config(
        path=path,
        database_url=environment.get(DATABASE_VARIABLE) or sections.database.url,
        hash_secret_file=Path(sections.privacy.hash_secret_file) if sections.privacy.hash_secret_file else None,
        engine=EngineSettings(**sections.engine.model_dump()),
        policy=policy,
        endpoints={
            name: _endpoint(path, name, section, {**sections.gate, **section.gate})
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


def _endpoint(path: Path, name: str, section: EndpointSection, gate: Mapping[str, Any]) -> EndpointConfig:
    policy = _policy(path, f"endpoints.{name}.gate", gate)
    # Without a match rule an endpoint takes the records that name it.
    match = MatchRule(**section.match.model_dump()) if section.match else MatchRule(endpoint=name)
    rule = EndpointRule(
        name=name,
        served_models=tuple(section.served_models),
        match=match,
        slice_by=tuple(section.slice_by),
        labels=tuple(section.labels),
        sample_rate=section.sample_rate,
        timed_positions=policy.timed_positions,
        loads=tuple(Load(load.concurrency, load.share) for load in section.loads),
        block_max_wait=timedelta(seconds=policy.block_max_wait_s),
        time_block=timedelta(seconds=policy.time_block_s),
        forget_unit_after=timedelta(seconds=policy.cluster_max_age_s + policy.cluster_reopen_after_s),
        max_age=None if section.max_age_s is None else timedelta(seconds=section.max_age_s),
        max_new_tokens=section.max_new_tokens,
        default_sampling=section.default_sampling.model_dump(exclude_none=True),
    )
    candidates = tuple(_speculation_config(section.target, candidate) for candidate in section.candidates)
    return EndpointConfig(rule=rule, target=section.target, candidates=candidates, policy=policy)


def _speculation_config(target: str, candidate: CandidateSection) -> SpeculationConfig:
    default_rule = VerifyRule.REJECTION if candidate.proposer == "draft_model" else VerifyRule.GREEDY_DRAFT
    return SpeculationConfig(
        name=candidate.name,
        target=target,
        draft=candidate.draft,
        proposer=candidate.proposer,
        num_speculative_tokens=candidate.num_speculative_tokens,
        verify_rule=VerifyRule(candidate.verify_rule) if candidate.verify_rule else default_rule,
        ngram_min=candidate.ngram_min,
        ngram_max=candidate.ngram_max,
    )


def _policy(path: Path, table: str, values: Mapping[str, Any]) -> GatePolicy:
    known = {policy_field.name for policy_field in fields(GatePolicy)}
    for name in values:
        if name not in known:
            raise ConfigError(f"{path}: {table}.{name}: is not a known key")
    try:
        return GatePolicy(**values)
    except ConfigError as error:
        raise ConfigError(f"{path}: {table}: {error}") from error


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

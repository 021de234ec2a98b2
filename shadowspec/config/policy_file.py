"""The policy: what must be proven and how it is rolled out, from a separate file or from the [gate] tables.

The file is TOML with `version`, `[default]` and `[endpoints.NAME]`; an endpoint's keys override the default's one by
one, `[default.rollout]` and `[endpoints.NAME.rollout]` likewise.  Without `policy` in the configuration the tables
`[gate]` and `[endpoints.NAME.gate]` of the configuration itself hold the same keys; never both.
"""

from __future__ import annotations

import tomllib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final

from shadowspec.errors import ConfigError
from shadowspec.gate.policy import GatePolicy
from shadowspec.rollout.rollout_policy import RolloutPolicy
from shadowspec.text import suggestion

POLICY_VERSION: Final = 1
POLICY_KEYS: Final = ("version", "default", "endpoints")
NO_LIMIT: Final = "none"  # TOML has no null
OF_ENDPOINTS: Final = frozenset({"serving_engine"})  # fields that the endpoint's own table holds, and no policy
OF_THE_CODE: Final = frozenset({"has_control", "is_upgrade"})  # fields that no policy file sets
OPTIONAL: Final = frozenset(field.name for field in fields(GatePolicy) if "None" in str(field.type)) - OF_ENDPOINTS


@dataclass(frozen=True, slots=True)
class PolicyTables:
    """The tables as they were read, and what they are called in messages."""

    path: Path
    default: Mapping[str, Any]
    endpoints: Mapping[str, Mapping[str, Any]]
    default_name: str
    endpoint_name: str  # with {} for the endpoint


@dataclass(frozen=True, slots=True)
class EndpointPolicy:
    """All that the policy says of one endpoint, or by default."""

    gate: GatePolicy
    rollout: RolloutPolicy


def inline_tables(path: Path, gate: Mapping[str, Any], endpoints: Mapping[str, Mapping[str, Any]]) -> PolicyTables:
    """The [gate] tables of the configuration."""
    return PolicyTables(path, gate, endpoints, "gate", "endpoints.{}.gate")


def read_policy_file(path: Path, configured: Collection[str]) -> PolicyTables:
    """The tables of a policy file, which may name only `configured` endpoints: a misspelt one would be ignored.

    Raises:
        ConfigError: the file cannot be read, is not TOML (with its line), has another version or an unknown table.
    """
    document = read_toml(path)
    version = document.pop("version", None)
    if isinstance(version, bool) or version != POLICY_VERSION:
        said = "version is missing" if version is None else f"version {version!r} is not known to this shadowspec"
        raise ConfigError(f"{path}: {said}; write version = {POLICY_VERSION}")
    default, endpoints = document.pop("default", {}), document.pop("endpoints", {})
    for name in document:
        raise ConfigError(
            f"{path}: {name}: is not a known key{suggestion(name, POLICY_KEYS)} (known: {', '.join(POLICY_KEYS)})"
        )
    for table, values in (("default", default), ("endpoints", endpoints)):
        if not isinstance(values, dict):
            raise ConfigError(f"{path}: {table}: must be a table")
    for name, values in endpoints.items():
        if name not in configured:
            known = ", ".join(sorted(configured)) or "none"
            alike = suggestion(name, configured)
            raise ConfigError(f"{path}: endpoints.{name}: no such endpoint is configured{alike} (configured: {known})")
        if not isinstance(values, dict):
            raise ConfigError(f"{path}: endpoints.{name}: must be a table")
    return PolicyTables(path, default, endpoints, "default", "endpoints.{}")


def default_policy(tables: PolicyTables) -> EndpointPolicy:
    """The policy of endpoints of which nothing else is said.

    Raises:
        ConfigError: a key is unknown or out of its range; the message names file, table and key.
    """
    return _policy(tables.path, tables.default_name, tables.default)


def endpoint_policy(tables: PolicyTables, endpoint: str) -> EndpointPolicy:
    """The policy of one endpoint: the default with its own keys over it.

    Raises:
        ConfigError: as of `default_policy`.
    """
    entry = tables.endpoints.get(endpoint, {})
    name = tables.endpoint_name.format(endpoint)
    merged = {**tables.default, **entry}
    if "rollout" in tables.default and "rollout" in entry:
        both = [_rollout_table(tables.path, name, table["rollout"]) for table in (tables.default, entry)]
        merged["rollout"] = {**both[0], **both[1]}
    return _policy(tables.path, name, merged)


def read_toml(path: Path) -> dict[str, Any]:
    """The document of a TOML file.

    Raises:
        ConfigError: the file cannot be read, or is not TOML (with its line).
    """
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ConfigError(f"{path}: no such file") from error
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: is not text in UTF-8") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: not valid TOML: {error}") from error


def _policy(path: Path, table: str, values: Mapping[str, Any]) -> EndpointPolicy:
    gate = {name: value for name, value in values.items() if name != "rollout"}
    gate |= {name: None for name in OPTIONAL & gate.keys() if gate[name] == NO_LIMIT}
    rollout = _rollout_table(path, table, values.get("rollout", {}))
    _require_known(path, table, gate, GatePolicy)
    _require_known(path, f"{table}.rollout", rollout, RolloutPolicy)
    try:
        return EndpointPolicy(GatePolicy(**gate), RolloutPolicy(**rollout))
    except ConfigError as error:
        raise ConfigError(f"{path}: {table}: {error}") from error


def _rollout_table(path: Path, table: str, values: Any) -> dict[str, Any]:
    if not isinstance(values, dict):
        raise ConfigError(f"{path}: {table}.rollout: must be a table")
    return values


def _require_known(path: Path, table: str, values: Mapping[str, Any], kind: type[GatePolicy | RolloutPolicy]) -> None:
    known = {field.name for field in fields(kind)} - OF_ENDPOINTS - OF_THE_CODE
    for name in values:
        if name not in known:
            belongs = "; it belongs in [endpoints.NAME]" if name in OF_ENDPOINTS else suggestion(name, known)
            raise ConfigError(f"{path}: {table}.{name}: is not a known key{belongs}")

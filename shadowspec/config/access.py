"""Who may open the dashboard, and who may order: the settings, out of the file's section."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from shadowspec.config.sections import DashboardSection
from shadowspec.errors import ConfigError

OVERRIDE_VARIABLE: Final = "SHADOWSPEC_OVERRIDE_URL"
LOOPBACK: Final = ("127.0.0.1", "::1", "localhost")
_SHARED = ("redirect_uri", "cookie_secret")
_PROVIDER = ("client_id", "client_secret", "server_metadata_url")
_MIN_SECRET = 32  # characters: whoever guesses it signs himself any login


class Role(StrEnum):
    """What somebody may do: look, or order too."""

    VIEWER = "viewer"
    OPERATOR = "operator"


@dataclass(frozen=True, slots=True)
class AccessSettings:
    """Access to the dashboard.

    Without `auth_file` there is no login, and everybody who reaches the address has `local_role`.  With it a login's
    `claim` is looked up: among `operators` it may order, among `viewers` (None: whoever logs in) it may look.
    """

    auth_file: Path | None = None
    override_url: str | None = field(default=None, repr=False)  # may hold a password; None: the database's own URL
    local_role: Role = Role.VIEWER
    claim: str = "email"
    operators: frozenset[str] = frozenset()
    viewers: frozenset[str] | None = None


def access_settings(section: DashboardSection, environment: Mapping[str, str]) -> AccessSettings:
    """The section's keys as the values that access takes; the environment goes before the file."""
    roles = section.roles
    return AccessSettings(
        auth_file=None if section.auth_file is None else Path(section.auth_file),
        override_url=environment.get(OVERRIDE_VARIABLE) or section.override_url,
        local_role=Role(section.local_role),
        claim=roles.claim,
        operators=frozenset(roles.operators),
        viewers=None if roles.viewers is None else frozenset(roles.viewers),
    )


def require_auth_file(path: Path) -> None:
    """Raise ConfigError unless the file holds what a login needs; no value of it is ever quoted."""
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"dashboard.auth_file: {path} cannot be read ({error.strerror})") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"dashboard.auth_file: {path} is not TOML") from error
    auth = document.get("auth")
    if not isinstance(auth, dict):
        raise ConfigError(f"dashboard.auth_file: {path} has no section [auth]")
    _require_keys(path, auth, (*_SHARED, *_PROVIDER))
    if len(auth["cookie_secret"]) < _MIN_SECRET:
        raise ConfigError(f"dashboard.auth_file: {path}: auth.cookie_secret must have {_MIN_SECRET} characters or more")


def _require_keys(path: Path, auth: Mapping[str, Any], names: tuple[str, ...]) -> None:
    for name in names:
        if not isinstance(auth.get(name), str) or not auth[name]:
            raise ConfigError(f"dashboard.auth_file: {path}: auth.{name} is missing")

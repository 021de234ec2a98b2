"""The settings of `shadowspec dashboard`: how it is served, and who may open it and give orders."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import Field

from shadowspec.errors import ConfigError
from shadowspec.types.settings import HttpUrl, PathText, Port, Seconds, Text

OVERRIDE_VARIABLE: Final = "SHADOWSPEC_OVERRIDE_URL"
LOOPBACK: Final = ("127.0.0.1", "::1", "localhost")
_SHARED = ("redirect_uri", "cookie_secret")
_PROVIDER = ("client_id", "client_secret", "server_metadata_url")
_MIN_SECRET = 32  # characters: anyone who guesses it can forge a login


class DashboardRole(StrEnum):
    """What a user may do: look, or order too."""

    VIEWER = "viewer"
    OPERATOR = "operator"


@dataclass(frozen=True, slots=True)
class RoleSettings:
    """[dashboard.roles]: the `claim` of a login among `operators`, who may order, and `viewers`, who may look."""

    claim: Text = "email"
    operators: frozenset[Text] = frozenset()
    viewers: frozenset[Text] | None = None  # None: everybody who logs in


@dataclass(frozen=True, slots=True)
class AccessSettings:
    """Access to the dashboard.

    Without `auth_file` there is no login, and everybody who reaches the address has `local_role`.
    """

    auth_file: PathText | None = None
    override_url: Text | None = field(default=None, repr=False)  # may hold a password; None: the database's own URL
    local_role: DashboardRole = DashboardRole.VIEWER
    roles: RoleSettings = RoleSettings()


@dataclass(frozen=True, slots=True)
class DashboardSettings:
    """[dashboard]: how the dashboard is served and what it says of its data.

    `price_per_gpu_hour` is in `currency` and is None where the operator has not said; no cost is then shown.
    """

    host: Text = "127.0.0.1"
    port: Port = 8501
    public_url: HttpUrl | None = None  # with which reports link to it
    title: Text = "ShadowSpec"
    refresh_s: Annotated[float, Field(ge=1)] = 30.0  # how often an open page looks for news
    stale_after_s: Seconds = 86_400.0  # since the newest measured event; older evidence is said to be stale
    price_per_gpu_hour: Annotated[float, Field(gt=0)] | None = None
    currency: Annotated[str, Field(pattern=r"^[A-Z]{3}$")] = "USD"
    data_note: Text | None = None  # what the data is and is not, said on every page and report
    access: Annotated[AccessSettings, Field(alias="(access)")] = AccessSettings()

    @property
    def stale_after(self) -> timedelta:
        return timedelta(seconds=self.stale_after_s)


def require_auth_file(path: Path) -> None:
    """Raise ConfigError unless the file holds what a login needs; no value of it is ever quoted."""
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"dashboard.auth_file: {path} cannot be read ({error.strerror})") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"dashboard.auth_file: {path} is not valid TOML; fix it (docs/dashboard.md)") from error
    auth = document.get("auth")
    if not isinstance(auth, dict):
        raise ConfigError(f"dashboard.auth_file: {path} has no section [auth]; add it (docs/dashboard.md)")
    _require_keys(path, auth, (*_SHARED, *_PROVIDER))
    if len(auth["cookie_secret"]) < _MIN_SECRET:
        raise ConfigError(f"dashboard.auth_file: {path}: auth.cookie_secret must have {_MIN_SECRET} characters or more")


def _require_keys(path: Path, auth: Mapping[str, Any], names: tuple[str, ...]) -> None:
    for name in names:
        if not isinstance(auth.get(name), str) or not auth[name]:
            raise ConfigError(f"dashboard.auth_file: {path}: auth.{name} is missing; add it (docs/dashboard.md)")

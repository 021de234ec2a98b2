"""Who somebody is and what he may do, from the claims of a login: pure, so that it can be tried without one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from shadowspec.config.dashboard_settings import AccessSettings, DashboardRole
from shadowspec.errors import UsageError


class AccessError(UsageError):
    """Somebody lacks the right to do this."""


@dataclass(frozen=True, slots=True)
class Identity:
    """Somebody who may look at least.

    `name` is what the login vouches for, and who an order is by; None without a login, where nobody vouches for it.
    `until` is when the login ends.
    """

    name: str | None
    role: DashboardRole
    until: datetime | None

    @property
    def may_order(self) -> bool:
        """Whether the kill switch is his to use."""
        return self.role is DashboardRole.OPERATOR


def identify(claims: Mapping[str, Any], settings: AccessSettings, now: datetime) -> Identity:
    """Who a login's claims say this is.

    A login without an end, or after it, does not count: Streamlit keeps its cookie for 30 days whatever the
    token says.  Of a claim that lists several values (groups) one is enough.

    Raises:
        AccessError: not logged in, ended, not vouched for, or not on the list.
    """
    until = _ends_at(claims)
    if until is None or now >= until:
        raise AccessError("your login has ended; log in again")
    is_unverified = claims.get("email_verified") is False
    names = (None if is_unverified else claims.get("email"), claims.get("preferred_username"), claims.get("sub"))
    name = next((name for name in names if isinstance(name, str) and name), None)
    if name is None:
        raise AccessError("the login has neither an e-mail nor a name")
    if settings.roles.claim == "email" and is_unverified:
        raise AccessError("the e-mail of this login is not verified")
    values = _values(claims.get(settings.roles.claim))
    if values & settings.roles.operators:
        return Identity(name, DashboardRole.OPERATOR, until)
    if settings.roles.viewers is None or values & settings.roles.viewers:
        return Identity(name, DashboardRole.VIEWER, until)
    raise AccessError(f"you are logged in as {name}, who may not open this dashboard")


def local(settings: AccessSettings) -> Identity:
    """Anyone who reaches the address, where there is no login."""
    return Identity(None, settings.local_role, None)


def require_operator(identity: Identity) -> None:
    """Raise AccessError unless this is an operator: asked in the very function that writes."""
    if not identity.may_order:
        raise AccessError("only an operator may set or clear overrides")


def _ends_at(claims: Mapping[str, Any]) -> datetime | None:
    """When the token ends; None where it does not say."""
    ends = claims.get("exp")
    is_number = isinstance(ends, int | float) and not isinstance(ends, bool)
    try:
        return datetime.fromtimestamp(ends, UTC) if is_number and ends is not None else None
    except (OverflowError, OSError, ValueError):
        return None


def _values(claim: Any) -> set[str]:
    if isinstance(claim, str):
        return {claim}
    return {text for text in claim if isinstance(text, str)} if isinstance(claim, list | tuple) else set()

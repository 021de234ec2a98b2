"""Why the database has no figures or no decisions to show; every command that reads them says it alike."""

from __future__ import annotations

from collections.abc import Collection
from datetime import UTC, datetime

from shadowspec.errors import NoDataError
from shadowspec.store import Store
from shadowspec.text import plural
from shadowspec.types import FunnelCounter


def require_measured(store: Store) -> None:
    """Raise NoDataError where no endpoint has a measurement, and no decision shows an earlier one."""
    if not store.endpoints() and not store.decisions_at(datetime.now(UTC)):
        raise NoDataError("nothing has been measured yet: run `shadowspec run FILE` first")


def num_measured(store: Store, endpoints: Collection[str]) -> int:
    """Requests of these endpoints that were measured."""
    return sum(
        number
        for (endpoint, counter, _), number in store.funnel().items()
        if endpoint in endpoints and counter is FunnelCounter.MEASURED
    )


def no_decision(store: Store, endpoints: Collection[str]) -> NoDataError:
    """Why there is no decision on these endpoints, and which command to run."""
    require_measured(store)
    names = ", ".join(endpoints)
    number = num_measured(store, endpoints)
    if not number:
        return NoDataError(f"{names}: nothing has been measured yet: run `shadowspec run FILE` first")
    if all(store.folded_evidence(name).progress is None for name in endpoints):
        return NoDataError(f"{names}: nothing has been decided yet: run `shadowspec gate` first")
    return NoDataError(
        f"{names}: {plural(number, 'request')} measured, none counted yet, because their sessions may continue in "
        "unread records: resume `shadowspec run FILE` to the end of the file, then run `shadowspec gate`"
    )

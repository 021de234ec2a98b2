"""Sums of rollups by slice, config and load, and by hour or day: added up in the database, never row by row here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

from sqlalchemy import ColumnElement, Connection, func, select

from shadowspec.store import tables
from shadowspec.store.rollups import SUM_NAMES, RollupSums

_rollups = tables.rollups.c

Step = Literal["hour", "day"]
ConfigAndLoad = tuple[str, int]  # fingerprint, concurrency


@dataclass(frozen=True, slots=True)
class GroupSums:
    """What the rollups of one endpoint, slice, config and load add up to: over all the time asked for, or a step of it.

    `start` is where the step begins, UTC; None where time was not divided.
    """

    endpoint: str
    slice_key: str
    fingerprint: str
    concurrency: int
    start: datetime | None
    sums: RollupSums


def read_group_sums(
    connection: Connection,
    endpoint: str,
    since: datetime | None,
    until: datetime | None,
    *,
    step: Step | None = None,
    slice_key: str | None = None,
    place: ConfigAndLoad | None = None,
    names: Sequence[str] = SUM_NAMES,
) -> list[GroupSums]:
    """The sums of the hours from `since` up to, but without, `until`, sorted; one slice's or place's where it is given.

    Those not in `names` are not read and stay 0: adding up all of them takes several times as long as a few.
    """
    where = of_hours(endpoint, since, until, place)
    where += [] if slice_key is None else [_rollups.slice_key == slice_key]
    key: list[ColumnElement[Any]] = [_rollups.slice_key, _rollups.fingerprint, _rollups.concurrency]
    if step is not None:
        key.append(_start_of(connection, step))
    statement = select(*key, *(func.sum(_rollups[name]) for name in names)).where(*where).group_by(*key)
    found = [_value(endpoint, row, names, has_time=step is not None) for row in connection.execute(statement)]
    return sorted(
        found,
        key=lambda each: (
            each.slice_key,
            each.fingerprint,
            each.concurrency,
            each.start.timestamp() if each.start else 0,
        ),
    )


def of_hours(
    endpoint: str, since: datetime | None, until: datetime | None, place: ConfigAndLoad | None = None
) -> list[ColumnElement[bool]]:
    """That a rollup is the endpoint's (at a place), of an hour from `since` up to, but without, `until`."""
    where: list[ColumnElement[bool]] = [_rollups.endpoint == endpoint]
    where += [] if since is None else [_rollups.hour >= since]
    where += [] if until is None else [_rollups.hour < until]
    return where if place is None else [*where, _rollups.fingerprint == place[0], _rollups.concurrency == place[1]]


def read_hours(connection: Connection, endpoint: str) -> tuple[datetime, datetime] | None:
    """The first and the last hour of which the endpoint has a rollup; None of none."""
    first, last = connection.execute(
        select(func.min(_rollups.hour), func.max(_rollups.hour)).where(_rollups.endpoint == endpoint)
    ).one()
    return None if first is None else (first, last)


def _start_of(connection: Connection, step: Step) -> ColumnElement[Any]:
    if step == "hour":
        return _rollups.hour
    if connection.dialect.name == "postgresql":
        return func.date_trunc("day", _rollups.hour, "UTC")
    return func.date(_rollups.hour)


def _value(endpoint: str, row: Any, names: Sequence[str], *, has_time: bool) -> GroupSums:
    slice_key, fingerprint, concurrency, *rest = row
    start = None
    if has_time:
        start = rest.pop(0)
        start = datetime.fromisoformat(start) if isinstance(start, str) else start  # SQLite's date is text
        start = start.replace(tzinfo=UTC) if start.tzinfo is None else start.astimezone(UTC)
    sums = {name: _number(name, value) for name, value in zip(names, rest, strict=True)}
    return GroupSums(endpoint, slice_key, fingerprint, concurrency, start, RollupSums(**sums))


_WHOLE = {name for name in SUM_NAMES if isinstance(getattr(RollupSums(), name), int)}


def _number(name: str, value: Any) -> Any:
    """A sum of whole numbers comes back as a decimal from one dialect."""
    return int(value) if name in _WHOLE else float(value)

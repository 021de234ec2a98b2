"""Reads of rollups: their sums, histograms and counts of failures, added up in the database."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

from sqlalchemy import ColumnElement, Connection, Select, case, func, select

from shadowspec.errors import StoreError
from shadowspec.store import table_definitions as tables
from shadowspec.store.bulk import distinct_keys
from shadowspec.store.histograms import Histogram
from shadowspec.store.rollups import METRICS, SHARE_WINDOW, SUM_NAMES, Rollup, RollupKey, RollupSums, Traffic

Step = Literal["hour", "day"]
ConfigAndLoad = tuple[str, int]  # fingerprint, concurrency
FailureKey = tuple[str, str, int]  # slice, fingerprint, load

_rollups, _positions = tables.rollups.c, tables.rollup_positions.c
_bins, _failures = tables.rollup_bins.c, tables.rollup_failures.c
_KEY = (_rollups.slice_key, _rollups.fingerprint, _rollups.concurrency)
_WHOLE = {name for name in SUM_NAMES if isinstance(getattr(RollupSums(), name), int)}


@dataclass(frozen=True, slots=True)
class GroupSums:
    """The sums of the rollups of one endpoint, slice, config and load, over the whole period or one step of it.

    `start` is the beginning of the step, UTC; None where time was not divided.
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
    since: datetime | None = None,
    until: datetime | None = None,
    *,
    step: Step | None = None,
    slice_key: str | None = None,
    place: ConfigAndLoad | None = None,
    names: Sequence[str] = SUM_NAMES,
) -> list[GroupSums]:
    """The sums of the hours from `since` up to, but without, `until`, sorted; one slice's or place's where it is given.

    Those not in `names` are not read and stay 0: adding up all of them takes several times as long as a few.
    """
    where = match_hours(endpoint, since, until, place)
    where += [] if slice_key is None else [_rollups.slice_key == slice_key]
    key: list[ColumnElement[Any]] = [*_KEY]
    if step is not None:
        key.append(_step_start(connection, step))
    statement = select(*key, *(func.sum(_rollups[name]) for name in names)).where(*where).group_by(*key)
    groups = [_group_sums(endpoint, row, names, has_time=step is not None) for row in connection.execute(statement)]
    return sorted(
        groups,
        key=lambda group: (
            group.slice_key,
            group.fingerprint,
            group.concurrency,
            group.start.timestamp() if group.start else 0,
        ),
    )


def match_hours(
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


def _step_start(connection: Connection, step: Step) -> ColumnElement[Any]:
    if step == "hour":
        return _rollups.hour
    if connection.dialect.name == "postgresql":
        return func.date_trunc("day", _rollups.hour, "UTC")
    return func.date(_rollups.hour)


def _group_sums(endpoint: str, row: Any, names: Sequence[str], *, has_time: bool) -> GroupSums:
    slice_key, fingerprint, concurrency, *rest = row
    start = None
    if has_time:
        start = rest.pop(0)
        start = datetime.fromisoformat(start) if isinstance(start, str) else start  # SQLite's date is text
        start = start.replace(tzinfo=UTC) if start.tzinfo is None else start.astimezone(UTC)
    sums = {name: _number(name, value) for name, value in zip(names, rest, strict=True)}
    return GroupSums(endpoint, slice_key, fingerprint, concurrency, start, RollupSums(**sums))


def _number(name: str, value: Any) -> Any:
    """A sum of whole numbers comes back as a decimal from one dialect."""
    return int(value) if name in _WHOLE else float(value)


def read_rollups(
    connection: Connection, endpoint: str, since: datetime | None = None, until: datetime | None = None
) -> list[Rollup]:
    """The endpoint's rollups of the hours from `since` up to, but without, `until`; sorted by key."""
    where = match_hours(endpoint, since, until)
    positions: dict[int, dict[int, tuple[int, int]]] = defaultdict(dict)
    of_rollup = _positions.rollup_id == _rollups.rollup_id
    columns = (_positions.rollup_id, _positions.position, _positions.num_accepted_tokens, _positions.num_steps)
    joined = select(*columns).join(tables.rollups, of_rollup).where(*where)
    for rollup_id, position, accepted, steps in connection.execute(joined):
        positions[rollup_id][position] = (accepted, steps)
    rollups = []
    for row in connection.execute(select(tables.rollups).where(*where)).mappings():
        entry = positions[row["rollup_id"]]
        depth = max(entry, default=0)  # the last position of the histogram is all tokens accepted: K
        rollups.append(
            Rollup(
                RollupKey(*(row[name] for name in tables.ROLLUP_KEY)),
                RollupSums(**{name: row[name] for name in SUM_NAMES}),
                tuple(entry.get(position, (0, 0))[0] for position in range(depth)),
                tuple(entry.get(position, (0, 0))[1] for position in range(depth + 1)) if entry else (),
            )
        )
    return sorted(rollups, key=lambda rollup: rollup.key)


def read_traffic(connection: Connection, endpoint: str, until: datetime | None = None) -> list[Traffic]:
    """The endpoint's traffic by slice, config and load, sorted; of every hour that began before `until` (None: of all).

    Of hours before `SHARE_WINDOW` none is read but the first and the newest of each key.
    """
    hours = match_hours(endpoint, None, until)
    newest = connection.scalar(select(func.max(_rollups.hour)).where(*hours))
    if newest is None:
        return []
    statement = _select_skipping if connection.dialect.name == "postgresql" else _select_grouping
    every_key = (Traffic(*row) for row in connection.execute(statement(endpoint, hours, newest - SHARE_WINDOW)))
    traffic = (row for row in every_key if row.newest_hour is not None)  # None: only measured later
    return sorted(traffic, key=lambda row: (row.slice_key, row.fingerprint, row.concurrency))


def _select_grouping(_endpoint: str, hours: Sequence[ColumnElement[bool]], lately: datetime) -> Select[Any]:
    weight = func.sum(case((_rollups.hour > lately, _rollups.weight), else_=0.0))
    ends = (func.min(_rollups.hour), func.max(_rollups.hour))
    return select(*_KEY, weight, *ends).where(*hours).group_by(*_KEY)


def _select_skipping(endpoint: str, hours: Sequence[ColumnElement[bool]], lately: datetime) -> Select[Any]:
    """Of each key its hours; otherwise the planner would read all of them."""
    keys = distinct_keys(_KEY, _rollups.endpoint == endpoint)
    is_own = (*hours, *(column == keys.c[column.name] for column in _KEY))
    weight = select(func.coalesce(func.sum(_rollups.weight), 0.0)).where(*is_own, _rollups.hour > lately)
    ends = (select(end(_rollups.hour)).where(*is_own).scalar_subquery() for end in (func.min, func.max))
    return select(*keys.c, weight.scalar_subquery(), *ends)


def read_histogram(
    connection: Connection,
    endpoint: str,
    metric: str,
    *,
    slice_key: str | None = None,
    fingerprint: str | None = None,
    concurrency: int | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
) -> Histogram:
    """A metric's histogram over the rollups that match; None matches any.

    Raises:
        StoreError: no such metric is kept.
    """
    if metric not in METRICS:
        raise StoreError(f"no histogram of {metric!r} is stored; there are {', '.join(METRICS)}")
    entry = {"slice_key": slice_key, "fingerprint": fingerprint, "concurrency": concurrency}
    where = match_hours(endpoint, since, until)
    where += [_rollups[name] == value for name, value in entry.items() if value is not None]
    statement = (
        select(_bins.bin, func.sum(_bins.num_runs), func.sum(_bins.weight))
        .join(tables.rollups, _bins.rollup_id == _rollups.rollup_id)
        .where(*where, _bins.metric == metric)
        .group_by(_bins.bin)
    )
    bins = connection.execute(statement).all()
    return Histogram({row[0]: int(row[1]) for row in bins}, {row[0]: float(row[2]) for row in bins})


def read_failure_counts(
    connection: Connection,
    endpoint: str,
    since: datetime | None = None,
    until: datetime | None = None,
    *,
    place: ConfigAndLoad | None = None,
) -> Mapping[FailureKey, Counter[str]]:
    """Counts of failures (`shadowspec.types.failures`) by slice, fingerprint and load, of the hours from `since` up
    to, but without, `until`; of a rollup without failures none.
    """
    statement = (
        select(*_KEY, _failures.name, func.sum(_failures.total))
        .join(tables.rollups, _failures.rollup_id == _rollups.rollup_id)
        .where(*match_hours(endpoint, since, until, place))
        .group_by(*_KEY, _failures.name)
    )
    failures: dict[FailureKey, Counter[str]] = {}
    for slice_key, fingerprint, concurrency, name, total in connection.execute(statement):
        failures.setdefault((slice_key, fingerprint, concurrency), Counter())[name] = int(total)
    return failures

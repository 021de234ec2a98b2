"""Reads of rollups and histograms, each within a transaction that the caller owns."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection, Select, case, func, select

from shadowspec.errors import StoreError
from shadowspec.store import tables
from shadowspec.store.histograms import Histogram
from shadowspec.store.rollup_sums import of_hours
from shadowspec.store.rollups import METRICS, SHARE_WINDOW, SUM_NAMES, Rollup, RollupKey, RollupSums, Traffic
from shadowspec.store.skipping import distinct_keys

_rollups, _positions, _bins = tables.rollups.c, tables.rollup_positions.c, tables.rollup_bins.c


def read_rollups(connection: Connection, endpoint: str, since: datetime | None, until: datetime | None) -> list[Rollup]:
    """The endpoint's rollups of these hours, sorted by key."""
    where = of_hours(endpoint, since, until)
    positions: dict[int, dict[int, tuple[int, int]]] = defaultdict(dict)
    of_rollup = _positions.rollup_id == _rollups.rollup_id
    columns = (_positions.rollup_id, _positions.position, _positions.num_accepted_tokens, _positions.num_steps)
    joined = select(*columns).join(tables.rollups, of_rollup).where(*where)
    for rollup_id, position, accepted, steps in connection.execute(joined):
        positions[rollup_id][position] = (accepted, steps)
    found = []
    for row in connection.execute(select(tables.rollups).where(*where)).mappings():
        own = positions[row["rollup_id"]]
        depth = max(own, default=0)  # the last position of the histogram is all tokens accepted: K
        found.append(
            Rollup(
                RollupKey(*(row[name] for name in tables.ROLLUP_KEY)),
                RollupSums(**{name: row[name] for name in SUM_NAMES}),
                tuple(own.get(position, (0, 0))[0] for position in range(depth)),
                tuple(own.get(position, (0, 0))[1] for position in range(depth + 1)) if own else (),
            )
        )
    return sorted(found, key=lambda rollup: rollup.key)


def read_traffic(connection: Connection, endpoint: str, span: timedelta) -> list[Traffic]:
    """The endpoint's traffic by slice, config and load, sorted; of what was measured in the last `span` before the
    newest hour.

    Of hours before `SHARE_WINDOW` none is read but the newest of each key.
    """
    newest = connection.scalar(select(func.max(_rollups.hour)).where(_rollups.endpoint == endpoint))
    if newest is None:
        return []
    statement = _skipping if connection.dialect.name == "postgresql" else _grouping
    found = connection.execute(statement(endpoint, newest - SHARE_WINDOW))
    traffic = (Traffic(*row) for row in found if row[-1] >= newest - span)
    return sorted(traffic, key=lambda row: (row.slice_key, row.fingerprint, row.concurrency))


_KEY = (_rollups.slice_key, _rollups.fingerprint, _rollups.concurrency)


def _grouping(endpoint: str, lately: datetime) -> Select[Any]:
    weight = func.sum(case((_rollups.hour > lately, _rollups.weight), else_=0.0))
    return select(*_KEY, weight, func.max(_rollups.hour)).where(_rollups.endpoint == endpoint).group_by(*_KEY)


def _skipping(endpoint: str, lately: datetime) -> Select[Any]:
    """Of each key its own hours: the planner would read all of them."""
    keys = distinct_keys(_KEY, _rollups.endpoint == endpoint)
    is_own = (_rollups.endpoint == endpoint, *(each == keys.c[each.name] for each in _KEY))
    weight = select(func.coalesce(func.sum(_rollups.weight), 0.0)).where(*is_own, _rollups.hour > lately)
    newest = select(func.max(_rollups.hour)).where(*is_own)
    return select(*keys.c, weight.scalar_subquery(), newest.scalar_subquery())


def read_histogram(
    connection: Connection,
    endpoint: str,
    metric: str,
    own: Mapping[str, str | int | None],
    since: datetime | None,
    until: datetime | None,
) -> Histogram:
    """A metric's histogram over the rollups that match what is given in `own`.

    Raises:
        StoreError: no such metric is kept.
    """
    if metric not in METRICS:
        raise StoreError(f"no histogram of {metric!r} is kept; there are {', '.join(METRICS)}")
    where = of_hours(endpoint, since, until)
    where += [_rollups[name] == value for name, value in own.items() if value is not None]
    statement = (
        select(_bins.bin, func.sum(_bins.num_runs), func.sum(_bins.weight))
        .join(tables.rollups, _bins.rollup_id == _rollups.rollup_id)
        .where(*where, _bins.metric == metric)
        .group_by(_bins.bin)
    )
    found = connection.execute(statement).all()
    return Histogram({row[0]: int(row[1]) for row in found}, {row[0]: float(row[2]) for row in found})

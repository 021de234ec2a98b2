"""Counts of failures by slice, config and load, added up over hours in the database."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from datetime import datetime

from sqlalchemy import Connection, func, select

from shadowspec.store import tables
from shadowspec.store.rollup_sums import ConfigAndLoad, of_hours

_rollups, _failures = tables.rollups.c, tables.rollup_failures.c

FailureKey = tuple[str, str, int]  # slice, fingerprint, load


def read_failure_counts(
    connection: Connection,
    endpoint: str,
    since: datetime | None,
    until: datetime | None,
    place: ConfigAndLoad | None,
) -> Mapping[FailureKey, Counter[str]]:
    """The counts of the hours from `since` up to, but without, `until` (at a place); none of a rollup that has none."""
    key = (_rollups.slice_key, _rollups.fingerprint, _rollups.concurrency)
    statement = (
        select(*key, _failures.name, func.sum(_failures.total))
        .join(tables.rollups, _failures.rollup_id == _rollups.rollup_id)
        .where(*of_hours(endpoint, since, until, place))
        .group_by(*key, _failures.name)
    )
    found: dict[FailureKey, Counter[str]] = {}
    for slice_key, fingerprint, concurrency, name, total in connection.execute(statement):
        found.setdefault((slice_key, fingerprint, concurrency), Counter())[name] = int(total)
    return found

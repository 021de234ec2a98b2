"""The reads behind the board and the evidence page, only from rollups and decisions, through their indexes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, fields
from datetime import datetime

from sqlalchemy import ColumnElement, Connection, func, select

from shadowspec.store import table_definitions as tables
from shadowspec.store.histograms import Histogram
from shadowspec.store.read.rollup_reads import match_hours
from shadowspec.types import SpeculationCounts, Verdict

_rollups, _positions, _bins = tables.rollups.c, tables.rollup_positions.c, tables.rollup_bins.c
_decisions, _tests = tables.decisions.c, tables.test_snapshots.c


@dataclass(frozen=True, slots=True)
class Pulse:
    """The state of the store: while it is unchanged, every read gives the same result.

    Times are None before the first row.  `newest_event` is that of the newest record that a consumer finished.
    """

    decision_id: int | None
    decided_at: datetime | None
    override_id: int | None
    num_clearings: int
    rollout_id: int | None
    rollup_id: int | None
    num_records: int
    moved_at: datetime | None
    newest_event: datetime | None


@dataclass(frozen=True, slots=True)
class LookPoint:
    """One test of one hypothesis at one look of the gate, with the verdict of that look."""

    decision_id: int
    decided_at: datetime
    verdict: Verdict
    reason_code: str
    name: str
    outcome: str
    estimate: float | None
    lower: float | None
    upper: float | None
    threshold: float | None
    num_units: int


def read_pulse(connection: Connection) -> Pulse:
    """How far everything has come: small questions, each answered by the end of an index or by a small table."""
    ledger = tables.ledger.c
    newest = select(func.max(_decisions.decision_id)).scalar_subquery()
    row = connection.execute(
        select(
            newest,
            select(_decisions.decided_at).where(_decisions.decision_id == newest).scalar_subquery(),
            select(func.max(tables.overrides.c.override_id)).scalar_subquery(),
            select(func.count()).select_from(tables.override_clearings).scalar_subquery(),
            select(func.max(tables.rollouts.c.rollout_id)).scalar_subquery(),
            select(func.max(_rollups.rollup_id)).scalar_subquery(),
            select(func.coalesce(func.sum(ledger.num_records), 0)).scalar_subquery(),
            select(func.max(ledger.moved_at)).scalar_subquery(),
            select(func.max(ledger.watermark)).scalar_subquery(),
        )
    ).one()
    return Pulse(row[0], row[1], row[2], int(row[3]), row[4], row[5], int(row[6]), row[7], row[8])


def read_named_endpoints(connection: Connection) -> list[str]:
    """Every endpoint that was counted or folded, sorted; from the small tables that name each of them."""
    counted = select(tables.funnel_counts.c.endpoint).where(tables.funnel_counts.c.endpoint != "")
    return sorted(connection.scalars(counted.union(select(tables.evidence_endpoints.c.endpoint))))


def read_looks(
    connection: Connection, endpoint: str, slice_key: str, concurrency: int, fingerprint: str, names: Sequence[str]
) -> list[LookPoint]:
    """The named tests of one hypothesis at every look of the gate, oldest first."""
    statement = (
        select(
            _decisions.decision_id, _decisions.decided_at, _decisions.verdict, _decisions.reason_code, _tests.name,
            _tests.outcome, _tests.estimate, _tests.lower, _tests.upper, _tests.threshold, _tests.num_units,
        )
        .join(tables.test_snapshots, _tests.decision_id == _decisions.decision_id)
        .where(
            _decisions.endpoint == endpoint,
            _decisions.slice_key == slice_key,
            _decisions.concurrency == concurrency,
            _decisions.fingerprint == fingerprint,
            _tests.name.in_(names),
        )
        .order_by(_decisions.decision_id, _tests.position)
    )  # fmt: skip
    return [LookPoint(row[0], row[1], Verdict(row[2]), *row[3:]) for row in connection.execute(statement)]


def read_position_counts(
    connection: Connection,
    endpoint: str,
    slice_key: str | None,
    concurrency: int,
    fingerprint: str,
    since: datetime | None = None,
) -> SpeculationCounts | None:
    """The counts of one slice (None: all of them) at one load and config, summed; None without counts."""
    where = _match_hypothesis(endpoint, slice_key, concurrency, fingerprint, since)
    names = [count.name for count in fields(SpeculationCounts) if count.name in _rollups]
    sums = connection.execute(select(*(func.sum(_rollups[name]) for name in names)).where(*where)).one()
    if not sums[0]:
        return None
    by_position = (
        select(_positions.position, func.sum(_positions.num_accepted_tokens), func.sum(_positions.num_steps))
        .join(tables.rollups, _positions.rollup_id == _rollups.rollup_id)
        .where(*where)
        .group_by(_positions.position)
        .order_by(_positions.position)
    )
    rows = connection.execute(by_position).all()
    return SpeculationCounts(
        num_accepted_tokens_per_pos=tuple(int(row[1]) for row in rows[:-1]),  # the last is a step accepted whole: K
        acceptance_histogram=tuple(int(row[2]) for row in rows),
        **{name: int(value) for name, value in zip(names, sums, strict=True)},
    )


def read_histograms(
    connection: Connection,
    endpoint: str,
    slice_key: str | None,
    concurrency: int,
    fingerprint: str,
    since: datetime | None = None,
) -> dict[str, Histogram]:
    """Every metric of one slice (None: all of them) at one load and config; those with no run are left out."""
    # Postgres takes the join apart wrongly, and reads every rollup or every bin, unless it has the ids first.
    rollup_ids = select(_rollups.rollup_id).where(
        *_match_hypothesis(endpoint, slice_key, concurrency, fingerprint, since)
    )
    ids = rollup_ids.cte("own").prefix_with("MATERIALIZED", dialect="postgresql")
    statement = (
        select(_bins.metric, _bins.bin, func.sum(_bins.num_runs), func.sum(_bins.weight))
        .join(ids, _bins.rollup_id == ids.c.rollup_id)
        .group_by(_bins.metric, _bins.bin)
    )
    num_runs: dict[str, dict[int, int]] = defaultdict(dict)
    weights: dict[str, dict[int, float]] = defaultdict(dict)
    for metric, number, runs, weight in connection.execute(statement):
        num_runs[metric][number] = int(runs)
        weights[metric][number] = float(weight)
    return {metric: Histogram(num_runs[metric], weights[metric]) for metric in num_runs}


def _match_hypothesis(
    endpoint: str, slice_key: str | None, concurrency: int, fingerprint: str, since: datetime | None
) -> list[ColumnElement[bool]]:
    where = match_hours(endpoint, since, None, (fingerprint, concurrency))
    return where if slice_key is None else [*where, _rollups.slice_key == slice_key]

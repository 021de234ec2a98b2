"""Expected counts in the database, apart from the engine's counts; written once, and summed by slice and config.

One statement sums many endpoints, each in a separate part: a limit applies to one endpoint, and its newest rows are
found through the index of endpoints and times.

A backfill's finished blocks of files are written together with their rows.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import asdict, fields
from datetime import UTC, datetime
from operator import attrgetter
from typing import Any

from sqlalchemy import ColumnElement, Connection, Select, func, literal, select, union_all

from shadowspec.store import bulk
from shadowspec.store.column_types import RECORD_KEY
from shadowspec.store.table_definitions import backfill_blocks, replay_configs, replays, runs
from shadowspec.types import (
    AcceptanceSums,
    BackfilledBlock,
    BlockPlace,
    ExpectedCounts,
    FingerprintedConfig,
    FunnelCounter,
    FunnelKey,
    LoopSpan,
    ReplayedRecord,
    SpeculationConfig,
)

EXPECTED = tuple(field.name for field in fields(ExpectedCounts))
REPLAY_NAMES = (
    *(*RECORD_KEY, "fingerprint", "endpoint", "slice_key", "unit_key", "event_time"),
    *("num_speculative_tokens", *EXPECTED),
)
CONFIG_NAMES = ("fingerprint", "config", "engine", "device", "dtype", "details")
BLOCK_NAMES = (
    *("work", "source", "number", "is_last", "num_records", "num_replayed", "num_near_ties"),
    *("funnel", "last_event", "finished_at"),
)

# Rows of an endpoint added up at a read, the newest: 12,500 responses at 16 configs and K, a second or two.
MAX_REPLAYS = 200_000
MAX_RUNS = 50_000  # likewise

_expected = attrgetter(*EXPECTED)
_blocks = backfill_blocks.c


def insert_replays(connection: Connection, replayed: Sequence[ReplayedRecord]) -> int:
    """Insert new replayed records and their new configs; the number of rows of expected counts.

    A record that was replayed before with the same config stays as it is.
    """
    configs = {config.fingerprint: config for record in replayed for config, _ in record.counts}
    bulk.insert_new(
        connection, replay_configs, CONFIG_NAMES, [_config_tuple(configs[name]) for name in sorted(configs)]
    )
    by_key = {
        (*record.key, config.fingerprint): _replay_tuple(record, config, counts)
        for record in reversed(replayed)
        for config, counts in record.counts
    }
    return len(bulk.insert_new(connection, replays, REPLAY_NAMES, [by_key[key] for key in sorted(by_key)]))


def read_replay_configs(connection: Connection) -> dict[str, FingerprintedConfig]:
    """Every config that logged responses were replayed with, by fingerprint."""
    return {
        row["fingerprint"]: FingerprintedConfig(
            config=SpeculationConfig.read(row["config"]),
            **{name: row[name] for name in CONFIG_NAMES if name != "config"},
        )
        for row in connection.execute(select(replay_configs)).mappings()
    }


def read_replay_sums(connection: Connection, endpoints: Collection[str]) -> dict[str, list[AcceptanceSums]]:
    """Sums of each endpoint's newest MAX_REPLAYS rows by slice and config, sorted; a unit is a session."""
    row = replays.c
    newest = [
        select(*_select_counts(row.slice_key))
        .where(row.endpoint == endpoint)
        .order_by(row.event_time.desc())
        .limit(MAX_REPLAYS)
        for endpoint in endpoints
    ]
    if not newest:
        return {}
    return _sum_sessions(connection, _union(newest), endpoints)


def read_source_sums(
    connection: Connection, sources: Collection[str], fingerprints: Collection[str], endpoints: Collection[str]
) -> dict[str, list[AcceptanceSums]]:
    """Sums of all rows of these sources and configs: of the whole endpoint (""), then by slice."""
    row = replays.c
    of_them = (
        row.source.in_(sorted(sources)),
        row.fingerprint.in_(sorted(fingerprints)),
        row.endpoint.in_(sorted(endpoints)),  # others may share a config
    )
    whole, slices = (
        _sum_sessions(connection, select(*_select_counts(slice_key)).where(*of_them).subquery().c, endpoints)
        for slice_key in (literal("").label("slice_key"), row.slice_key)
    )
    return {endpoint: whole[endpoint] + slices[endpoint] for endpoint in endpoints}


def read_loop_sums(connection: Connection, spans: Collection[LoopSpan]) -> dict[str, list[AcceptanceSums]]:
    """The engine's counts in these spans, whose endpoints differ: of the newest MAX_RUNS of each, sorted alike.

    A run is a unit: a session is timed once at an endpoint.
    """
    columns = runs.c
    newest = [
        select(
            columns.endpoint,
            columns.slice_key,
            columns.fingerprint,
            literal(1).label("num_requests"),
            columns.num_drafts.label("drafts"),
            columns.num_draft_tokens.label("draft_tokens"),
            columns.num_accepted_tokens.label("accepted"),
            _first(columns).label("first"),
            columns.event_time.label("first_event"),
            columns.event_time.label("last_event"),
        )
        .where(
            columns.endpoint == span.endpoint,
            columns.event_time.between(span.since, span.until),
            columns.fingerprint.in_(sorted(span.fingerprints)),
            columns.failure.is_(None),
        )
        .order_by(columns.event_time.desc())
        .limit(MAX_RUNS)
        for span in spans
    ]
    return _sum_units(connection, _union(newest), [span.endpoint for span in spans]) if newest else {}


def _sum_sessions(
    connection: Connection, replay_table: Any, endpoints: Collection[str]
) -> dict[str, list[AcceptanceSums]]:
    """Rows of expected counts added up by slice and config; a unit is a session."""
    units = (
        select(
            replay_table.endpoint,
            replay_table.slice_key,
            replay_table.fingerprint,
            func.count().label("num_requests"),
            *_sums(
                replay_table.num_drafts,
                replay_table.num_draft_tokens,
                replay_table.num_accepted_tokens,
                replay_table.first,
            ),
            func.min(replay_table.event_time).label("first_event"),
            func.max(replay_table.event_time).label("last_event"),
        )
        .group_by(replay_table.endpoint, replay_table.slice_key, replay_table.fingerprint, replay_table.unit_key)
        .subquery()
    )
    return _sum_units(connection, units.c, endpoints)


def _union(statements: Collection[Select[Any]]) -> Any:
    """The columns of all of these rows; statements select keeps its order and limit."""
    subqueries = [
        newest.subquery() for newest in statements
    ]  # the only form in which SQLite takes a limit within a union
    return union_all(*(select(*newest.c) for newest in subqueries)).subquery().c


def _select_counts(slice_key: ColumnElement[str]) -> list[ColumnElement[Any]]:
    """The summed columns of a row, and the columns to group by."""
    row = replays.c
    counts = (row.num_drafts, row.num_draft_tokens, row.num_accepted_tokens)
    return [
        *(row.endpoint, slice_key, row.fingerprint, row.unit_key, row.event_time),
        *(*counts, _first(row).label("first")),
    ]


def _first(replay_table: Any) -> ColumnElement[float]:
    """Accepted at the first position."""
    first: ColumnElement[float] = replay_table.num_accepted_tokens_per_pos[0].as_float()
    return first


def _sums(*values: ColumnElement[Any]) -> list[ColumnElement[Any]]:
    names = ("drafts", "draft_tokens", "accepted", "first")
    return [func.sum(value).label(name) for name, value in zip(names, values, strict=True)]


def _sum_units(
    connection: Connection, replay_table: Any, endpoints: Collection[str]
) -> dict[str, list[AcceptanceSums]]:
    """Units with these columns, one a row, added up by slice and config; of each of the endpoints."""
    key = (replay_table.endpoint, replay_table.slice_key, replay_table.fingerprint)
    sums = {
        "num_drafts": replay_table.drafts,
        "num_draft_tokens": replay_table.draft_tokens,
        "num_accepted_tokens": replay_table.accepted,
        "num_first_accepted_tokens": replay_table.first,
        "drafts_squares": replay_table.drafts * replay_table.drafts,
        "accepted_drafts": replay_table.accepted * replay_table.drafts,
        "accepted_squares": replay_table.accepted * replay_table.accepted,
    }
    statement: Select[Any] = select(
        *key,
        func.sum(replay_table.num_requests).label("num_requests"),
        func.count().label("num_units"),
        *(func.sum(value).label(name) for name, value in sums.items()),
        func.min(replay_table.first_event).label("first_event"),
        func.max(replay_table.last_event).label("last_event"),
    ).group_by(*key)
    by_endpoint: dict[str, list[AcceptanceSums]] = {endpoint: [] for endpoint in endpoints}
    for row in connection.execute(statement).mappings():
        values = {name: value for name, value in row.items() if name != "endpoint"}
        values |= {name: float(row[name]) for name in sums} | {"num_requests": int(row["num_requests"])}
        by_endpoint[row["endpoint"]].append(AcceptanceSums(**values))
    return {
        endpoint: sorted(sums_of_endpoint, key=lambda sums: (sums.slice_key, sums.fingerprint))
        for endpoint, sums_of_endpoint in by_endpoint.items()
    }


def _config_tuple(fingerprinted: FingerprintedConfig) -> tuple[Any, ...]:
    config = asdict(fingerprinted.config) | {"verify_rule": fingerprinted.config.verify_rule.value}
    return (
        fingerprinted.fingerprint,
        config,
        fingerprinted.engine,
        fingerprinted.device,
        fingerprinted.dtype,
        dict(fingerprinted.details),
    )


def _replay_tuple(record: ReplayedRecord, config: FingerprintedConfig, counts: ExpectedCounts) -> tuple[Any, ...]:
    return (
        *record.key,
        *(config.fingerprint, record.endpoint, record.slice_key, record.unit_key, record.event_time),
        *(config.config.num_speculative_tokens, *_expected(counts)),
    )


def insert_backfilled_block(
    connection: Connection, work: str, block: BackfilledBlock, replayed: Sequence[ReplayedRecord]
) -> int:
    """Insert a finished block and the new rows of its records; how many rows.  A stored block stays as it is."""
    num_rows = insert_replays(connection, replayed)
    funnel = [[endpoint, counter.value, reason, number] for (endpoint, counter, reason), number in block.funnel.items()]
    row = (
        *(work, *block.place, block.is_last, block.num_records, block.num_replayed, block.num_near_ties),
        *(funnel, block.last_event, datetime.now(UTC)),
    )
    bulk.insert_new(connection, backfill_blocks, BLOCK_NAMES, [row])
    return num_rows


def read_finished_blocks(connection: Connection, work: str) -> dict[str, tuple[set[int], bool]]:
    """By source the numbers of the blocks that a backfill has finished, and whether these are all that it has."""
    numbers: dict[str, set[int]] = {}
    last: dict[str, int] = {}
    statement = select(_blocks.source, _blocks.number, _blocks.is_last).where(_blocks.work == work)
    for source, number, is_last in connection.execute(statement):
        numbers.setdefault(source, set()).add(number)
        if is_last:
            last[source] = number
    return {source: (number, last.get(source) == len(number) - 1) for source, number in numbers.items()}


def read_backfilled_blocks(connection: Connection, work: str, sources: Collection[str]) -> list[BackfilledBlock]:
    """The blocks of these sources that a backfill has finished."""
    statement = (
        select(backfill_blocks)
        .where(_blocks.work == work, _blocks.source.in_(sorted(sources)))
        .order_by(_blocks.source, _blocks.number)
    )
    return [
        BackfilledBlock(
            place=BlockPlace(row["source"], row["number"]),
            is_last=row["is_last"],
            num_records=row["num_records"],
            num_replayed=row["num_replayed"],
            num_near_ties=row["num_near_ties"],
            funnel=_funnel(row["funnel"]),
            last_event=row["last_event"],
        )
        for row in connection.execute(statement).mappings()
    ]


def _funnel(document: Sequence[tuple[str | None, str, str | None, int]]) -> dict[FunnelKey, int]:
    return {(endpoint, FunnelCounter(counter), reason): number for endpoint, counter, reason, number in document}

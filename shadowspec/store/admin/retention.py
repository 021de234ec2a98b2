"""Retention: removes records, runs and blocks older than a cut; counts and decisions stay forever.

Replays, audited runs and windows of live evidence go with them; the audits' states and the hours that sum the windows
stay.

The age of a row is its record's time; rows of files have none, and use the event time.  On Postgres whole months are
dropped, and only those that lie wholly before the cut.  Rows without a month, and everything on SQLite, are deleted in
batches; then the blocks without runs, at once.  Rollups, hours, ledger, funnel counts, configs and decisions are never
touched.

Folded evidence no longer needs its rows.  Rows that are not folded yet, or wait in an open cluster or block, are future
evidence: their removal is refused unless forced, where their hypothesis is undecided.
"""

from __future__ import annotations

import itertools
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime, timedelta

from sqlalchemy import Connection, Engine, TextClause, bindparam, text

from shadowspec.errors import ServiceUnavailableError, UsageError
from shadowspec.store import session
from shadowspec.store.admin import month_partitions
from shadowspec.store.column_types import UtcDateTime
from shadowspec.store.read import decision_reads
from shadowspec.types import Verdict

BATCH_ROWS = 10_000  # rows deleted in one transaction: some tens of milliseconds
EMPTYING_TIMEOUT_MS = 10_000  # emptying a month locks the month alone; its readers wait no longer than this
DROPPING_TIMEOUT_MS = 500  # dropping it locks its whole table for a moment; writers wait no longer than this
LOCK_ATTEMPTS = 60
LOCK_PAUSE_S = 0.5

HAS_TIME = "timestamp_ms > 0 AND timestamp_ms < :cut_ms"
HAS_NONE = "timestamp_ms <= 0 AND event_time < :cut"
OF_HYPOTHESIS = "endpoint, slice_key, concurrency, fingerprint"
# Why an old row is needed.  Each condition is a statement of its own: the server joins it with all rows at once.
# Combined by OR it would test every row by itself.
NEEDED = (
    """NOT EXISTS (
        SELECT 1 FROM evidence_cursors AS folded
        WHERE folded.endpoint = own.endpoint AND folded.source = own.source
            AND folded.source_partition = own.source_partition AND own.source_offset >= folded.start_offset
            AND own.source_offset < folded.folded_offset
    )""",
    "endpoint IN (SELECT endpoint FROM evidence_keys WHERE first_event < :cut)",
    "(endpoint, block_id) IN (SELECT endpoint, block_id FROM evidence_blocks)",
)
# No index leads from a block to its runs.  They are joined once, for all blocks.
OLD_BLOCKS = """
    SELECT old.block_id FROM blocks AS old
    LEFT JOIN (SELECT DISTINCT block_id FROM runs) AS used ON used.block_id = old.block_id
    WHERE old.started_at < :cut AND used.block_id IS NULL
"""
NO_RUNS = f"block_id IN ({OLD_BLOCKS})"
NO_BLOCK = "NOT EXISTS (SELECT 1 FROM blocks WHERE blocks.block_id = block_memory.block_id)"
TABLES = ("runs", "records")  # in this order: a record without its run is harmless, a run without its record is not
IS_OLD = f"(({HAS_TIME}) OR ({HAS_NONE}))"
BESIDE = (  # go with the rows
    ("attempts", HAS_TIME),
    ("replays", IS_OLD),
    ("backfill_blocks", "last_event < :cut"),  # else a backfill would never replay their removed rows again
    ("audits", f"{IS_OLD} AND is_folded"),
    ("live_windows", "ended_at < :cut"),
)

_PARTITION = re.compile(r"^runs_(\d{4})_(\d{2})$")

Place = tuple[str, str]  # a table, and the SQL condition of an old row


@dataclass(frozen=True, slots=True)
class Removal:
    """The rows that were removed, or in a dry run would be (without blocks, known only afterwards)."""

    cut: datetime
    partitions: tuple[str, ...]  # removed whole, and counted with the rest
    num_runs: int
    num_records: int
    num_blocks: int | None
    undecided_endpoints: tuple[str, ...]  # with a hypothesis that is not decided and needs older runs still


def retain(engine: Engine, max_age: timedelta, *, now: datetime, is_dry_run: bool, is_forced: bool) -> Removal:
    """Remove rows older than `max_age`.

    1. Find them, and whose evidence they are; 2. whole months; 3. rows without a month; 4. blocks left without runs.

    Raises:
        UsageError: the age is not positive, or undecided hypotheses need rows that would be removed.
        ServiceUnavailableError: a month's lock was not free in time: another session reads for very long.
    """
    if max_age <= timedelta(0):
        raise UsageError("the age to keep must be above 0")
    cut = now - max_age
    # Step 1
    with session.read(engine, timeout_s=session.LONG_TIMEOUT_S) as connection:
        months = _months_before(connection, cut)
        num_runs, num_records = (
            sum(_count(connection, place, cut) for place in _places(connection, table, months)) for table in TABLES
        )
        undecided = _undecided_endpoints(connection, _places(connection, "runs", months), cut)
    names = tuple(_partition(table, month) for month in months for table in TABLES)
    planned = Removal(cut, names, num_runs, num_records, None, undecided)
    if is_dry_run:
        return planned
    if undecided and not is_forced:
        raise UsageError(
            f"undecided hypotheses of {', '.join(undecided)} rest on runs older than {cut:%Y-%m-%d} that are not in "
            "evidence yet: run `shadowspec gate` first (--force removes them all the same)"
        )
    # Step 2
    for month in months:
        _drop(engine, month)
    # Step 3
    for table in TABLES:
        for place in _places(engine, table, ()):
            _delete(engine, place, cut)
    for place in BESIDE:
        _delete(engine, place, cut)
    # Step 4
    num_blocks = _delete_at_once(engine, ("blocks", NO_RUNS), cut)
    _delete_at_once(engine, ("block_memory", NO_BLOCK), cut)
    return replace(planned, num_blocks=num_blocks)


def _months_before(connection: Connection, cut: datetime) -> list[date]:
    """The months that have partitions and end before the cut, oldest first."""
    if connection.dialect.name != "postgresql":
        return []
    matches = map(_PARTITION.match, month_partitions.partition_names(connection))
    months = sorted(date(int(match[1]), int(match[2]), 1) for match in matches if match is not None)
    return [month for month in months if month_partitions.bounds_ms(month)[1] <= cut.timestamp() * 1000]


def _places(where: Connection | Engine, table: str, months: Sequence[date]) -> list[Place]:
    """The places of a table's old rows: these months, each whole, and the rows without a month."""
    if where.dialect.name != "postgresql":
        return [(table, HAS_TIME), (table, HAS_NONE)]
    whole = [(_partition(table, month), "true") for month in months]
    return [*whole, (f"{table}_default", HAS_TIME), (f"{table}_timeless", HAS_NONE)]


def _partition(table: str, month: date) -> str:
    return f"{table}_{month:%Y_%m}"


def _statement(sql: str, cut: datetime) -> TextClause:
    values = {
        "cut_ms": bindparam("cut_ms", int(cut.timestamp() * 1000)),
        "cut": bindparam("cut", cut, type_=UtcDateTime),
        "batch": bindparam("batch", BATCH_ROWS),
    }
    return text(sql).bindparams(*(value for name, value in values.items() if re.search(rf":{name}\b", sql)))


def _count(connection: Connection, place: Place, cut: datetime) -> int:
    table, is_old = place
    statement = _statement(f"SELECT count(*) FROM {table} WHERE {is_old}", cut)  # noqa: S608 - our names
    return int(connection.execute(statement).scalar_one())


def _undecided_endpoints(connection: Connection, places: Sequence[Place], cut: datetime) -> tuple[str, ...]:
    """Endpoints with a hypothesis, of a slice or of the whole, that needs old runs still and is not decided."""
    endpoints: set[str] = set()
    for (table, is_old), is_needed in itertools.product(places, NEEDED):
        sql = f"SELECT DISTINCT {OF_HYPOTHESIS} FROM {table} AS own WHERE {is_old} AND {is_needed}"  # noqa: S608
        for endpoint, slice_key, concurrency, fingerprint in connection.execute(_statement(sql, cut)):
            verdicts = decision_reads.read_verdicts(connection, endpoint)
            keys = [(name, concurrency, fingerprint) for name in ("", slice_key)]
            if any(key not in verdicts or verdicts[key][0] is Verdict.HOLD for key in keys):
                endpoints.add(endpoint)
    return tuple(sorted(endpoints))


def _drop(engine: Engine, month: date) -> None:
    """Empty a month of both tables together, then drop it, each locked in the order in which writers lock them.

    A gate reads every month in transactions of many seconds, and workers write all the time: the whole table may never
    be free.  The emptied month then stays until the next time.

    Raises:
        ServiceUnavailableError: the month was never free.
    """
    names = [_partition(table, month) for table in reversed(TABLES)]
    _execute_locked(engine, [f"TRUNCATE {', '.join(names)}"], EMPTYING_TIMEOUT_MS)
    try:
        _execute_locked(engine, [f"DROP TABLE {name}" for name in names], DROPPING_TIMEOUT_MS)
    except ServiceUnavailableError as error:
        if not session.is_lock_timeout(error):
            raise


def _execute_locked(engine: Engine, statements: Sequence[str], timeout_ms: int) -> None:
    """Execute them in one transaction, at the first attempt that gets their locks within `timeout_ms`.

    Raises:
        ServiceUnavailableError: no attempt did.
    """
    for attempt in range(1, LOCK_ATTEMPTS + 1):
        try:
            # The commit frees the month's files, which takes long for many gigabytes.
            with session.write(engine, timeout_s=session.LONG_TIMEOUT_S) as connection:
                connection.execute(text(f"SET LOCAL lock_timeout = {timeout_ms}"))
                for statement in statements:
                    connection.execute(text(statement))
            return
        except ServiceUnavailableError as error:
            if not session.is_lock_timeout(error) or attempt == LOCK_ATTEMPTS:
                raise
        time.sleep(LOCK_PAUSE_S)


def _delete_at_once(engine: Engine, place: Place, cut: datetime) -> int:
    """Delete in one transaction; how many rows."""
    table, is_old = place
    with session.write(engine, timeout_s=session.LONG_TIMEOUT_S) as connection:
        return connection.execute(_statement(f"DELETE FROM {table} WHERE {is_old}", cut)).rowcount  # noqa: S608


def _delete(engine: Engine, place: Place, cut: datetime) -> int:
    """Delete in batches; how many rows."""
    table, is_old = place
    row = "ctid" if engine.dialect.name == "postgresql" else "rowid"
    sql = f"DELETE FROM {table} WHERE {row} IN (SELECT {row} FROM {table} WHERE {is_old} LIMIT :batch)"  # noqa: S608
    total = 0
    while True:
        with session.write(engine, timeout_s=session.LONG_TIMEOUT_S) as connection:
            removed = connection.execute(_statement(sql, cut)).rowcount
        total += removed
        if removed < BATCH_ROWS:
            return total

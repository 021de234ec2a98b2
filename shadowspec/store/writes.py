"""The writes, each within a transaction that the caller owns.

Rows are inserted in the order of their keys, so that two writers of overlapping rows wait for each other
instead of deadlocking; a row that exists already is left as it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from sqlalchemy import Connection, Table, insert
from sqlalchemy.dialects import postgresql, sqlite

from shadowspec.store import rows, tables
from shadowspec.types import BlockResult, Decision, FingerprintedConfig, RecordKey, StoredRecord


def insert_new(connection: Connection, table: Table, values: Sequence[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """Insert what is not there yet; the primary keys of the rows really inserted."""
    if not values:
        return []
    dialect = postgresql if connection.dialect.name == "postgresql" else sqlite
    statement = dialect.insert(table).on_conflict_do_nothing().returning(*table.primary_key.columns)
    return [tuple(row) for row in connection.execute(statement, values)]


def insert_records(connection: Connection, records: Iterable[StoredRecord]) -> int:
    """Insert the records whose keys are new; their number."""
    by_key = {record.key: record for record in reversed(list(records))}  # the first of a repeated key counts
    return len(insert_new(connection, tables.records, [rows.record_row(by_key[key]) for key in sorted(by_key)]))


def insert_fingerprints(connection: Connection, configs: Iterable[FingerprintedConfig]) -> None:
    """Insert the configs whose fingerprints are new."""
    by_fingerprint = {config.fingerprint: config for config in configs}
    ordered = [rows.fingerprint_row(by_fingerprint[name]) for name in sorted(by_fingerprint)]
    insert_new(connection, tables.fingerprints, ordered)


def insert_block(connection: Connection, result: BlockResult, records: Iterable[StoredRecord]) -> int:
    """Insert what is new of a measured block; the number of runs really inserted.

    1. its records; 2. the block; 3. its runs; 4. the timings and memory of those runs only.

    A run that is stored already, under this block or (after a redelivery) another, stays as it was measured
    first; a block of which no run is new is not stored.
    """
    insert_records(connection, records)
    savepoint = connection.begin_nested()
    insert_new(connection, tables.blocks, [rows.block_row(result)])
    runs = sorted(result.runs, key=lambda run: (run.key, run.fingerprint))
    inserted = {
        (RecordKey(*row[:4]), row[4])
        for row in insert_new(connection, tables.runs, [rows.run_row(run) for run in runs])
    }
    if not inserted:
        savepoint.rollback()
        return 0
    savepoint.commit()
    new_runs = [run for run in runs if (run.key, run.fingerprint) in inserted]
    fingerprints = {run.fingerprint for run in new_runs}
    insert_new(connection, tables.arms, [row for run in new_runs for row in rows.arm_rows(run)])
    memory = [row for row in rows.memory_rows(result) if row["fingerprint"] in fingerprints]
    insert_new(connection, tables.block_memory, memory)
    return len(new_runs)


def append_decisions(connection: Connection, decisions: Iterable[Decision]) -> None:
    """Append one row per decision and one per test, in the order given."""
    for decision in decisions:
        statement = insert(tables.decisions).returning(tables.decisions.c.decision_id)
        decision_id = connection.execute(statement, rows.decision_row(decision)).scalar_one()
        snapshots = rows.test_rows(decision_id, decision)
        if snapshots:
            connection.execute(insert(tables.test_snapshots), snapshots)

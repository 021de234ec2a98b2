"""The writes, each within a transaction that the caller owns.

Rows are inserted in the order of their keys, and tables in one order, so that two writers of overlapping rows wait
for each other instead of deadlocking; a row that exists already is left as it is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from sqlalchemy import Connection, select

from shadowspec.errors import StoreError
from shadowspec.store import bulk, row_values
from shadowspec.store import table_definitions as tables
from shadowspec.store.rollups import SUM_NAMES, additions
from shadowspec.store.write import audit_rows, ledger_rows
from shadowspec.types import BlockResult, FingerprintedConfig, RecordKey, Run, StoredRecord, WriteBatch, WriteOutcome

MeasuredBlock = tuple[BlockResult, tuple[StoredRecord, ...]]
InsertedRun = tuple[Run, BlockResult, StoredRecord]


def save_batch(connection: Connection, batch: WriteBatch, consumer: str) -> WriteOutcome:
    """Write rows, rollups, funnel counts and the consumer's places in the ledger, all or nothing.

    A batch that is written twice is refused by the ledger, or (without advances) changes nothing.

    1. The ledger, which refuses written records, and funnel counts; 2. records; 3. blocks with their runs, memory and
    audits; 4. rollups, of the runs really inserted.

    Raises:
        FencedError: a partition's place is not the one that the batch expects: another worker has moved it.
        StoreError: a run without its record, or with a config that is not known.
    """
    # Step 1
    ledger_rows.advance(connection, batch.advances, consumer)
    # Step 2
    records = [*batch.records, *(record for _, stored_records in batch.blocks for record in stored_records)]
    new_records = insert_records(connection, records)
    # Step 3
    num_blocks, runs = insert_blocks(connection, batch.blocks)
    # Step 4
    add_to_rollups(connection, runs)
    return WriteOutcome(len(runs), len(new_records), num_blocks)


def insert_records(connection: Connection, records: Iterable[StoredRecord]) -> list[StoredRecord]:
    """Insert the records whose keys are new; those."""
    by_key = {record.key: record for record in reversed(list(records))}  # the first of a repeated key counts
    ordered = [row_values.record_tuple(by_key[key]) for key in sorted(by_key)]
    inserted = bulk.insert_new(connection, tables.records, row_values.RECORD_NAMES, ordered)
    return [by_key[RecordKey(*key)] for key in inserted]


def insert_blocks(connection: Connection, blocks: Sequence[MeasuredBlock]) -> tuple[int, list[InsertedRun]]:
    """Insert measured blocks that are new: the number of blocks, and the runs really inserted.

    A run that is stored already, under this block or (after a redelivery) another, stays as it was measured first.  Of
    a run in several blocks the first counts.  A block without a new run is not stored.
    """
    by_key: dict[tuple[Any, ...], InsertedRun] = {}
    for result, records in blocks:
        records_by_key = {record.key: record for record in records}
        for run in result.runs:
            if run.key not in records_by_key:
                raise StoreError(f"block {result.block.block_id}: run of {run.key} has no record")
            by_key.setdefault((*run.key, run.fingerprint), (run, result, records_by_key[run.key]))
    _require_known(connection, {run.fingerprint for run, _, _ in by_key.values()})
    ordered = [row_values.run_tuple(*by_key[key]) for key in sorted(by_key)]
    inserted = bulk.insert_new(connection, tables.runs, row_values.RUN_NAMES, ordered)
    runs = [by_key[key] for key in inserted]
    results = {result.block.block_id: result for _, result, _ in reversed(runs)}
    num_runs = Counter(run.block_id for run, _, _ in runs)
    new_blocks = [row_values.block_tuple(results[block_id], num_runs[block_id]) for block_id in sorted(results)]
    num_blocks = len(bulk.insert_new(connection, tables.blocks, row_values.BLOCK_NAMES, new_blocks))
    memory = {
        (result.block.block_id, run.fingerprint): result.memory[run.fingerprint]
        for run, result, _ in reversed(runs)
        if run.fingerprint in result.memory
    }
    new_memory = [row_values.memory_tuple(*key, memory[key]) for key in sorted(memory)]
    bulk.insert_new(connection, tables.block_memory, row_values.MEMORY_NAMES, new_memory)
    if any(result.audits for _, result, _ in runs):
        audit_rows.insert_audits(connection, runs)
    return num_blocks, runs


def _require_known(connection: Connection, wanted: set[str]) -> None:
    """Do the work of a foreign key, once per batch: configs are never deleted, so the check stays valid."""
    column = tables.fingerprints.c.fingerprint
    unknown = wanted.difference(connection.scalars(select(column).where(column.in_(wanted)))) if wanted else set()
    if unknown:
        raise StoreError(f"runs name configs that are not stored: {', '.join(sorted(unknown))}")


def add_to_rollups(connection: Connection, runs: Sequence[InsertedRun]) -> None:
    """Add the runs, which must be new, to the rollups of their hours."""
    added = additions(runs)
    keys = sorted(added)
    ordered = [(key.endpoint, key.hour, key.slice_key, key.fingerprint, key.concurrency) for key in keys]
    sums = [(*natural, *added[key].sums) for natural, key in zip(ordered, keys, strict=True)]
    names = (*tables.ROLLUP_KEY, *SUM_NAMES)
    changed = bulk.add(
        connection, tables.rollups, names, sums, tables.ROLLUP_KEY, returning=(*tables.ROLLUP_KEY, "rollup_id")
    )
    ids = {tuple(row[:-1]): row[-1] for row in changed}
    by_id = sorted((ids[natural], added[key]) for natural, key in zip(ordered, keys, strict=True))
    positions = [
        (rollup_id, position, *figures)
        for rollup_id, addition in by_id
        for position, figures in sorted(addition.positions.items())
    ]
    names = ("rollup_id", "position", "num_accepted_tokens", "num_steps")
    bulk.add(connection, tables.rollup_positions, names, positions, names[:2])
    bins = [
        (rollup_id, *place, *figures)
        for rollup_id, addition in by_id
        for place, figures in sorted(addition.bins.items())
    ]
    names = ("rollup_id", "metric", "bin", "num_runs", "weight")
    bulk.add(connection, tables.rollup_bins, names, bins, names[:3])
    failures = [
        (rollup_id, name, total) for rollup_id, addition in by_id for name, total in sorted(addition.failures.items())
    ]
    names = ("rollup_id", "name", "total")
    bulk.add(connection, tables.rollup_failures, names, failures, names[:2])


def insert_fingerprints(connection: Connection, configs: Iterable[FingerprintedConfig]) -> None:
    """Insert the configs whose fingerprints are new; a run or decision can only name a stored fingerprint."""
    by_fingerprint = {config.fingerprint: config for config in configs}
    ordered = [row_values.fingerprint_row(by_fingerprint[name]) for name in sorted(by_fingerprint)]
    if ordered:
        names = tuple(ordered[0])
        values = [tuple(row.values()) for row in ordered]
        bulk.insert_new(connection, tables.fingerprints, names, values)

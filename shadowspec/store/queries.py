"""The reads, each within a transaction that the caller owns.

Order is made in Python, by value: the collations of the two dialects sort text differently.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from datetime import UTC, datetime

from sqlalchemy import Connection, Select, func, select

from shadowspec.store import bulk, row_reads, rows
from shadowspec.store.columns import RECORD_KEY
from shadowspec.store.ledger import read_watermark
from shadowspec.store.skipping import distinct_keys
from shadowspec.store.snapshots import TestSnapshot
from shadowspec.store.tables import (
    HYPOTHESIS,
    block_memory,
    blocks,
    decisions,
    fingerprints,
    funnel_counts,
    records,
    runs,
    test_snapshots,
)
from shadowspec.types import (
    Decision,
    EndpointRows,
    FingerprintedConfig,
    Memory,
    RecordKey,
    Run,
    StoredBlock,
    StoredRecord,
    TestResult,
    Verdict,
)

_NEVER = datetime.min.replace(tzinfo=UTC)  # a record without an event time sorts first


def read_endpoints(connection: Connection) -> list[str]:
    """Every endpoint that was counted or measured, sorted."""
    counted = select(funnel_counts.c.endpoint).where(funnel_counts.c.endpoint != "").distinct()
    measured = select(blocks.c.endpoint).distinct()
    if connection.dialect.name == "postgresql":  # there are millions of blocks
        measured = select(distinct_keys([blocks.c.endpoint]).c.endpoint)
    return sorted({*connection.scalars(counted), *connection.scalars(measured)})


def read_record_keys(connection: Connection, source: str) -> set[RecordKey]:
    """Keys of the records of one source."""
    statement = select(*(records.c[name] for name in RECORD_KEY)).where(records.c.source == source)
    return {rows.key_value(row) for row in connection.execute(statement).mappings()}


def read_block_ids(connection: Connection, source: str | None) -> set[str]:
    """Ids of the stored blocks, or of those that hold a run of one source."""
    if source is None:
        return set(connection.scalars(select(blocks.c.block_id)))
    return set(connection.scalars(select(runs.c.block_id).where(runs.c.source == source).distinct()))


def read_records(connection: Connection, endpoint: str) -> list[StoredRecord]:
    """The endpoint's records in the order of event time, ties by key."""
    values = row_reads.read_records(connection, records.c.endpoint == endpoint)
    return sorted(values, key=lambda record: (record.event_time or _NEVER, record.key))


def read_blocks(connection: Connection, endpoint: str) -> list[StoredBlock]:
    """The endpoint's blocks in start order."""
    memory: dict[str, dict[str, Memory]] = defaultdict(dict)
    of_block = block_memory.c.block_id == blocks.c.block_id
    statement = select(block_memory).join(blocks, of_block).where(blocks.c.endpoint == endpoint)
    for row in connection.execute(statement).mappings():
        memory[row["block_id"]][row["fingerprint"]] = rows.memory_value(row)
    found = connection.execute(select(blocks).where(blocks.c.endpoint == endpoint)).mappings()
    values = [rows.block_value(row, memory.get(row["block_id"], {})) for row in found]
    return sorted(values, key=lambda block: (block.sequence, block.started_at, block.block_id))


def read_blocks_of(connection: Connection, block_ids: Sequence[str]) -> dict[str, tuple[StoredBlock, int]]:
    """These blocks by id, each with the number of runs that it was stored with."""
    memory: dict[str, dict[str, Memory]] = defaultdict(dict)
    if not block_ids:
        return {}
    names = [(block_id,) for block_id in block_ids]
    own = bulk.one_of(connection, [block_memory.c.block_id], names)
    found = connection.execute(select(block_memory).where(own)).mappings().all()
    for row in found:
        memory[row["block_id"]][row["fingerprint"]] = rows.memory_value(row)
    own = bulk.one_of(connection, [blocks.c.block_id], names)
    found = connection.execute(select(blocks).where(own)).mappings().all()
    return {row["block_id"]: (rows.block_value(row, memory.get(row["block_id"], {})), row["num_runs"]) for row in found}


def read_runs(connection: Connection, endpoint: str) -> list[Run]:
    """The endpoint's runs in the start order of their blocks, within a block by key and fingerprint."""
    columns = (blocks.c.block_id, blocks.c.sequence, blocks.c.started_at)
    found = connection.execute(select(*columns).where(blocks.c.endpoint == endpoint))
    starts = {block_id: (sequence, started_at) for block_id, sequence, started_at in found}
    values = row_reads.read_runs(connection, runs.c.endpoint == endpoint)
    return sorted(values, key=lambda run: (starts[run.block_id], run.block_id, run.key, run.fingerprint))


def read_fingerprints(connection: Connection) -> dict[str, FingerprintedConfig]:
    """Every stored config, by fingerprint."""
    found = map(rows.fingerprint_value, connection.execute(select(fingerprints)).mappings())
    return {config.fingerprint: config for config in found}


def read_latest_decisions(connection: Connection, endpoint: str | None) -> list[Decision]:
    """The last decision on every hypothesis, sorted by endpoint, slice, load and fingerprint."""
    return read_decisions(connection, _latest_ids(connection, endpoint))


def read_decisions(connection: Connection, ids: Sequence[int]) -> list[Decision]:
    """These decisions, sorted by endpoint, slice, load and fingerprint."""
    found = connection.execute(select(decisions).where(decisions.c.decision_id.in_(ids))).mappings().all()
    tests = _tests(connection, ids)
    configs = read_fingerprints(connection)
    values = [
        rows.decision_value(row, configs[row["fingerprint"]].config, tuple(tests.get(row["decision_id"], ())))
        for row in found
    ]
    return sorted(values, key=lambda each: (each.endpoint, each.slice_key, each.concurrency, each.fingerprint))


def read_decisions_on(connection: Connection, decision: Decision) -> list[tuple[int | None, Decision]]:
    """Every decision on the same hypothesis up to this one, oldest first, each with the id of its fold."""
    own = (decisions.c[name] == getattr(decision, name) for name in HYPOTHESIS)
    statement = select(decisions).where(*own, decisions.c.decision_id <= decision.decision_id)
    tests = _tests(connection, statement.with_only_columns(decisions.c.decision_id))
    found = connection.execute(statement.order_by(decisions.c.decision_id)).mappings()
    return [
        (row["fold_id"], rows.decision_value(row, decision.config, tuple(tests.get(row["decision_id"], ()))))
        for row in found
    ]


def read_decisions_of(connection: Connection, fold_id: int) -> list[Decision]:
    """Every decision that rests on a fold, in the order in which they were made."""
    statement = select(decisions).where(decisions.c.fold_id == fold_id)
    tests = _tests(connection, statement.with_only_columns(decisions.c.decision_id))
    configs = read_fingerprints(connection)
    found = connection.execute(statement.order_by(decisions.c.decision_id)).mappings()
    return [
        rows.decision_value(row, configs[row["fingerprint"]].config, tuple(tests.get(row["decision_id"], ())))
        for row in found
    ]


def read_decision(connection: Connection, decision_id: int) -> tuple[int | None, Decision] | None:
    """A decision with the id of the fold that it rests on; None: there is no such decision."""
    row = connection.execute(select(decisions).where(decisions.c.decision_id == decision_id)).mappings().first()
    if row is None:
        return None
    tests = _tests(connection, select(decisions.c.decision_id).where(decisions.c.decision_id == decision_id))
    config = read_fingerprints(connection)[row["fingerprint"]].config
    return row["fold_id"], rows.decision_value(row, config, tuple(tests.get(decision_id, ())))


def read_snapshots(connection: Connection, endpoint: str) -> list[TestSnapshot]:
    """One entry per test and gate run, oldest first."""
    statement = select(decisions).where(decisions.c.endpoint == endpoint)
    tests = _tests(connection, statement.with_only_columns(decisions.c.decision_id))
    found = connection.execute(statement.order_by(decisions.c.decision_id)).mappings()
    return [rows.snapshot_value(row, result) for row in found for result in tests.get(row["decision_id"], ())]


def read_verdicts(connection: Connection, endpoint: str) -> dict[tuple[str, int, str], Verdict]:
    """The standing verdict of each of the endpoint's hypotheses (slice key, concurrency, fingerprint).

    It reads no column that a writer's role may not read.
    """
    columns = [decisions.c[name] for name in ("slice_key", "concurrency", "fingerprint", "verdict")]
    latest = decisions.c.decision_id.in_(_latest_ids(connection, endpoint))
    found = connection.execute(select(*columns).where(latest))
    return {(row[0], row[1], row[2]): Verdict(row[3]) for row in found}


def read_evidence(connection: Connection, endpoint: str) -> EndpointRows:
    """All that the gate needs of one endpoint."""
    return EndpointRows(
        endpoint=endpoint,
        records=tuple(read_records(connection, endpoint)),
        blocks=tuple(read_blocks(connection, endpoint)),
        runs=tuple(read_runs(connection, endpoint)),
        watermark=read_watermark(connection, endpoint),
        fingerprints=read_fingerprints(connection),
        latest_decisions=tuple(read_latest_decisions(connection, endpoint)),
    )


def _latest_ids(connection: Connection, endpoint: str | None) -> list[int]:
    """The id of the last decision on every hypothesis (of an endpoint)."""
    if endpoint is not None and connection.dialect.name == "postgresql":
        return list(connection.scalars(_last_of(endpoint)))
    latest = select(func.max(decisions.c.decision_id)).group_by(*(decisions.c[name] for name in HYPOTHESIS))
    return list(connection.scalars(latest if endpoint is None else latest.where(decisions.c.endpoint == endpoint)))


def _last_of(endpoint: str) -> Select[tuple[int]]:
    """What grows with the gate's looks is never read, as grouping would."""
    own = decisions.c
    keys = distinct_keys([own[name] for name in HYPOTHESIS[1:]], own.endpoint == endpoint)
    is_same = (own[name] == keys.c[name] for name in HYPOTHESIS[1:])
    last = select(func.max(own.decision_id)).where(own.endpoint == endpoint, *is_same)
    return select(last.scalar_subquery()).select_from(keys)


def _tests(connection: Connection, decision_ids: Select[tuple[int]] | Sequence[int]) -> dict[int, list[TestResult]]:
    statement = select(test_snapshots).where(test_snapshots.c.decision_id.in_(decision_ids))
    ordered = statement.order_by(test_snapshots.c.decision_id, test_snapshots.c.position)
    tests: dict[int, list[TestResult]] = defaultdict(list)
    for row in connection.execute(ordered).mappings():
        tests[row["decision_id"]].append(rows.test_value(row))
    return tests

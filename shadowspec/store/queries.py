"""The reads, each within a transaction that the caller owns.

Order is made in Python, by value: the collations of the two dialects sort text differently.
"""

from __future__ import annotations

from collections import defaultdict
from datetime import UTC, datetime

from sqlalchemy import Connection, Select, and_, func, select

from shadowspec.store import rows
from shadowspec.store.snapshots import TestSnapshot
from shadowspec.store.tables import (
    RECORD_KEY,
    arms,
    block_memory,
    blocks,
    decisions,
    fingerprints,
    records,
    runs,
    test_snapshots,
)
from shadowspec.types import (
    Arm,
    ArmTiming,
    Decision,
    FingerprintedConfig,
    FunnelCounter,
    Memory,
    RecordKey,
    Run,
    StoredBlock,
    StoredRecord,
    TestResult,
)

_NEVER = datetime.min.replace(tzinfo=UTC)  # a record without an event time sorts first
FunnelKey = tuple[str | None, FunnelCounter, str | None]


def read_endpoints(connection: Connection) -> list[str]:
    """Every endpoint that a record or a block names, sorted."""
    statement = select(records.c.endpoint).where(records.c.endpoint.is_not(None)).union(select(blocks.c.endpoint))
    return sorted(connection.scalars(statement))


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
    statement = select(records).where(records.c.endpoint == endpoint)
    values = [rows.record_value(row) for row in connection.execute(statement).mappings()]
    return sorted(values, key=lambda record: (record.event_time or _NEVER, record.key))


def read_blocks(connection: Connection, endpoint: str) -> list[StoredBlock]:
    """The endpoint's blocks in start order."""
    memory: dict[str, dict[str, Memory]] = defaultdict(dict)
    statement = select(block_memory).join(blocks).where(blocks.c.endpoint == endpoint)
    for row in connection.execute(statement).mappings():
        memory[row["block_id"]][row["fingerprint"]] = rows.memory_value(row)
    found = connection.execute(select(blocks).where(blocks.c.endpoint == endpoint)).mappings()
    values = [rows.block_value(row, memory.get(row["block_id"], {})) for row in found]
    return sorted(values, key=lambda block: (block.sequence, block.started_at, block.block_id))


def read_runs(connection: Connection, endpoint: str) -> list[Run]:
    """The endpoint's runs in the start order of their blocks, within a block by key and fingerprint."""
    timings: dict[tuple[RecordKey, str], dict[Arm, ArmTiming]] = defaultdict(dict)
    same_run = [arms.c[name] == runs.c[name] for name in (*RECORD_KEY, "fingerprint")]
    in_endpoint = select(arms).join(runs, and_(*same_run)).join(blocks).where(blocks.c.endpoint == endpoint)
    for row in connection.execute(in_endpoint).mappings():
        timings[rows.key_value(row), row["fingerprint"]][Arm(row["arm"])] = rows.arm_value(row)
    statement = select(runs, blocks.c.sequence, blocks.c.started_at).join(blocks).where(blocks.c.endpoint == endpoint)
    found: list[tuple[int, datetime, Run]] = []
    for row in connection.execute(statement).mappings():
        run = rows.run_value(row, timings.get((rows.key_value(row), row["fingerprint"]), {}))
        found.append((row["sequence"], row["started_at"], run))
    found.sort(key=lambda entry: (entry[0], entry[1], entry[2].block_id, entry[2].key, entry[2].fingerprint))
    return [run for _, _, run in found]


def read_fingerprints(connection: Connection) -> dict[str, FingerprintedConfig]:
    """Every stored config, by fingerprint."""
    found = map(rows.fingerprint_value, connection.execute(select(fingerprints)).mappings())
    return {config.fingerprint: config for config in found}


def read_latest_decisions(connection: Connection, endpoint: str | None) -> list[Decision]:
    """The last decision on every hypothesis, sorted by endpoint, slice, load and fingerprint."""
    hypothesis = [decisions.c[name] for name in ("endpoint", "slice_key", "concurrency", "fingerprint")]
    latest = select(func.max(decisions.c.decision_id)).group_by(*hypothesis)
    statement = select(decisions).where(decisions.c.decision_id.in_(latest))
    if endpoint is not None:
        statement = statement.where(decisions.c.endpoint == endpoint)
    found = connection.execute(statement).mappings().all()
    tests = _tests(connection, statement.with_only_columns(decisions.c.decision_id))
    configs = read_fingerprints(connection)
    values = [
        rows.decision_value(row, configs[row["fingerprint"]].config, tuple(tests.get(row["decision_id"], ())))
        for row in found
    ]
    return sorted(values, key=lambda each: (each.endpoint, each.slice_key, each.concurrency, each.fingerprint))


def read_snapshots(connection: Connection, endpoint: str) -> list[TestSnapshot]:
    """One entry per test and gate run, oldest first."""
    statement = select(decisions).where(decisions.c.endpoint == endpoint)
    tests = _tests(connection, statement.with_only_columns(decisions.c.decision_id))
    found = connection.execute(statement.order_by(decisions.c.decision_id)).mappings()
    return [rows.snapshot_value(row, result) for row in found for result in tests.get(row["decision_id"], ())]


def read_funnel(connection: Connection) -> dict[FunnelKey, int]:
    """Records by endpoint, counter and reason; the counts add up to the records consumed."""
    columns = (records.c.endpoint, records.c.counter, records.c.reason)
    found = connection.execute(select(*columns, func.count()).group_by(*columns))
    return {(endpoint, FunnelCounter(counter), reason): number for endpoint, counter, reason, number in found}


def _tests(connection: Connection, decision_ids: Select[tuple[int]]) -> dict[int, list[TestResult]]:
    statement = select(test_snapshots).where(test_snapshots.c.decision_id.in_(decision_ids))
    ordered = statement.order_by(test_snapshots.c.decision_id, test_snapshots.c.position)
    tests: dict[int, list[TestResult]] = defaultdict(list)
    for row in connection.execute(ordered).mappings():
        tests[row["decision_id"]].append(rows.test_value(row))
    return tests

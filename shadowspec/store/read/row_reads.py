"""Reads of records, runs, blocks and configs, each within a transaction that the caller owns.

Records and runs are made straight from tuples, as the gate reads millions of them.  Order is made in Python, by value:
the collations of the two dialects sort text differently.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

from sqlalchemy import Connection, Select, Text, cast, select

from shadowspec.store import bulk, row_values
from shadowspec.store import table_definitions as tables
from shadowspec.store.bulk import distinct_keys
from shadowspec.store.column_types import RECORD_KEY
from shadowspec.types import (
    Arm,
    ArmOrder,
    ArmTiming,
    BlockMemory,
    Contract,
    FingerprintedConfig,
    FunnelCounter,
    Intervention,
    PairedScore,
    Parity,
    RecordKey,
    Run,
    RunFlags,
    ServedRun,
    SpeculationCounts,
    StoredBlock,
    StoredRecord,
    StreamParity,
    Thinking,
    Validity,
)

_NEVER = datetime.min.replace(tzinfo=UTC)  # a record without an event time sorts first

_records, _runs = tables.records.c, tables.runs.c
_ARMS: dict[str | None, Arm | None] = {None: None, **{arm.value: arm for arm in Arm}}
_COUNTERS = {counter.value: counter for counter in FunnelCounter}

# In this order the columns make the values, field by field.
_RUN_NAMES = (
    *(
        *RECORD_KEY,
        *row_values.RUN,
        *row_values.COUNTS,
        *row_values.TIMINGS[Arm.BASELINE],
        *row_values.TIMINGS[Arm.SPECULATIVE],
    ),
    *("has_parity", *row_values.PARITY, "scores", *row_values.FLAGS, *row_values.SERVED, *row_values.ORDER),
    *(*row_values.STREAM, *row_values.THINKING),
)


_COUNTS = len(row_values.COUNTS)
_TIMING = len(row_values.TIMINGS[Arm.BASELINE])
_PARITY = len(row_values.PARITY)
_FLAGS = len(row_values.FLAGS)
_SERVED = len(row_values.SERVED)
_CHAT = len(row_values.STREAM) + len(row_values.THINKING)
_STREAM = len(row_values.STREAM)
assert row_values.RUN == ("fingerprint", "block_id", "failure", "is_repetition_loop", "finish_reason")
assert row_values.COUNTS[3:5] == ("num_accepted_tokens_per_pos", "acceptance_histogram")
assert row_values.RECORD[:4] == ("counter", "reason", "endpoint", "slice_key")

_NO_THINKING = [None] * len(row_values.THINKING)
_NO_FIGURES = [None] * _PARITY
_EQUAL = Parity()  # greedy outputs that do not differ: most of them


def read_records_where(connection: Connection, *where: Any) -> list[StoredRecord]:
    """The records that match."""
    rows = connection.execute(_select(_records, row_values.RECORD_NAMES, "labels").where(*where)).all()
    same: dict[Any, Any] = {}  # texts that come again and again are kept once
    return [_record(row, same) for row in rows]


def read_runs_where(connection: Connection, *where: Any) -> list[Run]:
    """The runs that match."""
    statement = _select(_runs, _RUN_NAMES, *row_values.COUNTS[3:5], "scores").where(*where)
    rows = connection.execute(statement).all()
    same: dict[Any, Any] = {}
    return [_run(row, same) for row in rows]


def read_endpoints(connection: Connection) -> list[str]:
    """Every endpoint that was counted or measured, sorted."""
    counted = select(tables.funnel_counts.c.endpoint).where(tables.funnel_counts.c.endpoint != "").distinct()
    measured = select(tables.blocks.c.endpoint).distinct()
    if connection.dialect.name == "postgresql":  # there are millions of blocks
        measured = select(distinct_keys([tables.blocks.c.endpoint]).c.endpoint)
    return sorted({*connection.scalars(counted), *connection.scalars(measured)})


def read_records(connection: Connection, endpoint: str) -> list[StoredRecord]:
    """The endpoint's records in the order of event time, ties by key."""
    values = read_records_where(connection, tables.records.c.endpoint == endpoint)
    return sorted(values, key=lambda record: (record.event_time or _NEVER, record.key))


def read_blocks(connection: Connection, endpoint: str) -> list[StoredBlock]:
    """The endpoint's blocks in start order."""
    memory: dict[str, dict[str, BlockMemory]] = defaultdict(dict)
    of_block = tables.block_memory.c.block_id == tables.blocks.c.block_id
    statement = select(tables.block_memory).join(tables.blocks, of_block).where(tables.blocks.c.endpoint == endpoint)
    for row in connection.execute(statement).mappings():
        memory[row["block_id"]][row["fingerprint"]] = row_values.memory_value(row)
    rows = connection.execute(select(tables.blocks).where(tables.blocks.c.endpoint == endpoint)).mappings()
    values = [row_values.block_value(row, memory.get(row["block_id"], {})) for row in rows]
    return sorted(values, key=lambda block: (block.sequence, block.started_at, block.block_id))


def read_blocks_of(connection: Connection, block_ids: Sequence[str]) -> dict[str, tuple[StoredBlock, int]]:
    """These blocks by id, each with the number of runs that it was stored with."""
    memory: dict[str, dict[str, BlockMemory]] = defaultdict(dict)
    if not block_ids:
        return {}
    names = [(block_id,) for block_id in block_ids]
    condition = bulk.one_of(connection, [tables.block_memory.c.block_id], names)
    memory_rows = connection.execute(select(tables.block_memory).where(condition)).mappings().all()
    for row in memory_rows:
        memory[row["block_id"]][row["fingerprint"]] = row_values.memory_value(row)
    condition = bulk.one_of(connection, [tables.blocks.c.block_id], names)
    memory_rows = connection.execute(select(tables.blocks).where(condition)).mappings().all()
    return {
        row["block_id"]: (row_values.block_value(row, memory.get(row["block_id"], {})), row["num_runs"])
        for row in memory_rows
    }


def read_runs(connection: Connection, endpoint: str) -> list[Run]:
    """The endpoint's runs in the start order of their blocks, within a block by key and fingerprint."""
    columns = (tables.blocks.c.block_id, tables.blocks.c.sequence, tables.blocks.c.started_at)
    rows = connection.execute(select(*columns).where(tables.blocks.c.endpoint == endpoint))
    starts = {block_id: (sequence, started_at) for block_id, sequence, started_at in rows}
    values = read_runs_where(connection, tables.runs.c.endpoint == endpoint)
    return sorted(values, key=lambda run: (starts[run.block_id], run.block_id, run.key, run.fingerprint))


def read_fingerprints(connection: Connection) -> dict[str, FingerprintedConfig]:
    """Every stored config, by fingerprint."""
    configs = map(row_values.fingerprint_value, connection.execute(select(tables.fingerprints)).mappings())
    return {config.fingerprint: config for config in configs}


def _select(columns: Any, names: Sequence[str], *as_text: str) -> Select[Any]:
    """JSON comes as text: much of it is the same again and again, and is read once."""
    return select(*(cast(columns[name], Text) if name in as_text else columns[name] for name in names))


def _record(row: Sequence[Any], same: dict[Any, Any]) -> StoredRecord:
    source, partition, offset, timestamp_ms, part, counter, reason, endpoint, slice_key, *rest = row
    kept = same.setdefault
    rest[0] = _labels(rest[0])
    return StoredRecord(
        RecordKey(kept(source, source), partition, offset, timestamp_ms, part),
        _COUNTERS[counter],
        reason,
        kept(endpoint, endpoint),
        kept(slice_key, slice_key),
        *rest,
    )


def _run(row: Sequence[Any], same: dict[Any, Any]) -> Run:
    source, partition, offset, timestamp_ms, part, fingerprint, block_id, failure, is_loop, finish_reason, *rest = row
    chat = rest[-_CHAT:]
    *rest, baseline_after, speculative_after, repeat_ms = rest[:-_CHAT]
    kept = same.setdefault
    counts, baseline = rest[:_COUNTS], rest[_COUNTS : _COUNTS + _TIMING]
    speculative = rest[_COUNTS + _TIMING :][:_TIMING]
    has_parity, *parity, scores = rest[-_PARITY - _FLAGS - _SERVED - 2 : -_FLAGS - _SERVED]
    return Run(
        RecordKey(kept(source, source), partition, offset, timestamp_ms, part),
        kept(fingerprint, fingerprint),
        kept(block_id, block_id),
        failure,
        None if counts[0] is None else _counts(counts),
        None if baseline[0] is None else ArmTiming(*baseline),
        None if speculative[0] is None else ArmTiming(*speculative),
        (_EQUAL if parity == _NO_FIGURES else Parity(*parity)) if has_parity else None,
        is_loop,
        kept(finish_reason, finish_reason),
        {} if scores is None else _scores(scores),
        _flags(*rest[-_FLAGS - _SERVED : -_SERVED]),
        None if rest[-_SERVED] is None else ServedRun(*rest[-_SERVED:]),
        _order(baseline_after, speculative_after, repeat_ms),
        None if chat[0] is None else StreamParity(*chat[:_STREAM]),
        None if chat[_STREAM:] == _NO_THINKING else Thinking(*chat[_STREAM:]),
    )


def _order(baseline_after: str | None, speculative_after: str | None, repeat_ms: float | None) -> ArmOrder | None:
    if repeat_ms is None:
        return _order_of(baseline_after, speculative_after)
    return ArmOrder(_ARMS[baseline_after], _ARMS[speculative_after], repeat_ms)


@lru_cache(maxsize=16)
def _order_of(baseline_after: str | None, speculative_after: str | None) -> ArmOrder | None:
    after = _ARMS[baseline_after], _ARMS[speculative_after]
    return None if after == (None, None) else ArmOrder(*after)


def _counts(values: list[Any]) -> SpeculationCounts:
    values[3], values[4] = _integers(values[3]), _integers(values[4])
    return SpeculationCounts(*values)


@lru_cache(maxsize=4_096)
def _labels(text: str) -> Mapping[str, str]:
    return dict(json.loads(text))


@lru_cache(maxsize=65_536)
def _integers(text: str) -> tuple[int, ...]:
    return tuple(json.loads(text))


@lru_cache(maxsize=4_096)
def _scores(text: str) -> Mapping[str, PairedScore | None]:
    pairs = (json.loads(text) or {}).items()
    return {name: None if pair is None else PairedScore(*pair) for name, pair in pairs}


@lru_cache(maxsize=1_024)
def _flags(
    is_early_rejection: bool | None,
    is_beyond_draft_context: bool | None,
    contract: str | None,
    baseline: int | None,
    speculative: int | None,
    intervention: str | None,
) -> RunFlags:
    """The flags; there are few sets of them, and every run with the same ones shares its."""
    return RunFlags(
        is_early_rejection,
        is_beyond_draft_context,
        None if contract is None else Contract(contract),
        None if baseline is None else Validity(baseline),
        None if speculative is None else Validity(speculative),
        None if intervention is None else Intervention(intervention),
    )

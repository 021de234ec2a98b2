"""Records and runs read in bulk: values straight from tuples, as the gate reads millions of them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from sqlalchemy import Connection, Select, Text, cast, select

from shadowspec.store import rows, tables
from shadowspec.store.columns import RECORD_KEY
from shadowspec.types import (
    Arm,
    ArmTiming,
    Contract,
    FunnelCounter,
    Intervention,
    PairedScore,
    Parity,
    RecordKey,
    Run,
    RunFlags,
    ServedRun,
    SpeculationCounts,
    StoredRecord,
    Validity,
)

_records, _runs = tables.records.c, tables.runs.c
_COUNTERS = {counter.value: counter for counter in FunnelCounter}

# In this order the columns make the values, field by field.
_RUN_NAMES = (
    *(*RECORD_KEY, *rows.RUN, *rows.COUNTS, *rows.TIMINGS[Arm.BASELINE], *rows.TIMINGS[Arm.SPECULATIVE]),
    *("has_parity", *rows.PARITY, "scores", *rows.FLAGS, *rows.SERVED),
)


_COUNTS = len(rows.COUNTS)
_TIMING = len(rows.TIMINGS[Arm.BASELINE])
_PARITY = len(rows.PARITY)
_FLAGS = len(rows.FLAGS)
_SERVED = len(rows.SERVED)
assert rows.RUN == ("fingerprint", "block_id", "failure", "is_repetition_loop", "finish_reason")
assert rows.COUNTS[3:5] == ("num_accepted_tokens_per_pos", "acceptance_histogram")
assert rows.RECORD[:4] == ("counter", "reason", "endpoint", "slice_key")

_NO_FIGURES = [None] * _PARITY
_EQUAL = Parity()  # greedy outputs that do not differ: most of them


def read_records(connection: Connection, *where: Any) -> list[StoredRecord]:
    """The records that match."""
    found = connection.execute(_select(_records, rows.RECORD_NAMES, "labels").where(*where)).all()
    same: dict[Any, Any] = {}  # texts that come again and again are kept once
    return [_record(row, same) for row in found]


def read_runs(connection: Connection, *where: Any) -> list[Run]:
    """The runs that match."""
    statement = _select(_runs, _RUN_NAMES, *rows.COUNTS[3:5], "scores").where(*where)
    found = connection.execute(statement).all()
    same: dict[Any, Any] = {}
    return [_run(row, same) for row in found]


def _select(columns: Any, names: Sequence[str], *as_text: str) -> Select[Any]:
    """JSON comes as text: much of it is the same again and again, and is read once."""
    return select(*(cast(columns[name], Text) if name in as_text else columns[name] for name in names))


def _record(row: Sequence[Any], same: dict[Any, Any]) -> StoredRecord:
    source, partition, offset, timestamp_ms, item, counter, reason, endpoint, slice_key, *rest = row
    kept = same.setdefault
    rest[0] = _labels(rest[0])
    return StoredRecord(
        RecordKey(kept(source, source), partition, offset, timestamp_ms, item),
        _COUNTERS[counter],
        reason,
        kept(endpoint, endpoint),
        kept(slice_key, slice_key),
        *rest,
    )


def _run(row: Sequence[Any], same: dict[Any, Any]) -> Run:
    source, partition, offset, timestamp_ms, item, fingerprint, block_id, failure, is_loop, finish_reason, *rest = row
    kept = same.setdefault
    counts, baseline = rest[:_COUNTS], rest[_COUNTS : _COUNTS + _TIMING]
    speculative = rest[_COUNTS + _TIMING :][:_TIMING]
    has_parity, *parity, scores = rest[-_PARITY - _FLAGS - _SERVED - 2 : -_FLAGS - _SERVED]
    return Run(
        RecordKey(kept(source, source), partition, offset, timestamp_ms, item),
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
    )


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

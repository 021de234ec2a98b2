"""When an endpoint's newest requests came, and how long both arms took for those that were timed."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import Connection, select

from shadowspec.store import tables
from shadowspec.store.columns import RECORD_KEY
from shadowspec.types import ARRIVING, ArrivedRequest, FunnelCounter, RecordKey, ServedRequest

_records, _runs = tables.records.c, tables.runs.c
_LENGTH = len(RECORD_KEY)
_TIMES = ("baseline_prefill_ms", "baseline_decode_ms", "speculative_prefill_ms", "speculative_decode_ms")


def read_arrivals(connection: Connection, endpoint: str, limit: int) -> list[ArrivedRequest]:
    """The newest usable requests, in the order in which they came."""
    statement = (
        select(
            *(_records[name] for name in RECORD_KEY),
            *(_records.slice_key, _records.event_time, _records.counter, _records.reason, _records.sampling_rate),
        )
        .where(_records.endpoint == endpoint, _records.counter.in_([each.value for each in ARRIVING]))
        .where(_records.slice_key.is_not(None), _records.event_time.is_not(None))
        .order_by(_records.event_time.desc(), *(_records[name].desc() for name in RECORD_KEY))
        .limit(limit)
    )
    found = []
    for row in connection.execute(statement):
        slice_key, at, counter, reason, sampling_rate = row[_LENGTH:]
        weight = ArrivedRequest.weight_of(FunnelCounter(counter), reason, sampling_rate)
        found.append(ArrivedRequest(RecordKey(*row[:_LENGTH]), slice_key, at, weight))
    return sorted(found, key=lambda own: (own.at, own.key))


def read_served(connection: Connection, endpoint: str, since: datetime) -> list[ServedRequest]:
    """The requests since then that were timed in both arms, at every load and with every config."""
    statement = select(
        *(_runs[name] for name in RECORD_KEY),
        *(_runs.slice_key, _runs.concurrency, _runs.fingerprint),
        *(_runs[name] for name in _TIMES),
    ).where(
        _runs.endpoint == endpoint,
        _runs.event_time >= since,
        *(_runs[name].is_not(None) for name in _TIMES),
    )
    found = []
    for row in connection.execute(statement):
        slice_key, concurrency, fingerprint, *times = row[_LENGTH:]
        baseline_ms, speculative_ms = times[0] + times[1], times[2] + times[3]
        key = RecordKey(*row[:_LENGTH])
        found.append(ServedRequest(key, slice_key, concurrency, fingerprint, baseline_ms, speculative_ms))
    return found

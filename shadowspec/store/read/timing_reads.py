"""When requests came and blocks began, and how long their arms took."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from datetime import timedelta

from sqlalchemy import Connection, func, select

from shadowspec.store import table_definitions as tables
from shadowspec.store.column_types import RECORD_KEY
from shadowspec.types import ARRIVING, ArrivedRequest, BlockSeconds, BlockTime, FunnelCounter, RecordKey

MS_PER_S = 1_000.0

_records, _runs, _blocks = tables.records.c, tables.runs.c, tables.blocks.c
_BASELINE = _runs.baseline_prefill_ms + _runs.baseline_decode_ms
_SPECULATIVE = _runs.speculative_prefill_ms + _runs.speculative_decode_ms
_KEY_LENGTH = len(RECORD_KEY)


def read_arrivals(connection: Connection, endpoint: str, *, limit: int) -> list[ArrivedRequest]:
    """The endpoint's newest usable requests, measured or not, in the order in which they came."""
    statement = (
        select(
            *(_records[name] for name in RECORD_KEY),
            *(_records.slice_key, _records.event_time, _records.counter, _records.reason, _records.sampling_rate),
        )
        .where(_records.endpoint == endpoint, _records.counter.in_([counter.value for counter in ARRIVING]))
        .where(_records.slice_key.is_not(None), _records.event_time.is_not(None))
        .order_by(_records.event_time.desc(), *(_records[name].desc() for name in RECORD_KEY))
        .limit(limit)
    )
    arrived = []
    for row in connection.execute(statement):
        slice_key, at, counter, reason, sampling_rate = row[_KEY_LENGTH:]
        weight = ArrivedRequest.weight_of(FunnelCounter(counter), reason, sampling_rate)
        arrived.append(ArrivedRequest(RecordKey(*row[:_KEY_LENGTH]), slice_key, at, weight))
    return sorted(arrived, key=lambda request: (request.at, request.key))


def read_block_times(connection: Connection, endpoints: Sequence[str], *, limit: int) -> dict[str, list[BlockTime]]:
    """Of each endpoint its blocks among the store's newest, in start order, as far as its newest runs hold them whole.

    `limit` is of blocks of the store, and of runs of each endpoint.  Blocks of which any run failed are left out.
    """
    starts = connection.execute(
        select(_blocks.block_id, _blocks.endpoint, _blocks.slice_key, _blocks.concurrency, _blocks.n_max,
               _blocks.num_runs, _blocks.max_turns, _blocks.seconds)
        .order_by(_blocks.started_at.desc(), _blocks.block_id.desc())
        .limit(limit)
    ).all()[::-1]  # fmt: skip
    arms = {block_id: arm for name in endpoints for block_id, arm in _read_arms(connection, name, limit).items()}
    times: dict[str, list[BlockTime]] = {name: [] for name in endpoints}
    for row in starts:
        rows = arms.get(row.block_id, [])
        if not rows or sum(number for number, *_ in rows) != row.num_runs:
            continue
        # 1. The baseline ran once for all configs; its times are in the runs of each.
        number, longest, total = rows[0][:3]
        pairs = [(longest, total), *((config_times[3], config_times[4]) for config_times in rows)]
        # 2. A short block's fillers are copies of its requests, so that the arm took as much more.  How many places
        # conversations left to fillers is not stored: it is taken to be none.
        full = row.n_max if (row.max_turns or 1) == 1 else number
        share = full / (number * row.concurrency)
        times[row.endpoint].append(
            BlockTime(
                slice_key=row.slice_key,
                concurrency=row.concurrency,
                num_requests=number,
                arms_s=sum(max(most, every * share) for most, every in pairs) / MS_PER_S,
                seconds=row.seconds,
            )
        )
    return times


def read_block_seconds(
    connection: Connection, endpoints: Sequence[str], *, within: timedelta
) -> dict[str, list[BlockSeconds]]:
    """Of each endpoint its blocks in the last `within` of all their event time, in its order; failed ones too."""
    times: dict[str, list[BlockSeconds]] = {name: [] for name in endpoints}
    ends = [connection.scalar(select(func.max(_runs.event_time)).where(_runs.endpoint == name)) for name in endpoints]
    if (newest := max(filter(None, ends), default=None)) is None:
        return times
    for name in endpoints:
        of_runs = (
            select(_runs.block_id, func.max(_runs.event_time).label("at"))
            .where(_runs.endpoint == name, _runs.event_time > newest - within)
            .group_by(_runs.block_id)
            .subquery()
        )
        columns = of_runs.c
        statement = (
            select(_blocks.slice_key, _blocks.concurrency, columns.at, _blocks.seconds)
            .join(of_runs, columns.block_id == _blocks.block_id)
            .order_by(columns.at, columns.block_id)
        )
        times[name] = [BlockSeconds(*row) for row in connection.execute(statement)]
    return times


def _read_arms(
    connection: Connection, endpoint: str, limit: int
) -> dict[str, list[tuple[int, float, float, float, float]]]:
    """By block, of each config: requests, and the longest and the sum of both arms' times, of the newest runs."""
    newest = (
        select(_runs.block_id, _runs.fingerprint, _BASELINE.label("baseline"), _SPECULATIVE.label("speculative"))
        .where(_runs.endpoint == endpoint, _runs.failure.is_(None))
        .order_by(_runs.event_time.desc())
        .limit(limit)
        .subquery()
    )
    columns = newest.c
    grouped = select(
        columns.block_id, columns.fingerprint, func.count(),
        func.max(columns.baseline), func.sum(columns.baseline),
        func.max(columns.speculative), func.sum(columns.speculative),
    ).group_by(columns.block_id, columns.fingerprint)  # fmt: skip
    arms: dict[str, list[tuple[int, float, float, float, float]]] = defaultdict(list)
    for block_id, _, number, *times in connection.execute(grouped):
        if None not in times:
            arms[block_id].append((number, *times))
    return arms

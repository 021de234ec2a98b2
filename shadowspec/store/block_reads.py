"""When blocks began, and how long their arms took by their runs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import zip_longest

from sqlalchemy import Connection, func, select

from shadowspec.store import tables
from shadowspec.types import BlockTime

MS_PER_S = 1_000.0

_blocks, _runs = tables.blocks.c, tables.runs.c
_BASELINE = _runs.baseline_prefill_ms + _runs.baseline_decode_ms
_SPECULATIVE = _runs.speculative_prefill_ms + _runs.speculative_decode_ms


def read_block_times(connection: Connection, endpoints: Sequence[str], limit: int) -> dict[str, list[BlockTime]]:
    """Of each endpoint its blocks among the store's newest, in start order, as far as its newest runs hold them whole.

    `limit` is of blocks of the store, and of runs of each endpoint.  Blocks of which any run failed are left out.
    """
    starts = connection.execute(
        select(_blocks.block_id, _blocks.endpoint, _blocks.slice_key, _blocks.concurrency, _blocks.n_max,
               _blocks.num_runs, _blocks.started_at)
        .order_by(_blocks.started_at.desc(), _blocks.block_id.desc())
        .limit(limit)
    ).all()[::-1]  # fmt: skip
    arms = {block_id: own for name in endpoints for block_id, own in _arms(connection, name, limit).items()}
    found: dict[str, list[BlockTime]] = {name: [] for name in endpoints}
    for row, after in zip_longest(starts, starts[1:]):
        own = arms.get(row.block_id, [])
        if not own or sum(number for number, *_ in own) != row.num_runs:
            continue
        # 1. The baseline ran once, whatever the configs beside it; its times stand in the runs of each.
        number, longest, total = own[0][:3]
        pairs = [(longest, total), *((each[3], each[4]) for each in own)]
        # 2. A short block's fillers are copies of its requests, so that the arm took as much more.
        share = row.n_max / (number * row.concurrency)
        found[row.endpoint].append(
            BlockTime(
                slice_key=row.slice_key,
                concurrency=row.concurrency,
                num_requests=number,
                least_s=sum(most for most, _ in pairs) / MS_PER_S,
                arms_s=sum(max(most, every * share) for most, every in pairs) / MS_PER_S,
                started_at=row.started_at,
                next_started_at=None if after is None else after.started_at,
            )
        )
    return found


def _arms(connection: Connection, endpoint: str, limit: int) -> dict[str, list[tuple[int, float, float, float, float]]]:
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

"""Blocks that are in no evidence yet: those of which runs are missing, and those that the watermark has not reached.

Invariant: which blocks are in evidence depends on the watermark alone, that is on event times.  Workers and devices
measure side by side, and a slow block is written later than fast ones that began with it or after it.  Taking each
block as it comes in would let fast ones testify first (false in 8 to 93% of simulated runs at 5%, with 2 to 8
devices); so a block waits until every record up to the newest of its own is known.  What is in evidence is then
always the beginning of one and the same order, that of these times.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

from shadowspec.types import OpenBlock, RecordKey, Run, StoredRecord


@dataclass(frozen=True, slots=True)
class BlockStep:
    """One look's blocks: those that enter, and those that are to be kept as they are now."""

    entered: Mapping[str, datetime]  # with the newest event time of each
    begun: Mapping[str, OpenBlock]


def take(
    before: Mapping[str, OpenBlock],
    runs: Iterable[Run],
    event_times: Mapping[RecordKey, datetime],
    num_runs: Callable[[str], int],
    closed_by: datetime | None,
) -> BlockStep:
    """Take in one look's new runs, and let in the whole blocks that the watermark has reached (None: nothing follows).

    `num_runs` is how many runs a block was stored with.
    """
    new: dict[str, list[RecordKey]] = defaultdict(list)
    for run in runs:
        new[run.block_id].append(run.key)
    entered, begun = {}, {}
    for block_id, own in before.items():
        if block_id not in new and is_known(own.newest, closed_by) and len(own.runs) >= num_runs(block_id):
            entered[block_id] = own.newest
    for block_id, keys in new.items():
        joined = _joined(before.get(block_id), keys, [event_times[key] for key in keys])
        if is_known(joined.newest, closed_by) and len(joined.runs) >= num_runs(block_id):
            entered[block_id] = joined.newest
        else:
            begun[block_id] = joined
    return BlockStep(entered, begun)


def is_known(newest: datetime, closed_by: datetime | None) -> bool:
    """Whether every record up to the newest of a block's own is known at this watermark."""
    return closed_by is None or newest <= closed_by


def newest_events(runs: Iterable[Run], records: Iterable[StoredRecord]) -> dict[str, datetime]:
    """The newest event time of each block's own requests, by id."""
    event_times = {record.key: record.event_time for record in records}
    newest: dict[str, datetime] = {}
    for run in runs:
        at = event_times.get(run.key)
        if at is not None:
            newest[run.block_id] = max(newest.get(run.block_id, at), at)
    return newest


def _joined(before: OpenBlock | None, keys: list[RecordKey], times: list[datetime]) -> OpenBlock:
    if before is None:
        return OpenBlock(tuple(keys), max(times))
    return OpenBlock((*before.runs, *keys), max(before.newest, *times))

"""The blocks of files that a backfill has finished, written with their rows: neither is there without the other."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import UTC, datetime

from sqlalchemy import Connection, select

from shadowspec.store import bulk
from shadowspec.store.replays import insert_replays
from shadowspec.store.tables import backfill_blocks
from shadowspec.types import BackfilledBlock, BlockPlace, FunnelCounter, FunnelKey, ReplayedRecord

NAMES = (
    *("work", "source", "number", "is_last", "num_records", "num_replayed", "num_near_ties"),
    *("funnel", "last_event", "finished_at"),
)

_blocks = backfill_blocks.c


def insert_block(connection: Connection, work: str, block: BackfilledBlock, replayed: Sequence[ReplayedRecord]) -> int:
    """Insert a block and the rows of its records that are new; how many rows.  A block that is there stays as it is."""
    num_rows = insert_replays(connection, replayed)
    funnel = [[endpoint, counter.value, reason, number] for (endpoint, counter, reason), number in block.funnel.items()]
    row = (
        *(work, *block.place, block.is_last, block.num_records, block.num_replayed, block.num_near_ties),
        *(funnel, block.last_event, datetime.now(UTC)),
    )
    bulk.insert_new(connection, backfill_blocks, NAMES, [row])
    return num_rows


def read_finished(connection: Connection, work: str) -> dict[str, tuple[set[int], bool]]:
    """By source the numbers of its finished blocks, and whether these are all that it has."""
    numbers: dict[str, set[int]] = {}
    last: dict[str, int] = {}
    statement = select(_blocks.source, _blocks.number, _blocks.is_last).where(_blocks.work == work)
    for source, number, is_last in connection.execute(statement):
        numbers.setdefault(source, set()).add(number)
        if is_last:
            last[source] = number
    return {source: (own, last.get(source) == len(own) - 1) for source, own in numbers.items()}


def read_blocks(connection: Connection, work: str, sources: Collection[str]) -> list[BackfilledBlock]:
    """The finished blocks of these sources."""
    statement = (
        select(backfill_blocks)
        .where(_blocks.work == work, _blocks.source.in_(sorted(sources)))
        .order_by(_blocks.source, _blocks.number)
    )
    return [
        BackfilledBlock(
            place=BlockPlace(row["source"], row["number"]),
            is_last=row["is_last"],
            num_records=row["num_records"],
            num_replayed=row["num_replayed"],
            num_near_ties=row["num_near_ties"],
            funnel=_funnel(row["funnel"]),
            last_event=row["last_event"],
        )
        for row in connection.execute(statement).mappings()
    ]


def _funnel(document: Sequence[tuple[str | None, str, str | None, int]]) -> dict[FunnelKey, int]:
    return {(endpoint, FunnelCounter(counter), reason): number for endpoint, counter, reason, number in document}

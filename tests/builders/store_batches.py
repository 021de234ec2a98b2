"""Batches of runs for the store."""

from __future__ import annotations

from shadowspec.types import (
    Advance,
    FunnelCounter,
    FunnelKey,
    PartitionId,
    WriteBatch,
)
from tests.store import examples

FILE = PartitionId("file")
MEASURED: FunnelKey = ("chat", FunnelCounter.MEASURED, None)
SHED: FunnelKey = ("chat", FunnelCounter.SHED, "queue_full")


def batch(lines: range, expected: int | None, *, block_id: str = "", shed: int = 0, sequence: int = 1) -> WriteBatch:
    """A measured block of these lines, and the advance over them and `shed` records without rows."""
    records = tuple(examples.record(line) for line in lines)
    blocks = ((examples.block(block_id or f"b{lines.start}", lines, sequence=sequence), records),)
    funnel = {MEASURED: len(lines), SHED: shed} if shed else {MEASURED: len(lines)}
    moved = Advance(FILE, expected, lines.stop + shed, len(lines) + shed, funnel, examples.NOON)
    return WriteBatch((), blocks, (moved,))

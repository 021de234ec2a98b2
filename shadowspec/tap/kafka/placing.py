"""Where a partition's messages begin to be delivered, judged by what the broker still has of it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from kafka import TopicPartition

from shadowspec.tap.kafka.values import Loss


@dataclass(frozen=True, slots=True)
class Placement:
    """Deliver from `offset` on; None: not yet, ask again.  `loss` is a range that will never be delivered."""

    offset: int | None
    loss: tuple[int, int, Loss] | None = None


@dataclass(frozen=True, slots=True)
class Extent:
    """What the broker has of a partition, and where the group stands in it."""

    begin: int
    end: int
    committed: int | None


def judge(wanted: int | None, extent: Extent, *, from_begin: bool) -> Placement:
    """Where to begin.

    Args:
        wanted: where the ledger stands, or what was to be fetched next; None if neither is known.
        from_begin: where a partition begins that nobody knows: its begin, else its end.
    """
    if wanted is None:
        # An offset beyond the end was committed for a topic that has been made anew since.
        if extent.committed is None or extent.committed > extent.end:
            return Placement(extent.begin if from_begin else extent.end)
        wanted = extent.committed
    if wanted < extent.begin:
        return Placement(extent.begin, (wanted, extent.begin, Loss.RETENTION))
    if wanted > extent.end:
        # The ledger never goes back.  What the broker writes below its place has offsets that are counted
        # already, so it is given up for lost, and delivery goes on at the place.
        return Placement(None, (extent.end, wanted, Loss.TRUNCATED))
    return Placement(wanted)


def look_up(
    consumer: Any, partitions: Collection[TopicPartition], ask_group: Collection[TopicPartition], timeout_ms: int
) -> Mapping[TopicPartition, Extent]:
    """Ask the broker.

    Raises:
        kafka.errors.KafkaError: it does not answer in time, or refuses.
    """
    begins = consumer.beginning_offsets(list(partitions), timeout_ms=timeout_ms)
    ends = consumer.end_offsets(list(partitions), timeout_ms=timeout_ms)
    committed = {partition: consumer.committed(partition, timeout_ms=timeout_ms) for partition in ask_group}
    return {partition: Extent(begins[partition], ends[partition], committed.get(partition)) for partition in partitions}

"""Membership of the consumer group: which partitions are ours, and joining without starting over.

kafka-python calls the rebalance listener on its thread, between two heartbeats, so the listener only notes events.  A
partition arrives ready to be fetched: it is paused at once, before any fetch can be sent.  Every assignment of a
partition gets a new number, which distinguishes messages of an earlier assignment from those of this one.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from kafka import ConsumerRebalanceListener, TopicPartition
from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
from kafka.coordinator.consumer import ConsumerCoordinator
from kafka.structs import MemberState


@dataclass(frozen=True, slots=True)
class Event:
    """A partition was assigned (`number` identifies the assignment) or revoked."""

    place: TopicPartition
    number: int
    is_ours: bool


class Assignments(ConsumerRebalanceListener):  # type: ignore[misc] # kafka-python has no types
    """The listener: the current assignment, and the events since the last call of `take_events`."""

    def __init__(self, consumer: Any, assignor: CooperativeStickyAssignor) -> None:
        self._consumer = consumer
        self._assignor = assignor
        self._lock = threading.Lock()
        self._numbers: dict[TopicPartition, int] = {}
        self._last_number = 0
        self._events: deque[Event] = deque()

    def on_partitions_assigned(self, assigned: Iterable[TopicPartition]) -> None:
        with self._lock:
            for place in sorted(assigned):
                self._consumer.pause(place)
                # Any position will do: nothing is fetched before `start` sets it, but without one kafka-python
                # would ask the brokers for it on every poll.
                self._consumer.seek(place, 0)
                self._last_number += 1
                self._numbers[place] = self._last_number
                self._events.append(Event(place, self._last_number, is_ours=True))

    def on_partitions_revoked(self, revoked: Iterable[TopicPartition]) -> None:
        with self._lock:
            for place in sorted(revoked):
                number = self._numbers.pop(place, None)
                if number is not None:
                    self._events.append(Event(place, number, is_ours=False))

    def on_partitions_lost(self, lost: Iterable[TopicPartition]) -> None:
        # kafka-python would claim them again when it joins, beside their owner by then.
        self._assignor.member_assignment = None
        self.on_partitions_revoked(lost)

    def is_current(self, place: TopicPartition, number: int) -> bool:
        """Whether the partition is ours by the assignment of that number."""
        return self._numbers.get(place) == number

    def take_events(self) -> list[Event]:
        """The events since the last call, in order."""
        with self._lock:
            events = list(self._events)
            self._events.clear()
        return events


class Coordinator(ConsumerCoordinator):  # type: ignore[misc]
    """A member's side of the group protocol, for callers whose polls are short or far apart.

    kafka-python joins in the background, on its thread.  Two things go wrong where a poll ends during a join:

    - A join that has finished when the next poll comes is forgotten and another one started, which makes every other
      member join again too: the group may rebalance forever.  This class takes the finished join.
    - A leader joins again when a topic's partitions change, and notes the new ones in the middle of that join.  After a
      poll that ends between that moment and the end of the join, no state makes the next poll continue: the member
      hangs between two generations, its heartbeats paused.  This class continues a started join.
    """

    _join_task: Any

    def need_rejoin(self) -> bool:
        is_joining = self.rejoining and self._subscription.partitions_auto_assigned()
        return bool(is_joining or super().need_rejoin())

    async def join_group_async(self, timeout_ms: float | None = None) -> Any:
        task = self._join_task
        is_joined = task is not None and task.is_done and task.succeeded() and not self._generation.is_lost()
        if not (is_joined and self.need_rejoin()):
            return await super().join_group_async(timeout_ms=timeout_ms)
        # As the library does when a join ends while a poll waits for it.
        self._join_task = None
        with self._lock:
            self.rejoining = False
            self.rejoin_needed = False
            self.state = MemberState.STABLE
            self._enable_heartbeat()
        generation = self._generation
        await self._on_join_complete_async(
            generation.generation_id, generation.member_id, generation.protocol, task.value
        )
        return True

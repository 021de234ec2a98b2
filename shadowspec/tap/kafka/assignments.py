"""Which partitions are ours, as the group's rebalances say it.

kafka-python calls the listener on its own thread, between two heartbeats, so it only notes what happened.  A
partition arrives ready to be fetched: it is paused there and then, before any fetch can be sent.  Every time a
partition comes it gets a new number, so that what belongs to an earlier time is told from what belongs to
this one.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from kafka import ConsumerRebalanceListener, TopicPartition
from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor


@dataclass(frozen=True, slots=True)
class Event:
    """A partition came (`number` tells this time from others) or went."""

    place: TopicPartition
    number: int
    is_ours: bool


class Assignments(ConsumerRebalanceListener):  # type: ignore[misc] # kafka-python has no types
    """The listener: what is ours now, and what has happened since it was last asked."""

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
                # Any position will do: nothing is fetched before it is set anew, but where there is none
                # kafka-python would ask the brokers for one on every poll.
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
        # kafka-python would go on to claim them when it joins again, beside whoever owns them by then.
        self._assignor.member_assignment = None
        self.on_partitions_revoked(lost)

    def is_current(self, place: TopicPartition, number: int) -> bool:
        """Whether the partition is ours, and has been since it came with that number."""
        return self._numbers.get(place) == number

    def take_events(self) -> list[Event]:
        """What has happened since the last call, in order."""
        with self._lock:
            events = list(self._events)
            self._events.clear()
        return events

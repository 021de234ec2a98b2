"""What admission remembers of an endpoint's stream: sessions in progress, and requests seen lately.

Everything here can be rebuilt from the stored rows of a partition below the place where its ledger stands;
`forget` and `restore` follow a partition that leaves this process and comes back.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from shadowspec.tap.records import EPOCH
from shadowspec.types import PartitionId, UnitMemory

MAX_REMEMBERED_REQUESTS = 1_000_000  # ids per endpoint against which duplicates are seen; about 150 MB


@dataclass(slots=True)
class Unit:
    """A session, or what stands for it: how many usable requests it has had, and when the last one came.

    `rates` holds the inclusion rate of each of its slices, fixed at the slice's first record; `partition`
    is where its last record came from.
    """

    position: int
    last_seen: datetime
    partition: PartitionId
    rates: dict[str, float] = field(default_factory=dict)


class EndpointMemory:
    """One endpoint's.  `newest` is the watermark: the newest event time so far."""

    def __init__(self, forget_unit_after: timedelta) -> None:
        self.newest: datetime = EPOCH
        self._forget_unit_after = forget_unit_after
        self._units: OrderedDict[str, Unit] = OrderedDict()  # least recently seen first
        self._requests: OrderedDict[str, PartitionId] = OrderedDict()  # oldest first

    def advance(self, event_time: datetime) -> None:
        """Move the watermark, and drop the units that would by now begin anew."""
        if event_time > self.newest:
            self.newest = event_time
        while self._units and self.newest - next(iter(self._units.values())).last_seen > self._forget_unit_after:
            self._units.popitem(last=False)

    def count(self, unit_key: str, partition: PartitionId) -> Unit:
        """The unit with one more usable request."""
        unit = self._units.get(unit_key)
        if unit is None:
            unit = self._units[unit_key] = Unit(1, self.newest, partition)
            return unit
        unit.position += 1
        unit.last_seen, unit.partition = self.newest, partition
        self._units.move_to_end(unit_key)
        return unit

    def is_duplicate(self, identities: Sequence[str], partition: PartitionId) -> bool:
        """Whether one of the request's ids was seen before; they are remembered."""
        seen = False
        for identity in identities:
            seen = seen or identity in self._requests
            self._requests[identity] = partition
        while len(self._requests) > MAX_REMEMBERED_REQUESTS:
            self._requests.popitem(last=False)
        return seen

    def forget(self, partition: PartitionId) -> None:
        """Drop what came from a partition that this process no longer reads."""
        for key in [key for key, unit in self._units.items() if unit.partition == partition]:
            del self._units[key]
        for identity in [identity for identity, origin in self._requests.items() if origin == partition]:
            del self._requests[identity]

    def restore(self, partition: PartitionId, units: Mapping[str, UnitMemory], request_ids: Iterable[str]) -> None:
        """Take up what the rows of a partition remember."""
        for key, memory in sorted(units.items(), key=lambda item: (item[1].last_seen, item[0])):
            self._units[key] = Unit(memory.position, memory.last_seen, partition, dict(memory.rates))
            self._units.move_to_end(key)
            self.newest = max(self.newest, memory.last_seen)
        self._requests.update(dict.fromkeys(request_ids, partition))

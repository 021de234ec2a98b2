"""Open keys in memory: what a replay, or a world without a database, keeps between looks."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from shadowspec.gate.open_clusters import is_over
from shadowspec.types import OpenKey, SliceKey


class MemoryKeys:
    """A key table in memory."""

    def __init__(self) -> None:
        self._keys: dict[SliceKey, OpenKey] = {}

    def take(self, keys: Iterable[SliceKey]) -> list[OpenKey]:
        """Take out those of these keys that are known."""
        return [self._keys.pop(key) for key in list(keys) if key in self._keys]

    def take_waiting(self, until: datetime | None) -> list[OpenKey]:
        """Take out the keys whose waiting cluster opened at or before this; None: all that wait."""
        found = [
            place
            for place, each in self._keys.items()
            if each.first_event is not None and (until is None or each.first_event <= until)
        ]
        return self.take(found)

    def first_unclosed(self, closed_by: datetime) -> datetime | None:
        """The earliest first event of a waiting cluster that is not closed."""
        return min(
            (each.first_event for each in self._keys.values() if each.first_event and not each.is_closed(closed_by)),
            default=None,
        )

    def put(self, keys: Iterable[OpenKey]) -> None:
        """Keep these."""
        self._keys |= {(each.slice_key, each.key): each for each in keys}

    def forget(self, reopened_by: datetime) -> None:
        """Drop the keys for which nothing waits and that may begin anew."""
        self._keys = {place: each for place, each in self._keys.items() if not is_over(each, reopened_by)}

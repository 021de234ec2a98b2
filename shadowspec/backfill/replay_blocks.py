"""A file's records cut into blocks: the units of replaying, writing and resuming.

The cut depends only on the content and the settings: of each endpoint the usable responses in their order, as many at a
time as one process would score.  A record that ends unused is counted in the block that comes next.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

from shadowspec.types import BlockPlace, FunnelKey

Call = TypeVar("Call")


class Unused(NamedTuple):
    """A record that is not replayed: its counter, and a reason if the counter does not suffice."""

    end: FunnelKey
    message: str | None = None


@dataclass(frozen=True, slots=True)
class UnreplayedBlock(Generic[Call]):
    """A block before it is replayed."""

    place: BlockPlace
    is_last: bool  # of its file
    endpoint: str | None  # of all of the calls; None without calls
    calls: tuple[Call, ...] = field(repr=False)
    funnel: Mapping[FunnelKey, int]
    messages: Mapping[str, str]  # the first of each reason

    @property
    def num_records(self) -> int:
        return len(self.calls) + sum(self.funnel.values())


def unreplayed_blocks(
    source: str, records: Iterable[tuple[str, Call] | Unused], size: int
) -> Iterator[UnreplayedBlock[Call]]:
    """The blocks of a file, the last of which is known as such.

    Args:
        source: the digest of its content.
        records: its records in their order, those that are used with their endpoints.
        size: how many responses a block holds at most.
    """
    cut: _Cut[Call] = _Cut(source, size)
    held: UnreplayedBlock[Call] | None = None
    for record in records:
        block = cut.take(record)
        if block is not None:
            if held is not None:
                yield held
            held = block
    for rest in cut.rest(is_needed=held is None):
        if held is not None:
            yield held
        held = rest
    assert held is not None, "a file has a block, be it empty"
    yield UnreplayedBlock(held.place, True, held.endpoint, held.calls, held.funnel, held.messages)


class _Cut(Generic[Call]):
    """The waiting calls, by endpoint, and the records that ended since the last block."""

    def __init__(self, source: str, size: int) -> None:
        self._source, self._size = source, size
        self._number = 0
        self._waiting: dict[str, list[Call]] = {}
        self._funnel: Counter[FunnelKey] = Counter()
        self._messages: dict[str, str] = {}

    def take(self, record: tuple[str, Call] | Unused) -> UnreplayedBlock[Call] | None:
        """Take a record in; the block that it fills."""
        if isinstance(record, Unused):
            self._funnel[record.end] += 1
            if record.message is not None:
                self._messages.setdefault(record.end[2] or "", record.message)
            return None
        endpoint, call = record
        waiting = self._waiting.setdefault(endpoint, [])
        waiting.append(call)
        return self._block(endpoint) if len(waiting) >= self._size else None

    def rest(self, *, is_needed: bool) -> Iterator[UnreplayedBlock[Call]]:
        """The remaining calls; a block without responses where records ended since the last one, or there was none."""
        for endpoint in [name for name, calls in self._waiting.items() if calls]:
            yield self._block(endpoint)
            is_needed = False
        if self._funnel or is_needed:
            yield self._block(None)

    def _block(self, endpoint: str | None) -> UnreplayedBlock[Call]:
        calls = self._waiting.pop(endpoint) if endpoint is not None else ()
        block = UnreplayedBlock(
            BlockPlace(self._source, self._number), False, endpoint, tuple(calls), self._funnel, self._messages
        )
        self._number += 1
        self._funnel, self._messages = Counter(), {}
        return block

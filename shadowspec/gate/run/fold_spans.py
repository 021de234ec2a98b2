"""Which offsets a fold takes in: those that a consumer has finished and no fold has had, a bounded part at a time.

An offset is folded once, when the first consumer that reads it has finished it; where another one began, or how far
it has come, does not bear on that.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from shadowspec.gate.run.gate_store import Offsets, SourcePartition
from shadowspec.types import Span

OFFSETS_AT_ONCE = 100_000  # over all partitions: about 400 MB of rows, ten seconds or less


@dataclass(frozen=True, slots=True)
class Plan:
    """The spans of one fold; `unfinished` are the places of which more is stored.

    Those of them that are `finite` (files read to their end) may hold their records in any order of event time: of
    them nothing is known before all is folded.
    """

    spans: tuple[Span, ...]
    unfinished: frozenset[SourcePartition]
    finite: frozenset[SourcePartition] = frozenset()


def next_plan(offsets: Offsets, cursors: Sequence[Span], limit: int = OFFSETS_AT_ONCE) -> Plan:
    """The offsets to fold next: from every range that has more, so that all ranges advance together."""
    pending = without(merge_spans(offsets.finished_spans()), cursors)
    width = max(limit // max(len(pending), 1), 1)
    spans, unfinished = [], set()
    for span in pending:
        # A usual look's few offsets are folded whatever lies there.
        first = offsets.first_offset(span) if span.stop - span.start > width else span.start
        until = span.stop if first is None else min(span.stop, first + width)
        spans.append(replace(span, stop=until))
        if until < span.stop:
            unfinished.add((span.source, span.partition))
    return Plan(tuple(spans), frozenset(unfinished), offsets.ended_places() & unfinished)


def merge_spans(spans: Iterable[Span]) -> tuple[Span, ...]:
    """The same offsets as spans that neither meet nor overlap, sorted."""
    merged: list[Span] = []
    for following in sorted(span for span in spans if span.start < span.stop):
        last = merged[-1] if merged else None
        if last is not None and _place(last) == _place(following) and following.start <= last.stop:
            merged[-1] = replace(last, stop=max(last.stop, following.stop))
        else:
            merged.append(following)
    return tuple(merged)


def without(spans: Iterable[Span], taken: Iterable[Span]) -> tuple[Span, ...]:
    """The offsets of `spans` that lie in none of `taken`, as spans."""
    by_place: dict[SourcePartition, list[Span]] = defaultdict(list)
    for span in merge_spans(taken):
        by_place[_place(span)].append(span)
    remaining = []
    for span in merge_spans(spans):
        start = span.start
        for taken_span in by_place[_place(span)]:
            if start < taken_span.stop and taken_span.start < span.stop:
                remaining.append(replace(span, start=start, stop=taken_span.start))
                start = taken_span.stop
        remaining.append(replace(span, start=start))
    return tuple(span for span in remaining if span.start < span.stop)


def membership(spans: Iterable[Span]) -> Callable[[SourcePartition, int], bool]:
    """A predicate: whether the offset of a place lies in one of the spans."""
    starts: dict[SourcePartition, list[int]] = defaultdict(list)
    stops: dict[SourcePartition, list[int]] = defaultdict(list)
    for span in merge_spans(spans):
        starts[_place(span)].append(span.start)
        stops[_place(span)].append(span.stop)

    def is_in(place: SourcePartition, offset: int) -> bool:
        position = bisect_right(starts.get(place, ()), offset) - 1
        return position >= 0 and offset < stops[place][position]

    return is_in


def _place(span: Span) -> SourcePartition:
    return span.source, span.partition

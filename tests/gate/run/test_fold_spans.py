"""Ranges of offsets as sets of offsets, and what a fold takes in of them."""

from __future__ import annotations

from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st

from shadowspec.gate.run.fold_spans import membership, merge_spans, next_plan, without
from shadowspec.types import Span

Offset = tuple[str, int, int]

SPANS = st.lists(
    st.builds(lambda place, start, size: Span(*place, start, start + size),
              st.sampled_from([("topic", 0), ("topic", 1), ("file", 0)]), st.integers(0, 30), st.integers(0, 12)),
    max_size=8,
)  # fmt: skip


def offsets(spans: Iterable[Span]) -> set[Offset]:
    return {(span.source, span.partition, offset) for span in spans for offset in range(span.start, span.stop)}


@given(SPANS)
def test_merging_keeps_the_offsets_and_leaves_gaps_between(spans: list[Span]) -> None:
    found = merge_spans(spans)
    assert offsets(found) == offsets(spans)
    assert sum(span.stop - span.start for span in found) == len(offsets(spans))
    ends = {(span.source, span.partition, span.stop) for span in found}
    assert not ends & {(span.source, span.partition, span.start) for span in found}


@given(SPANS, SPANS)
def test_what_was_taken_is_left_out(spans: list[Span], taken: list[Span]) -> None:
    found = without(spans, taken)
    assert offsets(found) == offsets(spans) - offsets(taken)
    assert sum(span.stop - span.start for span in found) == len(offsets(found))


@given(SPANS)
def test_membership_is_that_of_the_offsets(spans: list[Span]) -> None:
    is_in = membership(spans)
    for source, partition in (("topic", 0), ("topic", 1), ("file", 0), ("other", 0)):
        for offset in range(45):
            assert is_in((source, partition), offset) == ((source, partition, offset) in offsets(spans))


class Finished:
    """Consumers that have finished these; a record is stored at every third offset."""

    def __init__(self, spans: list[Span]) -> None:
        self._spans = spans
        self.num_searches = 0

    def finished_spans(self) -> list[Span]:
        return self._spans

    def ended_places(self) -> frozenset[tuple[str, int]]:
        return frozenset({("file", 0)})

    def first_offset(self, span: Span) -> int | None:
        self.num_searches += 1
        return next((offset for offset in range(span.start, span.stop) if offset % 3 == 0), None)


@given(SPANS, SPANS, st.integers(1, 20))
def test_plans_take_every_offset_once_until_nothing_is_left(spans: list[Span], before: list[Span], limit: int) -> None:
    cursors, taken = merge_spans(before), 0
    while True:
        plan = next_plan(Finished(spans), cursors, limit)
        assert not offsets(plan.spans) & offsets(cursors)
        taken += len(offsets(plan.spans))
        cursors = merge_spans((*cursors, *plan.spans))
        if not plan.unfinished:
            break
        assert plan.spans, "a plan that leaves something takes something"
        assert plan.finite == plan.unfinished & {("file", 0)}
    assert offsets(cursors) == offsets(spans) | offsets(before)
    assert taken == len(offsets(spans) - offsets(before))


def test_spans_that_fit_into_a_plan_are_taken_without_a_search_for_their_first_record() -> None:
    finished = Finished([Span("topic", 0, 1, 11), Span("topic", 1, 0, 12)])
    plan = next_plan(finished, (), limit=20)
    assert plan.spans == (Span("topic", 0, 1, 11), Span("topic", 1, 0, 10))
    assert finished.num_searches == 1, "only the second is longer than its half of 20 offsets"

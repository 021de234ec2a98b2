"""Refilled slots: a queue decoded so many at a time gives each request what it would have had alone."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from shadowspec.engine.batch import Batch, Request
from shadowspec.engine.decode import Decoded, decode_batch
from shadowspec.engine.proposers import Proposer
from shadowspec.engine.proposers.draft_model import DraftModelProposer
from shadowspec.engine.proposers.ngram import NgramProposer
from shadowspec.engine.proposers.suffix import SuffixOptions, SuffixProposer
from shadowspec.engine.timing import StepClock, Timeline
from shadowspec.types import SamplingParameters, VerifyRule
from tests.identities import check_identities

NUM_TOKENS = 12  # of the tiny pair's vocabulary
DEPTH = 3
PROPOSERS = ["baseline", "draft", "adaptive", "ngram", "suffix"]


def proposer(kind: str, draft: Any, *, is_sampling: bool) -> Proposer | None:
    if kind == "baseline":
        return None
    if kind == "ngram":
        return NgramProposer(DEPTH, 1, 3)
    if kind == "suffix":
        return SuffixProposer(DEPTH, SuffixOptions())
    threshold = 0.3 if kind == "adaptive" else 0.0
    return DraftModelProposer(draft, DEPTH, is_sampling=is_sampling, confidence_threshold=threshold)


def requests(temperature: float, count: int = 11) -> list[Request]:
    """Ragged prompts and outputs, some of one token, so that slots come free at every step."""
    return [
        Request(
            tuple(2 + (row * row + step) % 10 for step in range(1 + (5 * row) % 9)),
            SamplingParameters(
                temperature=temperature if row % 3 else 0.0,
                top_p=0.9 if row % 2 else 1.0,
                max_tokens=1 + (7 * row) % 17,
                min_tokens=min(3, 1 + (7 * row) % 17),
                repetition_penalty=1.2 if row % 4 == 1 else 1.0,
                frequency_penalty=0.1 if row % 4 == 3 else 0.0,
            ),
            row,
        )
        for row in range(count)
    ]


def decoded(
    target: Any, requests: list[Request], drafting: Proposer | None, slots: int | None, **more: Any
) -> list[Decoded]:
    result = decode_batch(
        target,
        requests,
        proposer=drafting,
        num_speculative_tokens=DEPTH,
        verify_rule=VerifyRule.REJECTION if isinstance(drafting, DraftModelProposer) else VerifyRule.GREEDY_DRAFT,
        end_token_ids=frozenset({1}),
        num_slots=slots,
        **more,
    )
    return list(result.decoded)


@pytest.mark.representative(
    "1-draft-0.0", "3-baseline-0.8", "3-draft-0.8", "3-adaptive-0.8", "3-ngram-0.8", "3-suffix-0.8"
)
@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("kind", PROPOSERS)
@pytest.mark.parametrize("slots", [1, 3])
def test_each_request_is_decoded_as_in_one_batch(
    kind: str, slots: int, temperature: float, target: Any, draft: Any
) -> None:
    """The same tokens, counts and reasons to finish: random numbers and penalties are the request's own."""
    block_requests = requests(temperature)
    whole = decoded(target, block_requests, proposer(kind, draft, is_sampling=True), None)
    queue = decoded(target, block_requests, proposer(kind, draft, is_sampling=True), slots)
    assert [each.output for each in queue] == [each.output for each in whole]
    assert [each.finish_reason for each in queue] == [each.finish_reason for each in whole]
    assert [each.counts for each in queue] == [each.counts for each in whole]
    for each in queue:
        check_identities(each.counts)
        timing = each.timing
        assert timing.prefill_ms > 0.0
        assert timing.concurrency is not None
        assert 1.0 <= timing.concurrency <= slots + 1e-6
        assert timing.draft_ms + timing.verify_ms + timing.other_ms == pytest.approx(timing.decode_ms)


def test_released_slots_give_the_same_and_none_is_released_that_somebody_waits_for(
    target: Any, draft: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    block_requests = requests(0.8)
    kept = decoded(target, block_requests, proposer("draft", draft, is_sampling=True), 4)
    released_while_waiting: list[bool] = []
    keep = Batch.keep

    def watched(batch: Batch, slots: list[int]) -> None:
        released_while_waiting.append(batch.has_waiting)
        keep(batch, slots)

    monkeypatch.setattr(Batch, "keep", watched)
    released = decoded(target, block_requests, proposer("draft", draft, is_sampling=True), 4, releases_slots=True)
    assert [each.counts for each in released] == [each.counts for each in kept]
    assert released_while_waiting
    assert not any(released_while_waiting)


def test_a_request_takes_the_slot_that_is_free_at_once(target: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits while a slot is free, no row is put aside, and the first ones stand in the slots in their order."""
    begun: list[list[int]] = []
    admit, begin = Batch.admit, Batch.begin

    def watched_admission(batch: Batch) -> list[int]:
        before = list(batch.rows)
        slots = admit(batch)
        assert all(before[slot].finish_reason is not None for slot in slots)
        if batch.has_waiting:
            assert all(row.finish_reason is None for row in batch.rows)
        return slots

    def watched_begin(batch: Batch, slots: list[int], first_tokens: torch.Tensor) -> None:
        begun.append([batch.all_rows.index(batch.rows[slot]) for slot in slots])
        begin(batch, slots, first_tokens)

    monkeypatch.setattr(Batch, "admit", watched_admission)
    monkeypatch.setattr(Batch, "begin", watched_begin)
    decoded(target, requests(0.0), None, 3)
    assert begun[0] == [0, 1, 2]
    assert list(itertools.chain(*begun)) == list(range(11))
    assert len(begun) > 3


def test_a_queue_keeps_the_load_up(target: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a clock that counts marks, a batch of ragged outputs runs half empty and a queue does not."""
    monkeypatch.setattr(Timeline, "mark", _counted_mark)
    requests = [
        Request((2, 3), SamplingParameters(temperature=0.0, max_tokens=1 + 30 * (row % 2), ignore_eos=True), row)
        for row in range(32)
    ]
    batch = [each.timing.concurrency or 0.0 for each in decoded(target, requests[:4], None, None)]
    queue = [each.timing.concurrency or 0.0 for each in decoded(target, requests, None, 4)]
    assert max(batch[1::2]) < 2.3
    in_the_middle = queue[1:24:2]
    assert min(in_the_middle) > 3.8


def _counted_mark(timeline: Timeline) -> int:
    timeline._seconds.append(1e-3 * len(timeline._seconds))
    return len(timeline._seconds) - 1


class _Rows:
    """What the clock reads of a batch."""

    def __init__(self, count: int) -> None:
        self.all_rows = tuple(_Row() for _ in range(count))
        self.rows = list(self.all_rows)


class _Row:
    def __init__(self) -> None:
        self.finish_reason: str | None = None
        self.output = [0]


class _Marks(Timeline):
    """Marks laid at the times given, in milliseconds."""

    def __init__(self, times: list[float]) -> None:
        super().__init__(torch.device("cpu"))
        self._times = iter(times)

    def mark(self) -> int:
        self._seconds.append(next(self._times) / 1e3)
        return len(self._seconds) - 1


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_the_clock_tells_the_times_of_a_queue(data: st.DataObject) -> None:
    """Against the same times kept by hand: two slots, three to eight requests of so many steps each."""
    steps = data.draw(st.lists(st.integers(0, 4), min_size=3, max_size=8))
    gaps = iter(data.draw(st.lists(st.integers(1, 9), min_size=400, max_size=400)))
    times = list(itertools.accumulate((float(next(gaps)) for _ in range(300)), initial=0.0))
    rows, timeline = _Rows(len(steps)), _Marks(times)
    now = 0
    clock = StepClock(timeline, rows, timeline.mark())  # type: ignore[arg-type]
    begun: dict[int, float] = {}
    first: dict[int, float] = {}
    ended: dict[int, float] = {}
    drafting: dict[int, float] = dict.fromkeys(range(len(steps)), 0.0)
    arrived: dict[int, list[float]] = {}
    left = dict(enumerate(steps))
    slots: list[int | None] = [None, None]
    waiting = list(range(len(steps)))
    while waiting or any(slot is not None for slot in slots):
        free = [slot for slot, item in enumerate(slots) if item is None][: len(waiting)]
        if free:
            for slot in free:
                slots[slot] = waiting.pop(0)
                begun[slots[slot]] = times[now]  # type: ignore[index]
                rows.rows[slot] = rows.all_rows[slots[slot]]  # type: ignore[index]
            now += 1
            for slot in free:
                slot_rows = slots[slot]
                assert slot_rows is not None
                first[slot_rows] = times[now]
                arrived[slot_rows] = [times[now]]
                if left[slot_rows] == 0:
                    rows.all_rows[slot_rows].finish_reason, ended[slot_rows], slots[slot] = "length", times[now], None
            clock.mark_prefilled(free)
            continue
        clock.mark_drafted()
        clock.mark_verified()
        for slot, item in enumerate(slots):
            if item is not None:
                drafting[item] += times[now + 1] - times[now]
                arrived[item].append(times[now + 3])
                left[item] -= 1
                if left[item] == 0:
                    rows.all_rows[item].finish_reason, ended[item], slots[slot] = "length", times[now + 3], None
        now += 3
        clock.mark_committed()
    for item, timing in enumerate(clock.timings()):
        assert timing.prefill_ms == pytest.approx(first[item] - begun[item])
        assert timing.decode_ms == pytest.approx(ended[item] - first[item])
        assert timing.draft_ms == pytest.approx(drafting[item])
        waits = [later - earlier for earlier, later in itertools.pairwise(arrived[item])]
        assert timing.longest_gap_ms == (pytest.approx(max(waits)) if waits else None)
        shared = [min(ended[item], ended[i]) - max(begun[item], begun[i]) for i in range(len(steps))]
        expected = sum(max(0.0, each) for each in shared) / (ended[item] - begun[item])
        assert timing.concurrency == pytest.approx(expected)
    assert clock.duration_ms == pytest.approx(max(ended.values()))

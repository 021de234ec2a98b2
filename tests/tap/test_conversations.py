"""Conversations: a session's turns go into one block, in their order, and into no other."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from shadowspec.tap import conversations
from shadowspec.tap.admission import Admitted
from shadowspec.tap.blocks import BlockFormer
from shadowspec.tap.endpoints import EndpointRule, Load
from shadowspec.tap.formats import MessageFormat, open_message
from shadowspec.types import Block, FunnelCounter, PartitionId, format_slice_key
from tests.tap.mirror import RULE, START, admission, chat, raw

TURNS = replace(
    RULE,
    measures_conversations=True,
    timed_positions=4,
    loads=(Load(2),),
    slice_by=("prompt_class",),
    block_max_wait=timedelta(minutes=10),
)
CODE = "Fix this python function: def f(x): return x"


def turn(session: str | None, number: int, minute: float = 0.0, text: str = "Why is the sky blue?") -> dict[str, Any]:
    """The record of a turn, whose prompt holds the turns before it."""
    said = [{"role": "user", "content": text}, {"role": "assistant", "content": "So."}] * (number - 1)
    return chat(
        session_id=session,
        timestamp=START + 60 * minute,
        request_messages=[*said, {"role": "user", "content": text}],
        request_id=f"{session}-{number}-{minute}",
        response_id=None,
    )


class Tap:
    """Admission and blocks together, as a pipeline drives them."""

    def __init__(self, rule: EndpointRule = TURNS) -> None:
        self.admission, self.former = admission(rule), BlockFormer([rule])
        self.blocks: list[Block] = []
        self.ends: list[tuple[FunnelCounter, str | None]] = []
        self.slices: list[str | None] = []
        self.num_taken = 0

    def take(self, record: dict[str, Any], *, is_shed: bool = False) -> None:
        self.num_taken += 1
        (opened,) = open_message(raw(record, self.num_taken), MessageFormat.OPENAI)
        fate = self.admission.admit(opened)
        self.ends.append((fate.record.counter, fate.record.reason))
        self.slices.append(fate.record.slice_key)
        if not isinstance(fate, Admitted):
            return
        self.blocks += self.former.advance("chat", fate.prompt.event_time)
        if self.former.is_over(fate.prompt, fate.record.session_position):
            self.ends[-1] = (FunnelCounter.SAMPLED_OUT, "conversation_over")
        elif is_shed or self.former.is_shed(fate.prompt):
            self.ends[-1] = (FunnelCounter.SHED, None)
            self.blocks += self.former.shed(fate.prompt, fate.concurrency, fate.record.slice_key or "")
        else:
            self.blocks += self.former.add(fate.prompt, fate.concurrency, fate.record.slice_key)

    def drain(self) -> list[Block]:
        self.blocks += self.former.drain()
        return self.blocks


def lines(block: Block) -> list[list[int]]:
    """The lines of each conversation, fillers included."""
    return [[prompt.key.offset for prompt in turns] for turns in block.conversations]


def test_the_turns_of_a_session_go_into_one_block_in_their_order() -> None:
    tap = Tap()
    for number in (1, 2, 3, 4):
        tap.take(turn("a", number))
        tap.take(turn("b", number))
    (block,) = tap.blocks
    assert lines(block) == [[1, 3, 5, 7], [2, 4, 6, 8]]
    assert (block.num_places, block.max_turns, block.n_max, len(block.requests)) == (2, 4, 8, 8)
    assert [len(prompt.prompt_token_ids) for prompt in block.conversations[0]] == sorted(
        len(prompt.prompt_token_ids) for prompt in block.conversations[0]
    )
    assert set(tap.ends) == {(FunnelCounter.MEASURED, None)}
    tap.take(turn("a", 5))
    assert tap.ends[-1] == (FunnelCounter.SAMPLED_OUT, "not_timed")


def test_a_conversation_is_over_without_a_turn_for_so_long_and_what_comes_later_is_in_no_block() -> None:
    tap = Tap()
    tap.take(turn("a", 1, 0.0))
    tap.take(turn("a", 2, 9.9))
    tap.take(turn("b", 1, 10.0))
    assert tap.blocks == []
    tap.take(turn("b", 2, 19.9))  # a has been silent for ten minutes, and waits for company
    tap.take(turn("a", 3, 20.0))
    assert tap.ends[-1] == (FunnelCounter.SAMPLED_OUT, "conversation_over")
    assert [lines(block) for block in tap.drain()] == [[[1, 2], [3, 4]]]


def test_a_short_block_is_filled_with_whole_conversations() -> None:
    tap = Tap()
    for number in (1, 2, 3):
        tap.take(turn("a", number))
    (block,) = tap.drain()
    assert lines(block) == [[1, 2, 3], [1, 2, 3]]
    assert [len(block.requests), len(block.fillers)] == [3, 3]
    again = Tap(replace(TURNS, loads=(Load(4),)))
    for number in (1, 2):
        again.take(turn("a", number))
    assert lines(again.drain()[0]) == [[1, 2]] * 4


def test_a_conversation_has_the_slice_of_its_first_turn() -> None:
    tap = Tap()
    tap.take(turn("a", 1))
    tap.take(turn("a", 2, text=CODE))
    tap.take(turn("b", 1, text=CODE))
    assert tap.slices[0] == tap.slices[1] != tap.slices[2]
    blocks = tap.drain()
    assert [lines(block)[0] for block in blocks] == [[1, 2], [3]]
    assert [block.slice_key for block in blocks] == [tap.slices[0], tap.slices[2]]
    assert format_slice_key(blocks[0].requests[1].labels, ("prompt_class",)) == tap.slices[2], "its label is its own"


def test_requests_without_a_session_are_measured_by_themselves() -> None:
    tap = Tap()
    for minute in range(100):
        tap.take(turn(None, 1, 0.1 * minute))
    measured = [end for end in tap.ends if end == (FunnelCounter.MEASURED, None)]
    assert len(measured) == 1, "one of those of ten minutes"
    assert [len(turns) for block in tap.drain() for turns in block.conversations] == [1, 1]


def test_with_one_position_each_session_is_measured_at_its_first_request() -> None:
    tap = Tap(replace(TURNS, timed_positions=1))
    for number in (1, 2):
        tap.take(turn("a", number))
        tap.take(turn("b", number))
    (block,) = tap.drain()
    assert (lines(block), block.n_max) == ([[1], [2]], 2)


def test_turns_after_a_shed_one_are_shed_too_and_those_before_it_are_measured() -> None:
    tap = Tap()
    tap.take(turn("a", 1))
    tap.take(turn("a", 2), is_shed=True)
    tap.take(turn("a", 3))
    tap.take(turn("b", 1), is_shed=True)
    for number in (2, 3, 4):
        tap.take(turn("b", number))
    assert Counter(counter for counter, _ in tap.ends) == {FunnelCounter.MEASURED: 1, FunnelCounter.SHED: 6}
    assert [len(block.requests) for block in tap.drain()] == [1], "nothing is left of b"


def test_what_is_held_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    one = len(Tap().admission.reader.read([(open_message(raw(turn("a", 1)), MessageFormat.OPENAI)[0], (None, None))])[0]
              .prompt_token_ids)  # fmt: skip
    monkeypatch.setattr(conversations, "MAX_HELD_TOKENS", 3 * one)
    tap = Tap()
    for session in "abcde":
        tap.take(turn(session, 1))
    assert [lines(block) for block in tap.blocks] == [[[1], [2]]], "the longest silent ones are over first"
    tap.take(turn("a", 2))
    assert tap.ends[-1] == (FunnelCounter.SAMPLED_OUT, "conversation_over")


def test_a_session_that_is_a_new_unit_begins_a_new_conversation() -> None:
    """Its turns go on, but its load, its slice and its positions are drawn again."""
    tap = Tap(replace(TURNS, forget_unit_after=timedelta(minutes=8), timed_positions=9))
    for number in range(1, 9):
        tap.take(turn("a", number, number - 1))
    blocks = tap.drain()
    units = [{prompt.unit_key for prompt in turns} for block in blocks for turns in block.conversations]
    assert {len(of_conversation) for of_conversation in units} == {1}
    assert len(set.union(*units)) in (2, 3)
    assert sum(len(block.requests) for block in blocks) == 8


def test_turns_of_a_partition_that_is_gone_are_forgotten() -> None:
    tap = Tap()
    tap.take(turn("a", 1))
    tap.take(turn("b", 1))
    dropped = tap.former.forget(PartitionId("0" * 64, 0))
    assert [prompt.key.offset for prompt in dropped] == [1, 2]
    assert tap.drain() == []


@pytest.mark.parametrize("seed", range(5))
def test_no_unit_is_in_two_blocks_whatever_comes_when(seed: int) -> None:
    draw, tap, minute = random.Random(seed), Tap(replace(TURNS, loads=(Load(3),))), 0.0
    numbers: Counter[str] = Counter()
    for _ in range(400):
        minute += draw.choice([0.0, 0.2, 0.2, 5.0, 11.0])
        session = f"s{draw.randrange(60)}"
        numbers[session] += 1
        tap.take(turn(session, numbers[session], minute, text=draw.choice([CODE, "Why is the sky blue?"])))
    blocks_of: dict[str | None, set[str]] = defaultdict(set)
    for block in tap.drain():
        assert len(block.requests) <= block.n_max
        assert len(block.conversations) == 3
        for turns in block.conversations:
            assert len({(prompt.session_hash, prompt.unit_key) for prompt in turns}) == 1
            assert [prompt.key for prompt in turns] == sorted(prompt.key for prompt in turns)
        for prompt in block.requests:
            blocks_of[prompt.unit_key].add(block.block_id)
    assert {len(found) for found in blocks_of.values()} == {1}
    assert any(reason == "conversation_over" for _, reason in tap.ends)

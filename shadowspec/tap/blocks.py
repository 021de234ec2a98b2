"""Blocks: which admitted requests go through both arms together.

Blocks are filled per endpoint, slice and load, in the order of admission.  A block is one batch with as many requests
as the load, or a queue of several times as many that runs at constant concurrency (`requests_per_slot`).  Where an
endpoint measures conversations, each of these places takes a whole one, once it is over (`conversations`).  A block
that is not full after `block_max_wait` of event time, or at the end of the input, runs short: untimed copies of prompts
that were already timed fill its queue, so that the load is the true one.  No block is dissolved, because the measured
requests would then depend on how busy the hour was.  Which requests share a block depends only on the input.

Production's evidence is spread over time (`window`): of the traffic of each slice and load about `blocks_per_window`
blocks are measured in a window.  The requests of a place are counted off in groups of a block's size.  Of as many
consecutive groups as the traffic so far allows, from the beginning of the window on, a hash draws one, and its requests
are measured.  Each request of the traffic has thus the same chance, and a block represents as many blocks as groups
it was drawn from (`stands_for`).  The traffic so far is that of this window or the one before, whichever is more: a
process that starts measures more at first.  Such a block waits as long as a window to be full.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import chain
from statistics import fmean
from typing import Final

from shadowspec.tap.conversations import Conversation, Conversations, Place
from shadowspec.tap.endpoints import EndpointRule
from shadowspec.types import REPEAT_EVERY, Arm, Block, PartitionId, ShadowPrompt, format_slice_key, window_of

REMEMBERED_PROMPTS = 64  # timed prompts kept per slice to fill short blocks from; at least the usual loads
_NO_TIME: Final = datetime(1, 1, 1, tzinfo=UTC)


@dataclass(slots=True)
class _OpenBlock:
    """Conversations waiting for company, most of them of one turn.  `opened` is the watermark at the first of them."""

    slice_key: str
    concurrency: int
    opened: datetime
    conversations: list[Conversation] = field(default_factory=list)
    stands_for: list[float] = field(default_factory=list)  # conversations of the traffic that each represents


@dataclass(slots=True)
class _Pace:
    """Requests, or conversations, of one place that could be measured: in this window and in the one before.

    `place` is where the next one falls in the groups of which one is drawn.
    """

    window: int
    num_now: int = 0
    num_before: int = 0
    place: int = 0
    num_groups: int = 1
    drawn: int = 0

    def is_measured(self, window: int, size: int, num_blocks: int, name: str) -> bool:
        """Count one more, called `name`, in this window; whether its group of this `size` is drawn."""
        if window > self.window:
            self.num_before = self.num_now if window == self.window + 1 else 0
            self.window, self.num_now, self.place = window, 0, 0
        self.num_now += 1
        if self.place == 0:
            traffic = max(self.num_now, self.num_before)
            self.num_groups = -(-traffic // (size * num_blocks))
            self.drawn = _draw(f"group\0{name}", self.num_groups)
        is_drawn = self.place // size == self.drawn
        self.place = (self.place + 1) % (self.num_groups * size)
        return is_drawn


@dataclass(slots=True)
class _EndpointBlocks:
    """One endpoint's open blocks, oldest first, and the prompts that fill short ones."""

    rule: EndpointRule
    conversations: Conversations | None  # None: each request is measured by itself
    watermark: datetime = _NO_TIME
    next_sequence: int = 0
    open: dict[Place, _OpenBlock] = field(default_factory=dict)
    paces: dict[Place, _Pace] = field(default_factory=dict)
    # Conversations of the traffic that each represents: those of one turn by place, those of several by session.
    represented: dict[Place, float] = field(default_factory=dict)
    stands_for: dict[str, float] = field(default_factory=dict)

    timed: dict[str, deque[Conversation]] = field(default_factory=dict)  # by slice, newest last


class BlockFormer:
    """Fills blocks.

    Holds at most one open block and `REMEMBERED_PROMPTS` conversations per endpoint, slice and load, and the
    conversations that are not over.
    """

    def __init__(self, rules: Iterable[EndpointRule]) -> None:
        self._endpoints = {
            rule.name: _EndpointBlocks(rule, Conversations(rule) if rule.max_turns > 1 else None) for rule in rules
        }

    def add(self, prompt: ShadowPrompt, concurrency: int, slice_key: str | None = None) -> list[Block]:
        """Put an admitted prompt into its block; the blocks that this completes, in start order.

        Blocks whose wait is over at the prompt's event time start first.  `slice_key` is the prompt's, where the
        caller has it.
        """
        started = self.advance(prompt.endpoint, prompt.event_time)
        blocks = self._endpoints[prompt.endpoint]
        if slice_key is None:
            slice_key = format_slice_key(prompt.labels, blocks.rule.slice_by)
        place, conversation_key = (slice_key, concurrency), prompt.conversation_key
        if blocks.conversations is None or conversation_key is None:
            return started + _place(blocks, place, (prompt,))
        over = blocks.conversations.add(conversation_key, place, blocks.watermark, prompt)
        return started + _place_all(blocks, over)

    def passes_over(self, prompt: ShadowPrompt, concurrency: int, slice_key: str) -> bool:
        """Whether an admitted prompt is not measured, because its window's blocks are others.

        Asked once of each prompt that `add` or `shed` would take, and before it; it counts the prompt as traffic.
        """
        blocks = self._endpoints[prompt.endpoint]
        rule, place, key = blocks.rule, (slice_key, concurrency), prompt.conversation_key
        is_turn = blocks.conversations is not None and key is not None
        if rule.window is None or (is_turn and key in blocks.stands_for):
            return False
        pace, window = blocks.paces.setdefault(place, _Pace(0)), window_of(prompt.event_time, rule.window)
        if not pace.is_measured(window, rule.places(concurrency), rule.blocks_per_window, str(prompt.key)):
            return True
        if is_turn and key is not None:
            blocks.stands_for[key] = float(pace.num_groups)
        else:
            blocks.represented[place] = float(pace.num_groups)
        return False

    def shed(self, prompt: ShadowPrompt, concurrency: int, slice_key: str) -> list[Block]:
        """An admitted prompt was shed: so are the turns after it; the blocks that this completes."""
        blocks = self._endpoints[prompt.endpoint]
        place, conversation_key = (slice_key, concurrency), prompt.conversation_key
        if blocks.conversations is None or conversation_key is None:
            return []
        return _place_all(blocks, blocks.conversations.add(conversation_key, place, blocks.watermark, None))

    def is_over(self, prompt: ShadowPrompt, position: int | None) -> bool:
        """Whether the prompt is a later turn of a conversation that no longer waits for it: it belongs to no block.

        Args:
            position: its place in its session, from 1.
        """
        conversations, conversation_key = self._endpoints[prompt.endpoint].conversations, prompt.conversation_key
        if conversations is None or conversation_key is None:
            return False
        return (position or 1) > 1 and not conversations.is_open(conversation_key)

    def is_shed(self, prompt: ShadowPrompt) -> bool:
        """Whether the prompt's conversation has lost a turn to shedding."""
        conversations, conversation_key = self._endpoints[prompt.endpoint].conversations, prompt.conversation_key
        return conversations is not None and conversation_key is not None and conversations.is_shed(conversation_key)

    def advance(self, endpoint: str, event_time: datetime) -> list[Block]:
        """Move the endpoint's watermark; the short blocks whose wait is over, oldest first.

        Worth calling for records that are not admitted, where admitted ones are rare.
        """
        blocks = self._endpoints[endpoint]
        if event_time > blocks.watermark:
            blocks.watermark = event_time
        over = [] if blocks.conversations is None else blocks.conversations.advance(blocks.watermark)
        started = _place_all(blocks, over) if over else []
        oldest = next(iter(blocks.open.values()), None)
        if oldest is None or not _is_overdue(blocks, oldest, blocks.watermark):
            return started
        overdue = [place for place, block in blocks.open.items() if _is_overdue(blocks, block, blocks.watermark)]
        return started + [_start(blocks, blocks.open.pop(place)) for place in overdue]

    def advance_all(self, event_time: datetime) -> list[Block]:
        """`advance` for every endpoint."""
        return [block for endpoint in self._endpoints for block in self.advance(endpoint, event_time)]

    def remember(self, prompt: ShadowPrompt, slice_key: str) -> None:
        """A prompt that was timed before a restart: short blocks of its slice may be filled from it."""
        _get_timed(self._endpoints[prompt.endpoint], slice_key).append((prompt,))

    def forget(self, partition: PartitionId) -> list[ShadowPrompt]:
        """Take the requests of a partition out of the open blocks and conversations; those requests."""
        dropped: list[ShadowPrompt] = []
        for blocks in self._endpoints.values():
            if blocks.conversations is not None:
                dropped += blocks.conversations.forget(partition)
            for place, block in list(blocks.open.items()):
                kept, stands_for = [], []
                for turns, represented in zip(block.conversations, block.stands_for, strict=True):
                    lost = [p for p in turns if PartitionId(p.key.source, p.key.partition) == partition]
                    dropped += lost
                    if left := tuple(prompt for prompt in turns if prompt not in lost):
                        kept.append(left)
                        stands_for.append(represented)
                block.conversations, block.stands_for = kept, stands_for
                if not kept:
                    del blocks.open[place]
        return dropped

    def start_with(self, fronts: Collection[tuple[PartitionId, int]]) -> list[Block]:
        """Start the open blocks that hold a request of one of these messages, by partition and offset: they run short.

        The ledger cannot pass such a request before its block is measured.
        """
        started = []
        for blocks in self._endpoints.values():
            for place, waiting in list(blocks.open.items()):
                keys = (prompt.key for turns in waiting.conversations for prompt in turns)
                if any((PartitionId(key.source, key.partition), key.offset) in fronts for key in keys):
                    started.append(_start(blocks, blocks.open.pop(place)))
        return started

    def drain(self) -> list[Block]:
        """Start everything that is still open: the end of the input."""
        started = []
        for blocks in self._endpoints.values():
            if blocks.conversations is not None:
                started += _place_all(blocks, blocks.conversations.drain())
            while blocks.open:
                started.append(_start(blocks, blocks.open.pop(next(iter(blocks.open)))))
        return started


def _place_all(blocks: _EndpointBlocks, over: Iterable[tuple[Place, Conversation]]) -> list[Block]:
    return [block for place, turns in over for block in _place(blocks, place, turns)]


def _place(blocks: _EndpointBlocks, place: Place, turns: Conversation) -> list[Block]:
    """Put a conversation into the open block of its slice and load; the block if that is full with it."""
    if (waiting := blocks.open.get(place)) is None:
        waiting = blocks.open[place] = _OpenBlock(*place, blocks.watermark)
    waiting.conversations.append(turns)
    key = turns[0].conversation_key if blocks.conversations is not None else None
    stands_for = blocks.represented.get(place, 1.0) if key is None else blocks.stands_for.pop(key, 1.0)
    waiting.stands_for.append(stands_for)
    is_full = len(waiting.conversations) == blocks.rule.places(waiting.concurrency)
    return [_start(blocks, blocks.open.pop(place))] if is_full else []


def _start(blocks: _EndpointBlocks, waiting: _OpenBlock) -> Block:
    """Give a block its name, its place in the order, its fillers and its first arm."""
    requests = tuple(chain.from_iterable(waiting.conversations))
    missing = blocks.rule.places(waiting.concurrency) - len(waiting.conversations)
    timed = _get_timed(blocks, waiting.slice_key)
    pool = (tuple(timed) or tuple(waiting.conversations)) if missing else ()
    block_id = _block_id(blocks.rule.name, waiting.slice_key, waiting.concurrency, requests)
    block = Block(
        block_id=block_id,
        sequence=blocks.next_sequence,
        endpoint=blocks.rule.name,
        slice_key=waiting.slice_key,
        concurrency=waiting.concurrency,
        requests=requests,
        fillers=tuple(chain.from_iterable(pool[index % len(pool)] for index in range(missing))),
        first_arm=Arm.BASELINE if _draw(f"first_arm\0{block_id}", 2) == 0 else Arm.SPECULATIVE,
        requests_per_slot=blocks.rule.requests_per_slot,
        max_turns=blocks.rule.max_turns,
        repeats_baseline=_draw(f"repeats_baseline\0{block_id}", REPEAT_EVERY) == 0,
        stands_for=fmean(waiting.stands_for),
    )
    blocks.next_sequence += 1
    timed.extend(waiting.conversations)
    return block


def _get_timed(blocks: _EndpointBlocks, slice_key: str) -> deque[Conversation]:
    return blocks.timed.setdefault(slice_key, deque(maxlen=REMEMBERED_PROMPTS))


def _block_id(endpoint: str, slice_key: str, concurrency: int, requests: tuple[ShadowPrompt, ...]) -> str:
    """A block's id is the digest of its measured requests: each is timed once, so no other block has them."""
    parts = [endpoint, slice_key, str(concurrency), *(str(prompt.key) for prompt in requests)]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def _is_overdue(blocks: _EndpointBlocks, waiting: _OpenBlock, watermark: datetime) -> bool:
    """Whether an open block has waited for as long as it may."""
    return watermark - waiting.opened >= blocks.rule.longest_wait


def _draw(text: str, number: int) -> int:
    """One of `number` equally likely places, by hash."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest(), "little") % number

"""Blocks: which admitted requests go through both arms together.

Blocks are filled per endpoint, slice and load, in the order of admission: one batch of as many requests as the load,
or a queue of several times as many that is run at constant concurrency (`requests_per_slot`).  A block that is not full
after `block_max_wait` of event time, or at the end of the input, runs short: untimed copies of prompts that were
already timed fill its queue, so that the load is the true one.  None is dissolved, because dissolving would tie what is
seen to how busy the hour was.  Which requests share a block depends on the input alone.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

from shadowspec.tap.endpoints import EndpointRule
from shadowspec.types import Arm, Block, PartitionId, ShadowPrompt, format_slice_key

REMEMBERED_PROMPTS = 64  # timed prompts kept per slice to fill short blocks from; at least the usual loads
_NO_TIME: Final = datetime(1, 1, 1, tzinfo=UTC)


@dataclass(slots=True)
class _OpenBlock:
    """Requests waiting for company.  `opened` is the watermark at the first of them."""

    slice_key: str
    concurrency: int
    opened: datetime
    requests: list[ShadowPrompt] = field(default_factory=list)


@dataclass(slots=True)
class _EndpointBlocks:
    """One endpoint's open blocks, oldest first, and what short ones are filled from."""

    rule: EndpointRule
    watermark: datetime = _NO_TIME
    next_sequence: int = 0
    open: dict[tuple[str, int], _OpenBlock] = field(default_factory=dict)
    timed: dict[str, deque[ShadowPrompt]] = field(default_factory=dict)  # by slice, newest last


class BlockFormer:
    """Fills blocks.  Holds at most one open block and `REMEMBERED_PROMPTS` prompts per endpoint, slice and load."""

    def __init__(self, rules: Iterable[EndpointRule]) -> None:
        self._endpoints = {rule.name: _EndpointBlocks(rule) for rule in rules}

    def add(self, prompt: ShadowPrompt, concurrency: int, slice_key: str | None = None) -> list[Block]:
        """Put an admitted prompt into its block; the blocks that this completes, in start order.

        Blocks whose wait is over at the prompt's event time start first.  `slice_key` is the prompt's, where the
        caller has it.
        """
        started = self.advance(prompt.endpoint, prompt.event_time)
        blocks = self._endpoints[prompt.endpoint]
        if slice_key is None:
            slice_key = format_slice_key(prompt.labels, blocks.rule.slice_by)
        place = (slice_key, concurrency)
        if (waiting := blocks.open.get(place)) is None:
            waiting = blocks.open[place] = _OpenBlock(slice_key, concurrency, blocks.watermark)
        waiting.requests.append(prompt)
        if len(waiting.requests) == concurrency * blocks.rule.requests_per_slot:
            started.append(_start(blocks, blocks.open.pop(place)))
        return started

    def advance(self, endpoint: str, event_time: datetime) -> list[Block]:
        """Move the endpoint's watermark; the short blocks whose wait is over, oldest first.

        Worth calling for records that are not admitted, where admitted ones are rare.
        """
        blocks = self._endpoints[endpoint]
        if event_time > blocks.watermark:
            blocks.watermark = event_time
        limit = blocks.rule.block_max_wait
        oldest = next(iter(blocks.open.values()), None)
        if oldest is None or blocks.watermark - oldest.opened < limit:
            return []
        overdue = [place for place, block in blocks.open.items() if blocks.watermark - block.opened >= limit]
        return [_start(blocks, blocks.open.pop(place)) for place in overdue]

    def advance_all(self, event_time: datetime) -> list[Block]:
        """`advance` for every endpoint."""
        return [block for endpoint in self._endpoints for block in self.advance(endpoint, event_time)]

    def remember(self, prompt: ShadowPrompt) -> None:
        """A prompt that was timed before a restart: short blocks may be filled from it."""
        blocks = self._endpoints[prompt.endpoint]
        _get_timed(blocks, format_slice_key(prompt.labels, blocks.rule.slice_by)).append(prompt)

    def forget(self, partition: PartitionId) -> list[ShadowPrompt]:
        """Take the requests of a partition out of the open blocks; those requests."""
        dropped: list[ShadowPrompt] = []
        for blocks in self._endpoints.values():
            for place, block in list(blocks.open.items()):
                lost = [p for p in block.requests if PartitionId(p.key.source, p.key.partition) == partition]
                dropped += lost
                block.requests = [prompt for prompt in block.requests if prompt not in lost]
                if not block.requests:
                    del blocks.open[place]
        return dropped

    def drain(self) -> list[Block]:
        """Start everything that is still open: the end of the input."""
        started = []
        for blocks in self._endpoints.values():
            while blocks.open:
                started.append(_start(blocks, blocks.open.pop(next(iter(blocks.open)))))
        return started


def _start(blocks: _EndpointBlocks, waiting: _OpenBlock) -> Block:
    """Give a block its name, its place in the order, its fillers and its first arm."""
    requests = tuple(waiting.requests)
    missing = waiting.concurrency * blocks.rule.requests_per_slot - len(requests)
    timed = _get_timed(blocks, waiting.slice_key)
    pool = (tuple(timed) or requests) if missing else ()
    block_id = _block_id(blocks.rule.name, waiting.slice_key, waiting.concurrency, requests)
    block = Block(
        block_id=block_id,
        sequence=blocks.next_sequence,
        endpoint=blocks.rule.name,
        slice_key=waiting.slice_key,
        concurrency=waiting.concurrency,
        requests=requests,
        fillers=tuple(pool[index % len(pool)] for index in range(missing)),
        first_arm=Arm.BASELINE if _is_even(f"first_arm\0{block_id}") else Arm.SPECULATIVE,
        requests_per_slot=blocks.rule.requests_per_slot,
    )
    blocks.next_sequence += 1
    timed.extend(requests)
    return block


def _get_timed(blocks: _EndpointBlocks, slice_key: str) -> deque[ShadowPrompt]:
    return blocks.timed.setdefault(slice_key, deque(maxlen=REMEMBERED_PROMPTS))


def _block_id(endpoint: str, slice_key: str, concurrency: int, requests: tuple[ShadowPrompt, ...]) -> str:
    """A block is its own requests: each is timed once, so no other block has them."""
    parts = [endpoint, slice_key, str(concurrency), *(str(prompt.key) for prompt in requests)]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def _is_even(text: str) -> bool:
    return hashlib.sha256(text.encode()).digest()[0] % 2 == 0

"""Conversations: a session's turns, held until no further one is waited for.

An endpoint that measures conversations sends a session's turns together, in their order: so a block takes whole
conversations.  One is over when it has as many turns as are measured, when no turn has come for `block_max_wait` of
event time, at the end of the input, and, the one without a turn for longest first, where more than
`MAX_HELD_TOKENS` of prompts are held.  Turns that come after that belong to no block, because a session in two blocks
would make them depend on each other.

In: turns of sessions, and event times.  Out: whole conversations.  Imports: types and endpoint rules.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from shadowspec.tap.endpoints import EndpointRule
from shadowspec.types import PartitionId, ShadowPrompt

MAX_HELD_TOKENS: Final = 4_000_000  # of an endpoint's prompts: some 150 MB

Place = tuple[str, int]  # slice and load
Conversation = tuple[ShadowPrompt, ...]  # at least one turn


@dataclass(slots=True)
class _Held:
    """The turns of a session so far.  `num_turns` counts those that were shed as well."""

    place: Place
    last_seen: datetime  # the watermark at its last turn
    turns: list[ShadowPrompt] = field(default_factory=list)
    num_turns: int = 0
    is_shed: bool = False

    @property
    def num_tokens(self) -> int:
        return sum(len(turn.prompt_token_ids) for turn in self.turns)


class Conversations:
    """Those of one endpoint that are not over."""

    def __init__(self, rule: EndpointRule) -> None:
        self._max_turns, self._max_idle = rule.max_turns, rule.block_max_wait
        self._held: OrderedDict[str, _Held] = OrderedDict()  # the one without a turn for longest first
        self._num_tokens = 0

    def is_open(self, key: str) -> bool:
        """Whether a further turn of the session would be measured with those before it."""
        return key in self._held

    def is_shed(self, key: str) -> bool:
        """Whether a turn of the session was shed: the turns after it are shed too."""
        held = self._held.get(key)
        return held is not None and held.is_shed

    def add(
        self, key: str, place: Place, watermark: datetime, turn: ShadowPrompt | None
    ) -> list[tuple[Place, Conversation]]:
        """Take a session's next turn in; the conversations that are over with it.

        Args:
            turn: None where it was shed.
        """
        held = self._held.setdefault(key, _Held(place, watermark))
        held.num_turns += 1
        held.last_seen = watermark
        self._held.move_to_end(key)
        if turn is None:
            held.is_shed = True
        else:
            held.turns.append(turn)
            self._num_tokens += len(turn.prompt_token_ids)
        over = [key] if held.num_turns >= self._max_turns else []
        num_left = self._num_tokens - sum(self._held[ended].num_tokens for ended in over)
        for other_key, other in self._held.items():
            if num_left <= MAX_HELD_TOKENS:
                break
            if other_key not in over:
                over.append(other_key)
                num_left -= other.num_tokens
        return self._end(over)

    def advance(self, watermark: datetime) -> list[tuple[Place, Conversation]]:
        """Those of which no turn has come for too long."""
        over = []
        for key, held in self._held.items():
            if watermark - held.last_seen < self._max_idle:
                break
            over.append(key)
        return self._end(over)

    def drain(self) -> list[tuple[Place, Conversation]]:
        """All of them: the end of the input."""
        return self._end(list(self._held))

    def forget(self, partition: PartitionId) -> list[ShadowPrompt]:
        """Take the turns of a partition out; those turns."""
        dropped: list[ShadowPrompt] = []
        for key, held in list(self._held.items()):
            lost = [turn for turn in held.turns if PartitionId(turn.key.source, turn.key.partition) == partition]
            dropped += lost
            held.turns = [turn for turn in held.turns if turn not in lost]
            if lost and not held.turns:
                del self._held[key]
        self._num_tokens -= sum(len(turn.prompt_token_ids) for turn in dropped)
        return dropped

    def _end(self, sessions: Iterable[str]) -> list[tuple[Place, Conversation]]:
        """Remove these; one of which every turn was shed leaves nothing."""
        conversations = []
        for key in sessions:
            held = self._held.pop(key)
            self._num_tokens -= held.num_tokens
            if held.turns:
                conversations.append((held.place, tuple(held.turns)))
        return conversations

"""Logged responses to learn from, and those kept apart to be judged by: whole sessions on one side or the other."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from shadowspec.distill.training_settings import Shares
from shadowspec.engine.replay.response_tokens import Response
from shadowspec.errors import NoDataError

MIN_SESSIONS: Final = 2  # of each part: fewer have no interval
MAX_TIMES: Final = 4  # that a rare slice's examples count: more lets a handful of prompts decide


@dataclass(frozen=True, slots=True)
class Example:
    """A response with where it is counted."""

    endpoint: str
    slice_key: str
    unit_key: str  # the session, or its substitute
    response: Response = field(repr=False)

    @property
    def place(self) -> str:
        """Its slice, across endpoints."""
        return f"{self.endpoint} {self.slice_key}".rstrip()


class Part(StrEnum):
    """The use of an example."""

    TRAINING = "training"
    VALIDATION = "validation"  # says when to stop, and so no longer how good the result is
    HELD_OUT = "held_out"  # seen by nothing before the end


@dataclass(frozen=True, slots=True)
class Split:
    """Examples by their use; no session is in two parts."""

    training: tuple[Example, ...]
    validation: tuple[Example, ...]
    held_out: tuple[Example, ...]


def part_of(example: Example, shares: Shares, seed: int) -> Part:
    """Drawn by the hash of its session, so that a longer file moves no session to another part."""
    digest = hashlib.sha256(f"{seed}\0{example.endpoint}\0{example.unit_key}".encode()).digest()
    place = int.from_bytes(digest[:8], "big") / 2**64
    if place < shares.held_out:
        return Part.HELD_OUT
    return Part.VALIDATION if place < shares.held_out + shares.validation else Part.TRAINING


def split(examples: Iterable[Example], shares: Shares, seed: int) -> Split:
    """Sort examples into parts.

    Raises:
        NoDataError: a part has too few sessions.
    """
    found: dict[Part, list[Example]] = {part: [] for part in Part}
    for example in examples:
        found[part_of(example, shares, seed)].append(example)
    for part, examples_of_part in found.items():
        sessions = len(_sessions(examples_of_part))
        if sessions < MIN_SESSIONS:
            raise NoDataError(
                f"{sessions} of the {len(_sessions([each for every in found.values() for each in every]))} sessions "
                f"with a response fell into the {part.value.replace('_', '-')} part, and {MIN_SESSIONS} are the least: "
                "more traffic is needed"
            )
    return Split(*(tuple(found[part]) for part in Part))


def times(examples: Sequence[Example]) -> dict[str, int]:
    """How often each place counts: those with fewer tokens than the places' mean several times, up to MAX_TIMES.

    Otherwise a draft would forget rare slices in favour of frequent ones.
    """
    tokens: Counter[str] = Counter()
    for example in examples:
        tokens[example.place] += len(example.response.output)
    mean = sum(tokens.values()) / max(1, len(tokens))
    return {place: min(MAX_TIMES, max(1, round(mean / max(1, token)))) for place, token in tokens.items()}


def _sessions(examples: Sequence[Example]) -> set[tuple[str, str]]:
    return {(example.endpoint, example.unit_key) for example in examples}

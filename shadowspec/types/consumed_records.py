"""The stored part of consumed records, and the counter in which each of them ended."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Final, NamedTuple, Self

from msgspec import Struct, field

from shadowspec.types.block_memory import BlockMemory
from shadowspec.types.measurement import Arm
from shadowspec.types.requests import RecordKey

MAX_CLOCK_AHEAD: Final = timedelta(minutes=5)  # by which clocks may differ: a later event is no event that has happened


class FunnelCounter(StrEnum):
    """Where a consumed record ended.  Every record ends in exactly one.  `meaning` is its line in the documentation."""

    meaning: str

    def __new__(cls, value: str, meaning: str = "") -> Self:  # without a meaning it looks a member up
        member = str.__new__(cls, value)
        member._value_ = value
        member.meaning = meaning
        return member

    MEASURED = "measured", "Ran through both arms."
    FAILED = "failed", "Admitted, but an arm or the engine failed. It counts at the worst value of every test."
    SAMPLED_OUT = "sampled_out", "Not drawn: `not_sampled`, `not_timed`, `window_budget` or `conversation_over`."
    SHED = "shed", 'Dropped because the engine was behind (`overload = "shed"`).'
    UNSUPPORTED = "unsupported", "Cannot be measured exactly, or belongs to no endpoint. The reason names the cause."
    MALFORMED = "malformed", "Cannot be read. In Kafka it goes to the dead-letter topic."
    DUPLICATE = "duplicate", "Read before: the same event, or the same id with the same body."
    EXPIRED = "expired", "Older than `max_age_s` against the newest event time."

    __hash__ = str.__hash__  # an enum's is a call in Python, and counters are counted under


class StoredRecord(Struct, frozen=True):
    """The stored part of one consumed record: its key, where it ended, and the data for units.

    A record that could not be read has no endpoint, slice or event time.  `session_position` counts the
    usable requests of the session at this endpoint in the order of delivery, from 1.
    """

    key: RecordKey
    counter: FunnelCounter
    reason: str | None = None  # short code, e.g. "not_timed", "image_content"; never prompt text
    endpoint: str | None = None
    slice_key: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    event_time: datetime | None = None  # aware, UTC
    session_hash: str | None = None
    user_hash: str | None = None
    request_id_hash: str | None = None
    unit_key: str | None = None  # the session, or its substitute, of a usable request
    session_position: int | None = None
    sampling_rate: float | None = None  # inclusion probability of its session
    num_prompt_tokens: int | None = None
    # True: left out of the whole endpoint's evidence, as its session's draw is not below the smallest rate that was in
    # force at the endpoint's slices.  None: it counts.
    is_thinned: bool | None = None
    num_cached_tokens: int | None = None  # of the prompt, from production's prefix cache; None: its answer does not say
    # Production's count of the prompt, where it was rendered here; None: its answer does not say, or the record holds
    # the prompt's tokens.  Another count than `num_prompt_tokens` is another prompt.
    num_served_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class StoredBlock:
    """A measured block; `sequence` is its start order within the endpoint."""

    block_id: str
    sequence: int
    endpoint: str
    slice_key: str
    concurrency: int
    n_max: int
    first_arm: Arm
    started_at: datetime
    memory: Mapping[str, BlockMemory]  # by fingerprint
    max_turns: int = 1  # of a conversation; 1: every request was measured by itself
    stands_for: float = 1.0  # blocks of the traffic that it represents: itself, and those that were not measured


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def window_of(at: datetime, window: timedelta) -> int:
    """The number of the window of event time that holds `at`, counted from the epoch."""
    return (at - _EPOCH) // window


def window_start(at: datetime, window: timedelta) -> datetime:
    """The last event time before the window that holds `at`: every window up to it is over."""
    return _EPOCH + window_of(at, window) * window - timedelta(microseconds=1)


# Usable requests of sampled sessions: of these every one is kept with its event time.
ARRIVING = frozenset({FunnelCounter.MEASURED, FunnelCounter.FAILED, FunnelCounter.SAMPLED_OUT, FunnelCounter.SHED})
NOT_SAMPLED = "not_sampled"  # the reason of a request that is kept though its session was not drawn


class ArrivedRequest(NamedTuple):
    """A usable request as it came, measured or not.

    `weight` is the number of requests of the traffic that it represents: the inverse of its session's sampling rate,
    and 0 for one whose session was not drawn.  Their sum estimates the traffic without bias.
    """

    key: RecordKey
    slice_key: str
    at: datetime
    weight: float

    @staticmethod
    def weight_of(counter: FunnelCounter, reason: str | None, sampling_rate: float | None) -> float:
        """The weight of a stored request."""
        if counter is FunnelCounter.SAMPLED_OUT and reason == NOT_SAMPLED:
            return 0.0
        return 1.0 / (sampling_rate or 1.0)

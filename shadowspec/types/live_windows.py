"""Counters of production engines, scrape by scrape."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from itertools import pairwise
from typing import Final

FIRST_TOKEN: Final = "time_to_first_token_s"  # noqa: S105 - the name of a figure
PER_TOKEN: Final = "time_per_output_token_s"  # noqa: S105 - the name of a figure
END_TO_END: Final = "end_to_end_s"
QUEUE: Final = "queue_s"  # the part of the end-to-end time before a request's first turn
COMPUTE: Final = "compute_s"  # and from then to its last token
LATENCIES: Final = (END_TO_END, QUEUE, COMPUTE, FIRST_TOKEN, PER_TOKEN)


class Pool(StrEnum):
    """Which part of an endpoint's traffic a replica serves while a rollout is partial."""

    SPECULATIVE = "speculative"  # also where there is only one pool
    PLAIN = "plain"  # without speculation: the control


@dataclass(frozen=True, slots=True)
class Buckets:
    """Times by bin.  `counts[i]` are those above `bounds[i-1]` and up to `bounds[i]` seconds, the last of them those
    above every bound: one count more than there are bounds.  `sum_us` is their sum in microseconds (None: unknown).
    """

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    sum_us: int | None = None

    @property
    def total(self) -> int:
        return sum(self.counts)

    def minus(self, other: Buckets) -> Buckets:
        """The counts after `other`, which has the same bounds."""
        pairs = zip(self.counts, other.counts, strict=True)
        sum_us = None if self.sum_us is None or other.sum_us is None else self.sum_us - other.sum_us
        return Buckets(self.bounds, tuple(number - before for number, before in pairs), sum_us)


@dataclass(frozen=True, slots=True)
class LiveCounts:
    """Counters of one engine, summed over the ranks of its server.  None: the engine does not count it.

    Counted as the engine does, which may be before an output is cut at its end.  `num_accepted_tokens_per_pos` is
    empty where the engine does not report positions.
    """

    num_drafts: int | None = None
    num_draft_tokens: int | None = None
    num_accepted_tokens: int | None = None
    num_accepted_tokens_per_pos: tuple[int, ...] = ()
    num_output_tokens: int | None = None
    num_requests: int | None = None  # that ended
    num_prompt_tokens: int | None = None  # that were looked up in the prefix cache
    num_cached_tokens: int | None = None  # of them, those that were found there
    latencies: Mapping[str, Buckets] = field(default_factory=dict)  # by the names of LATENCIES
    num_failed_requests: int | None = None  # that were aborted or ended in an error
    num_preemptions: int | None = None  # of requests that gave up their KV cache to others, each time counted

    @property
    def is_valid(self) -> bool:
        """Whether no count is below zero."""
        numbers = [number for name in COUNTS if (number := getattr(self, name)) is not None]
        binned = [count for latency in self.latencies.values() for count in (*latency.counts, latency.sum_us or 0)]
        return min((*numbers, *self.num_accepted_tokens_per_pos, *binned), default=0) >= 0

    def is_possible(self, drafts_off: int = 0, draft_tokens_off: int = 0) -> bool:
        """Whether the counts of drafts agree: no position accepted more than the one before it, the first no more than
        there were drafts, and all together no more than was drafted.

        Args:
            drafts_off: the most by which the number of drafts is rounded.
            draft_tokens_off: the same of the drafted tokens.
        """
        per_pos = self.num_accepted_tokens_per_pos
        most = (*((self.num_drafts + drafts_off,) if self.num_drafts is not None else per_pos[:1]), *per_pos)
        accepted = max(self.num_accepted_tokens or 0, sum(per_pos))
        drafted = self.num_draft_tokens
        is_falling = all(later <= earlier for earlier, later in pairwise(most))
        return is_falling and (drafted is None or accepted <= drafted + draft_tokens_off)

    @property
    def accepted_tokens(self) -> int | None:
        """Of one window: as counted, else the output tokens beyond those of prefill and of verification itself.

        The latter holds where every step drafts, as engines without such a count do; None where it contradicts itself.
        """
        if self.num_accepted_tokens is not None:
            return self.num_accepted_tokens
        if self.num_drafts is None or self.num_output_tokens is None or self.num_requests is None:
            return None
        left = self.num_output_tokens - self.num_requests - self.num_drafts
        return left if left >= 0 else None

    @property
    def first_position(self) -> tuple[int, int] | None:
        """Of one window: steps that accepted their first token, and all that drafted; None where neither is reported.

        Without positions the former are at most all steps, and at most the accepted tokens.  The smaller of these two
        is used: it is never too low, so that it raises no alarm by itself.
        """
        if not self.num_drafts:
            return None
        if self.num_accepted_tokens_per_pos:
            return self.num_accepted_tokens_per_pos[0], self.num_drafts
        accepted = self.accepted_tokens
        return None if accepted is None else (min(accepted, self.num_drafts), self.num_drafts)


COUNTS: Final = (  # a new one is added at the end, as its column is
    "num_drafts", "num_draft_tokens", "num_accepted_tokens", "num_output_tokens", "num_requests", "num_failed_requests",
    "num_prompt_tokens", "num_cached_tokens", "num_preemptions",
)  # fmt: skip


def rounding(count: int | None, num_digits: int) -> int:
    """The most by which the difference of this count and a smaller one of the same counter is off, where counts are
    rounded to so many digits (0: they are not).
    """
    return 10 ** (len(str(count)) - num_digits) if count and num_digits and count >= 10**num_digits else 0


@dataclass(frozen=True, slots=True)
class LiveScrape:
    """One replica's counters at a moment.

    `series` identifies the counters: engine, model, ranks, positions, bins.  Under another one they are other counters.
    `started_at` is when the server's process began, None where it is not reported.  Counts with more than `num_digits`
    digits are rounded to that many; 0: none is.  `num_running` are the requests in progress at this moment, without
    those that wait, `num_waiting` those, `kv_use` the share of the KV cache in use, of the fullest rank; None where the
    engine does not report them.  `samples` are the counters one by one, before ranks are added up.  `has_end_mark`: the
    page says that it is complete.
    """

    replica: str
    series: str
    scraped_at: datetime  # aware, UTC
    started_at: datetime | None
    counts: LiveCounts
    num_digits: int = 0
    num_running: int | None = None
    samples: Mapping[str, int] = field(default_factory=dict)
    has_end_mark: bool = False
    num_waiting: int | None = None
    kv_use: float | None = None

    def rounding(self, count: int | None) -> int:
        """The most by which the difference of this count and a smaller one of the same counter is off."""
        return rounding(count, self.num_digits)


@dataclass(frozen=True, slots=True)
class FailedScrape:
    """A scrape without usable counters: why, in a short code (`unreachable`, `http_500`, `no_counters`, ...)."""

    replica: str
    scraped_at: datetime
    code: str
    message: str  # names the replica and the error; never the server's text


@dataclass(frozen=True, slots=True)
class LiveReplica:
    """The scraping state of one replica: its newest scrape, and the failures since."""

    replica: str
    scrape: LiveScrape | None
    num_failed: int = 0  # scrapes since the newest that succeeded
    failed_at: datetime | None = None
    error: str | None = None  # code of the newest failure since then


@dataclass(frozen=True, slots=True)
class LiveWindow:
    """A replica's counts from `began_at` to `ended_at`: live evidence.

    `is_reset`: its counters restarted in between, so the counts between the earlier scrape and the restart are unknown.
    `num_failed_scrapes` lie within it.  `num_running`, `num_waiting` and `kv_use` are a scrape's, at its end.
    """

    replica: str
    series: str
    began_at: datetime
    ended_at: datetime
    is_reset: bool
    num_failed_scrapes: int
    counts: LiveCounts
    num_running: int | None = None
    pool: Pool = Pool.SPECULATIVE
    num_waiting: int | None = None
    kv_use: float | None = None

    @property
    def seconds(self) -> float:
        return (self.ended_at - self.began_at).total_seconds()


@dataclass(frozen=True, slots=True)
class LiveHour:
    """The sums of the windows of one replica and series that ended within an hour.

    Everything merges with others of its kind, and outlives the windows.  The last four are no plain sums of counts (a
    window's bound at the first position, and its accepted tokens, which may follow from several counts): they were
    summed window by window.  `running` counts the windows' ends by the number of requests in progress then,
    `waiting` by the number of those that waited, `kv_use` by the whole percent of the KV cache in use.
    """

    replica: str
    series: str
    hour: datetime  # its start, UTC
    began_at: datetime  # of the windows, the earliest
    ended_at: datetime  # the latest
    drafted_at: datetime | None  # when the earliest window with drafts began
    num_windows: int
    num_resets: int
    num_failed_scrapes: int
    counts: LiveCounts  # None where no window knows it, else of those that do
    requests_us: int  # time of the windows that know requests, microseconds
    output_tokens_us: int  # of those that know output tokens
    num_first_accepted_tokens: int  # `first_position`, of the windows that report it
    num_first_drafts: int
    num_known_accepted_tokens: int  # `accepted_tokens`, of the windows that report it and drafted
    num_known_drafts: int
    running: Mapping[int, int] = field(default_factory=dict)
    pool: Pool = Pool.SPECULATIVE  # of the newest window
    waiting: Mapping[int, int] = field(default_factory=dict)
    kv_use: Mapping[int, int] = field(default_factory=dict)

    @property
    def key(self) -> tuple[datetime, str, str]:
        """Which windows these are, within an endpoint."""
        return self.hour, self.replica, self.series


def add_readings(readings: Iterable[Mapping[int, int]]) -> dict[int, int]:
    """How often each number was read, in all of these together; in order."""
    total: Counter[int] = Counter()
    for each in readings:
        total.update(each)
    return dict(sorted(total.items()))


FIRST_POSITION = "first_position_acceptance_rate"

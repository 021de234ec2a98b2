"""What an alarm of the live guard looks like, from figures that are stored already: at most three plausible causes.

They are hints of where to look first, not findings: nothing of the gate or of a rollout depends on them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import islice
from typing import Final

from shadowspec.metrics import ratio
from shadowspec.text import percent, plural
from shadowspec.types import Decision, LiveReplica, LiveWindow, MixChange

MAX_CAUSES: Final = 3
YOUNG: Final = timedelta(hours=1)  # age of a process whose start may be the cause
NEWEST: Final = 5  # windows, against those before
CACHE_FELL: Final = 0.2  # of the share of prompt tokens that are found in the prefix cache

_MINUTE: Final = timedelta(minutes=1)


def plausible_causes(
    alarmed: Collection[str],
    replicas: Mapping[str, LiveReplica],
    windows: Sequence[LiveWindow],
    decisions: Iterable[Decision],
    now: datetime,
) -> list[str]:
    """The causes as clauses, the most telling first.

    Args:
        alarmed: the replicas whose detectors fired.
        replicas: the last scrape of each replica of the pool.
        windows: theirs since ENABLE, in the order of their ends.
        decisions: the endpoint's current ones.
    """
    return list(islice(_causes(alarmed, replicas, windows, decisions, now), MAX_CAUSES))


def _causes(
    alarmed: Collection[str],
    replicas: Mapping[str, LiveReplica],
    windows: Sequence[LiveWindow],
    decisions: Iterable[Decision],
    now: datetime,
) -> Iterator[str]:
    if len(alarmed) < len(replicas):
        yield f"{plural(len(alarmed), 'replica')} of {len(replicas)}: compare its version, draft and options"
    for name in alarmed:
        scrape = replicas[name].scrape if name in replicas else None
        if scrape is not None and scrape.started_at is not None and now - scrape.started_at < YOUNG:
            yield f"the process of {name} began {plural((now - scrape.started_at) // _MINUTE, 'minute')} before"
        if len({window.series for window in windows if window.replica == name}) > 1:
            yield f"{name} counts another series since ENABLE: its model, ranks or drafted positions have changed"
    if any(change is not None and change.has_shifted for change in map(_mix_change, decisions)):
        yield "the mix of prompts has shifted since ENABLE"
    of_alarmed = [window for window in windows if window.replica in alarmed]
    before, newest = _cached_share(of_alarmed[:-NEWEST]), _cached_share(of_alarmed[-NEWEST:])
    if before is not None and newest is not None and before - newest > CACHE_FELL:
        yield f"the prefix cache holds {percent(newest, 0)} of the prompt tokens, and held {percent(before, 0)}"


def _mix_change(decision: Decision) -> MixChange | None:
    return None if decision.composition is None else decision.composition.mix_change


def _cached_share(windows: Sequence[LiveWindow]) -> float | None:
    num_cached = sum(window.counts.num_cached_tokens or 0 for window in windows)
    return ratio(num_cached, sum(window.counts.num_prompt_tokens or 0 for window in windows))

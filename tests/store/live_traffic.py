"""Made-up live windows: replicas of unlike engines, read at uneven times, some of which begin to draft."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta

import numpy as np

from shadowspec.types import END_TO_END, FIRST_TOKEN, Buckets, LiveCounts, LiveWindow, Pool

MINUTE = timedelta(minutes=1)
BOUNDS = ((0.1, 0.5, 1.0), (0.2, 2.0))  # of two versions of an engine


def windows(
    seed: int, start: datetime, length: timedelta, drafts_from: datetime | None, step: timedelta = 7 * MINUTE
) -> list[LiveWindow]:
    """What three replicas counted; each drafts from its first window after `drafts_from` on."""
    draw = np.random.default_rng(seed)
    found = [
        window
        for number in range(3)
        for window in _replica(draw, "abc"[number], number, start, length, drafts_from, step)
    ]
    return sorted(found, key=lambda window: (window.ended_at, window.replica))


def _replica(
    draw: np.random.Generator,
    name: str,
    number: int,
    start: datetime,
    length: timedelta,
    drafts_from: datetime | None,
    step: timedelta,
) -> Iterator[LiveWindow]:
    at = start + number * timedelta(seconds=11, microseconds=17)
    upgraded = start + length * float(draw.uniform(0.3, 0.7))
    while at < start + length:
        began, at = at, at + step * float(draw.uniform(0.5, 1.5))
        if draw.random() < 0.02:
            at += timedelta(hours=3 * float(draw.random()))  # the reader was away
        drafts = drafts_from is not None and began >= drafts_from
        counts = _counts(draw, number, is_new=began >= upgraded, drafts=drafts)
        series = f"engine {number}, {'new' if began >= upgraded else 'old'}"
        is_reset, num_failed = bool(draw.random() < 0.05), int(draw.poisson(0.2))
        pool = Pool.PLAIN if number == 1 else Pool.SPECULATIVE
        yield LiveWindow(name, series, began, at, is_reset, num_failed, counts, pool=pool)
        if draw.random() < 0.05:
            at += MINUTE  # lost in a restart


def _counts(draw: np.random.Generator, engine: int, *, is_new: bool, drafts: bool) -> LiveCounts:
    """As engine 0 with positions, 1 without (accepted tokens follow from the rest, or contradict it), 2 with little."""
    requests, steps = int(draw.poisson(6.0)), int(draw.poisson(40.0)) if drafts else 0
    accepted = int(draw.binomial(3 * steps, 0.4))
    prompt = int(draw.poisson(900.0))
    bins = {
        name: Buckets(
            bounds,
            tuple(int(item) for item in draw.poisson(4.0, len(bounds) + 1)),
            int(draw.poisson(9e6)) if is_new else None,
        )
        for name in (END_TO_END, FIRST_TOKEN)
        for bounds in [BOUNDS[is_new]]
    }
    if engine == 2:
        return LiveCounts(num_output_tokens=int(draw.poisson(70.0)), latencies={END_TO_END: bins[END_TO_END]})
    reported = int(draw.poisson(2.0)) if engine == 1 else 0
    return LiveCounts(
        num_drafts=steps,
        num_draft_tokens=3 * steps if engine == 0 else None,
        num_accepted_tokens=accepted if engine == 0 else None,
        num_accepted_tokens_per_pos=(min(accepted, steps), accepted // 3, 1) if engine == 0 else (),
        num_output_tokens=max(requests + steps + accepted - 90 * (engine == 1 and reported == 0), 0),
        num_requests=requests,
        num_prompt_tokens=prompt,
        num_cached_tokens=prompt // 3 if engine == 0 or is_new else None,
        latencies=bins,
        num_failed_requests=requests // 5 if is_new else None,
    )

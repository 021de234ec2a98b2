"""The requests of one simulated endpoint: when they arrive, which of them are timed, and which share a block.

Times are whole microseconds of event time since START.  A session is timed at its J-th request, J uniform
from 1..`timed_positions`, and blocks are filled by the tap's own `BlockFormer`.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import numpy as np
from numpy.typing import NDArray

from shadowspec.gate.policy import GatePolicy
from shadowspec.tap.blocks import BlockFormer
from shadowspec.tap.endpoints import EndpointRule, Load
from shadowspec.types import Block, RecordKey, SamplingParameters, ShadowPrompt

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

START = datetime(2026, 1, 5, tzinfo=UTC)
ENDPOINT = "simulated"
PLACE = ("simulated", 0)  # source and partition of its input
CONCURRENCY = 4
SECOND = 1_000_000  # microseconds
DAY_S = 86_400.0
DAILY_SWING = 0.9  # of the rate about its mean
NEVER = np.iinfo(np.int64).max  # later than every event


@dataclass(frozen=True, slots=True)
class Arrivals:
    """How requests arrive.

    `num_sessions` sessions open as a Poisson process with `gap_s` seconds between them on average; each asks
    1 + Poisson(`mean_extra`) times (or, with `lengths`, one of these numbers with equal chance), `think_s`
    seconds apart on average.  With `busy_every_s` the traffic instead comes in far-apart bouts, each with equal
    chance busy (`concurrency` sessions of one request) or quiet (a single one), `busy_every_s` from one to the next.
    `concurrency` is the load, hence the size of a full block.  With `has_days` the rate swings over 24 hours, from a
    tenth of its mean to nearly twice.  A share `shed` of the requests is shed before anything is measured of them.
    """

    num_sessions: int = 1_200
    num_slices: int = 1
    gap_s: float = 60.0
    mean_extra: float = 0.0
    lengths: tuple[int, ...] = ()
    think_s: float = 120.0
    busy_every_s: float | None = None
    timed_positions: int = 4
    concurrency: int = CONCURRENCY
    has_days: bool = False
    shed: float = 0.0
    late_slice_s: float = 0.0  # each further slice's traffic begins this much later


@dataclass(frozen=True, slots=True, eq=False)
class Requests:
    """Requests in event order, one entry of each array to a request.

    `block` is the place in start order of the block that a request was timed in; of one that was not timed,
    the block of the last timed request before it.  `started_us` is by block: NEVER where the end of the input
    started it.
    """

    at_us: Ints
    session: Ints
    session_length: Ints
    slice_index: Ints
    is_busy: Bools
    is_timed: Bools
    is_shed: Bools
    block: Ints
    blocks: tuple[Block, ...]
    started_us: Ints

    def keys(self) -> list[RecordKey]:
        """The record key of each request."""
        return [RecordKey(*PLACE, offset) for offset in range(len(self.at_us))]


def slice_key_of(index: int) -> str:
    """The canonical name of the index-th slice."""
    return f"prompt_class=s{index:02d}"


def event_time(at_us: int) -> datetime:
    """The instant of a time in microseconds since START."""
    return START + timedelta(microseconds=at_us)


def draw_requests(arrivals: Arrivals, rng: np.random.Generator, regime: str) -> Requests:
    """One draw of the traffic."""
    opened_s, is_busy = _openings(arrivals, rng)
    total = len(opened_s)
    slices = rng.integers(arrivals.num_slices, size=total)
    opened_s = opened_s + slices * arrivals.late_slice_s
    if arrivals.lengths:
        lengths = rng.choice(np.array(arrivals.lengths), size=total)
    else:
        lengths = 1 + rng.poisson(arrivals.mean_extra, size=total)
    timed_at = rng.integers(1, arrivals.timed_positions + 1, size=total)

    session = np.repeat(np.arange(total), lengths)
    position = np.arange(len(session)) - np.repeat(lengths.cumsum() - lengths, lengths) + 1
    waits = np.where(position == 1, 0.0, rng.exponential(arrivals.think_s, size=len(session)))
    waited = waits.cumsum()
    first = np.repeat(waited[position == 1], lengths)
    at_us = np.round((opened_s[session] + waited - first) * SECOND).astype(np.int64)
    order = np.argsort(at_us, kind="stable")
    session, position = session[order], position[order]
    is_timed = timed_at[session] == position if arrivals.lengths or arrivals.mean_extra else np.ones(total, bool)
    is_shed = is_timed & (rng.random(len(order)) < arrivals.shed) if arrivals.shed else np.zeros(len(order), bool)
    is_timed = is_timed & ~is_shed
    blocks, block, started_us = _fill_blocks(at_us[order], slices[session], is_timed, regime, arrivals.concurrency)
    return Requests(
        at_us=at_us[order],
        session=session,
        session_length=lengths[session],
        slice_index=slices[session],
        is_busy=is_busy[session],
        is_timed=is_timed,
        is_shed=is_shed,
        block=block,
        blocks=blocks,
        started_us=started_us,
    )


def _openings(arrivals: Arrivals, rng: np.random.Generator) -> tuple[Floats, Bools]:
    """When each session opens, seconds, and whether in a busy bout."""
    if arrivals.busy_every_s is None:
        gaps = rng.exponential(arrivals.gap_s, size=arrivals.num_sessions)
        opened = gaps.cumsum()
        return _daily(opened) if arrivals.has_days else opened, np.zeros(arrivals.num_sessions, bool)
    num_bouts = round(arrivals.num_sessions / ((arrivals.concurrency + 1) / 2))
    busy = rng.random(num_bouts) < 0.5
    sizes = np.where(busy, arrivals.concurrency, 1)
    bout = np.repeat(np.arange(num_bouts), sizes)
    within = np.arange(len(bout)) - np.repeat(sizes.cumsum() - sizes, sizes)
    return bout * arrivals.busy_every_s + within * 30.0, busy[bout]


def daily_phase(at_s: Floats) -> Floats:
    """From -1 in the quietest hour of the day to 1 in the busiest."""
    phase: Floats = np.sin(2.0 * np.pi * at_s / DAY_S)
    return phase


def _daily(steady_s: Floats) -> Floats:
    """Times of a steady process moved to where a rate of 1 + DAILY_SWING * phase has let as much pass."""
    grid = np.arange(0.0, steady_s[-1] + 2.0 * DAY_S, 60.0)
    passed = grid + DAILY_SWING * DAY_S / (2.0 * np.pi) * (1.0 - np.cos(2.0 * np.pi * grid / DAY_S))
    moved: Floats = np.interp(steady_s, passed, grid)
    return moved


def _fill_blocks(
    at_us: Ints, slices: Ints, is_timed: Bools, regime: str, concurrency: int
) -> tuple[tuple[Block, ...], Ints, Ints]:
    """Blocks in start order, each request's block, and when each block started."""
    parts = GatePolicy(window_s=0.0).rule_parts()  # worlds measure all that their traffic fills
    rule = EndpointRule(ENDPOINT, ("target",), slice_by=("prompt_class",), loads=(Load(concurrency),), **parts)
    former = BlockFormer([rule])
    sampling = SamplingParameters(temperature=0.0 if regime == "greedy" else 1.0)
    labels = [
        {"prompt_class": f"s{index:02d}", "sampling_regime": regime} for index in range(int(slices.max(initial=0)) + 1)
    ]
    started: list[tuple[Block, int]] = []
    for index, (at, slice_index, timed) in enumerate(
        zip(at_us.tolist(), slices.tolist(), is_timed.tolist(), strict=True)
    ):
        when = event_time(at)
        if timed:
            prompt = ShadowPrompt(RecordKey(*PLACE, index), ENDPOINT, when, labels[slice_index], (), sampling)
            new = former.add(prompt, concurrency)
        else:
            new = former.advance(ENDPOINT, when)
        started += [(block, at) for block in new]
    started += [(block, NEVER) for block in former.drain()]

    block_of = np.full(len(at_us), -1, dtype=np.int64)
    for place, (block, _) in enumerate(started):
        for prompt in block.requests:
            block_of[prompt.key.offset] = place
    # Untimed requests run in the conditions of the last block before them.
    last = np.maximum.accumulate(np.where(block_of >= 0, np.arange(len(block_of)), -1))
    block_of = np.where(last >= 0, block_of[np.maximum(last, 0)], 0)
    return tuple(block for block, _ in started), block_of, np.array([at for _, at in started], dtype=np.int64)

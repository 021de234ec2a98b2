"""The effect of speculation on each request of a simulated endpoint: a seeded draw from a known truth.

The truth is stated as the estimands of the gate: `log_speedup` is the mean of the clipped log speedup over
timed requests, `acceptance` the first-position rate, `slowed` the share slowed by more than the tail margin,
`z` the mean teacher-forced z.  Locations are found numerically so that a boundary world lies on its boundary.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from shadowspec.simulate.traffic import DAILY_SWING, SECOND, Bools, Floats, Ints, Requests, daily_phase
from shadowspec.types import Arm, ArmOrder

CLIP = math.log(2.0)  # the policy's default, at which every world is judged
PARITY_TOKENS = 128  # emitted tokens of a request whose z is measured
BASELINE_MS = 250.0  # median end-to-end time; 99% of requests stay below 400
SLOWED_LOG = -math.log(1.33)  # a slowed request takes a third longer, unless the world says otherwise


@dataclass(frozen=True, slots=True)
class Effects:
    """The truth of one world.

    Log speedup of a request is a location plus independent parts: its session's (sd `session_sd`), its block's
    (sd `block_sd`, autoregressive over blocks with `block_phi`), and its noise (sd `noise_sd`, or Student's t with
    `noise_df` degrees of freedom at that scale).  A share `slowed` has `slowed_log` instead, whole blocks at once
    with `slows_blocks`.  `busy_log` is the mean in busy bouts, `slices_log` the mean by slice.  From the block
    `change_block` on `log_speedup_later` is the mean and `slowed_later` that share (None: as before), and a share
    `faulty_later` of greedy outputs are faults.  `daily_log` is the fall of the mean from its level at the middle
    phase of the day to the busiest hour; the mean over requests stays.  Baseline times are lognormal with
    `baseline_sd`.  With `output_tokens` a sampled output has one of these numbers of tokens with equal chance, each of
    which is the target's likeliest with probability `argmax`, as it should be.

    With `num_candidates` above 1 the requests are those of one of several candidates (its place is `candidate`) that
    run in each block beside the baseline, in the order that the engine takes too; whichever arm runs first is
    `first_arm_log` slower, and the baseline is `carry_log` slower right after a speculative arm, that of the block
    before included.  The noise is that of a pair of runs: where the baseline runs twice, its times differ by it.
    With `is_retried` a slowed request lost its time to failed attempts.
    """

    log_speedup: float = math.log(1.3)
    noise_sd: float = 0.1
    noise_df: float | None = None
    session_sd: float = 0.0
    block_sd: float = 0.0
    block_phi: float = 0.0
    slowed: float = 0.0
    slowed_log: float = SLOWED_LOG
    slows_blocks: bool = False
    busy_log: float | None = None
    daily_log: float = 0.0
    slices_log: tuple[float, ...] = ()
    change_block: int | None = None
    log_speedup_later: float = 0.0
    slowed_later: float | None = None
    faulty_later: float = 0.0
    acceptance: float = 0.65
    acceptance_sd: float = 0.1  # between sessions
    acceptance_of_length: tuple[tuple[int, float], ...] = ()  # (session length, rate) where they are tied
    mean_drafts: float = 30.0
    z: float = 0.0
    output_tokens: tuple[int, ...] = ()
    argmax: float = 0.9
    baseline_sd: float = 0.2
    differing: float = 0.0  # share of greedy outputs that differ at a near-tie
    failed: float = 0.0
    num_candidates: int = 1
    candidate: int = 0
    first_arm_log: float = 0.0
    carry_log: float = 0.0
    is_retried: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Outcomes:
    """One entry of each array to a request; `orders` has one to a block."""

    log_speedup: Floats
    baseline_ms: Floats
    lost_ms: Floats  # of the speculative arm's time: the time of failed attempts
    num_drafts: Ints
    num_accepted: Ints
    z_sum: Floats
    z_tokens: Ints
    differs: Bools
    failed: Bools
    is_fault: Bools
    orders: Sequence[ArmOrder]
    repeat_log: Floats  # log(first / second time) of a baseline that runs twice


def draw_outcomes(effects: Effects, requests: Requests, rng: np.random.Generator) -> Outcomes:
    """One draw of the outcomes of `requests`, had each of them been measured in both arms."""
    size, block, session = len(requests.at_us), requests.block, requests.session
    num_blocks, num_sessions = len(requests.blocks), int(session.max(initial=0)) + 1
    slows = rng.random(num_blocks)[block] if effects.slows_blocks else rng.random(size)
    is_slowed = slows < _slowed_shares(effects, requests)
    log_speedup = _locations(effects, requests) + _noise(effects, rng, size)
    if effects.session_sd:
        log_speedup += rng.normal(0.0, effects.session_sd, size=num_sessions)[session]
    if effects.block_sd:
        log_speedup += _block_effects(effects, rng, num_blocks)[block]
    log_speedup += _first_arm_effects(effects, requests)[block]
    orders = _orders(effects, requests)
    carried = effects.carry_log * np.array([order.baseline_ran_after is Arm.SPECULATIVE for order in orders])
    log_speedup += carried[block]
    unslowed_log, log_speedup = log_speedup, np.where(is_slowed, effects.slowed_log, log_speedup)

    num_drafts = 1 + rng.poisson(effects.mean_drafts - 1.0, size=size)
    rates = _acceptance_rates(effects, requests, rng, num_sessions)
    z_sum, z_tokens = _z_scores(effects, rng, size)
    baseline_ms = rng.lognormal(math.log(BASELINE_MS), effects.baseline_sd, size=size)
    return Outcomes(
        log_speedup=log_speedup,
        baseline_ms=baseline_ms,
        lost_ms=baseline_ms * (np.exp(-log_speedup) - np.exp(-unslowed_log)) * effects.is_retried,
        num_drafts=num_drafts,
        num_accepted=rng.binomial(num_drafts, rates),
        z_sum=z_sum,
        z_tokens=z_tokens,
        differs=rng.random(size) < effects.differing,
        failed=rng.random(size) < effects.failed,
        is_fault=(rng.random(size) < effects.faulty_later) & _is_later(effects, requests),
        orders=orders,
        repeat_log=_noise(effects, rng, size)
        + (carried + np.maximum(_first_arm_effects(effects, requests), 0.0))[block],
    )


def _z_scores(effects: Effects, rng: np.random.Generator, size: int) -> tuple[Floats, Ints]:
    """The sum of z of each request, and over how many tokens."""
    if not effects.output_tokens:
        own_z = rng.normal(effects.z, math.sqrt(0.2 / PARITY_TOKENS), size=size)
        return own_z * PARITY_TOKENS, np.full(size, PARITY_TOKENS)
    tokens = rng.choice(np.array(effects.output_tokens), size=size)
    return rng.binomial(tokens, effects.argmax) - effects.argmax * tokens, tokens


@lru_cache(maxsize=1_024)
def location(mean: float, sd: float, df: float | None, slowed: float, slowed_log: float) -> float:
    """The location at which the clipped log speedup has this mean, the slowed share (at its own value) included."""
    from scipy import optimize, special  # slow to load, and reports read the worlds without running them

    probabilities = (np.arange(20_000) + 0.5) / 20_000
    scores = special.ndtri(probabilities) if df is None else special.stdtrit(df, probabilities)
    slowed_part = slowed * min(max(slowed_log, -CLIP), CLIP)

    def excess(at: float) -> float:
        clipped = np.clip(at + sd * scores, -CLIP, CLIP).mean()
        return float(slowed_part + (1.0 - slowed) * clipped - mean)

    return float(optimize.brentq(excess, -4.0, 4.0, xtol=1e-12))


def _locations(effects: Effects, requests: Requests) -> Floats:
    means = np.full(len(requests.at_us), effects.log_speedup)
    if effects.slices_log:
        means = np.array(effects.slices_log)[requests.slice_index]
    if effects.busy_log is not None:
        means = np.where(requests.is_busy, effects.busy_log, effects.log_speedup)
    if effects.change_block is not None:
        means = np.where(_is_later(effects, requests), effects.log_speedup_later, means)
    if effects.daily_log:
        # Requests come at a density of 1 + swing * phase, under which the mean phase is swing / 2.
        phases = np.round(daily_phase(requests.at_us / SECOND), 2)
        means = means - effects.daily_log * (phases - DAILY_SWING / 2.0)
    sd = math.sqrt(effects.noise_sd**2 + effects.session_sd**2 + effects.block_sd**2)
    pairs, places = np.unique(np.stack([means, _slowed_shares(effects, requests)]), axis=1, return_inverse=True)
    distinct = [location(mean, sd, effects.noise_df, slowed, effects.slowed_log) for mean, slowed in pairs.T.tolist()]
    return np.array(distinct, dtype=np.float64)[places.ravel()]


def _is_later(effects: Effects, requests: Requests) -> Bools:
    """Whether each request is in the block `change_block` or after it."""
    is_later: Bools = requests.block >= (math.inf if effects.change_block is None else effects.change_block)
    return is_later


def _slowed_shares(effects: Effects, requests: Requests) -> Floats:
    """The share of slowed requests, by request."""
    later = effects.slowed if effects.slowed_later is None else effects.slowed_later
    return np.where(_is_later(effects, requests), later, effects.slowed)


def _noise(effects: Effects, rng: np.random.Generator, size: int) -> Floats:
    if effects.noise_df is None:
        return rng.normal(0.0, effects.noise_sd, size=size)
    return effects.noise_sd * rng.standard_t(effects.noise_df, size=size)


def _block_effects(effects: Effects, rng: np.random.Generator, num_blocks: int) -> Floats:
    """Stationary with standard deviation `block_sd`."""
    steps = rng.normal(0.0, effects.block_sd, size=num_blocks)
    kept = math.sqrt(1.0 - effects.block_phi**2)
    values = np.empty(num_blocks)
    last = 0.0
    for index, step in enumerate(steps.tolist()):
        last = step if index == 0 else effects.block_phi * last + kept * step
        values[index] = last
    return values


def _first_arm_effects(effects: Effects, requests: Requests) -> Floats:
    """By block: faster where the baseline ran first, slower where the candidate did, [blocks]."""
    first = [block.arm_order(effects.num_candidates)[0] for block in requests.blocks]
    return effects.first_arm_log * np.array([(arm is None) - float(arm == effects.candidate) for arm in first])


def _orders(effects: Effects, requests: Requests) -> list[ArmOrder]:
    """By block, on one device."""
    orders, before = [], None
    for block in requests.blocks:
        arms = block.arm_order(effects.num_candidates)
        orders.append(ArmOrder.of(arms, effects.candidate, before))
        before = Arm.BASELINE if arms[-1] is None else Arm.SPECULATIVE
    return orders


def _acceptance_rates(effects: Effects, requests: Requests, rng: np.random.Generator, num_sessions: int) -> Floats:
    """By request, one rate to a session; their mean over sessions of one length is exactly the stated rate."""
    means = np.full(num_sessions, effects.acceptance)
    for length, rate in effects.acceptance_of_length:
        means[requests.session[requests.session_length == length]] = rate
    if effects.acceptance_sd:
        # A beta law has the given mean at any spread, which a clipped normal has not.
        total = means * (1.0 - means) / effects.acceptance_sd**2 - 1.0
        means = rng.beta(means * total, (1.0 - means) * total)
    rates: Floats = means[requests.session]
    return rates

"""Evidence spread over time: traffic of days, the tap's budget of blocks in each window, and the gate look by look.

All requests go through the tap's own choice of blocks.  Only those that are measured make rows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from shadowspec.gate.policy import GatePolicy
from shadowspec.gate.run.gate_run import run_endpoint_gate
from shadowspec.gate.run.memory_store import MemoryStore
from shadowspec.simulate.effects import BASELINE_MS, location
from shadowspec.simulate.gate_under_test import HypothesisOutcome
from shadowspec.simulate.rows import CONFIG, MEMORY, measured_run
from shadowspec.simulate.steered import GREEDY, note_outcome
from shadowspec.simulate.traffic import (
    DAILY_SWING,
    DAY_S,
    ENDPOINT,
    PLACE,
    SECOND,
    Bools,
    Floats,
    Ints,
    daily_phase,
    event_time,
    slice_key_of,
)
from shadowspec.simulate.world import SLOT_S, SpreadWorld, Weather
from shadowspec.tap.blocks import BlockFormer
from shadowspec.tap.endpoints import EndpointRule, Load
from shadowspec.types import (
    Arm,
    ArmOrder,
    Block,
    FunnelCounter,
    RecordKey,
    Run,
    ShadowPrompt,
    StoredBlock,
    StoredRecord,
    Verdict,
    Watermark,
)

LABELS = {"prompt_class": "s00", "sampling_regime": "greedy"}


@dataclass(frozen=True, slots=True, eq=False)
class SpreadTraffic:
    """One entry of each array to a request of the traffic, in event order."""

    at_us: Ints
    log_speedup: Floats


def draw_traffic(world: SpreadWorld, rng: np.random.Generator) -> SpreadTraffic:
    """One draw of the traffic, with the effect of speculation on each request, measured or not."""
    num_slots = math.ceil(world.days * DAY_S / SLOT_S)
    mean = world.per_hour * SLOT_S / 3_600.0
    phases = daily_phase(np.arange(num_slots, dtype=np.float64) * SLOT_S)
    swing = DAILY_SWING if world.arrivals.has_days else 0.0
    numbers = rng.poisson(mean * (1.0 + swing * phases))
    slot = np.repeat(np.arange(num_slots), numbers)
    at_us = np.round((slot + rng.random(len(slot))) * SLOT_S * SECOND).astype(np.int64)
    order = np.argsort(at_us, kind="stable")
    at_us, slot = at_us[order], slot[order]

    effects, weather = world.effects, world.weather
    is_slowed = clumps(weather, num_slots, rng)[slot] | (rng.random(len(slot)) < effects.slowed)
    sd = math.hypot(effects.noise_sd, weather.slow_sd)
    slowed = weather.clump_share + (1.0 - weather.clump_share) * effects.slowed
    at = location(effects.log_speedup, sd, effects.noise_df, slowed, effects.slowed_log)
    log_speedup = at + slow_component(weather, num_slots, rng)[slot] + rng.normal(0.0, effects.noise_sd, len(slot))
    if effects.daily_log:
        log_speedup -= effects.daily_log * (phases[slot] - swing / 2.0)
    return SpreadTraffic(at_us, np.where(is_slowed, effects.slowed_log, log_speedup))


def clumps(weather: Weather, num_slots: int, rng: np.random.Generator) -> Bools:
    """Whether each slot is in a clump: a Markov chain with the stated share and mean length, [num_slots]."""
    if not weather.clump_share:
        return np.zeros(num_slots, dtype=bool)
    ends = 1.0 / weather.clump_slots
    begins = ends * weather.clump_share / (1.0 - weather.clump_share)
    draws = rng.random(num_slots)
    is_in = np.empty(num_slots, dtype=bool)
    now = bool(rng.random() < weather.clump_share)
    for slot, draw in enumerate(draws.tolist()):
        now = draw >= ends if now else draw < begins
        is_in[slot] = now
    return is_in


def slow_component(weather: Weather, num_slots: int, rng: np.random.Generator) -> Floats:
    """The slow component of the log speedup, [num_slots], with mean 0 and standard deviation `slow_sd`."""
    if not weather.slow_sd:
        return np.zeros(num_slots)
    if weather.kind == "batches":
        length = int(weather.phi)
        levels = rng.normal(0.0, weather.slow_sd, -(-num_slots // length))
        return np.repeat(levels, length)[:num_slots]
    if weather.kind == "fractional":
        return weather.slow_sd * fractional_noise(weather.phi, num_slots, rng)
    steps = rng.normal(0.0, 1.0, num_slots)
    values = np.empty(num_slots)
    if weather.kind == "walk":
        bound = 2.0 * weather.slow_sd
        now = float(rng.uniform(-bound, bound))
        for slot, step in enumerate((steps * weather.phi * weather.slow_sd).tolist()):
            now += step
            while abs(now) > bound:
                now = math.copysign(2.0 * bound, now) - now
            values[slot] = now
        return values
    now, rest = float(rng.normal()), math.sqrt(1.0 - weather.phi**2)
    for slot, step in enumerate(steps.tolist()):
        now = weather.phi * now + rest * step
        values[slot] = now
    return weather.slow_sd * values


def fractional_noise(hurst: float, number: int, rng: np.random.Generator) -> Floats:
    """Fractional Gaussian noise of variance 1, [number], by circulant embedding (Davies and Harte 1987)."""
    lags = np.arange(number + 1, dtype=np.float64)
    covariance = 0.5 * ((lags + 1.0) ** (2 * hurst) - 2.0 * lags ** (2 * hurst) + np.abs(lags - 1.0) ** (2 * hurst))
    spectrum = np.fft.rfft(np.concatenate([covariance, covariance[-2:0:-1]])).real
    total = 2 * number
    draws = rng.normal(size=len(spectrum)) + 1j * rng.normal(size=len(spectrum))
    draws[0], draws[-1] = draws[0].real * math.sqrt(2.0), draws[-1].real * math.sqrt(2.0)
    values: Floats = np.fft.irfft(np.sqrt(np.maximum(spectrum, 0.0) * total / 2.0) * draws, total)[:number]
    return values


def watch_spread(
    world: SpreadWorld, traffic: SpreadTraffic, policy: GatePolicy, rng: np.random.Generator
) -> list[HypothesisOutcome]:
    """The outcome of every run that got a level, until each has one or the traffic ends.

    `policy` is the world's, or another rule in it.
    """
    rows = _Rows(traffic, policy, world.effects.noise_sd, rng)
    outcomes: dict[tuple[str, int], HypothesisOutcome] = {}
    end_us = int(world.days * DAY_S * SECOND)
    step_us = int(world.look_every_h * 3_600.0 * SECOND)
    for look_us in range(step_us, end_us + step_us, step_us):
        rows.finish(look_us)
        for decision in run_endpoint_gate(rows.store, ENDPOINT, policy, now=event_time(look_us)).decisions:
            note_outcome(outcomes, decision)
        if outcomes and all(outcome.verdict is not Verdict.HOLD for outcome in outcomes.values()):
            break
    return list(outcomes.values())


class _Rows:
    """The rows of the measured requests, as they are finished."""

    def __init__(self, traffic: SpreadTraffic, policy: GatePolicy, noise_sd: float, rng: np.random.Generator) -> None:
        loads = (Load(4),)
        rule = EndpointRule(ENDPOINT, ("target",), slice_by=("prompt_class",), loads=loads, **policy.rule_parts())
        self.store = MemoryStore(ENDPOINT, PLACE, [CONFIG])
        self._former, self._rng, self._logs = BlockFormer([rule]), rng, traffic.log_speedup
        self._noise_sd = noise_sd
        self._last_arm: Arm | None = None
        self._done_us: dict[int, int] = {}  # by place in the traffic
        records: list[StoredRecord] = []
        self._at_us: list[int] = []
        blocks: list[StoredBlock] = []
        runs: list[Run] = []
        places: dict[int, RecordKey] = {}
        for place, at_us in enumerate(traffic.at_us.tolist()):
            moment = event_time(at_us)
            prompt = ShadowPrompt(RecordKey(*PLACE, place), ENDPOINT, moment, LABELS, (), GREEDY)
            if self._former.passes_over(prompt, 4, slice_key_of(0)):
                started = self._former.advance(ENDPOINT, moment)
            else:
                key = places[place] = RecordKey(*PLACE, len(records))
                session = f"s{place:07d}"
                records.append(
                    StoredRecord(
                        key, FunnelCounter.MEASURED, None, ENDPOINT, slice_key_of(0), LABELS, moment,
                        session_hash=session, sampling_rate=1.0,
                    )
                )  # fmt: skip
                self._at_us.append(at_us)
                started = self._former.add(prompt, 4, slice_key_of(0))
            for block in started:
                self._measure(block, at_us, places, blocks, runs)
        for block in self._former.drain():
            self._measure(block, int(traffic.at_us[-1]), places, blocks, runs)
        self.store.add(records, blocks, runs)
        done = [self._done_us[place] for place in places]
        self._finished_us = np.maximum.accumulate(np.array(done, dtype=np.int64))

    def finish(self, look_us: int) -> None:
        """What is known at this time: the rows before the first request that waits for its block."""
        number = int(np.searchsorted(self._finished_us, look_us, "right"))
        until_us = min(look_us, self._at_us[number] - 1) if number < len(self._at_us) else look_us
        self.store.finish(number, Watermark(event_time(until_us), is_ended=False))

    def _measure(
        self, block: Block, at_us: int, places: dict[int, RecordKey], blocks: list[StoredBlock], runs: list[Run]
    ) -> None:
        rng = self._rng
        parts = block.block_id, block.sequence, ENDPOINT, block.slice_key, block.concurrency, block.n_max
        memory = {CONFIG.fingerprint: MEMORY}
        stored = StoredBlock(*parts, block.first_arm, event_time(at_us), memory)
        blocks.append(replace(stored, stands_for=block.stands_for))
        arms = block.arm_order(1)
        order = ArmOrder.of(arms, 0, self._last_arm)
        self._last_arm = Arm.BASELINE if arms[-1] is None else Arm.SPECULATIVE
        for prompt in block.requests:
            self._done_us[prompt.key.offset] = at_us
            num_drafts = 1 + int(rng.poisson(29.0))
            baseline_ms = float(rng.lognormal(math.log(BASELINE_MS), 0.2))
            repeat_ms = baseline_ms * math.exp(rng.normal(0.0, self._noise_sd)) if block.repeats_baseline else None
            run = measured_run(
                places[prompt.key.offset],
                CONFIG.fingerprint,
                block.block_id,
                float(self._logs[prompt.key.offset]),
                baseline_ms,
                num_drafts,
                int(rng.binomial(num_drafts, 0.65)),
            )
            runs.append(replace(run, order=replace(order, baseline_repeat_ms=repeat_ms)))

"""Null worlds whose shape no field of `shadowspec simulate` has, through the production gate with blocks as units.

    make bench NAME=odd_worlds

Each draw goes through the simulation's traffic, its rows and the gate at every look that can decide, as the worlds of
docs/research/simulation.md do; the table of the results is on that page (`make simulation` writes it).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import track
from scipy.stats import binomtest

from kernels.benchmarks import harness
from kernels.benchmarks.harness import machine, options, show, write
from shadowspec.gate.evidence.guardrails import quantile_results
from shadowspec.gate.evidence.quantiles import LatencyHistogram
from shadowspec.gate.evidence.units import BlockUnit, MeasuredRun
from shadowspec.gate.policy import GatePolicy
from shadowspec.gate.run.gate_run import run_endpoint_gate
from shadowspec.gate.run.memory_store import MemoryStore
from shadowspec.simulate.effects import Effects, Outcomes, draw_outcomes
from shadowspec.simulate.gate_under_test import watch
from shadowspec.simulate.rows import CONFIG, MEMORY, measured_run, moments_of, rows_of
from shadowspec.simulate.traffic import ENDPOINT, PLACE, START, Arrivals, Requests, draw_requests, slice_key_of
from shadowspec.simulate.world import ALONE, BOUNDARY
from shadowspec.types import Arm, RecordKey, Run, StoredBlock, Verdict

RESULTS = harness.RESULTS / "odd_worlds.json"
FASTER, SLOWED = math.log(1.3), -math.log(1.25)
LIMIT = ALONE.tail_share
EPISODES = 0.2, 30.0  # share of the blocks and mean length in blocks
SLOWER_SECOND = math.log(1.3)

Shape = Callable[[Requests, Outcomes, np.random.Generator], Outcomes]


@dataclass(frozen=True, slots=True)
class OddWorld:
    """A null world: `shape` changes the drawn outcomes, and `wrong` are the slices that no gate may enable."""

    title: str
    effects: Effects
    shape: Shape | None = None
    arrivals: Arrivals = field(default_factory=Arrivals)
    policy: GatePolicy = ALONE
    wrong: tuple[str, ...] = ("",)

    def draw(self, seed: np.random.SeedSequence) -> tuple[Requests, Outcomes]:
        """Requests and outcomes, from separate random streams."""
        traffic, effects, shape = map(np.random.default_rng, seed.spawn(3))
        requests = draw_requests(self.arrivals, traffic, "greedy")
        outcomes = draw_outcomes(self.effects, requests, effects)
        return requests, self.shape(requests, outcomes, shape) if self.shape else outcomes

    def enabled(self, seed: np.random.SeedSequence) -> Iterator[str]:
        """The slices that the gate enables in this draw ("": the endpoint)."""
        requests, outcomes = self.draw(seed)
        rows = rows_of(requests, outcomes, "greedy", ())
        watched = watch(rows, requests, self.policy, [CONFIG], self.arrivals.concurrency)
        yield from (run.slice_key for run in watched if run.verdict is Verdict.ENABLE)


class SwitchedLimits(OddWorld):
    """The same, with another of four policies at each look; each of them has a true null."""

    def enabled(self, seed: np.random.SeedSequence) -> Iterator[str]:
        requests, outcomes = self.draw(seed)
        store = MemoryStore(ENDPOINT, PLACE, [CONFIG])
        rows = rows_of(requests, outcomes, "greedy", ())
        store.add(rows.records, rows.blocks, rows.runs)
        changes: tuple[dict[str, float], ...] = (
            {},
            {"tail_share": 0.8 * LIMIT},
            {"tail_share": 0.9 * LIMIT},
            {"floor": 0.3, "margin": 0.02},
        )
        policies = [replace(ALONE, **change) for change in changes]  # type: ignore[arg-type]
        moments = moments_of(requests, ())
        for number, look in enumerate(range(20, len(moments.looks), 20)):
            store.finish(*moments.known_at(look))
            run = run_endpoint_gate(store, ENDPOINT, policies[number % len(policies)], now=START)
            yield from (decision.slice_key for decision in run.decisions if decision.verdict is Verdict.ENABLE)


class NeverAnswered(OddWorld):
    """4.2% of the requests are never answered and 1.4% take three times as long: the p95 test of its function alone."""

    def enabled(self, seed: np.random.SeedSequence) -> Iterator[str]:
        rng = np.random.default_rng(seed)
        blocks = [_block_of(place, rng) for place in range(400)]
        policy = replace(ALONE, p95_margin=0.2)
        (tested,) = quantile_results(LatencyHistogram().fold(blocks), policy, ALONE.alpha)
        if tested.outcome == "pass":
            yield ""


def _block_of(place: int, rng: np.random.Generator) -> BlockUnit:
    stored = StoredBlock(f"{place:06d}", place, ENDPOINT, "", 4, 4, Arm.BASELINE, START, {CONFIG.fingerprint: MEMORY})
    runs = []
    for number, kind in enumerate(rng.random(4).tolist()):
        key = RecordKey(ENDPOINT, 0, 4 * place + number)
        log = -math.log(3.0) if kind < 0.056 else rng.normal(FASTER, 0.08)
        run = measured_run(key, CONFIG.fingerprint, stored.block_id, log, 250.0 * rng.lognormal(0.0, 0.2), 30, 20)
        if kind < 0.042:
            run = Run(key, CONFIG.fingerprint, stored.block_id, failure="time_out")
        runs.append(MeasuredRun(run, is_greedy=True))
    return BlockUnit(stored, tuple(runs))


def _throttled(requests: Requests, outcomes: Outcomes, rng: np.random.Generator) -> Outcomes:
    """In episodes of blocks whichever arm runs second is slower."""
    share, length = EPISODES
    is_on, on = rng.random() < share, []
    for _ in requests.blocks:
        on.append(is_on)
        is_on = rng.random() >= 1.0 / length if is_on else rng.random() < share / (1.0 - share) / length
    second = [1.0 if block.first_arm is Arm.BASELINE else -1.0 for block in requests.blocks]
    # The baseline first: speculation runs second and is slower.
    return replace(
        outcomes, log_speedup=outcomes.log_speedup - (SLOWER_SECOND * np.array(on) * np.array(second))[requests.block]
    )


def _slowed_slices(
    shares: tuple[float, ...], requests: Requests, outcomes: Outcomes, rng: np.random.Generator
) -> Outcomes:
    """Of each slice this share of the requests is slowed."""
    is_slowed = rng.random(len(requests.at_us)) < np.array(shares)[requests.slice_index]
    return replace(outcomes, log_speedup=np.where(is_slowed, SLOWED, outcomes.log_speedup))


def _slices(title: str, shares: tuple[float, ...]) -> OddWorld:
    wrong = [slice_key_of(place) for place, share in enumerate(shares) if share >= LIMIT]
    if math.fsum(shares) / len(shares) >= LIMIT:
        wrong.append("")
    return OddWorld(
        title,
        Effects(log_speedup=FASTER, noise_sd=0.05),
        partial(_slowed_slices, shares),
        Arrivals(num_sessions=1_600, num_slices=len(shares), gap_s=30.0, concurrency=1),
        replace(ALONE, max_hypotheses=len(shares) + 1),
        tuple(wrong),
    )


def _slow(title: str, sd: float, phi: float, num_sessions: int = Arrivals().num_sessions) -> OddWorld:
    effects = Effects(log_speedup=BOUNDARY, block_sd=sd, block_phi=phi, noise_sd=0.14)
    return OddWorld(title, effects, arrivals=Arrivals(num_sessions=num_sessions))


_TENTH_SLOWED = Effects(log_speedup=FASTER, noise_sd=0.05, slowed=LIMIT, slowed_log=SLOWED)
WORLDS = {
    "throttled": OddWorld(
        "in a fifth of the time, for 30 blocks on average, the second arm is 30% slower; speedup at the margin",
        Effects(log_speedup=BOUNDARY),
        _throttled,
    ),
    "five_candidates": OddWorld(
        "A/A with five candidates; the first arm is 12% slower",
        Effects(log_speedup=0.0, noise_sd=0.06, num_candidates=5, candidate=2, first_arm_log=math.log(1.12)),
    ),
    "four_of_eight": _slices(
        "eight slices, four of which have the slowed share at its limit", (0.0,) * 4 + (LIMIT,) * 4
    ),
    "one_of_eight": _slices("eight slices, one of which has the slowed share at its limit", (0.0,) * 7 + (LIMIT,)),
    "whole_of_eight": _slices(
        "eight slices, four slowed so that the endpoint is at the limit", (0.0,) * 4 + (2.0 * LIMIT,) * 4
    ),
    "switched_limits": SwitchedLimits(
        "the limits change at each look among four policies, each with a true null",
        _TENTH_SLOWED,
        arrivals=Arrivals(concurrency=1),
    ),
    "never_answered": NeverAnswered("p95 with 4.2% never answered and 1.4% three times slower", Effects()),
    "slow_30": _slow("a slow component, AR(1) .98, has 30% of the variance of requests", 0.0458, 0.98),
    "slow_990": _slow("the same at 20%, AR(1) .99", 0.035, 0.99),
    "slow_995": _slow("the same at 20%, AR(1) .995, over 1,500 blocks", 0.035, 0.995, 6_000),
}


def wrong_and_right(name: str, index: int) -> tuple[bool, bool]:
    """Whether the draw of this number of a world ends in a false ENABLE, and in a true one."""
    seed = np.random.SeedSequence([1, int.from_bytes(name.encode(), "big")], spawn_key=(index,))
    enabled, wrong = set(WORLDS[name].enabled(seed)), set(WORLDS[name].wrong)
    return bool(enabled & wrong), bool(enabled - wrong)


def row(pool: ProcessPoolExecutor, name: str, repetitions: int) -> dict[str, Any]:
    """How many draws of a world ended in a false ENABLE, with a Clopper-Pearson interval of 95%, and in a true one."""
    draws = pool.map(partial(wrong_and_right, name), range(repetitions))
    ends = list(track(draws, name, total=repetitions, console=Console(stderr=True)))
    wrong = sum(is_wrong for is_wrong, _ in ends)
    interval = binomtest(wrong, repetitions).proportion_ci(0.95)
    return {
        "world": name,
        "title": WORLDS[name].title,
        "repetitions": repetitions,
        "false_enables": wrong,
        "lower": interval.low,
        "upper": interval.high,
        "true_enables": sum(is_right for _, is_right in ends),
        "has_right": WORLDS[name].arrivals.num_slices > 1,
    }


def main() -> None:
    """Run every world and store its row."""
    parser = options(__doc__, RESULTS.name)
    parser.add_argument("--repetitions", type=int, default=200)
    parser.add_argument("--world", action="append", choices=WORLDS, help="only this one; repeat it for several")
    parser.add_argument("--jobs", type=int, default=None, help="processes (default: one per processor)")
    arguments = parser.parse_args()
    with ProcessPoolExecutor(arguments.jobs) as pool:
        rows = [row(pool, name, arguments.repetitions) for name in arguments.world or WORLDS]
    show("False ENABLE", [{key: value for key, value in each.items() if key != "title"} for each in rows])
    write(arguments.out, {"worlds": rows, **machine("numpy", "scipy")})


if __name__ == "__main__":
    main()

"""One repetition: a world drawn, its rows given to the gate and to the naive ones, and their outcomes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from statistics import NormalDist

import numpy as np

from shadowspec.simulate import naive
from shadowspec.simulate.discoveries import Discoveries, draw_discoveries
from shadowspec.simulate.effects import Outcomes, draw_outcomes
from shadowspec.simulate.fleet import draw_fleet, watch_fleet
from shadowspec.simulate.gate_under_test import HypothesisOutcome, watch
from shadowspec.simulate.rows import SimulatedRows, configs_of, rows_of
from shadowspec.simulate.spread import draw_traffic, watch_spread
from shadowspec.simulate.steered import watch_steered
from shadowspec.simulate.traffic import Requests, draw_requests
from shadowspec.simulate.world import FleetWorld, ManyEndpointsWorld, SpreadWorld, SteeredWorld, World
from shadowspec.types import Verdict

BLOCK_UNITS = "block_units"  # the gate with blocks as units, which measures all of the traffic


@dataclass(frozen=True, slots=True)
class Repetition:
    """Every gate's outcome for one draw of a world."""

    hypotheses: tuple[HypothesisOutcome, ...]
    naive: dict[str, bool]
    discoveries: Mapping[str, Discoveries] = field(default_factory=dict)  # of many endpoints, by rule


@dataclass(frozen=True, slots=True, eq=False)
class Draw:
    """One draw of a world: its requests, their outcomes, and the rows that the worker would have stored."""

    requests: Requests
    outcomes: Outcomes
    rows: SimulatedRows


def draw_truth(world: World, seed: np.random.SeedSequence) -> tuple[Requests, Outcomes]:
    """Requests and their outcomes, from two separate random streams."""
    traffic_seed, effects_seed = seed.spawn(2)
    requests = draw_requests(world.arrivals, np.random.default_rng(traffic_seed), world.regime)
    return requests, draw_outcomes(world.effects, requests, np.random.default_rng(effects_seed))


def draw(world: World, seed: np.random.SeedSequence) -> Draw:
    """A draw with its rows."""
    requests, outcomes = draw_truth(world, seed)
    return Draw(requests, outcomes, rows_of(requests, outcomes, world.regime, world.releases))


def repeat(world: World, seed: np.random.SeedSequence) -> Repetition:
    """Draw the world and ask every gate."""
    if isinstance(world, SteeredWorld):  # its requests come as the gate decides: no naive gate sees the same ones
        return Repetition(tuple(watch_steered(world, seed)), {})
    if isinstance(world, ManyEndpointsWorld):
        return Repetition((), {}, draw_discoveries(world, seed))
    if isinstance(world, SpreadWorld):
        traffic_seed, *measured_seeds = seed.spawn(3)
        traffic = draw_traffic(world, np.random.default_rng(traffic_seed))
        # The control measures all of the traffic: it is asked once a day.
        control = replace(world, policy=replace(world.policy, window_s=0.0), look_every_h=24.0)
        by_window, by_block = (
            watch_spread(asked, traffic, asked.policy, np.random.default_rng(measured_seed))
            for asked, measured_seed in zip((world, control), measured_seeds, strict=True)
        )
        return Repetition(tuple(by_window), {BLOCK_UNITS: any(o.verdict is Verdict.ENABLE for o in by_block)})
    if isinstance(world, FleetWorld):
        fleet = draw_fleet(world, seed)
        hypotheses = watch_fleet(world, fleet)
        seen = naive.together([naive.observe(drawn.outcomes, drawn.requests.at_us) for drawn in fleet])
    else:
        drawn = draw(world, seed)
        configs = configs_of(world.releases)
        hypotheses = watch(drawn.rows, drawn.requests, world.policy, configs, world.arrivals.concurrency)
        seen = naive.observe(drawn.outcomes, drawn.requests.at_us)
    said = {gate.name: gate.enables(seen, world.policy) for gate in naive.NAIVE_GATES}
    return Repetition(tuple(hypotheses), said)


def seed_of(world: World, seed: int, index: int) -> np.random.SeedSequence:
    """The seed of a world's index-th repetition, whichever other worlds are run and in which order."""
    name = int.from_bytes(world.name.encode(), "big")
    return np.random.SeedSequence([seed, name], spawn_key=(index,))


def fixed_sample_size(effect: float, sd: float, level: float, power: float = 0.8) -> int:
    """Units at which a one-sided z test at `level`, looked at once, has this power against a mean of `effect`."""
    z = NormalDist().inv_cdf(1.0 - level) + NormalDist().inv_cdf(power)
    return math.ceil((z * sd / effect) ** 2)

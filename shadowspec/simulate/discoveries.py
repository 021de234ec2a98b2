"""A fleet of endpoints, some of which gain: how many are enabled, and how many of these falsely.

Every endpoint is the production gate over its own rows, looked at again and again.  What it enables at its alpha is
compared with what e-BH admits over all of them (`shadowspec.gate.verdict.e_values`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from shadowspec.gate.run.gate_run import run_endpoint_gate
from shadowspec.gate.run.memory_store import MemoryStore
from shadowspec.gate.verdict.e_values import Fleet, fleet_of
from shadowspec.simulate.effects import Effects, draw_outcomes
from shadowspec.simulate.rows import CONFIG, rows_of
from shadowspec.simulate.traffic import ENDPOINT, PLACE, START, draw_requests
from shadowspec.simulate.world import World
from shadowspec.types import Decision, Watermark


@dataclass(frozen=True, slots=True)
class Discoveries:
    """One draw of a fleet: of the endpoints that gain, and of those that do not, how many came to ENABLE, by rate.

    The rate None is each endpoint's alpha alone.
    """

    true: dict[float | None, int]
    false: dict[float | None, int]

    def false_share(self, rate: float | None) -> float:
        """False ENABLEs over all; 0 without any."""
        return self.false[rate] / max(self.true[rate] + self.false[rate], 1)


def draw_discoveries(
    world: World,
    no_gain: Effects,
    num_endpoints: int,
    num_true: int,
    rates: Sequence[float],
    seed: np.random.SeedSequence,
    num_looks: int = 4,
) -> Discoveries:
    """A draw of `num_endpoints` of the world's traffic: `num_true` with its effects, the others with `no_gain`."""
    latest: list[Decision] = []
    gains = set()
    for place, child in enumerate(seed.spawn(num_endpoints)):
        name, is_true = f"endpoint-{place:03d}", place < num_true
        gains |= {name} if is_true else set()
        whole = _watch(replace(world, effects=world.effects if is_true else no_gain), child, num_looks)
        latest.append(replace(whole, endpoint=name))
    fleet = fleet_of(latest)
    admitted: dict[float | None, set[str]] = {rate: _admitted(fleet, rate) for rate in rates}
    admitted[None] = set(fleet.rates)
    return Discoveries(
        {rate: len(names & gains) for rate, names in admitted.items()},
        {rate: len(names - gains) for rate, names in admitted.items()},
    )


def _admitted(fleet: Fleet, rate: float) -> set[str]:
    return {name for name, least in fleet.rates.items() if least <= rate}


def _watch(world: World, seed: np.random.SeedSequence, num_looks: int) -> Decision:
    """The decision on a whole endpoint at the last of several looks."""
    traffic_seed, effects_seed = seed.spawn(2)
    requests = draw_requests(world.arrivals, np.random.default_rng(traffic_seed), world.regime)
    outcomes = draw_outcomes(world.effects, requests, np.random.default_rng(effects_seed))
    rows = rows_of(requests, outcomes, world.regime, None)
    store = MemoryStore(ENDPOINT, PLACE, [CONFIG])
    store.add(rows.records, rows.blocks, rows.runs)
    total = len(rows.records)
    decisions: Sequence[Decision] = ()
    for look in range(1, num_looks + 1):
        number = total * look // num_looks
        newest = rows.records[number - 1].event_time
        store.finish(number, Watermark(newest, is_ended=look == num_looks))
        decisions = run_endpoint_gate(store, ENDPOINT, world.policy, now=START).decisions
    return next(decision for decision in decisions if not decision.slice_key)

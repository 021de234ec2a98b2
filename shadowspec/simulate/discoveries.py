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
from shadowspec.gate.verdict.e_values import fleet_of
from shadowspec.simulate.effects import Effects, draw_outcomes
from shadowspec.simulate.rows import CONFIG, rows_of
from shadowspec.simulate.traffic import ENDPOINT, PLACE, START, draw_requests
from shadowspec.simulate.world import ManyEndpointsWorld
from shadowspec.types import Decision, Watermark

ALONE_RULE, FLEET_RULE = "alpha of each endpoint", "e-BH over all endpoints"


@dataclass(frozen=True, slots=True)
class Discoveries:
    """Of the endpoints of one draw: how many that gain came to ENABLE, and how many of the others."""

    true: int
    false: int

    @property
    def false_share(self) -> float:
        """False ENABLEs over all; 0 without any."""
        return self.false / max(self.true + self.false, 1)


def draw_discoveries(world: ManyEndpointsWorld, seed: np.random.SeedSequence) -> dict[str, Discoveries]:
    """A draw of all endpoints of the world, by rule: each endpoint's alpha alone, and e-BH at the world's rate."""
    latest: list[Decision] = []
    gains = set()
    for place, child in enumerate(seed.spawn(world.num_endpoints)):
        name, is_true = f"endpoint-{place:03d}", place < world.num_gains
        gains |= {name} if is_true else set()
        whole = _watch(world, world.effects if is_true else world.no_gain, child)
        latest.append(replace(whole, endpoint=name))
    fleet = fleet_of(latest)
    admitted = {
        ALONE_RULE: set(fleet.rates),
        FLEET_RULE: {name for name, least in fleet.rates.items() if least <= world.rate},
    }
    return {rule: Discoveries(len(names & gains), len(names - gains)) for rule, names in admitted.items()}


def _watch(world: ManyEndpointsWorld, effects: Effects, seed: np.random.SeedSequence) -> Decision:
    """The decision on a whole endpoint at its last look."""
    traffic_seed, effects_seed = seed.spawn(2)
    requests = draw_requests(world.arrivals, np.random.default_rng(traffic_seed), world.regime)
    outcomes = draw_outcomes(effects, requests, np.random.default_rng(effects_seed))
    rows = rows_of(requests, outcomes, world.regime, world.releases)
    store = MemoryStore(ENDPOINT, PLACE, [CONFIG])
    store.add(rows.records, rows.blocks, rows.runs)
    total = len(rows.records)
    decisions: Sequence[Decision] = ()
    for look in range(1, world.num_looks + 1):
        number = total * look // world.num_looks
        newest = rows.records[number - 1].event_time
        store.finish(number, Watermark(newest, is_ended=look == world.num_looks))
        decisions = run_endpoint_gate(store, ENDPOINT, world.policy, now=START).decisions
    return next(decision for decision in decisions if not decision.slice_key)

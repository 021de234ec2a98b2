"""A fleet of endpoints in the simulation: what the gate enables, and what e-BH admits of it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from shadowspec.simulate.discoveries import Discoveries, draw_discoveries
from shadowspec.simulate.worlds import WORLDS


def test_endpoints_that_gain_are_found_at_the_fleets_rate_too() -> None:
    world = WORLDS["decay"]
    effects = replace(world.effects, change_block=None)
    world = replace(world, arrivals=replace(world.arrivals, num_sessions=400), effects=effects)
    found = draw_discoveries(world, replace(effects, slowed=0.3), 6, 2, (0.05, 1e-9), np.random.SeedSequence(5))
    assert found.true == {None: 2, 0.05: 2, 1e-9: 0}
    assert found.false == {None: 0, 0.05: 0, 1e-9: 0}


def test_the_false_share_is_of_all_that_are_enabled() -> None:
    assert Discoveries({None: 3}, {None: 1}).false_share(None) == 0.25
    assert Discoveries({None: 0}, {None: 0}).false_share(None) == 0.0

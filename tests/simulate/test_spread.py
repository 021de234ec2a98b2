"""Worlds of production's length: their truth, the blocks that the tap chooses, and what windows protect from."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import pytest

from shadowspec.simulate.repetition import BLOCK_UNITS, repeat, seed_of
from shadowspec.simulate.spread import clumps, draw_traffic, fractional_noise, slow_component, watch_spread
from shadowspec.simulate.traffic import DAY_S, SECOND
from shadowspec.simulate.world import BOUNDARY, SLOT_S, SpreadWorld, Weather
from shadowspec.simulate.worlds import SPREAD_WORLDS, WORLDS
from shadowspec.types import Verdict


def spread(name: str, **changes: object) -> SpreadWorld:
    world = WORLDS[name]
    assert isinstance(world, SpreadWorld)
    return replace(world, **changes)  # type: ignore[arg-type]


def lengths(values: Iterable[bool]) -> list[int]:
    """The lengths of runs of True."""
    found = [0]
    for value in values:
        found = [*found[:-1], found[-1] + 1] if value else [*found, 0] if found[-1] else found
    return [length for length in found if length]


@pytest.mark.parametrize("slots", [2.0, 40.0])
def test_clumps_have_the_stated_share_and_length(slots: float) -> None:
    drawn = clumps(Weather(clump_share=0.1, clump_slots=slots), 400_000, np.random.default_rng(1))
    assert drawn.mean() == pytest.approx(0.1, rel=0.1)
    assert np.mean(lengths(drawn.tolist())) == pytest.approx(slots, rel=0.1)


def test_fractional_noise_has_its_covariance() -> None:
    hurst, rng = 0.9, np.random.default_rng(2)
    drawn = np.stack([fractional_noise(hurst, 256, rng) for _ in range(4_000)])
    for lag in (0, 1, 8, 64):
        wanted = 0.5 * ((lag + 1) ** 1.8 - 2 * lag**1.8 + abs(lag - 1) ** 1.8)
        assert np.mean(drawn[:, 0] * drawn[:, lag]) == pytest.approx(wanted, abs=0.06)


@pytest.mark.parametrize("kind", [("ar", 0.9), ("walk", 0.5), ("batches", 10.0)])
def test_slow_components_are_centred_and_of_their_size(kind: tuple[str, float]) -> None:
    drawn = slow_component(Weather(slow_sd=0.05, kind=kind[0], phi=kind[1]), 200_000, np.random.default_rng(3))
    assert abs(drawn.mean()) < 0.004
    assert drawn.std() == pytest.approx(0.05, rel=0.2)
    if kind[0] == "walk":
        assert np.abs(drawn).max() <= 0.1


@pytest.mark.parametrize("name", [world.name for world in SPREAD_WORLDS])
def test_the_truth_of_each_world_is_at_its_boundary(name: str) -> None:
    world = spread(name, days=200.0)
    traffic = draw_traffic(world, np.random.default_rng(4))
    if world.weather.clump_share:
        slowed = traffic.log_speedup < -math.log1p(world.policy.tail_margin)
        assert slowed.mean() == pytest.approx(0.1, rel=0.25)
    else:
        assert traffic.log_speedup.mean() == pytest.approx(BOUNDARY, abs=0.02)
    assert len(traffic.at_us) == pytest.approx(world.days * 24.0 * world.per_hour, rel=0.05)
    assert traffic.at_us.max() < (world.days * DAY_S + SLOT_S) * SECOND


def test_a_clump_is_one_unit_of_a_window_and_many_units_of_blocks() -> None:
    """Half an hour of slowdown in every five: hours see a tenth slowed, blocks a run of clean ones."""
    world = spread("clumps_5", days=8.0)
    done = [repeat(world, seed_of(world, 1, index)) for index in range(3)]
    assert not any(outcome.verdict is Verdict.ENABLE for r in done for outcome in r.hypotheses)
    assert all(set(r.naive) == {BLOCK_UNITS} for r in done)


def test_a_true_speedup_is_enabled_at_the_end_of_the_span_with_a_block_of_each_hour() -> None:
    base = spread("spread_margin", days=10.0)
    world = replace(base, effects=replace(base.effects, log_speedup=math.log(1.3)), look_every_h=12.0)
    traffic = draw_traffic(world, np.random.default_rng(5))
    (outcome,) = [o for o in watch_spread(world, traffic, world.policy, np.random.default_rng(6)) if not o.slice_key]
    assert outcome.verdict is Verdict.ENABLE
    assert outcome.num_blocks < 1.6 * 24 * 10
    assert len(traffic.at_us) / 4 > 3 * outcome.num_blocks  # blocks that the traffic would have filled

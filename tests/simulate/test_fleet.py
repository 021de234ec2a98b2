"""Devices side by side: what they write is what they measured, and how long a block took bears on nothing."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import numpy as np
import pytest

from shadowspec.gate.run import folding
from shadowspec.simulate import fleet
from shadowspec.simulate.fleet import draw_fleet, watch_fleet
from shadowspec.simulate.repetition import repeat, seed_of
from shadowspec.simulate.results import tally
from shadowspec.simulate.traffic import ENDPOINT, SECOND, START, event_time
from shadowspec.simulate.world import FleetWorld
from shadowspec.simulate.worlds import WORLDS
from shadowspec.store import Store
from shadowspec.types import Decision, Verdict
from tests.gate.sabotage import sabotaged


def world(num_devices: int, blocks_each: int, look_every: int = 2) -> FleetWorld:
    """The world of several devices, with so many of them and so many blocks for each."""
    whole = WORLDS["several_devices"]
    assert isinstance(whole, FleetWorld)
    sessions = num_devices * blocks_each * whole.arrivals.concurrency
    gap_s = whole.arrivals.gap_s * whole.fleet.num_devices / num_devices
    return replace(
        whole,
        arrivals=replace(whole.arrivals, num_sessions=sessions, gap_s=gap_s),
        fleet=replace(whole.fleet, num_devices=num_devices, look_every=look_every),
    )


def test_a_slow_block_takes_longer_and_a_device_does_one_after_the_other() -> None:
    fleet = world(4, 12)
    for draw in draw_fleet(fleet, seed_of(fleet, 1, 0)):
        means = [
            float(np.mean(draw.outcomes.log_speedup[draw.requests.block == place]))
            for place in range(len(draw.requests.blocks))
        ]
        takes = np.array([5_000 if mean < 0.0 else 1_000 for mean in means]) * SECOND
        free = 0
        for started, takes_us, done in zip(
            draw.requests.started_us.tolist(), takes.tolist(), draw.done_us.tolist(), strict=True
        ):
            free = max(free, min(started, int(draw.requests.at_us[-1]))) + takes_us
            assert done == free


def test_each_look_has_the_blocks_that_the_watermark_has_reached_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Through the store, the ledger and the folding: a beginning of one order, whichever device was first."""
    fleet_world = world(4, 4)
    draws = draw_fleet(fleet_world, seed_of(fleet_world, 1, 3))
    newest = sorted(
        max(int(at) for at in draw.requests.at_us[draw.requests.block == place])
        for draw in draws
        for place in range(len(draw.requests.blocks))
    )
    seen: list[tuple[int, int, bool]] = []

    def look(store: Store, devices: FleetWorld, *, input_ended: bool) -> Decision:
        mark = store.watermark(ENDPOINT).time
        assert mark is not None
        known_us = (mark - START) // timedelta(microseconds=1)
        reached = len(newest) if input_ended else sum(at <= known_us for at in newest)
        decision = honest(store, devices, input_ended=input_ended)
        seen.append((decision.num_blocks, reached, input_ended))
        return decision

    honest = fleet._look
    monkeypatch.setattr(fleet, "_look", look)
    (outcome,) = watch_fleet(fleet_world, draws)
    assert len(seen) >= len(newest) // 2
    # Until a partition has begun, nothing says that it is there: what is older than the watermark may still come then.
    begun = [numbers for numbers in seen if numbers[1] > len(draws)]
    assert [num_blocks for num_blocks, _, _ in begun] == [reached for _, reached, _ in begun]
    assert (outcome.num_blocks, outcome.num_clusters) == (len(newest), 64)


def test_its_rows_lie_on_the_margin() -> None:
    fleet = world(8, 200)
    draws = draw_fleet(fleet, seed_of(fleet, 1, 1))
    clipped = np.concatenate([draw.outcomes.log_speedup for draw in draws])
    block = np.concatenate([draw.requests.block + 1_000 * draw.device for draw in draws])
    means = np.bincount(block, clipped)[np.unique(block)] / np.bincount(block)[np.unique(block)]
    assert abs(float(clipped.mean()) - 0.04879) < 4.0 * float(means.std()) / len(means) ** 0.5
    assert event_time(int(draws[0].requests.at_us[0])) > START


ORDER = ("closed_by is None or newest <= closed_by", "True")  # blocks enter as they are committed


@pytest.mark.all
def test_blocks_that_enter_as_they_are_committed_make_the_gate_enable_falsely(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seven of the world's first twelve draws are enabled then, at 26 to 78 blocks; here are the three soonest."""
    fleet = world(24, 5)
    draws = [draw_fleet(fleet, seed_of(fleet, 1, index)) for index in (6, 10, 11)]
    assert [
        watch_fleet(replace(fleet, fleet=replace(fleet.fleet, look_every=8)), draw)[0].verdict for draw in draws
    ] == [Verdict.HOLD] * 3
    monkeypatch.setattr(folding, "take_blocks", sabotaged("shadowspec.gate.evidence.units", ORDER).take_blocks)
    assert [watch_fleet(fleet, draw)[0].verdict for draw in draws] == [Verdict.ENABLE] * 3


def test_it_is_run_and_counted_as_the_other_worlds_are() -> None:
    fleet = world(3, 2, look_every=3)
    again = repeat(fleet, seed_of(fleet, 1, 0))
    assert again == repeat(fleet, seed_of(fleet, 1, 0))
    result = tally(fleet, 1, [again], 0.0)
    assert (result.level, result.false_enables, result.num_dependent) == (pytest.approx(0.045), 0, 0)
    assert result.naive_enables.keys() == again.naive.keys()

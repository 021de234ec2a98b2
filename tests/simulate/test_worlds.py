"""The worlds are what they say: their truth, their traffic, and the rows made of them."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import pytest

from shadowspec.gate.run.gate_run import run_endpoint_gate
from shadowspec.gate.run.memory_store import MemoryStore
from shadowspec.simulate.effects import CLIP, PARITY_TOKENS, Effects, Outcomes, draw_outcomes, location
from shadowspec.simulate.repetition import draw, draw_truth, fixed_sample_size, seed_of
from shadowspec.simulate.rows import CONFIG, configs_of
from shadowspec.simulate.traffic import (
    CONCURRENCY,
    ENDPOINT,
    NEVER,
    PLACE,
    SECOND,
    START,
    Arrivals,
    Requests,
    daily_phase,
    draw_requests,
)
from shadowspec.simulate.world import BOUNDARY, World
from shadowspec.simulate.worlds import NULL_WORLDS, QUICK_WORLDS, WORLDS
from shadowspec.types import FunnelCounter, Watermark
from tests.identities import check_identities


@dataclass(frozen=True)
class Truth:
    requests: Requests
    outcomes: Outcomes


def resized(name: str, num_sessions: int) -> World:
    world = WORLDS[name]
    return replace(world, arrivals=replace(world.arrivals, num_sessions=num_sessions))


def large(name: str, num_sessions: int = 12_000) -> Truth:
    return Truth(*draw_truth(resized(name, num_sessions), np.random.SeedSequence(11)))


def timed(drawn: Truth, values: np.ndarray) -> np.ndarray:
    return values[drawn.requests.is_timed]


def excess_and_error(values: np.ndarray, truth: float) -> tuple[float, float]:
    return float(values.mean() - truth), float(values.std() / math.sqrt(len(values)))


@pytest.mark.representative("margin", "ar1_half")
@pytest.mark.parametrize(
    "name", ["margin", "session_correlation", "block_shocks", "rare_slowdowns", "retries", "heavy_tails", "ar1_half"]
)
def test_a_boundary_world_lies_on_the_margin(name: str) -> None:
    """The mean over blocks, the unit, of the clipped log speedup: within three standard errors of log(1.05)."""
    drawn = large(name)
    clipped = timed(drawn, np.clip(drawn.outcomes.log_speedup, -CLIP, CLIP))
    block = timed(drawn, drawn.requests.block)
    sums = np.bincount(block, clipped - BOUNDARY, len(drawn.requests.blocks)) / CONCURRENCY
    off, error = excess_and_error(sums, 0.0)
    inflation = math.sqrt(3.0) if name == "ar1_half" else 1.0  # (1 + phi) / (1 - phi)
    assert abs(off) < 3.0 * inflation * error


def test_low_traffic_lies_on_the_margin_as_a_sum_over_blocks_and_above_it_as_a_mean_of_their_means() -> None:
    drawn = large("low_traffic")
    excess, block = drawn.outcomes.log_speedup - BOUNDARY, drawn.requests.block
    sums = np.bincount(block, excess)
    off, error = excess_and_error(sums, 0.0)
    assert abs(off) < 3.0 * error
    assert float((sums / np.bincount(block)).mean()) > 0.05
    assert set(np.bincount(block).tolist()) == {1, CONCURRENCY}


def test_a_day_lies_on_the_margin_as_a_whole_and_not_by_the_hour() -> None:
    drawn = large("daily_cycle")
    phase = daily_phase(drawn.requests.at_us / SECOND)
    off, error = excess_and_error(drawn.outcomes.log_speedup, BOUNDARY)
    assert abs(off) < 4.0 * error
    assert float(drawn.outcomes.log_speedup[phase < 0.0].mean()) > BOUNDARY + 0.05
    assert (phase > 0.0).mean() == pytest.approx(0.5 + 0.9 / math.pi, abs=0.02)


def test_session_length_lies_on_the_floor_as_the_gate_counts_it_and_above_it_for_short_sessions() -> None:
    drawn = large("session_length")
    floor = WORLDS["session_length"].policy.floor
    scores = timed(drawn, drawn.outcomes.num_accepted - floor * drawn.outcomes.num_drafts)
    off, error = excess_and_error(scores, 0.0)
    assert abs(off) < 3.0 * error
    assert float(scores[timed(drawn, drawn.requests.session_length) == 1].mean()) > 5.0


def test_other_boundaries() -> None:
    slowed = large("slowed_blocks")
    share = (slowed.outcomes.log_speedup < -math.log(1.2)).mean()
    assert share == pytest.approx(0.10, abs=0.02)
    short = large("short_outputs").outcomes
    assert set(short.z_tokens.tolist()) == {1, 2}
    assert short.z_sum.mean() == pytest.approx(0.0, abs=0.01)
    assert large("biased_output").outcomes.z_sum.mean() / PARITY_TOKENS == pytest.approx(0.02, abs=0.002)
    assert large("near_ties").outcomes.differs.mean() == pytest.approx(0.05, abs=0.005)
    failures = large("failures")
    worst = np.where(failures.outcomes.failed, -CLIP, np.clip(failures.outcomes.log_speedup, -CLIP, CLIP))
    off, error = excess_and_error(worst, BOUNDARY)
    assert abs(off) < 3.0 * error


def test_steered_sampling_is_on_the_margin_for_the_endpoint_alone() -> None:
    drawn = large("steered_sampling")
    by_slice = [float(drawn.outcomes.log_speedup[drawn.requests.slice_index == i].mean()) for i in (0, 1)]
    assert by_slice[0] > BOUNDARY + 0.1
    assert by_slice[1] < BOUNDARY - 0.1
    assert float(drawn.outcomes.log_speedup.mean()) == pytest.approx(BOUNDARY, abs=0.01)


def test_blocks_follow_each_other_in_an_ar1_world() -> None:
    drawn = large("ar1_nine")
    means = np.bincount(drawn.requests.block, drawn.outcomes.log_speedup) / np.bincount(drawn.requests.block)
    centred = means - means.mean()
    assert float((centred[:-1] * centred[1:]).sum() / (centred**2).sum()) == pytest.approx(0.86, abs=0.05)


def test_sessions_are_timed_once_in_places_that_weigh_alike() -> None:
    rng = np.random.default_rng(3)
    requests = draw_requests(Arrivals(num_sessions=4_000, lengths=(4,)), rng, "greedy")
    timed_sessions = requests.session[requests.is_timed]
    assert len(timed_sessions) == len(set(timed_sessions.tolist())) == 4_000
    assert all(1 <= len(block.requests) <= CONCURRENCY for block in requests.blocks)
    assert (np.diff(requests.at_us) >= 0).all()
    assert (np.diff(requests.started_us) >= 0).all()
    assert all(
        requests.started_us[place] >= requests.at_us[prompt.key.offset]
        for place, block in enumerate(requests.blocks)
        for prompt in block.requests
    )


def test_rows_are_what_the_store_would_hold() -> None:
    drawn = draw(resized("session_length", 300), np.random.SeedSequence(11))
    requests, rows = drawn.requests, drawn.rows
    assert len(rows.runs) == int(requests.is_timed.sum())
    assert sum(record.counter is FunnelCounter.SAMPLED_OUT for record in rows.records) == int(
        (~requests.is_timed).sum()
    )
    for run in rows.runs[:50]:
        assert run.counts is not None
        check_identities(run.counts)
        assert run.baseline is not None
        assert run.speculative is not None
        log = math.log(run.baseline.end_to_end_ms / run.speculative.end_to_end_ms)
        assert log == pytest.approx(float(drawn.outcomes.log_speedup[run.key.offset]), abs=1e-9)
    store = MemoryStore(ENDPOINT, PLACE, [CONFIG])
    store.add(rows.records, rows.blocks, rows.runs)
    store.finish(len(rows.records), Watermark(START, is_ended=True))
    decision = run_endpoint_gate(store, ENDPOINT, WORLDS["session_length"].policy, now=START).decisions[0]
    assert (decision.evidence.counts.num_late, decision.evidence.counts.num_members) == (0, len(rows.records))


def test_another_engine_measures_from_the_change_on() -> None:
    world = WORLDS["fingerprint_change"]
    drawn = draw(world, np.random.SeedSequence(4))
    places = {block.block_id: place for place, block in enumerate(drawn.requests.blocks)}
    for run in drawn.rows.runs:
        expected = configs_of(world.releases)[places[run.block_id] >= (world.effects.change_block or 0)]
        assert run.fingerprint == expected.fingerprint


def test_a_repetition_is_the_same_whatever_else_is_run() -> None:
    world, other = WORLDS["margin"], WORLDS["a_a"]
    first, again = draw(world, seed_of(world, 1, 5)), draw(world, seed_of(world, 1, 5))
    assert np.array_equal(first.outcomes.log_speedup, again.outcomes.log_speedup)
    for seed in (seed_of(world, 1, 6), seed_of(world, 2, 5), seed_of(other, 1, 5)):
        assert not np.array_equal(first.outcomes.log_speedup[:50], draw(world, seed).outcomes.log_speedup[:50])


def test_locations_put_the_clipped_mean_where_it_is_asked_for() -> None:
    at = location(BOUNDARY, 0.1, None, 0.03, -math.log(10.0))
    assert at == pytest.approx((BOUNDARY + 0.03 * CLIP) / 0.97, abs=1e-4)
    rng = np.random.default_rng(1)
    requests = draw_requests(Arrivals(num_sessions=20_000), rng, "greedy")
    drawn = draw_outcomes(Effects(log_speedup=BOUNDARY, noise_sd=0.06, noise_df=2.0), requests, rng)
    assert float(np.clip(drawn.log_speedup, -CLIP, CLIP).mean()) == pytest.approx(BOUNDARY, abs=0.003)


def test_names_of_wrong_verdicts() -> None:
    world: World = WORLDS["fingerprint_change"]
    assert world.is_wrong_to_enable("", is_new=True)
    assert not world.is_wrong_to_enable("", is_new=False)
    assert WORLDS["margin"].is_wrong_to_enable("prompt_class=s00", is_new=False)
    assert WORLDS["steered_sampling"].is_wrong_to_disable("prompt_class=s00", is_new=False)
    assert not WORLDS["steered_sampling"].is_wrong_to_disable("prompt_class=s01", is_new=False)
    assert set(QUICK_WORLDS) <= set(WORLDS)
    assert all(world.wrong_to_enable != () for world in NULL_WORLDS)


def test_the_last_blocks_are_started_by_the_end_of_the_input() -> None:
    requests = large("steered_sampling", 401).requests  # two slices: one of them has a block that is not full
    assert requests.started_us[-1] == NEVER
    assert len(requests.blocks[-1].requests) < CONCURRENCY


def test_fixed_sample_size_is_the_textbook_one() -> None:
    """One-sided 5%, power .8, effect half a standard deviation: (1.645 + 0.842)^2 / 0.25 = 24.7."""
    assert fixed_sample_size(0.5, 1.0, 0.05) == 25


def test_what_is_shed_is_stored_without_a_run_and_is_in_no_block() -> None:
    world = resized("shedding", 2_000)
    drawn = draw(world, seed_of(world, 3, 0))
    lost = {record.key for record in drawn.rows.records if record.counter is FunnelCounter.SHED}
    assert len(lost) / 2_000 == pytest.approx(0.044, abs=0.015)
    assert not lost & {run.key for run in drawn.rows.runs}
    kept = timed(Truth(drawn.requests, drawn.outcomes), drawn.outcomes.log_speedup)
    slowed = (kept < -math.log1p(world.policy.tail_margin)).sum() + len(lost)
    assert slowed / 2_000 == pytest.approx(0.11, abs=0.02), "with those that were shed more than the limit"

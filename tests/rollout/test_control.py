"""The control: what two pools' windows prove, against its definition and in worlds whose truth is known."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.benchmarks.control import PAGE, RESULTS, write_page
from kernels.benchmarks.pools import WORLDS, PoolWorld, draw_windows, run_world
from shadowspec.rollout.control import (
    COMPARED,
    FAILURES,
    Control,
    ControlEvidence,
    ControlVerdict,
    compare_pools,
    pool_intervals,
)
from shadowspec.rollout.rollout_policy import RolloutPolicy
from shadowspec.types import END_TO_END, Buckets, LiveCounts, LiveWindow, Pool
from tests.store import examples

POLICY = RolloutPolicy(require_confirmed=False)
LENGTH = timedelta(seconds=POLICY.control_interval_s)
START = examples.NOON


def window(
    pool: Pool,
    place: int,
    seconds: Sequence[float] = (1.0,) * 40,
    *,
    failed: int | None = 0,
    drafts: int | None = None,
    replica: str = "",
    has_sum: bool = True,
) -> LiveWindow:
    bounds = (0.5, 1.0, 2.0, 4.0)
    bins = np.bincount(np.searchsorted(bounds, seconds), minlength=5).tolist()
    total_us = round(1e6 * math.fsum(seconds)) if has_sum else None
    counts = LiveCounts(
        num_drafts=drafts,
        num_requests=len(seconds),
        num_failed_requests=failed,
        latencies={END_TO_END: Buckets(bounds, tuple(bins), total_us)},
    )
    began = START + place * LENGTH
    ended = began + LENGTH - timedelta(seconds=1)
    return LiveWindow(replica or pool.value, "series", began, ended, False, 0, counts, pool=pool)


def both(place: int, plain: float = 1.0, speculative: float = 1.0, **more: int | None) -> list[LiveWindow]:
    return [
        window(Pool.PLAIN, place, (plain,) * 40),
        window(Pool.SPECULATIVE, place, (speculative,) * 40, failed=more.get("failed", 0)),
    ]


def control(windows: Sequence[LiveWindow], policy: RolloutPolicy = POLICY, promised: float | None = None) -> Control:
    return compare_pools(windows, promised, policy)


def named(found: Control, name: str) -> tuple[float | None, float | None, float | None]:
    comparison = next(each for each in found.comparisons if each.name == name)
    return comparison.estimate, comparison.lower, comparison.upper


def test_times_are_compared_as_ratios_of_means_and_only_in_intervals_that_are_over() -> None:
    windows = [each for place in range(11) for each in both(place, 1.2, 1.0)]
    found = control(windows)
    estimate, lower, upper = named(found, END_TO_END)
    assert estimate == pytest.approx(1.2)
    assert [each.num_intervals for each in found.comparisons] == [10, 0, 0, 10]
    assert lower is None or lower < 1.2
    assert upper is None or upper > 1.2
    assert control(windows[:-2]).comparisons[0].num_intervals == 9
    assert control([]).verdict is ControlVerdict.HOLD


@pytest.mark.parametrize(
    ("windows", "counted"),
    [
        ([window(Pool.PLAIN, 0), window(Pool.SPECULATIVE, 0, (1.0,) * 19)], "1 interval with too few requests"),
        ([window(Pool.PLAIN, 0, (1.0,) * 61), window(Pool.SPECULATIVE, 0)], "1 interval with unlike loads per replica"),
        ([window(Pool.PLAIN, 0, drafts=5), window(Pool.SPECULATIVE, 0)], "1 interval with drafts in the plain pool"),
        ([window(Pool.SPECULATIVE, 0)], "no interval is over in which both pools were read"),
    ],
)
def test_an_interval_that_proves_nothing_is_not_compared_and_says_why(windows: list[LiveWindow], counted: str) -> None:
    found = control([*windows, *both(1)])
    assert found.verdict is ControlVerdict.HOLD
    assert found.reason == f"the pools are not compared yet: {counted}"
    assert all(each.num_intervals == 0 for each in found.comparisons)


def test_without_sums_no_time_is_compared_and_nothing_moves_on() -> None:
    windows = [window(pool, place, has_sum=False) for place in range(400) for pool in Pool]
    found = control(windows)
    assert found.verdict is ControlVerdict.HOLD
    assert (found.comparisons[0].num_intervals, found.comparisons[3].num_intervals) == (0, 399)


def test_more_failures_move_it_back_and_none_that_are_counted_hold_nothing_up() -> None:
    worse = control([each for place in range(60) for each in both(place, 1.3, 1.0, failed=4)])
    assert worse.verdict is ControlVerdict.REVERT
    assert worse.reason.startswith("production is worse with speculation: increase of failed requests +10.00%")
    estimate, _, _ = named(worse, FAILURES)
    assert estimate == pytest.approx(-0.1)
    unknown = control([each for place in range(200) for each in both(place, 1.3, 1.0, failed=None)])
    assert unknown.verdict is ControlVerdict.FORWARD


def test_a_gain_below_the_promise_holds() -> None:
    windows = [each for place in range(300) for each in both(place, 1.1, 1.0)]
    assert control(windows).verdict is ControlVerdict.FORWARD
    held = control(windows, promised=1.3)
    assert held.verdict is ControlVerdict.HOLD
    assert held.reason.startswith(
        "the shadow promised 1.30\N{MULTIPLICATION SIGN}, production shows end-to-end time 1.10"
    )


def test_a_pool_that_becomes_worse_is_moved_back_though_its_mean_is_still_good() -> None:
    good = [each for place in range(600) for each in both(place, 1.2, 1.0)]
    bad = [each for place in range(600, 720) for each in both(place, 1.0, 1.25)]
    assert control(good).verdict is ControlVerdict.FORWARD
    found = control([*good, *bad])
    assert found.verdict is ControlVerdict.REVERT
    assert found.reason.startswith("production has become worse with speculation: end-to-end time 1.1")


def test_a_pools_replicas_are_added_up() -> None:
    alone = [window(Pool.PLAIN, 0, (1.0,) * 40 + (3.0,) * 40)]
    split = [window(Pool.PLAIN, 0, (1.0,) * 40, replica="a"), window(Pool.PLAIN, 0, (3.0,) * 40, replica="b")]
    rest = [window(Pool.SPECULATIVE, 0, (2.0,) * 40), *both(1)]
    values = [pool_intervals([*each, *rest], 600.0)[0] for each in (alone, split)]
    assert values[0].value(END_TO_END) == values[1].value(END_TO_END)
    assert values[1].load_difference == 0.0  # 40 requests of each replica
    assert values[0].load_difference == 1.0


def test_a_smaller_pool_of_the_same_times_looks_no_faster() -> None:
    """The logarithm of a mean of few requests is too low: of 20 by some 3% here."""
    draw, corrected, uncorrected = np.random.default_rng(1), [], []
    for _ in range(2_000):
        plain, speculative = (np.minimum(draw.lognormal(-0.5, 1.1, number), 6.0) for number in (400, 20))
        windows = [window(Pool.PLAIN, 0, plain.tolist()), window(Pool.SPECULATIVE, 0, speculative.tolist())]
        value = pool_intervals([*windows, *both(1)], 600.0)[0].value(END_TO_END)
        assert value is not None
        corrected.append(value)
        uncorrected.append(math.log(plain.mean() / speculative.mean()))
    assert float(np.mean(uncorrected)) > 0.025
    assert abs(float(np.mean(corrected))) < 0.015


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.floats(0.5, 2.0), st.integers(0, 5)), min_size=1, max_size=40), st.integers(1, 39))
def test_folding_in_parts_is_folding_at_once(drawn: list[tuple[float, int]], cut: int) -> None:
    windows = [
        each
        for place, (ratio, failed) in enumerate([*drawn, (1.0, 0)])
        for each in both(place, ratio, 1.0, failed=failed)
    ]
    intervals = pool_intervals(windows, 600.0)
    assert len(intervals) == len(drawn)
    whole = ControlEvidence.empty(POLICY).fold(intervals)
    parts = ControlEvidence.empty(POLICY).fold(intervals[:cut]).fold(intervals[cut:])
    for name in COMPARED:
        one, two = whole.comparison(name), parts.comparison(name)
        assert (one.num_intervals, one.lower, one.upper) == (two.num_intervals, two.lower, two.upper)
        assert one.estimate == pytest.approx(two.estimate)
    assert whole.control(None).verdict is parts.control(None).verdict


@settings(max_examples=40, deadline=None)
@given(st.lists(st.floats(0.6, 1.6), min_size=30, max_size=120), st.randoms())
def test_exchanging_the_pools_mirrors_every_bound(ratios: list[float], shuffle: object) -> None:
    del shuffle
    forth = control([each for place, ratio in enumerate([*ratios, 1.0]) for each in both(place, ratio, 1.0)])
    back = control([each for place, ratio in enumerate([*ratios, 1.0]) for each in both(place, 1.0, ratio)])
    (estimate, lower, upper), mirrored = named(forth, END_TO_END), named(back, END_TO_END)
    assert mirrored[0] == pytest.approx(1.0 / estimate if estimate else None)
    for one, other in ((lower, mirrored[2]), (upper, mirrored[1])):  # bounds are points of a grid, and its one null
        assert (one is None) == (other is None)
        assert one is None or other is None or one * other == pytest.approx(1.0, abs=0.021)


@pytest.mark.parametrize("name", ["tolerated", "loss", "failures"])
def test_worlds_end_as_their_truth_is(name: str) -> None:
    world = replace(next(each for each in WORLDS if each.name == name), days=2.0)
    outcome = run_world(world, seed=3, policy=POLICY)
    assert (outcome.reverted_after is None) == (world.worse_from(POLICY) is None)
    assert outcome.forward_after is None


def test_a_drawn_worlds_windows_have_its_truth() -> None:
    world = PoolWorld("drawn", "", speedup=1.25, days=3.0, speculative_failures=0.05)
    windows = list(draw_windows(world, seed=1))
    assert len(windows) == 3 * 144 * 5
    assert all(first.ended_at <= second.ended_at for first, second in pairwise(windows))
    found = control(windows)
    for name, truth in ((END_TO_END, 1.25), (FAILURES, -0.045)):
        estimate, lower, upper = named(found, name)
        assert estimate == pytest.approx(truth, rel=0.1)
        assert lower is not None
        assert upper is not None
        assert lower < truth < upper


def test_the_page_is_what_the_kept_results_say(tmp_path: Path) -> None:
    results = json.loads(RESULTS.read_text(encoding="utf-8"))
    write_page(results, tmp_path / "control.md")
    assert PAGE.read_text(encoding="utf-8") == (tmp_path / "control.md").read_text(encoding="utf-8")
    assert set(results["worlds"]) == {world.name for world in WORLDS}
    for world in results["worlds"].values():
        assert world["false_reverts_interval"][0] <= POLICY.control_level
        assert world["true_reverts"] in (0, world["repetitions"] - world["false_reverts"])

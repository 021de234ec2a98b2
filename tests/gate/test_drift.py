"""Detectors of decay: false alarms no oftener than the run length, delays as designed, a state that folds in pieces."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from shadowspec.errors import ConfigError, InputError
from shadowspec.gate.evidence.series import UnitValues, unit_series
from shadowspec.gate.policy import GatePolicy
from shadowspec.gate.stats.betting import FRACTIONS, Floats, Sums
from shadowspec.gate.stats.drift import (
    ADVISORY_WATCHERS,
    WATCHERS,
    Detector,
    advice,
    alarm_threshold,
    alarms,
    log_statistic_paths,
    start_detectors,
)
from shadowspec.types.codec import pack, unpack
from tests.gate.coverage import log_mean_statistic

POLICY = GatePolicy(window_s=0.0, max_hypotheses=1, min_span_s=0.0)
CLIP = POLICY.log_speedup_clip
SPEEDUP = Detector(math.log(1.05), CLIP)
ACCEPTANCE = Detector(0.40, 1.0)
TAIL = Detector(0.10, 0.0)
Z_HIGH = Detector(0.02, -0.2)


def _ones(values: Floats) -> tuple[Floats, Floats]:
    return values, np.ones_like(values)


def alarm_units(detector: Detector, values: Floats, threshold: float, weights: Floats | None = None) -> Floats:
    """Per path of `values` [paths, n] the unit at which the detector sounds; infinite where it does not."""
    paths = log_statistic_paths(detector, values, np.ones_like(values) if weights is None else weights)
    mean = np.logaddexp.reduce(paths, axis=-2) - math.log(len(FRACTIONS))
    has = mean >= math.log(threshold)
    return np.where(has.any(axis=-1), has.argmax(axis=-1) + 1.0, np.inf)


def speedup_blocks(rng: np.random.Generator, shape: tuple[int, ...], speedup: float) -> Floats:
    """Blocks' mean clipped log speedups, of the spread at which the design's sizes of the speedup test come out."""
    blocks: Floats = np.clip(math.log(speedup) + 0.125 * rng.standard_normal(shape), -CLIP, CLIP)
    return blocks


def test_the_statistic_is_the_recursion() -> None:
    """M = L(M + 1) with lambda = f / (x_best - m0), written out with numbers."""
    rng = np.random.default_rng(0)
    values, weights = rng.uniform(-0.3, 0.3, 50), rng.uniform(0.5, 1.0, 50)
    statistics = np.zeros(4)
    peak = 0.0
    for value, weight in zip(values, weights, strict=True):
        for index, fraction in enumerate((0.1, 0.3, 0.6, 0.95)):
            rate = fraction / (math.log(2.0) - math.log(1.05))
            statistics[index] = (1.0 + rate * (math.log(1.05) * weight - value)) * (statistics[index] + 1.0)
        peak = max(peak, statistics.mean())
    folded = SPEEDUP.fold(Sums(values, weights))
    assert np.exp(folded.log_statistics) == pytest.approx(statistics, rel=1e-10)
    assert math.exp(log_mean_statistic(folded)) == pytest.approx(statistics.mean(), rel=1e-10)
    assert math.exp(folded.log_peak) == pytest.approx(peak, rel=1e-10)
    assert folded.num_units == 50


def test_a_greatest_value_is_watched_by_the_mirrored_statistic() -> None:
    rng = np.random.default_rng(5)
    values, weights = rng.uniform(-0.2, 0.2, 50), rng.uniform(0.5, 1.0, 50)
    above, below = Detector(0.02, -0.2), Detector(-0.02, 0.2)
    mirrored = below.fold(Sums(-values, weights))
    folded = above.fold(Sums(values, weights))
    assert folded.log_statistics == pytest.approx(mirrored.log_statistics, rel=1e-12)
    assert folded.log_peak == pytest.approx(mirrored.log_peak, rel=1e-12)


@settings(max_examples=50, deadline=None)
@given(
    arrays(np.float64, st.integers(0, 60), elements=st.floats(-CLIP, CLIP)), st.lists(st.integers(0, 60), max_size=5)
)
def test_folding_in_pieces_is_folding_at_once(values: Floats, cuts: list[int]) -> None:
    sums = Sums(values, np.ones_like(values))
    at_once, pieces = SPEEDUP.fold(sums), SPEEDUP
    edges = [0, *sorted(min(cut, len(values)) for cut in cuts), len(values)]
    for start, end in itertools.pairwise(edges):
        pieces = pieces.fold(Sums(sums.values[start:end], sums.weights[start:end]))
    assert pieces.num_units == at_once.num_units
    assert pieces.log_peak == pytest.approx(at_once.log_peak, abs=1e-9)
    assert pieces.log_statistics == pytest.approx(at_once.log_statistics, abs=1e-9)


def test_nothing_overflows_in_many_units() -> None:
    values = np.full(20_000, -CLIP)
    fallen = SPEEDUP.fold(Sums(values, np.ones_like(values)))
    assert 1e4 < fallen.log_peak < math.inf
    risen = fallen.fold(Sums(-values, np.ones_like(values)))
    assert -math.inf < log_mean_statistic(risen) < 1e3


@pytest.mark.parametrize("run_length", [50, 300])
def test_false_alarms_come_no_oftener_than_the_run_length(run_length: int) -> None:
    """At the promise itself, in a calm world, a noisy one, and one of rare large slowdowns."""
    rng = np.random.default_rng(1)
    num_paths, horizon = 200, 4 * run_length
    m0 = SPEEDUP.promise
    calm = np.full((num_paths, horizon), m0) + 0.05 * rng.standard_normal((num_paths, horizon))
    noisy = m0 + 0.3 * rng.uniform(-1.0, 1.0, (num_paths, horizon))
    rare = np.where(rng.random((num_paths, horizon)) < 0.02, -CLIP, (m0 + 0.02 * CLIP) / 0.98)
    coins = (rng.random((num_paths, horizon)) < ACCEPTANCE.promise).astype(np.float64)
    slowed = rng.binomial(4, TAIL.promise, (num_paths, horizon)) / 4
    whole_blocks = (rng.random((num_paths, horizon)) < TAIL.promise).astype(np.float64)
    cases = [(SPEEDUP, calm), (SPEEDUP, noisy), (SPEEDUP, rare), (ACCEPTANCE, coins), (TAIL, slowed)]
    for detector, values in (*cases, (TAIL, whole_blocks), (Z_HIGH, Z_HIGH.promise + calm - m0)):
        alarms = alarm_units(detector, values, run_length)
        for units in (run_length // 2, run_length):
            share = float((alarms <= units).mean())
            limit = units / run_length
            assert share <= limit + 3 * math.sqrt(limit * (1 - limit) / num_paths)
        run_lengths = np.minimum(alarms, horizon)  # cut at the horizon: a lower bound of the mean
        assert run_lengths.mean() >= run_length


def test_a_statistic_grows_by_no_more_than_one_a_unit() -> None:
    rng = np.random.default_rng(2)
    coins = (rng.random((60_000, 8)) < ACCEPTANCE.promise).astype(np.float64)
    means = np.exp(log_statistic_paths(ACCEPTANCE, coins, np.ones_like(coins))).mean(axis=0)  # [f, n]
    assert means == pytest.approx(np.tile(np.arange(1.0, 9.0), (4, 1)), rel=0.05)


@pytest.mark.parametrize(("max_hypotheses", "designed"), [(1, 156), (8, 200)])
def test_the_delay_of_an_alarm_is_the_designs(max_hypotheses: int, designed: int) -> None:
    """Speedup 1.3 falls to 1.0: median blocks by hypotheses, of five detectors each."""
    rng = np.random.default_rng(3)
    threshold = alarm_threshold(replace(POLICY, max_hypotheses=max_hypotheses))
    good = SPEEDUP.fold(Sums(*_ones(speedup_blocks(rng, (200,), 1.3))))
    delays = alarm_units(good, speedup_blocks(rng, (200, 450), 1.0), threshold)
    assert np.median(delays) == pytest.approx(designed, abs=12)


@pytest.mark.parametrize(("max_hypotheses", "designed"), [(1, 31), (8, 37)])
def test_the_delay_of_an_alarm_of_the_tail(max_hypotheses: int, designed: int) -> None:
    """The slowed share of blocks of four rises from 2% to 25%."""
    rng = np.random.default_rng(3)
    threshold = alarm_threshold(replace(POLICY, max_hypotheses=max_hypotheses))
    good = TAIL.fold(Sums(*_ones(rng.binomial(4, 0.02, 200) / 4)))
    delays = alarm_units(good, rng.binomial(4, 0.25, (200, 200)) / 4, threshold)
    assert np.median(delays) == pytest.approx(designed, abs=4)


@pytest.mark.parametrize("max_hypotheses", [1, 8])
def test_the_advisory_detector_sounds_sooner(max_hypotheses: int) -> None:
    """Held to a lower bound of 1.15 at ENABLE, less the tolerance: 50 to 75 blocks."""
    rng = np.random.default_rng(4)
    states = start_detectors(POLICY, {"speedup": math.log(1.15), "acceptance": 0.6})
    advisory = states["advisory_speedup"]
    assert advisory.promise == pytest.approx(math.log(1.15) - POLICY.drift_tolerance)
    assert states["advisory_acceptance"].promise == pytest.approx(0.6 - POLICY.drift_tolerance)
    threshold = alarm_threshold(replace(POLICY, max_hypotheses=max_hypotheses))
    delays = alarm_units(advisory, speedup_blocks(rng, (200, 200), 1.0), threshold)
    assert 50 <= np.median(delays) <= 75


def test_an_advisory_promise_is_never_below_the_promise() -> None:
    states = start_detectors(POLICY, {"speedup": math.log(1.055), "acceptance": 0.405})
    assert states["advisory_speedup"] == states["drift_speedup"]
    assert states["advisory_acceptance"] == states["drift_acceptance"]


def test_the_promise_is_the_threshold_and_no_estimate() -> None:
    policy = replace(POLICY, margin=0.1, floor=0.5)
    states = start_detectors(policy, {"speedup": math.log(1.4), "acceptance": 0.9})
    assert states["drift_speedup"].promise == pytest.approx(math.log(1.1))
    assert states["drift_acceptance"].promise == 0.5
    assert (states["drift_tail"].promise, states["drift_tail"].best) == (policy.tail_share, 0.0)
    assert set(start_detectors(policy, {})) == {"drift_speedup", "drift_acceptance", "drift_tail"}
    with_z = start_detectors(policy, {}, has_z=True)
    assert [with_z[f"drift_z_{side}"].promise for side in ("low", "high")] == [-policy.z_bound, policy.z_bound]


def watched(detectors: Mapping[str, Detector], **units: Floats) -> dict[str, Detector]:
    """The detectors after these units of each test."""
    after = dict(detectors)
    for watcher in (*WATCHERS, *ADVISORY_WATCHERS):
        if watcher.test_name in units:
            values = units[watcher.test_name]
            pairs = [(float(value), 1.0) for value in values]
            other = [pair if watcher.side == "upper" else (9.0, 1.0) for pair in pairs]
            lower = [pair if watcher.side == "lower" else (-9.0, 1.0) for pair in pairs]
            series = unit_series([UnitValues(*each) for each in zip(lower, other, pairs, strict=True)], -1.0, 1.0)
            detector = watcher.fold(after.get(watcher.name), series)
            if detector is not None:
                after[watcher.name] = detector
    return after


def sounding(detectors: Mapping[str, Detector]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Names of the watchers that give an alarm, and of the tests with advice."""
    return tuple(each.name for each in alarms(detectors, POLICY)), advice(detectors, POLICY)


def test_an_alarm_is_not_taken_back() -> None:
    states = start_detectors(POLICY, {"speedup": math.log(1.2), "acceptance": 0.6})
    assert sounding(states) == ((), ())
    alarmed = watched(states, speedup=np.full(60, -0.4))
    assert sounding(alarmed) == (("drift_speedup",), ("speedup",))
    recovered = watched(alarmed, speedup=np.full(2_000, 0.4))
    assert log_mean_statistic(recovered["drift_speedup"]) < math.log(alarm_threshold(POLICY))
    assert sounding(recovered)[0] == ("drift_speedup",)


def test_advice_comes_alone_first() -> None:
    states = start_detectors(POLICY, {"speedup": math.log(1.4), "acceptance": 0.6})
    worse = watched(states, speedup=np.full(100, math.log(1.1)))
    assert sounding(worse) == ((), ("speedup",))


def test_each_test_has_its_own_detector() -> None:
    units = {"acceptance": np.zeros(40), "tail": np.ones(40), "parity_sampled": np.full(80, -0.1)}
    states = watched(start_detectors(POLICY, {}, has_z=True), **units)
    assert sounding(states)[0] == ("drift_acceptance", "drift_tail", "drift_z_low")
    assert states["drift_speedup"].num_units == 0


def test_what_is_missing_is_at_its_worst_for_either_side() -> None:
    missing = unit_series([UnitValues((-0.2, 1.0), (0.2, 1.0), (0.0, 0.0))] * 60, -0.2, 0.2)
    states = start_detectors(POLICY, {}, has_z=True)
    after = {each.name: each.fold(states[each.name], missing) for each in WATCHERS if "z" in each.name}
    alarmed, _ = sounding({name: detector for name, detector in after.items() if detector is not None})
    assert alarmed == ("drift_z_low", "drift_z_high")


def test_nothing_is_watched_before_the_detectors_are_started() -> None:
    assert watched({}, speedup=np.full(100, -0.5), acceptance=np.zeros(100)) == {}
    assert sounding({}) == ((), ())


def test_the_threshold_counts_every_detector_that_the_endpoint_may_have() -> None:
    assert alarm_threshold(POLICY) == 50_000
    assert alarm_threshold(replace(POLICY, max_hypotheses=8, drift_run_length=500)) == 20_000


@pytest.mark.parametrize("detector", [SPEEDUP, SPEEDUP.fold(Sums(*_ones(np.full(9, 0.1))))])
def test_a_detector_survives_being_stored(detector: Detector) -> None:
    assert unpack(pack(detector, 1), Detector, 1) == detector


@pytest.mark.parametrize("change", [{"promise": None}, {"promise": True}, {"log_peak": "high"}])
def test_what_is_no_detector_is_refused(change: dict[str, Any]) -> None:
    for stored in ({}, asdict(SPEEDUP) | change):
        with pytest.raises(InputError, match="a stored value cannot be read"):
            unpack(pack(stored, 1), Detector, 1)


def test_a_promise_at_the_top_of_the_range_is_refused() -> None:
    with pytest.raises(InputError, match="leaves nothing to fall from"):
        Detector(1.0, 1.0)


@pytest.mark.parametrize(
    "change", [{"drift_run_length": 0}, {"drift_run_length": 1.5}, {"drift_tolerance": -0.1}, {"on_alarm": "enable"}]
)
def test_policy_keys_are_checked(change: dict[str, float | str]) -> None:
    with pytest.raises(ConfigError, match=next(iter(change))):
        replace(POLICY, **change)  # type: ignore[arg-type]

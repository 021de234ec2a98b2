"""The tail beyond the noise of pairs: its center, what a repeated baseline credits, and what disables."""

from __future__ import annotations

import math
from dataclasses import replace
from statistics import NormalDist

import numpy as np
import pytest

from shadowspec.gate.evidence.hypothesis import HypothesisEvidence
from shadowspec.gate.evidence.pair_noise import BIN, MIN_RUNS, centers
from shadowspec.gate.evidence.series import add_times
from shadowspec.gate.evidence.speedup import tail_test
from shadowspec.gate.evidence.units import BlockUnit
from shadowspec.gate.verdict.required_tests import betting_result
from shadowspec.reports.content.definitions import test_notes as shown_notes
from shadowspec.simulate.effects import location
from shadowspec.simulate.worlds import WORLDS
from shadowspec.types import REPEAT_EVERY, Arm, ArmOrder, TestResult
from tests.builders.hypothesis_evidence import POLICY
from tests.gate.worlds import block_unit, run_of

SLOW = math.log(1.2)


def noisy_blocks(
    num_blocks: int,
    *,
    truth: float = math.log(1.3),
    noise: float = 0.25,
    first: float = 0.0,
    slowed: float = 0.0,
    repeats: bool = True,
    seed: int = 0,
) -> list[BlockUnit]:
    """Blocks of pairs with this noise; the first arm pays `first`, and a share is slowed to half the speed."""
    rng, units = np.random.default_rng(seed), []
    for place in range(num_blocks):
        is_first, is_repeated = rng.random() < 0.5, rng.random() < 1.0 / REPEAT_EVERY
        runs = []
        for index in range(4):
            log = truth + float(rng.normal(0.0, noise)) + (first if is_first else -first)
            log = -math.log(2.0) if rng.random() < slowed else log
            again = float(rng.normal(0.0, noise)) + first * is_first
            order = ArmOrder(None, None, 100.0 * math.exp(-again)) if repeats and is_repeated else None
            runs.append(replace(run_of(4 * place + index, "b", log_speedup=log), order=order))
        unit = block_unit(place, runs)
        units.append(replace(unit, block=replace(unit.block, first_arm=Arm.BASELINE if is_first else Arm.SPECULATIVE)))
    return units


def center_of(units: list[BlockUnit]) -> float:
    return float(centers(add_times(units), {})[-1])


def test_the_center_is_the_typical_speedup_whatever_the_order_costs_and_few_are_slowed_by() -> None:
    assert center_of(noisy_blocks(600)) == pytest.approx(math.log(1.3), abs=0.03)
    assert center_of(noisy_blocks(600, first=0.47, noise=0.1)) == pytest.approx(math.log(1.3), abs=0.03)
    assert center_of(noisy_blocks(600, slowed=0.1)) == pytest.approx(math.log(1.3), abs=0.06)
    assert center_of(noisy_blocks(600, truth=-0.2)) == 0.0


def test_a_block_is_judged_about_the_blocks_before_it_only() -> None:
    units = noisy_blocks(60)
    whole = centers(add_times(units), {})
    assert np.isnan(whole[: MIN_RUNS // 4]).all()
    changed = [*units[:-1], block_unit(59, [run_of(236 + i, "b", log_speedup=3.0) for i in range(4)])]
    assert np.array_equal(centers(add_times(changed), {}), whole, equal_nan=True)


def test_folding_in_pieces_leaves_the_same_evidence() -> None:
    units = noisy_blocks(90)
    whole = HypothesisEvidence().fold((), units, POLICY).tests["tail"]
    pieces = HypothesisEvidence()
    for start in range(0, 90, 7):
        pieces = pieces.fold((), units[start : start + 7], POLICY)
    assert pieces.tests["tail"].totals == whole.totals
    assert pieces.tests["tail"].upper.logs == pytest.approx(whole.upper.logs)
    assert pieces.tests["tail"].lower.logs == pytest.approx(whole.lower.logs)


def test_the_credit_is_the_share_of_pairs_of_one_arm_that_noise_slows_in_the_mean_of_both_orders() -> None:
    units = noisy_blocks(40, noise=0.0, repeats=False)
    times = [100.0 * math.exp(-again) for again in (0.5, -0.5, 0.1, math.nan)]
    runs = [
        replace(run_of(160 + i, "b", log_speedup=0.0), order=None if math.isnan(time) else ArmOrder(None, None, time))
        for i, time in enumerate(times)
    ]
    test = tail_test([*units, block_unit(40, runs)], POLICY)
    assert abs(center_of(units) - math.log(1.3)) <= BIN
    # Beyond log 1.2 + log 1.3 = .445 lie two of four pairs, in one of their orders each.
    assert test.series.upper.values[-1] == pytest.approx(-REPEAT_EVERY * (2 * 0.5) / 4)
    assert test.series.uncredited is not None
    assert test.series.uncredited.values[-1] == 0.0, "a detector that watches for decay gets no credit"
    assert test.describe(test.totals)["noise_share"] == pytest.approx(1.0 / 3.0)


def test_in_the_mean_noise_counts_nothing_and_slow_requests_count_as_they_are() -> None:
    for slowed in (0.0, 0.15):
        units = noisy_blocks(6_000, truth=math.log(1.15), slowed=slowed)
        series = tail_test(units, POLICY).series
        center = math.log(1.15) if not slowed else center_of(units)
        noise = NormalDist().cdf((-SLOW - center) / 0.25)
        expected = slowed + (1.0 - slowed) * NormalDist().cdf((-SLOW - math.log(1.15)) / 0.25) - noise
        error = 3.0 * float(series.upper.values.std()) / math.sqrt(6_000)
        assert series.upper.values.mean() == pytest.approx(expected, abs=error)
        beyond = series.lower.values.sum() / series.lower.weights.sum()
        assert slowed / 4.0 - 0.03 < beyond < slowed + 0.03, "slow requests lower the center, on the safe side"


def test_a_cold_start_is_no_slowness_of_speculation() -> None:
    """The first arm 60% slower slows half of the requests, and speeds the other half up by as much."""
    series = tail_test(noisy_blocks(2_000, noise=0.1, first=math.log(1.6)), POLICY).series
    assert series.uncredited is not None
    assert series.uncredited.values.mean() > 0.25
    assert series.lower.values.mean() == pytest.approx(0.0, abs=0.05)


def test_without_repeats_noise_counts_as_slowed() -> None:
    test = tail_test(noisy_blocks(200, repeats=False), POLICY)
    assert test.series.uncredited is not None
    assert np.array_equal(test.series.upper.values, test.series.uncredited.values)
    assert (test.describe(test.totals)["num_repeated"], test.describe(test.totals)["noise_share"]) == (0, None)
    shown = TestResult("tail", "open", 0.2, 0.05, 0.4, 0.1, 0.01, "block", 200, 20, figures=test.describe(test.totals))
    notes = shown_notes(shown)
    assert "noise was not measured: no baseline ran twice" in notes
    assert not [note for note in notes if "noise alone" in note]


def test_the_world_at_the_limit_lies_on_it() -> None:
    effects = WORLDS["slowed_beyond_noise"].effects
    share, normal = effects.slowed, NormalDist(0.0, effects.noise_sd)
    at = location(effects.log_speedup, effects.noise_sd, None, share, effects.slowed_log)
    median = at + normal.inv_cdf((0.5 - share) / (1.0 - share))
    own = share + (1.0 - share) * normal.cdf(-SLOW - at) - normal.cdf(-SLOW - median)
    assert own == pytest.approx(0.10, abs=1e-6)


def test_where_the_credit_subtracts_slowness_itself_the_shown_share_is_its_lower_bound() -> None:
    """Slowed by speculation and by noise at once: the credit of repeats takes out what speculation alone explains."""
    evidence = HypothesisEvidence().fold((), noisy_blocks(200, truth=-0.45), POLICY).tests["tail"]
    result = betting_result(tail_test((), POLICY), evidence, POLICY, 0.045)
    assert result.betting is not None
    assert result.betting.mean is not None
    assert result.lower is not None
    assert result.betting.mean < result.lower == result.estimate
    assert result.upper is None
    noise_only = HypothesisEvidence().fold((), noisy_blocks(200), POLICY).tests["tail"]
    result = betting_result(tail_test((), POLICY), noise_only, POLICY, 0.045)
    assert result.estimate is not None
    assert result.upper is not None
    assert result.estimate < result.upper

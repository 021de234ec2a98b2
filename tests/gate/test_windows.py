"""Windows of event time as units: their weights, what enters when, and that finer units add up to them."""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import timedelta
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shadowspec.gate.evidence.betting_tests import score_units
from shadowspec.gate.evidence.hypothesis import HypothesisEvidence
from shadowspec.gate.evidence.series import add_times
from shadowspec.gate.evidence.units import BlockUnit, MeasuredRun
from shadowspec.gate.evidence.windows import FULL_SHARE, WindowMemory, num_first_windows
from shadowspec.gate.policy import GatePolicy
from shadowspec.gate.verdict.decision import decide
from shadowspec.types import Trial, Verdict, window_start
from tests.builders.hypothesis_evidence import HYPOTHESIS
from tests.gate.worlds import GRAPH, START, block_of, run_of

HOUR = timedelta(hours=1)
POLICY = GatePolicy(max_hypotheses=1)


def unit(hour: int, logs: list[float], *, sequence: int = 0, stands_for: float = 1.0, rate: float = 1.0) -> BlockUnit:
    """A block of an hour whose requests have these log speedups."""
    number = 100 * hour + sequence
    block = replace(block_of(number), stands_for=stands_for)
    runs = [run_of(8 * number + place, block.block_id, log_speedup=log) for place, log in enumerate(logs)]
    measured = tuple(MeasuredRun(run, is_greedy=True, sampling_rate=rate) for run in runs)
    return BlockUnit(block, measured, START + hour * HOUR + timedelta(minutes=1 + sequence))


def fold(units: list[BlockUnit], policy: GatePolicy = POLICY) -> HypothesisEvidence:
    return HypothesisEvidence().fold([], units, policy)


FIRST_DAY = [unit(hour, [0.2] * 4) for hour in range(24)]


def test_a_day_of_windows_sets_the_size_of_a_full_one_and_counts_in_no_test() -> None:
    evidence = fold(FIRST_DAY)
    assert num_first_windows(HOUR) == 24
    assert "speedup" not in evidence.tests or evidence.tests["speedup"].num_units == 0
    assert evidence.windows.sizes == (4.0,) * 24
    assert fold([*FIRST_DAY, unit(24, [0.2] * 4)]).tests["speedup"].num_units == 1


def test_all_blocks_of_a_window_are_one_unit() -> None:
    clump = [unit(24, [-0.5] * 4, sequence=place) for place in range(5)]
    evidence = fold([*FIRST_DAY, *clump, unit(25, [0.2] * 4)])
    for name in ("speedup", "tail", "acceptance", "parity_near_ties"):
        assert evidence.tests[name].num_units == 2, name
    assert evidence.tests["tail"].observed_value == pytest.approx(1.0)  # one slowed window, however many requests


def test_a_window_weighs_by_the_traffic_that_its_blocks_represent() -> None:
    """A quiet hour of which everything is measured counts less than a busy one of which a tenth is."""
    day = [unit(hour, [0.0] * 4, stands_for=10.0) for hour in range(24)]
    quiet, busy = unit(24, [0.2] * 4), unit(25, [0.0] * 4, stands_for=10.0)
    mean = fold([*day, quiet, busy]).tests["speedup"].mean
    assert mean == pytest.approx(0.2 / 11.0)
    sampled = fold([*day, unit(24, [0.2] * 4), unit(25, [0.0] * 4, rate=0.1)]).tests["speedup"].mean
    assert sampled == pytest.approx(mean)


def test_the_busiest_windows_count_as_full_ones() -> None:
    windows = WindowMemory().take(add_times([*FIRST_DAY, unit(24, [0.2] * 4, stands_for=7.0)]), HOUR)
    assert windows.full[-1] == 28.0
    assert windows.full[0] == 0.0
    quieter = WindowMemory().take(add_times([*FIRST_DAY, unit(24, [0.2] * 2)]), HOUR)
    assert quieter.full[-1] == 4.0
    sizes = [float(1 + hour) for hour in range(24)]
    rising = [unit(hour, [0.2] * 4, stands_for=size / 4.0) for hour, size in enumerate(sizes)]
    full = WindowMemory().take(add_times([*rising, unit(24, [0.2])]), HOUR).full[-1]
    assert full == np.quantile(sizes, FULL_SHARE, method="inverted_cdf")


@given(
    st.lists(
        st.tuples(
            st.integers(24, 40),
            st.lists(st.floats(-2.0, 2.0), min_size=1, max_size=4),
            st.floats(1.0, 50.0),
            st.floats(0.01, 1.0),
        ),
        min_size=1,
        max_size=30,
    )
)
def test_no_window_exceeds_the_bounds_of_its_tests(drawn: list[tuple[int, list[float], float, float]]) -> None:
    blocks = [
        unit(hour, logs, sequence=place % 50, stands_for=weight, rate=rate)
        for place, (hour, logs, weight, rate) in enumerate(sorted(drawn, key=lambda entry: entry[0]))
    ]
    timed = add_times([*FIRST_DAY, *blocks])
    windows = WindowMemory().take(timed, HOUR)
    for test in score_units((), timed, POLICY, windows=windows):
        for side in ("lower", "upper"):
            for theta in np.linspace(test.series.lowest, test.series.highest, 5)[1:-1]:
                sums = test.series.lower if side == "lower" else test.series.upper
                assert (sums.weights <= 1.0 + 1e-9).all(), test.name
                sign = 1.0 if side == "lower" else -1.0
                values = sign * (sums.values - theta * sums.weights)
                assert (values >= -test.series.worst(side, theta) - 1e-9).all(), test.name


@given(st.data())
def test_folds_in_pieces_give_what_one_fold_gives(data: st.DataObject) -> None:
    generator = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    blocks = [
        unit(hour, list(generator.normal(0.2, 0.3, 4)), sequence=place, stands_for=float(generator.uniform(1.0, 9.0)))
        for hour in range(60)
        for place in range(int(generator.integers(0, 3)))
    ]
    whole, parts = fold(blocks), HypothesisEvidence()
    hours = data.draw(st.lists(st.integers(1, 59), max_size=6, unique=True))
    bounds = [0, *sorted(hours), 60]
    for first, last in pairwise(bounds):
        begins, ends = START + first * HOUR, START + last * HOUR
        parts = parts.fold([], [block for block in blocks if begins <= block.newest < ends], POLICY)
    assert parts.windows == whole.windows
    for name, test in whole.tests.items():
        assert parts.tests[name].num_units == test.num_units, name
        assert np.allclose(parts.tests[name].lower.logs, test.lower.logs), name
        assert np.allclose(parts.tests[name].upper.logs, test.upper.logs), name


@pytest.mark.parametrize(
    ("sd", "changes", "clip"),
    [
        (0.02, {}, 0.25),
        (0.12, {}, 0.36),
        (0.5, {}, math.log(2.0)),
        (0.02, {"margin": 0.3}, math.log(1.3) + 0.2),
        (0.02, {"ttft_margin": 0.2}, math.log(1.2) + 0.2),
    ],
)
def test_the_first_windows_set_the_clip_and_it_stays(sd: float, changes: dict[str, float], clip: float) -> None:
    rng, policy = np.random.default_rng(7), replace(POLICY, **changes)  # type: ignore[arg-type]
    day = [unit(hour, list(rng.normal(0.1, sd, 4)), sequence=k) for hour in range(24) for k in range(20)]
    before = fold(day, policy)
    assert before.clip is None
    evidence = before.fold([], [unit(24, [0.9, 0.0, 0.0, 0.0])], policy)
    assert evidence.clip == pytest.approx(clip, rel=0.1)
    assert evidence.first_logs == ()
    assert evidence.tests["speedup"].mean == pytest.approx(min(evidence.clip, 0.9) / 4.0)
    later = evidence.fold([], [unit(hour, [3.0, -3.0] * 2) for hour in range(25, 60)], policy)
    assert later.clip == evidence.clip
    assert later.policy_of(policy).frozen_parameters()["log_speedup_clip"] == evidence.clip
    assert evidence.policy_of(policy).clashes() == ()


def test_a_block_that_comes_after_its_window_counts_in_no_test_and_is_counted() -> None:
    evidence = fold([*FIRST_DAY, unit(25, [0.2] * 4)])
    later = evidence.fold([], [unit(24, [-1.0] * 4), unit(26, [0.2] * 4)], POLICY)
    assert later.tests["speedup"].num_units == 2
    assert later.tests["speedup"].mean == pytest.approx(0.2)
    assert later.windows.num_late_blocks == 1
    assert later.runs.num_blocks == 27  # its parity and memory are known all the same


def test_the_watermark_closes_whole_windows() -> None:
    at = START + timedelta(hours=3, minutes=20)
    assert START + timedelta(hours=2, minutes=59, seconds=59) <= window_start(at, HOUR) < START + timedelta(hours=3)


def test_recordings_have_blocks_as_units() -> None:
    blocks = [unit(24, [0.2] * 4, sequence=place) for place in range(5)]
    recording = replace(POLICY, recording_only=True)
    evidence = fold(blocks, recording)
    assert recording.unit_window is None
    assert evidence.tests["speedup"].num_units == 5
    assert {test.unit for test in score_units((), (), recording)} >= {"block", "cluster"}
    assert {test.unit for test in score_units((), (), POLICY)} == {"window"}


def test_an_enable_says_what_it_assumes_beyond_its_windows() -> None:
    rng = np.random.default_rng(3)
    hours = [unit(hour, list(rng.normal(0.27, 0.05, 4))) for hour in range(24, 24 * 12)]
    evidence = replace(fold([*FIRST_DAY, *hours]), num_days=12, first_event=START, last_event=START + 12 * 24 * HOUR)
    decision = decide(
        HYPOTHESIS,
        replace(evidence, num_clusters=1_000),
        POLICY,
        trial=Trial(0.045, 0.045, GRAPH),
        has_entered=True,
        previous=None,
        now=START + 12 * 24 * HOUR,
    )
    assert decision.verdict is Verdict.ENABLE, decision.reason
    assert "assumes that incidents of over 60 minutes are as frequent as in this traffic" in decision.reason
    assert {test.unit for test in decision.tests if test.name in ("speedup", "tail", "acceptance")} == {"window"}


def test_log_speedups_of_a_window_are_weighed_sums() -> None:
    first, second = unit(24, [0.4, 0.0]), unit(24, [0.1], sequence=1, stands_for=3.0)
    timed = add_times([*FIRST_DAY, first, second])
    (speedup,) = [
        test
        for test in score_units((), timed, POLICY, windows=WindowMemory().take(timed, HOUR))
        if test.name == "speedup"
    ]
    assert speedup.series.lower.values[-1] == pytest.approx((0.4 + 3.0 * 0.1) / 5.0)
    assert speedup.series.lower.weights[-1] == pytest.approx(1.0)
    assert math.isclose(speedup.series.highest, POLICY.log_speedup_clip)


def test_a_run_that_follows_another_is_the_same_folded_on_and_folded_again() -> None:
    """What the blocks of the first run set (a full window, the clip) is there for the next one, in either way."""
    rng = np.random.default_rng(11)
    first = [unit(hour, list(rng.normal(0.2, 0.1, 4)), stands_for=2.0) for hour in range(40)]
    second = [unit(hour, list(rng.normal(0.2, 0.1, 4))) for hour in range(40, 60)]
    run = fold(first)
    on = HypothesisEvidence(windows=run.windows, clip=run.clip, first_logs=run.first_logs).fold([], second, POLICY)
    again = HypothesisEvidence().pass_by(first, POLICY).fold([], second, POLICY)
    assert (again.windows, again.clip) == (on.windows, on.clip)
    assert again.tests["speedup"].num_units == on.tests["speedup"].num_units == 20
    assert np.array_equal(again.tests["speedup"].lower.logs, on.tests["speedup"].lower.logs)
    short = fold(first[:10])
    carried = HypothesisEvidence(windows=short.windows, first_logs=short.first_logs).fold([], first[10:], POLICY)
    assert carried.clip == run.clip


def test_windows_of_another_length_follow_those_before() -> None:
    """An operator may change the length: no block becomes late by it, and none counts twice."""
    shorter = fold([*FIRST_DAY, unit(24, [0.2] * 4)])
    longer = replace(POLICY, window_s=7_200.0)
    evidence = shorter.fold([], [unit(24, [0.2] * 4, sequence=1), unit(26, [0.2] * 4), unit(27, [0.2] * 4)], longer)
    assert evidence.windows.num_late_blocks == 1
    assert evidence.tests["speedup"].num_units == 2

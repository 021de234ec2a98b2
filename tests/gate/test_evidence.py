"""Evidence folded in pieces is the evidence folded at once, and what is stored of it is all of it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shadowspec.errors import InputError
from shadowspec.gate.evidence.betting_tests import betting_tests
from shadowspec.gate.evidence.hypothesis import HypothesisEvidence, TestEvidence, restarted_states
from shadowspec.gate.evidence.speedup import speedup_test
from shadowspec.gate.policy import GatePolicy
from shadowspec.gate.run.state import (
    EndpointState,
    RunEvidence,
    decode_evidence,
    encode_evidence,
    encode_state,
    is_readable,
)
from shadowspec.gate.stats.autocorrelation import Moments
from shadowspec.gate.stats.betting import GRID_STEP, Sums
from shadowspec.gate.stats.capital import CapitalTable, geometric_grid, grid
from shadowspec.gate.stats.drift import ADVISORY_WATCHERS, WATCHERS, Detector
from shadowspec.gate.verdict.decision import Hypothesis, decide, test_results
from shadowspec.types import Parity, Run, SliceCounts, StoredEvidence, TestState, Trial
from shadowspec.types.codec import pack
from shadowspec.types.decision_documents import shown_test_details
from tests.builders.capital_oracle import log_capital
from tests.gate.coverage import lag_one_autocorrelation
from tests.gate.worlds import CONFIG, ENDPOINT, GRAPH, START, block_unit, cluster_unit, run_of

POLICY = GatePolicy(window_s=0.0, max_hypotheses=2, min_span_s=0.0)
HYPOTHESIS = Hypothesis(ENDPOINT, "prompt_class=code", 4, CONFIG)

test_results.__test__ = False  # the gate's own name

# Sums and tables.

UNITS = st.lists(st.tuples(st.floats(0.0, 1.0), st.sampled_from([0.0, 0.25, 0.5, 1.0])), max_size=60)
CUTS = st.lists(st.integers(0, 60), max_size=5)


def sums_of(units: list[tuple[float, float]]) -> Sums:
    table = np.array(units, dtype=np.float64).reshape(-1, 2)
    return Sums(table[:, 0] * table[:, 1], table[:, 1])


@pytest.mark.parametrize("side", ["lower", "upper"])
@settings(max_examples=40, deadline=None)
@given(UNITS, CUTS)
def test_a_table_holds_the_capital_of_every_null(side, units, cuts) -> None:
    """Against the capital computed from the units themselves, theta by theta."""
    sums = sums_of(units * 7)  # long enough for factors to be multiplied before the logarithm
    thetas = grid(0.0, 1.0, [0.1234])
    table = CapitalTable.empty(side, thetas, 0.0, 1.0)
    places = sorted({0, *cuts, len(sums.values)})
    for start, stop in itertools.pairwise(places):
        table = table.fold(sums.values[start:stop], sums.weights[start:stop])
    for theta in (GRID_STEP, 0.1234, 0.4, 0.995):
        if side == "lower":
            ratios = (sums.values - theta * sums.weights) / theta
        else:
            ratios = (theta * sums.weights - sums.values) / (1.0 - theta)
        assert table.log_capital(theta) == pytest.approx(log_capital(np.maximum(ratios, -1.0)), abs=1e-9)


def test_repeated_units_are_folded_like_any_others() -> None:
    thetas, values = grid(0.0, 1.0), np.repeat([0.0, 0.5, 1.0], [90, 30, 7])
    weights = np.ones(len(values))
    at_once = CapitalTable.empty("upper", thetas, 0.0, 1.0).fold(values, weights)
    singly = CapitalTable.empty("upper", thetas, 0.0, 1.0)
    for value in values:
        singly = singly.fold(np.array([value]), np.ones(1))
    assert np.abs(at_once.logs - singly.logs).max() < 1e-9


def test_a_null_between_two_rows_is_judged_at_the_next_one_outward() -> None:
    values, weights = np.full(40, 0.7), np.ones(40)
    lower = CapitalTable.empty("lower", grid(0.0, 1.0), 0.0, 1.0).fold(values, weights)
    upper = CapitalTable.empty("upper", grid(0.0, 1.0), 0.0, 1.0).fold(values, weights)
    assert lower.log_capital(0.4012) == lower.log_capital(0.405) < lower.log_capital(0.4)
    assert upper.log_capital(0.9012) == upper.log_capital(0.9) < upper.log_capital(0.905)
    assert lower.log_capital(0.9999) == 0.0, "beyond the last row nothing is known"
    assert upper.log_capital(0.0001) == 0.0


def test_grids_hold_the_nulls_and_stay_inside_the_range() -> None:
    clip, null = math.log(2.0), math.log(1.05)
    thetas = grid(-clip, clip, [null])
    assert null in thetas
    assert -clip < thetas[0] < -clip + GRID_STEP
    assert clip - GRID_STEP < thetas[-1] < clip
    assert (np.diff(thetas) > 0).all()
    assert len(grid(0.0, 1.0, [0.4, 1.5, 0.0])) == len(grid(0.0, 1.0)) == 199
    ratios = geometric_grid(1 / 8, 8.0, 1.02, [1.0])
    assert 1.0 in ratios
    assert 1 / 8 < ratios[0] < 1.02 / 8
    assert 8 / 1.02 < ratios[-1] < 8.0


@settings(deadline=None)
@given(st.lists(st.floats(-10, 10), max_size=60), CUTS, st.floats(-1e3, 1e3))
def test_moments_in_pieces_are_the_autocorrelation_of_all(values: list[float], cuts: list[int], far: float) -> None:
    series = np.round(np.array(values), 3) + far
    moments = Moments()
    places = sorted({0, *cuts, len(series)})
    for start, stop in itertools.pairwise(places):
        moments = moments.fold(series[start:stop])
    assert moments.autocorrelation == pytest.approx(
        lag_one_autocorrelation(series) if len(series) > 1 else 0.0, abs=1e-6
    )


# Whole hypotheses.

TIMES = st.floats(5.0, 500.0)


@st.composite
def worlds(draw) -> tuple[list[Run], bool]:
    """Runs of one hypothesis: failures, near-ties and sampled outputs in it."""
    is_greedy = draw(st.booleans())
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    runs = []
    for index in range(draw(st.integers(0, 90))):
        if rng.random() < 0.05:
            runs.append(run_of(index, "b", failure="timeout"))
            continue
        diverges = rng.random() < 0.2
        parity = (
            Parity(5, float(rng.uniform(0, 2e-3)), bool(rng.random() < 0.5))
            if is_greedy and diverges
            else Parity()
            if is_greedy
            else Parity(
                z_sum=float(rng.normal()), z_tokens=40, baseline_z_sum=float(rng.normal()), baseline_z_tokens=40
            )
        )
        speed = float(rng.normal(0.2, 0.3))
        accepted = int(rng.integers(0, 31))
        run = run_of(index, "b", log_speedup=min(speed, 1.5), num_first_accepted=accepted, parity=parity)
        runs.append(replace(run, parity=None) if rng.random() < 0.02 else run)
    return runs, is_greedy


def units_of(runs: list[Run], is_greedy: bool):
    blocks = [block_unit(i // 4, runs[i : i + 4], is_greedy=is_greedy) for i in range(0, len(runs), 4)]
    return [cluster_unit(i, [run], is_greedy=is_greedy) for i, run in enumerate(runs)], blocks


def assert_same(one: HypothesisEvidence, other: HypothesisEvidence) -> None:
    first, second = (test_results(HYPOTHESIS, each, POLICY, 0.0125) for each in (one, other))
    assert [test.name for test in first] == [test.name for test in second]
    for a, b in zip(first, second, strict=True):
        numbers = {name: value for name, value in shown_test_details(a).items() if isinstance(value, float)}
        assert numbers == pytest.approx({name: shown_test_details(b)[name] for name in numbers}, abs=1e-9, rel=1e-9)
        assert (a.outcome, a.num_units, a.lower, a.upper) == (b.outcome, b.num_units, b.lower, b.upper)
    assert (one.runs, one.latencies.counts) == (other.runs, other.latencies.counts)
    assert one.latencies.autocorrelation == pytest.approx(other.latencies.autocorrelation, abs=1e-9)
    for name, evidence in one.tests.items():
        assert np.abs(evidence.lower.logs - other.tests[name].lower.logs).max() < 1e-9
        assert np.abs(evidence.upper.logs - other.tests[name].upper.logs).max() < 1e-9


def stored(evidence: HypothesisEvidence) -> HypothesisEvidence:
    return decode_evidence(encode_evidence(("", 4, "fp"), RunEvidence(evidence, "parameters"))).evidence


def bits(value: Any) -> Any:
    """What makes a value up, every number by its bits: equal exactly where the values are."""
    if isinstance(value, np.ndarray):
        return value.dtype, value.shape, value.tobytes()
    if isinstance(value, float):
        return float(value).hex()
    if is_dataclass(value):
        return type(value), [(field.name, bits(getattr(value, field.name))) for field in fields(value)]
    if isinstance(value, Mapping):
        return [(key, bits(part)) for key, part in value.items()]
    return [bits(part) for part in value] if isinstance(value, tuple) else value


DETECTORS = st.dictionaries(
    st.sampled_from([watcher.name for watcher in (*WATCHERS, *ADVISORY_WATCHERS)]),
    st.builds(
        Detector,
        promise=st.floats(-1.0, 0.5),
        best=st.floats(0.6, 1.0),
        log_statistics=st.tuples(*[st.floats(allow_nan=False)] * 4),
        log_peak=st.floats(allow_nan=False),
        num_units=st.integers(0, 2**53),
    ),
)


@settings(max_examples=60, deadline=None)
@given(worlds(), DETECTORS, st.sampled_from([None, TestState(5, 4), TestState(0, 8)]), st.integers(0, 9))
def test_what_is_stored_is_the_evidence_bit_for_bit(world, detectors, state, num_lost: int) -> None:
    clusters, blocks = units_of(*world)
    states = None if state is None else dict.fromkeys(("speedup", "acceptance", "tail", "total_time"), state)
    evidence = replace(
        HypothesisEvidence(counts=SliceCounts(num_lost=num_lost)).fold(clusters, blocks, POLICY, states=states),
        detectors=detectors,
        newest_event=START,
    )
    run_evidence = RunEvidence(evidence, "parameters", skip_clusters=3, skip_blocks=num_lost)
    row = encode_evidence(("", 4, "fp"), run_evidence)
    read = decode_evidence(row)
    assert bits(read) == bits(run_evidence)
    assert all(test.lower.thetas is test.upper.thetas for test in read.evidence.tests.values())  # stored once
    assert encode_evidence(("", 4, "fp"), read) == row


@settings(max_examples=60, deadline=None)
@given(worlds(), CUTS, CUTS, st.sampled_from([None, TestState(5, 4), TestState(0, 8)]))
def test_folding_in_pieces_is_folding_at_once(world, cluster_cuts, block_cuts, state) -> None:
    """At any cuts, through the store's form each time, and for tests that restarted with units merged."""
    clusters, blocks = units_of(*world)
    states = None if state is None else dict.fromkeys(("speedup", "acceptance", "tail", "total_time"), state)
    at_once = HypothesisEvidence().fold(clusters, blocks, POLICY, states=states)
    pieces = HypothesisEvidence()
    stops = [*zip(sorted(cluster_cuts), sorted(block_cuts), strict=False), (len(clusters), len(blocks))]
    for (cluster_start, block_start), (cluster_stop, block_stop) in itertools.pairwise([(0, 0), *stops]):
        pieces = stored(pieces).fold(
            clusters[cluster_start:cluster_stop], blocks[block_start:block_stop], POLICY, states=states
        )
    assert_same(stored(pieces), at_once)


@settings(max_examples=30, deadline=None)
@given(worlds(), worlds(), st.sampled_from([4, 8]))
def test_a_restart_drops_what_counted_and_keeps_what_waited(first, second, group: int) -> None:
    runs, is_greedy = first[0], first[1]
    clusters, blocks = units_of(runs, is_greedy)
    more_clusters, more_blocks = units_of(second[0], is_greedy)
    states = dict.fromkeys(("speedup", "acceptance", "tail"), TestState(0, 4))
    before = HypothesisEvidence().fold(clusters, blocks, POLICY, states=states)
    names = states.keys() & before.tests.keys()
    states = {
        name: TestState(before.tests[name].num_seen - before.tests[name].waiting.num_units, group) for name in names
    }
    restarted = before.restart(states).fold(more_clusters, more_blocks, POLICY)
    expected = HypothesisEvidence().fold(clusters + more_clusters, blocks + more_blocks, POLICY, states=states)
    for name in names:
        assert restarted.tests[name].num_units == expected.tests[name].num_units
        assert np.abs(restarted.tests[name].lower.logs - expected.tests[name].lower.logs).max(initial=0.0) < 1e-9
        assert restarted.tests[name].totals == pytest.approx(expected.tests[name].totals)


def test_a_restart_at_units_that_are_gone_is_refused() -> None:
    test = speedup_test([block_unit(i, [run_of(i, "b")], n_max=1) for i in range(10)], POLICY)
    evidence = TestEvidence.empty(test).fold(test)
    with pytest.raises(ValueError, match="has not counted yet"):
        evidence.restart(TestState(3, 4))


def test_a_decision_says_where_its_tests_count_from() -> None:
    rng, shock, runs = np.random.default_rng(0), 0.0, []
    for index in range(480):
        if index % 4 == 0:
            shock = 0.9 * shock + math.sqrt(1 - 0.81) * float(rng.standard_normal())
        runs.append(run_of(index, "b", log_speedup=math.log(1.3) + 0.1 * shock))
    clusters, blocks = units_of(runs, True)
    evidence = HypothesisEvidence(counts=SliceCounts(num_closed_clusters=480)).fold(clusters, blocks, POLICY)
    decision = decide(
        HYPOTHESIS, evidence, POLICY, trial=Trial(0.025, 0.0125, GRAPH), has_entered=True, previous=None, now=START
    )
    states = restarted_states(decision)
    assert states["speedup"] == TestState(120, 4)
    assert states["acceptance"] == TestState()
    assert evidence.restart(states).tests["speedup"].num_units == 0
    assert evidence.restart(states).tests["acceptance"] is evidence.tests["acceptance"]


def test_the_size_of_what_is_stored_of_a_hypothesis() -> None:
    """200 slices at 2 loads, read and decided at every look, are the design's aim: 33 MB of tables."""
    clusters, blocks = units_of([run_of(i, "b") for i in range(200)], True)
    evidence = HypothesisEvidence().fold(clusters, blocks, POLICY)
    assert len(encode_evidence(("", 4, "fp"), RunEvidence(evidence, "parameters")).content) < 89_000


def test_a_state_of_another_version_is_refused() -> None:
    row = StoredEvidence("", 4, "fp", pack(RunEvidence(HypothesisEvidence(), ""), 0))
    with pytest.raises(InputError, match=r"stored evidence is of version 0, .* run `shadowspec gate`"):
        decode_evidence(row)
    assert not is_readable(encode_state(EndpointState()), [row])


def test_every_test_that_a_report_draws_is_one_that_is_decided_on() -> None:
    clusters, blocks = units_of([run_of(i, "b") for i in range(40)], True)
    evidence = HypothesisEvidence().fold(clusters, blocks, POLICY)
    drawn = {test.name: test.series.num_units for test in betting_tests(clusters, blocks, POLICY)}
    decided = {test.name: test.num_units for test in test_results(HYPOTHESIS, evidence, POLICY, 0.0125)}
    assert drawn.items() <= decided.items()

"""Means of batches: what is folded in pieces is what is folded at once, and what a naive recomputation says."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from shadowspec.gate.evidence.hypothesis import HypothesisEvidence, TestEvidence
from shadowspec.gate.evidence.speedup import speedup_test
from shadowspec.gate.policy import GatePolicy
from shadowspec.gate.stats.autocorrelation import BATCH_LENGTHS, NO_DOUBT, BatchSums, errors_path
from shadowspec.gate.stats.betting import Side, Sums, UnitSeries
from shadowspec.types import TestState
from shadowspec.types.codec import pack, unpack
from tests.builders.hypothesis_evidence import draw_runs, evidence_of
from tests.gate.oracle import naive_errors

POLICY = GatePolicy(window_s=0.0)
# (u / g, g) of a unit: on a coarse grid, so that some batches are all alike.
UNITS = st.lists(st.tuples(st.integers(-4, 4).map(lambda x: x / 4), st.sampled_from([0.25, 0.5, 1.0])), max_size=330)
CUTS = st.lists(st.integers(0, 330), max_size=6)
SIDES = st.sampled_from(["lower", "upper"])
THETAS = st.sampled_from([-0.3, 0.0, 0.1])


def sums_of(units: Sequence[tuple[float, float]]) -> Sums:
    table = np.array(units, dtype=np.float64).reshape(-1, 2)
    return Sums(table[:, 0] * table[:, 1], table[:, 1])


def folded(units: Sums, cuts: Sequence[int] = ()) -> BatchSums:
    """Those of all units, folded in pieces that end at the cuts."""
    edges = [0, *sorted(min(cut, len(units.values)) for cut in cuts), len(units.values)]
    batches = BatchSums.empty()
    for start, stop in itertools.pairwise(edges):
        batches = batches.fold(units.part(start, stop))
    return batches


def long_units(num_units: int) -> list[tuple[float, float]]:
    rng = np.random.default_rng(num_units)
    return list(zip(rng.integers(-4, 5, num_units) / 4, rng.choice([0.25, 0.5, 1.0], num_units), strict=True))


@settings(deadline=None)
@given(UNITS, CUTS)
@example(long_units(330), [1, 2, 64, 65, 300])
def test_folded_in_pieces_they_are_those_folded_at_once(units: list[tuple[float, float]], cuts: list[int]) -> None:
    at_once, in_pieces = folded(sums_of(units)), folded(sums_of(units), cuts)
    assert in_pieces.sums == pytest.approx(at_once.sums, abs=1e-9)
    assert in_pieces.unfinished == pytest.approx(at_once.unfinished, abs=1e-9)


@settings(deadline=None)
@given(UNITS)
@example(long_units(330))
def test_the_sums_are_those_of_the_means_of_whole_batches(units: list[tuple[float, float]]) -> None:
    sums, batches = sums_of(units), folded(sums_of(units))
    for row, length in enumerate(BATCH_LENGTHS):
        whole = len(units) // length
        u, g = (
            [float(x[at * length : (at + 1) * length].mean()) for at in range(whole)]
            for x in (sums.values, sums.weights)
        )
        products = [[a * b for a, b in zip(x, y, strict=True)] for x, y in ((u, u), (u, g), (g, g))]
        assert batches.sums[row].tolist() == pytest.approx(
            [whole, *(sum(each) for each in (u, g, *products))], abs=1e-9
        )
        rest = [x[whole * length :].sum() for x in (sums.values, sums.weights)]
        assert batches.unfinished[row].tolist() == pytest.approx([len(units) - whole * length, *rest], abs=1e-9)


@settings(deadline=None, max_examples=50)
@given(UNITS, SIDES, THETAS)
@example(long_units(330), "lower", 0.1)
@example([(0.25, 1.0)] * 100, "lower", 0.1)
@example([(0.25, 1.0)] * 100, "upper", 0.1)
def test_the_errors_at_every_unit_are_those_of_a_fold_and_of_a_naive_recomputation(
    units: list[tuple[float, float]], side: Side, theta: float
) -> None:
    sums = sums_of(units)
    path, batches = errors_path(sums, side, theta), BatchSums.empty()
    assert len(path) == len(units)
    for number in range(len(units)):
        batches = batches.fold(sums.part(number, number + 1))
        assert path[number] == pytest.approx(batches.errors(side, theta), rel=1e-6, abs=1e-9)
        if (number + 1) % 7 == 0 or number + 1 == len(units):
            part = sums.part(0, number + 1)
            naive = naive_errors(UnitSeries(part, part, part, -1.0, 1.0), side, theta)
            assert path[number] == pytest.approx(naive, rel=1e-6, abs=1e-9)


def test_fewer_than_four_batches_say_nothing_and_equal_ones_leave_no_doubt() -> None:
    varied = sums_of([(0.5, 1.0), (-0.25, 1.0), (0.75, 1.0)] * 5)
    assert folded(varied).errors("lower", 0.0) == NO_DOUBT, "15 units are three batches of four"
    assert folded(sums_of([(0.5, 1.0)] * 80)).errors("lower", 0.1) == NO_DOUBT
    assert folded(sums_of([(0.5, 1.0)] * 80)).errors("upper", 0.1) == -NO_DOUBT


def test_the_errors_by_hand() -> None:
    """Means .2, .4, .4, .6 of four batches of four: mean .4, their standard deviation .163, .0816 of its mean."""
    units = sums_of([(mean, 1.0) for mean in (0.2, 0.4, 0.4, 0.6) for _ in range(4)])
    assert folded(units).errors("lower", 0.1) == pytest.approx(0.3 / (np.sqrt(0.08 / 3) / 2))
    assert folded(units).errors("upper", 0.5) == pytest.approx(0.1 / (np.sqrt(0.08 / 3) / 2))


def test_a_restart_begins_new_batches_of_merged_units() -> None:
    seen = evidence_of(draw_runs(404))
    evidence = HypothesisEvidence().fold(seen.clusters, seen.blocks, POLICY)
    restarted = evidence.restart({"speedup": TestState(101, 4)})
    again = evidence_of(draw_runs(400, 3))
    after = restarted.fold(again.clusters, again.blocks, POLICY).tests["speedup"]
    series = speedup_test(again.blocks, POLICY).series.merge(0, 4)
    assert after.num_units == series.num_units == 25
    for side in ("lower", "upper"):
        assert after.batches[side].sums == pytest.approx(folded(getattr(series, side)).sums)


def test_they_are_stored_and_read_with_their_weights() -> None:
    seen = evidence_of(draw_runs(301))
    evidence = HypothesisEvidence().fold(seen.clusters, seen.blocks, POLICY)
    read = unpack(pack(evidence, 1), HypothesisEvidence, 1)
    assert read.tests.keys() == evidence.tests.keys()
    for name, test in evidence.tests.items():
        assert_same_batches(read.tests[name], test)
    more = evidence_of(draw_runs(50, 2))
    assert_same_batches(
        read.fold(more.clusters, more.blocks, POLICY).tests["speedup"],
        evidence.fold(more.clusters, more.blocks, POLICY).tests["speedup"],
    )


def assert_same_batches(one: TestEvidence, other: TestEvidence) -> None:
    assert (one.lower.weights, one.upper.weights) == (other.lower.weights, other.upper.weights)
    for side in other.batches:
        assert np.array_equal(one.batches[side].sums, other.batches[side].sums)
        assert np.array_equal(one.batches[side].unfinished, other.batches[side].unfinished)
    assert np.array_equal(one.lower.logs, other.lower.logs)

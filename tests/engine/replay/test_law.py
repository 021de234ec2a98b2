"""The law of the step counts against full enumeration, simulation, the loop's own counters and the papers' figures."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shadowspec import metrics
from shadowspec.engine.batch import Request, Row
from shadowspec.engine.replay.law import StepChances, expected_counts, step_law
from shadowspec.types import SamplingParameters, SpeculationCounts

Reals = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]
DEPTHS = range(1, 9)


def new_row(length: int, depth: int) -> Row:
    """The loop's own row of a response of so many tokens, which ends by its length."""
    return Row(Request((0,), SamplingParameters(max_tokens=length, ignore_eos=True), 0), depth, frozenset(), None)


def step(row: Row, drafted: int, accepted: int) -> None:
    """One step of the loop, as `Batch.commit` takes it."""
    row.note_step(drafted, accepted, row.emit([0] * (accepted + 1)))


def counted_by_bits(accepts: tuple[bool, ...], depth: int, first_drafted: int) -> SpeculationCounts:
    """The counters of the loop when token i is accepted wherever it is drafted if `accepts[i]`."""
    row = new_row(len(accepts), depth)
    row.emit([0] * first_drafted)
    while row.finish_reason is None:
        start = len(row.output)
        verdicts = itertools.takewhile(bool, accepts[start : start + depth])
        step(row, depth, sum(1 for _ in verdicts))
    return row.counts()


def enumerated(accept: Reals, depth: int, first_drafted: int) -> list[tuple[float, SpeculationCounts]]:
    """Every string of accept bits with its chance."""
    return [
        (float(np.prod([a if bit else 1.0 - a for a, bit in zip(accept, bits, strict=True)])), counted)
        for bits in itertools.product((False, True), repeat=len(accept))
        for counted in [counted_by_bits(bits, depth, first_drafted)]
    ]


def paths(accept: Reals, proposed: Integers, row: Row, chance: float) -> Iterator[tuple[float, SpeculationCounts]]:
    """Every course of the loop on one response: `accept` [positions, depth], `proposed` [positions]."""
    if row.finish_reason is not None:
        yield chance, row.counts()
        return
    start = len(row.output)
    drafted = int(proposed[start])
    for accepted in range(drafted + 1):
        taken = float(np.prod(accept[start, :accepted]))
        outcome = taken if accepted == drafted else taken * (1.0 - accept[start, accepted])
        after = copy.copy(row)
        after.output, after.histogram = list(row.output), list(row.histogram)
        step(after, drafted, accepted)
        yield from paths(accept, proposed, after, chance * float(outcome))


def mean(weighted: list[tuple[float, SpeculationCounts]], name: str) -> Reals:
    return sum((chance * np.asarray(getattr(counts, name), dtype=float) for chance, counts in weighted), np.zeros(()))


def assert_is_expectation(
    weighted: list[tuple[float, SpeculationCounts]], chances: StepChances, depths: list[int], index: int, f: int
) -> None:
    expected = expected_counts(step_law(chances, depths, first_drafted=f), 0, 1)[index]
    for name in (
        "num_drafts", "num_draft_tokens", "num_accepted_tokens", "num_accepted_tokens_per_pos",
        "acceptance_histogram", "num_plain_steps", "num_cut_steps", "num_cut_draft_tokens",
    ):  # fmt: skip
        assert np.allclose(getattr(expected, name), mean(weighted, name), atol=1e-12), name
    drafts = np.array([counts.num_drafts for _, counts in weighted], dtype=float)
    accepted = np.array([counts.num_accepted_tokens for _, counts in weighted], dtype=float)
    covariance = np.cov(np.stack((drafts, accepted)), aweights=[c for c, _ in weighted], ddof=0)
    assert np.allclose(expected.drafts_variance, covariance[0, 0], atol=1e-9)
    assert np.allclose(expected.accepted_variance, covariance[1, 1], atol=1e-9)
    assert np.allclose(expected.drafts_accepted_covariance, covariance[0, 1], atol=1e-9)


chance = st.floats(0.0, 1.0) | st.sampled_from([0.0, 1.0])


@settings(max_examples=60, deadline=None)
@given(st.lists(chance, min_size=1, max_size=8), st.integers(1, 5), st.integers(0, 1))
def test_equals_the_mean_over_all_accept_bits(accept: list[float], depth: int, first_drafted: int) -> None:
    # Another response and other depths lie beside it, as they do in use.
    chances = StepChances.of_prefix([np.array(accept), np.full(11, 0.5)], 5)
    weighted = enumerated(np.array(accept), depth, first_drafted)
    assert_is_expectation(weighted, chances, [5, depth, 1], 1, first_drafted)


@settings(max_examples=60, deadline=None)
@given(st.data(), st.integers(1, 6), st.integers(1, 4))
def test_equals_the_mean_over_all_courses_where_the_start_matters(data: st.DataObject, length: int, depth: int) -> None:
    accept = np.array(data.draw(st.lists(chance, min_size=length * depth, max_size=length * depth)))
    accept = accept.reshape(length, depth)
    proposed = np.array(data.draw(st.lists(st.integers(0, depth), min_size=length, max_size=length)))
    row = new_row(length, depth)
    row.emit([0])
    weighted = list(paths(accept, proposed, row, 1.0))
    chances = StepChances(accept[None], proposed[None], np.array([length]))
    assert_is_expectation(weighted, chances, [depth], 0, 1)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(chance, min_size=1, max_size=30), min_size=1, max_size=5), st.integers(0, 1))
def test_identities(accepts: list[list[float]], first_drafted: int) -> None:
    law = step_law(StepChances.of_prefix([np.array(each) for each in accepts], 8), DEPTHS, first_drafted=first_drafted)
    emitted = first_drafted + law.drafts + law.plain_steps + law.accepted_tokens - law.cut_steps
    assert np.allclose(emitted, law.lengths)
    for response in range(len(accepts)):
        for depth, counts in zip(DEPTHS, expected_counts(law, response, 3), strict=True):
            histogram, per_pos = counts.acceptance_histogram, counts.num_accepted_tokens_per_pos
            assert (len(histogram), len(per_pos)) == (depth + 1, depth)
            assert sum(histogram) == pytest.approx(counts.num_drafts)
            assert sum(per_pos) == pytest.approx(counts.num_accepted_tokens)
            # Every drafted token is accepted, or rejected, or lies behind a rejected one, or behind the last emitted.
            drafted = counts.num_draft_tokens + counts.num_cut_draft_tokens
            assert drafted == pytest.approx(depth * counts.num_drafts)
            assert counts.num_accepted_tokens <= counts.num_draft_tokens + 1e-9
            if counts.num_drafts:
                marginal = sum(rate for rate in metrics.marginal_acceptance_rates(counts) if rate is not None)
                assert metrics.mean_acceptance_length(counts) == pytest.approx(1.0 + marginal)


def test_simulated_steps_have_this_law() -> None:
    rng = np.random.default_rng(7)
    accept = rng.beta(2.0, 1.0, 40)
    runs = 4_000
    law = expected_counts(step_law(StepChances.of_prefix([accept], 8), DEPTHS), 0, 1)
    for depth in (1, 3, 8):
        simulated = [counted_by_bits(tuple(bits), depth, 1) for bits in rng.random((runs, len(accept))) < accept]
        counts = law[depth - 1]
        for name, variance in (
            ("num_drafts", counts.drafts_variance),
            ("num_accepted_tokens", counts.accepted_variance),
        ):
            found = np.array([getattr(each, name) for each in simulated], dtype=float)
            error = abs(found.mean() - getattr(counts, name))
            assert error < 4.0 * np.sqrt(variance / runs), (depth, name)
            assert found.var() == pytest.approx(variance, rel=0.15), (depth, name)


def test_drafts_that_are_certain_leave_no_variance() -> None:
    law = step_law(StepChances.of_prefix([np.array([1.0, 1.0, 0.0, 1.0, 1.0, 0.0, 1.0])], 4), DEPTHS[:4])
    assert law.drafts_variance.max() == law.accepted_variance.max() == 0.0
    # y0 by prefill; K=4: [1 1=rejected 2], [3 4 5], [6, the end].
    assert law.histogram[3, 0].tolist() == [0.0, 2.0, 1.0, 0.0, 0.0]
    assert law.cut_steps[3, 0] == 1.0


def long_run(rate: float, depth: int) -> float:
    """Mean acceptance length of a response long enough for its end not to matter."""
    length = 1_000
    counts = expected_counts(step_law(StepChances.of_prefix([np.full(length, rate)], depth), [depth]), 0, 1)[0]
    found = metrics.mean_acceptance_length(counts)
    assert found is not None
    return found


# Leviathan et al. 2211.17192, table 1: rate, depth, operations, speed at a draft that costs nothing.
@pytest.mark.parametrize(
    ("rate", "depth", "operations", "speed"),
    [
        (0.6, 2, 1.53, 1.96), (0.7, 3, 1.58, 2.53), (0.8, 2, 1.23, 2.44),
        (0.8, 5, 1.63, 3.69), (0.9, 2, 1.11, 2.71), (0.9, 10, 1.60, 6.86),
    ],
)  # fmt: skip
def test_a_constant_rate_gives_leviathans_first_table(rate: float, depth: int, operations: float, speed: float) -> None:
    tokens = long_run(rate, depth)
    assert tokens == pytest.approx((1.0 - rate ** (depth + 1)) / (1.0 - rate), rel=0.01)
    assert tokens == pytest.approx(speed, abs=0.05)
    assert (depth + 1) / tokens == pytest.approx(operations, abs=0.015)


# Leviathan et al. 2211.17192, table 3: depth, rate, cost of a draft token in target passes, expected speed-up.
@pytest.mark.parametrize(
    ("depth", "rate", "cost", "expected"),
    [
        (7, 0.75, 0.02, 3.2), (7, 0.80, 0.04, 3.3), (7, 0.82, 0.11, 2.5), (7, 0.62, 0.02, 2.3), (5, 0.68, 0.04, 2.4),
        (3, 0.71, 0.11, 2.0), (5, 0.65, 0.02, 2.4), (5, 0.73, 0.04, 2.6), (3, 0.74, 0.11, 2.0), (5, 0.53, 0.02, 1.9),
        (3, 0.55, 0.04, 1.8), (3, 0.56, 0.11, 1.6),
    ],
)  # fmt: skip
def test_a_constant_rate_gives_leviathans_t5_table(depth: int, rate: float, cost: float, expected: float) -> None:
    assert long_run(rate, depth) / (depth * cost + 1.0) == pytest.approx(expected, abs=0.07)


def test_a_mix_of_rates_is_not_the_rate_of_the_mean() -> None:
    """Half at .95 and half at .15, K=7: pooled 2.00, mean of both 3.95 (the closed form at the mean .55 says 2.20)."""
    easy, hard = (
        expected_counts(step_law(StepChances.of_prefix([np.full(4_000, rate)], 7), [7]), 0, 1)[0]
        for rate in (0.95, 0.15)
    )
    pooled = 1.0 + (easy.num_accepted_tokens + hard.num_accepted_tokens) / (easy.num_drafts + hard.num_drafts)
    lengths = [metrics.mean_acceptance_length(counts) for counts in (easy, hard)]
    assert pooled == pytest.approx(2.00, abs=0.01)
    assert np.mean([length for length in lengths if length is not None]) == pytest.approx(3.95, abs=0.01)


def vllm_schedule(length: float, depth: int) -> list[float]:
    """vLLM's `synthetic_acceptance_length` as marginal rates: positions that are surely accepted, one that is at times,
    and none after it."""
    drafted = length - 1.0
    return [min(1.0, max(0.0, drafted - position)) for position in range(depth)]


@pytest.mark.parametrize(
    ("rates", "length"),
    [
        ([0.7, 0.5, 0.4], 2.6),  # `synthetic_acceptance_rates`: marginal, falling; 1 + their sum
        (vllm_schedule(2.6, 3), 2.6),
        (vllm_schedule(1.0, 4), 1.0),
        (vllm_schedule(5.0, 4), 5.0),
        (vllm_schedule(3.25, 8), 3.25),
    ],
)
def test_vllms_synthetic_acceptance_has_its_lengths_and_rates(rates: list[float], length: float) -> None:
    """A drafter whose position i is accepted with these marginal rates wherever a step starts."""
    depth, tokens = len(rates), 6_000
    before = (1.0, *rates)
    conditional = [rate / last if last else 0.0 for rate, last in zip(rates, before, strict=False)]
    accept = np.tile(conditional, (1, tokens, 1))
    proposed = np.full((1, tokens), depth)
    law = step_law(StepChances(accept, proposed, np.array([tokens])), (depth,))
    (counts,) = expected_counts(law, 0, 1)
    assert metrics.mean_acceptance_length(counts) == pytest.approx(length, rel=2e-3)  # the last step may be cut
    assert metrics.marginal_acceptance_rates(counts) == pytest.approx(rates, abs=2e-3)
    assert counts.num_accepted_tokens / counts.num_draft_tokens == pytest.approx((length - 1) / depth, rel=4e-3)
    for conditional_acceptance_rate, expected, reached in zip(
        metrics.conditional_acceptance_rates(counts), conditional, before, strict=False
    ):
        assert conditional_acceptance_rate is None or conditional_acceptance_rate == pytest.approx(expected, abs=2e-3)
        assert (conditional_acceptance_rate is None) == (reached == 0.0)

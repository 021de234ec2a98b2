"""Counts of both sides compared: what is equal, what a difference is, and which rates lie within which interval."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from kernels.benchmarks.engines.collecting import Answered
from kernels.benchmarks.engines.comparing import (
    DRAFT_NEAR_TIE,
    FAULT,
    NEAR_TIE,
    Rate,
    acceptance_cell,
    equality,
    own_outputs,
)
from kernels.benchmarks.engines.counted import Counted, Uncut
from shadowspec.types import ExpectedCounts

# Four steps of K = 3 after the first token: 1 + (3+1) + (0+1) + (1+1) = 8 tokens, and of the last step's 4 two came.
ANSWER = Answered(
    tokens=tuple(range(10)),
    finish_reason="length",
    chunk_sizes=(1, 4, 1, 2, 2),
    drafted=(3, 3, 3, 3),
    accepted=(3, 0, 1, 3),
)
COUNTED = Counted.of_server(ANSWER, 5, 3, drafts_always=True)


def test_the_last_step_is_counted_in_full_and_cut() -> None:
    assert COUNTED.uncut == Uncut(4, 12, 7)
    counts = COUNTED.counts
    assert (counts.num_drafts, counts.num_draft_tokens, counts.num_accepted_tokens) == (4, 11, 6)
    assert (counts.num_cut_steps, counts.num_cut_draft_tokens, counts.num_cut_accepted_tokens) == (1, 1, 1)
    assert Counted.read(COUNTED.written()) == COUNTED


def parted() -> Counted:
    return replace(COUNTED, tokens=(*COUNTED.tokens[:6], 99, 98, 97, 96), uncut=Uncut(4, 12, 6))


def test_requests_are_equal_in_tokens_and_counts() -> None:
    found = equality([COUNTED, COUNTED], [COUNTED, COUNTED], lambda row, position: 0.0, 1e-3)
    assert (found["equal"], found["equal_tokens"], found["differences"]) == (2, 2, [])
    assert (found["num_drafts"], found["num_accepted_tokens"]) == (8, 14)


@pytest.mark.parametrize(("gap", "kind"), [(1e-4, NEAR_TIE), (2e-3, FAULT)])
def test_other_tokens_are_a_fault_unless_the_target_was_in_doubt(gap: float, kind: str) -> None:
    asked = []

    def gap_at(row: int, position: int) -> float:
        asked.append((row, position))
        return gap

    found = equality([COUNTED, parted()], [COUNTED, COUNTED], gap_at, 1e-3)
    assert asked == [(1, 6)]
    assert (found["equal"], found["equal_tokens"]) == (1, 1)
    (difference,) = found["differences"]
    assert (difference["request"], difference["position"], difference["kind"]) == (1, 6, kind)
    assert difference["num_accepted_tokens"] == [7, 6]


def test_other_counts_of_the_same_tokens_are_a_fault_unless_the_draft_was_in_doubt() -> None:
    other = replace(COUNTED, uncut=Uncut(4, 12, 6))
    for draft_gap, kind in ((1e-4, DRAFT_NEAR_TIE), (1.0, FAULT)):
        found = equality([other], [COUNTED], lambda row, position: 0.0, 1e-3, lambda row, gap=draft_gap: gap)
        assert [each["kind"] for each in found["differences"]] == [kind]
        assert (found["equal"], found["equal_tokens"]) == (0, 1)
    found = equality([other], [COUNTED], lambda row, position: 0.0, 1e-3)
    assert [each["kind"] for each in found["differences"]] == [FAULT], "a lookup is never in doubt"


def test_other_counts_after_the_cut_are_a_fault_but_where_drafts_are_looked_up() -> None:
    other = replace(COUNTED, counts=replace(COUNTED.counts, num_cut_steps=0))
    looked_up = equality([other, COUNTED], [COUNTED, COUNTED], lambda row, position: 0.0, 1e-3)
    assert (looked_up["equal"], looked_up["equal_cut"], looked_up["differences"]) == (2, 1, [])
    drafted = equality([other, COUNTED], [COUNTED, COUNTED], lambda row, position: 0.0, 1e-3, lambda row: 1.0)
    assert (drafted["equal"], drafted["equal_cut"]) == (1, 1)
    assert [each["kind"] for each in drafted["differences"]] == [FAULT]


def test_an_interval_is_that_of_a_ratio_over_requests() -> None:
    rng = np.random.default_rng(0)
    under = rng.integers(5, 40, 200).astype(float)
    over = rng.binomial(under.astype(int), 0.6).astype(float)
    rate = Rate.of(over, under)
    assert rate is not None
    assert rate.value == over.sum() / under.sum()
    # The delta method by hand: Var(A/D) = [Var A - 2 r Cov + r^2 Var D] / (n mean(D)^2).
    r, cov = rate.value, np.cov(over, under, ddof=1)
    variance = (cov[0, 0] - 2 * r * cov[0, 1] + r**2 * cov[1, 1]) / (200 * under.mean() ** 2)
    assert rate.half_width == pytest.approx(stats.t.ppf(0.995, 199) * variance**0.5)
    assert Rate.of([0.0], [3.0]) is None
    assert Rate.of([0.0, 0.0], [0.0, 0.0]) is None


def side(rate: float, count: int = 60, seed: int = 0) -> list[Counted]:
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(count):
        accepted = int(rng.binomial(30, rate))
        counts = replace(
            COUNTED.counts,
            num_drafts=10,
            num_draft_tokens=30,
            num_accepted_tokens=accepted,
            num_accepted_tokens_per_pos=(accepted, 0, 0),
            acceptance_histogram=(10 - accepted, accepted, 0, 0),
        )
        found.append(Counted((), Uncut(10, 30, accepted), counts))
    return found


def expectation(counted: Counted, variance: float = 0.0) -> ExpectedCounts:
    counts = counted.counts
    return ExpectedCounts(
        float(counts.num_drafts),
        float(counts.num_draft_tokens),
        float(counts.num_accepted_tokens),
        tuple(map(float, counts.num_accepted_tokens_per_pos)),
        tuple(map(float, counts.acceptance_histogram)),
        counts.num_output_tokens,
        counts.num_prompt_tokens,
        num_plain_steps=float(counts.num_plain_steps),
        accepted_variance=variance,
    )


def test_a_cell_says_what_lies_within_vllms_interval() -> None:
    theirs = side(0.5)
    close, far = side(0.51, seed=1), side(0.75, seed=2)
    cell = acceptance_cell(theirs, close, [expectation(each) for each in close])
    assert cell["loop_is_inside"]
    assert cell["replay_is_inside"]
    assert cell["vllm"] == pytest.approx(0.5, abs=0.05)
    cell = acceptance_cell(theirs, far, [expectation(each) for each in far])
    assert not cell["loop_is_inside"]
    assert not cell["replay_is_inside"]
    nothing = [replace(each, uncut=Uncut(0, 0, 0)) for each in theirs]
    assert acceptance_cell(nothing, close, [expectation(each) for each in close]) is None


def test_own_outputs_are_counted_equal_or_told_in_standard_errors() -> None:
    theirs = side(0.5)
    right = [expectation(each) for each in theirs]
    wrong = [replace(right[0], num_accepted_tokens=right[0].num_accepted_tokens + 1), *right[1:]]
    assert own_outputs(theirs, right, is_certain=True) == {"requests": 60, "unsure": 0, "equal": 60}
    assert own_outputs(theirs, wrong, is_certain=True)["equal"] == 59
    unsure = [replace(theirs[0], is_sure=False), *theirs[1:]]
    assert own_outputs(unsure, wrong, is_certain=True) == {"requests": 59, "unsure": 1, "equal": 59}
    varied = [expectation(each, variance=4.0) for each in theirs]
    shifted = [replace(each, num_accepted_tokens=each.num_accepted_tokens - 2.0) for each in varied]
    assert own_outputs(theirs, varied, is_certain=False)["z"] == 0.0
    assert own_outputs(theirs, shifted, is_certain=False)["z"] == pytest.approx(60 * 2.0 / (60 * 4.0) ** 0.5)

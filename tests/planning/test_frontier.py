"""The frontier: the best way at every load, who may be as good, and where speculation stops paying."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shadowspec.errors import InputError
from shadowspec.planning.cost_model import CostSurface
from shadowspec.planning.frontier import Choice, Length, PricedDrafting, Work, crossings, frontier, gain
from shadowspec.types import StepCost
from tests.builders.leviathan import expected_tokens

WORK = Work(num_prompt_tokens=200.0, num_output_tokens=100.0)
LOADS = (1, 4, 16, 64)


def surface() -> CostSurface:
    """Drafting costs little at low loads; scoring K + 1 tokens costs more and more."""
    return CostSurface(
        StepCost(b, k, c, prefill_ms=0.01 * c * b, draft_ms=0.4 * k, verify_ms=4.0 + 0.12 * b * (k + 1), other_ms=0.1)
        for b in LOADS
        for k in (0, 1, 2, 4, 8)
        for c in (64, 512)
    )


def ways(acceptance: float, *, width: float | None = None) -> list[PricedDrafting]:
    cost_surface = surface()
    found = []
    for depth in (1, 2, 4, 8):
        length = expected_tokens(acceptance, depth)
        bounds = (None, None) if width is None else (length - width, length + width)
        found.append(PricedDrafting(f"draft-k{depth}", depth, Length(length, *bounds), cost_surface))
    return found


def depth_of(choice: Choice) -> int:
    return 0 if choice.best is None else choice.best.drafting.num_speculative_tokens


def test_the_best_depth_falls_with_load_until_none_pays() -> None:
    found = frontier(ways(0.6), LOADS, WORK)
    depths = [depth_of(choice) for choice in found]
    assert depths == sorted(depths, reverse=True)
    assert depths[0] > 0
    assert depths[-1] == 0
    for choice in found:
        best = max(each.speedup for each in choice.gains)
        assert [each.speedup for each in choice.gains] == [
            gain(way, choice.concurrency, WORK).speedup for way in ways(0.6)
        ]
        assert (choice.best is None) == (best <= 1.0)
        if choice.best is not None:
            assert choice.best.speedup == best


def test_a_gain_is_the_ratio_of_both_arms_times() -> None:
    cost_surface, way = surface(), ways(0.6)[2]
    found = gain(way, 4, WORK)
    prefill = 0.01 * 200 * 4
    baseline = prefill + 99 * (4.0 + 0.12 * 4 * 1 + 0.1)
    speculative = prefill + 99 / way.length.estimate * (0.4 * 4 + 4.0 + 0.12 * 4 * 5 + 0.1)
    assert found.speedup == pytest.approx(baseline / speculative)
    assert found.break_even_length == pytest.approx((1.6 + 4.0 + 2.4 + 0.1) / (4.0 + 0.48 + 0.1))
    at_break_even = replace(way, length=Length(found.break_even_length), surface=cost_surface)
    assert gain(at_break_even, 4, WORK).speedup == pytest.approx(1.0)


@given(st.floats(0.2, 0.95), st.floats(0.0, 0.5))
def test_contenders_are_those_whose_bounds_reach_the_best_ones(acceptance: float, width: float) -> None:
    for choice in frontier(ways(acceptance, width=width), LOADS, WORK):
        for each in choice.gains:
            assert each.lower is not None
            assert each.upper is not None
            assert each.lower <= each.speedup <= each.upper
        if choice.best is None:
            assert set(choice.contenders) == {each for each in choice.gains if each.most > 1.0}
            assert choice.is_clear == (not choice.contenders)
            continue
        for each in choice.gains:
            reaches = each is not choice.best and each.most >= choice.best.least
            assert (each in choice.contenders) == reaches
        assert not choice.is_clear or all(
            choice.best.least > each.most for each in choice.gains if each is not choice.best
        )


def test_known_exactly_the_best_has_no_contender() -> None:
    (choice,) = frontier(ways(0.7), (1,), WORK)
    assert choice.contenders == ()
    assert choice.is_clear
    (blurred,) = frontier(ways(0.7, width=1.0), (1,), WORK)
    assert blurred.contenders
    assert not blurred.is_clear


def test_crossings_lie_where_the_line_passes_one() -> None:
    (found,) = crossings([(2, 1.25), (8, 0.8)])
    assert found.load == pytest.approx(4.0)  # half-way on logarithmic axes
    assert found.is_downward
    assert crossings([(1, 0.9), (2, 0.8)]) == []
    rising = crossings([(1, 0.5), (4, 2.0), (16, 2.0)])
    assert [(each.below, each.above, each.is_downward) for each in rising] == [(1, 4, False)]
    assert rising[0].load == pytest.approx(math.sqrt(1 * 4))


@pytest.mark.parametrize(
    ("load", "work", "names"),
    [(128, WORK, "load 128"), (4, Work(500.0, 100.0), "context 550"), (4, Work(10.0, 20.0), "context 10")],
)
def test_nothing_is_said_beyond_what_was_profiled(load: float, work: Work, names: str) -> None:
    with pytest.raises(InputError, match=f"{names} is outside the profiled range"):
        frontier(ways(0.7), (load,), work)

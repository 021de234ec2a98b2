"""The cost model: Leviathan's published figures, the arithmetic of a surface, and nothing beyond what was measured."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shadowspec.engine.replay.law import StepChances, step_law
from shadowspec.errors import InputError
from shadowspec.planning.cost_model import CostSurface, Drafts, target_passes_saved
from shadowspec.types import Place, StepCost
from tests.builders.leviathan import expected_tokens

# Leviathan et al. 2211.17192, table 1 (c = 0): acceptance, gamma, operations, speed.
TABLE_1 = [
    (0.6, 2, 1.53, 1.96), (0.7, 3, 1.58, 2.53), (0.8, 2, 1.23, 2.44), (0.8, 5, 1.63, 3.69), (0.9, 2, 1.11, 2.71),
    (0.9, 10, 1.60, 6.86),
]  # fmt: skip
# The same paper, T5-XXL: gamma, acceptance, c, expected walltime gain.
T5_XXL = [
    (7, 0.75, 0.02, 3.2), (7, 0.80, 0.04, 3.3), (7, 0.82, 0.11, 2.5), (7, 0.62, 0.02, 2.3), (5, 0.68, 0.04, 2.4),
    (3, 0.71, 0.11, 2.0), (5, 0.65, 0.02, 2.4), (5, 0.73, 0.04, 2.6), (3, 0.74, 0.11, 2.0), (5, 0.53, 0.02, 1.9),
    (3, 0.55, 0.04, 1.8), (3, 0.56, 0.11, 1.6),
]  # fmt: skip
# An end-to-end simulator's throughput over acceptance; a fit of three parameters, not a derivation.
END_TO_END = {0.50: 1.22, 0.70: 1.41, 0.85: 1.56, 0.95: 1.67}


def bound_by_memory(depth: int, draft: float, prefill: float = 0.0) -> CostSurface:
    """A step of the target costs 1 however many tokens it scores, and all drafts of a step cost `draft`."""
    return CostSurface(StepCost(1, k, 128, prefill, draft if k else 0.0, 1.0, 0.0) for k in (0, depth))


@pytest.mark.parametrize(("acceptance", "gamma", "operations", "speed"), TABLE_1)
def test_leviathans_first_table(acceptance: float, gamma: int, operations: float, speed: float) -> None:
    length = expected_tokens(acceptance, gamma)
    found = length / bound_by_memory(gamma, 0.0).break_even_length(Place(1, gamma, 128))
    assert found == pytest.approx(speed, abs=0.006)
    assert (gamma + 1) / length == pytest.approx(operations, abs=0.006)


@pytest.mark.parametrize(("gamma", "acceptance", "cost", "expected"), T5_XXL)
def test_leviathans_expected_gains(gamma: int, acceptance: float, cost: float, expected: float) -> None:
    break_even = bound_by_memory(gamma, gamma * cost).break_even_length(Place(1, gamma, 128))
    speedup = expected_tokens(acceptance, gamma) / break_even
    assert speedup == pytest.approx(expected, abs=0.07)  # its inputs are rounded


def end_to_end_speedup(surface: CostSurface, tokens_per_step: float, place: Place, num_output_tokens: int) -> float:
    baseline_ms = surface.end_to_end_ms(1.0, place.baseline, num_output_tokens)
    return baseline_ms / surface.end_to_end_ms(tokens_per_step, place, num_output_tokens)


@pytest.mark.parametrize(("acceptance", "throughput"), END_TO_END.items())
def test_an_end_to_end_simulator_is_fitted(acceptance: float, throughput: float) -> None:
    """Decode share .55, K = 4 and a step that costs 1.30 baseline steps are fitted to the four figures together."""
    num_steps = 100
    costs = [StepCost(1, k, c, num_steps * 0.45 / 0.55, 0.3 if k else 0.0, 1.0, 0.0) for k in (0, 4) for c in (1, 999)]
    speedup = end_to_end_speedup(CostSurface(costs), expected_tokens(acceptance, 4), Place(1, 4, 128), num_steps + 1)
    assert speedup == pytest.approx(throughput, abs=0.03)


@settings(max_examples=25)
@given(st.floats(0.0, 0.99), st.integers(1, 8))
def test_the_law_of_a_long_response_has_the_closed_forms_length(acceptance: float, depth: int) -> None:
    response = np.full(4_000, acceptance)
    law = step_law(StepChances.of_prefix([response], depth), (depth,))
    length = (4_000 - 1) / (float(law.drafts[0, 0]) + float(law.plain_steps[0, 0]))
    assert length == pytest.approx(expected_tokens(acceptance, depth), rel=0.01)


def cost(load: int, depth: int, context: int) -> StepCost:
    """Affine in all three, as a device that is bound by memory would be."""
    draft = depth * (0.5 + 0.01 * load)
    verify = 3.0 + 0.1 * load * (depth + 1) + 0.001 * context
    prefill = 0.02 * load * context * (1.2 if depth else 1.0)
    return StepCost(load, depth, context, prefill, draft, verify, 0.25)


def surface() -> CostSurface:
    return CostSurface(cost(b, k, c) for b in (1, 4, 16) for k in (0, 1, 4, 8) for c in (128, 1024))


@given(st.integers(1, 16), st.integers(1, 8), st.integers(128, 1024))
def test_between_points_an_affine_cost_is_met(load: int, depth: int, context: int) -> None:
    cost_surface = surface()
    for k in (0, depth):
        # load x depth is linear in each alone, which is what is interpolated
        assert cost_surface.step_ms(Place(load, k, context)) == pytest.approx(cost(load, k, context).step_ms)
        assert cost_surface.prefill_ms(Place(load, k, context)) == pytest.approx(cost(load, k, context).prefill_ms)


def test_what_acceptance_is_worth() -> None:
    cost_surface, place = surface(), Place(4, 4, 128)
    base, step = cost(4, 0, 128).step_ms, cost(4, 4, 128).step_ms
    assert cost_surface.break_even_length(place) == pytest.approx(step / base)
    plain = cost(4, 0, 128).prefill_ms + 99 * cost(4, 0, 178).step_ms  # half of the output later
    drafted = cost(4, 4, 128).prefill_ms + 99 / 2.5 * cost(4, 4, 178).step_ms
    assert end_to_end_speedup(cost_surface, 2.5, place, 100) == pytest.approx(plain / drafted)
    assert end_to_end_speedup(cost_surface, 2.5, place, 1) == pytest.approx(1 / 1.2)  # a single token: prefill alone


@pytest.mark.parametrize(
    ("place", "names"),
    [((32, 4, 128), "load 32"), ((4, 9, 128), "K 9"), ((4, 4, 2048), "context 2048"), ((0.5, 0, 128), "load 0.5")],
)
def test_nothing_is_said_beyond_what_was_measured(place: tuple[float, float, float], names: str) -> None:
    with pytest.raises(InputError, match=f"{names} is outside the profiled range"):
        surface().step_ms(Place(*place))


def test_a_surface_is_a_whole_grid_with_a_baseline() -> None:
    whole = [cost(b, k, 128) for b in (1, 4) for k in (0, 4)]
    with pytest.raises(InputError, match="not a grid"):
        CostSurface(whole[:-1])
    with pytest.raises(InputError, match="no baseline"):
        CostSurface(cost(b, k, 128) for b in (1, 4) for k in (1, 4))
    only = CostSurface(whole)
    assert only.step_ms(Place(2, 4, 128)) == pytest.approx(cost(2, 4, 128).step_ms)
    with pytest.raises(InputError, match=r"K 2 is outside the profiled range \(4 to 4\)"):
        only.step_ms(Place(2, 2, 128))


@given(st.integers(1, 16), st.integers(2, 8), st.floats(0.0, 1.0), st.floats(0.0, 1.0))
def test_a_step_that_drafts_less_lies_between_a_plain_and_a_deep_one(
    load: int, depth: int, share: float, deep: float
) -> None:
    """And a batch pays for its deepest row: the more rows, the more of the steps are deep."""
    cost_surface, place = surface(), Place(load, depth, 512)
    plain = cost_surface.step_ms(place.baseline) + cost(load, depth, 512).draft_ms
    shallow, full = cost_surface.step_ms(Place(load, 1, 512)), cost_surface.step_ms(place)
    found = cost_surface.step_ms(place, Drafts(share, 1.0 + deep * (depth - 1)))
    assert min(plain, shallow, full) - 1e-9 <= found <= max(plain, shallow, full) + 1e-9
    assert cost_surface.step_ms(place, Drafts(1.0, depth)) == pytest.approx(full)
    assert cost_surface.step_ms(place, Drafts(0.0, 1.0)) == pytest.approx(plain)
    assert cost_surface.step_ms(place, Drafts(1.0, 1.0)) == pytest.approx(shallow)
    if load == 1:  # one row: the mean of what it does
        expected = (1 - share) * plain + share * ((1 - deep) * shallow + deep * full)
        assert found == pytest.approx(expected)


def test_a_batch_drafts_where_any_row_does() -> None:
    """By drawing the rows: two drafts of a depth in half of the steps each."""
    draw, rows, steps = np.random.default_rng(5), 3, 200_000
    cost_surface, place = surface(), Place(rows, 4, 512)
    depth_of = draw.choice([0, 1, 4], p=[0.5, 0.3, 0.2], size=(steps, rows)).max(axis=1)
    plain = cost_surface.step_ms(place.baseline) + cost(rows, 4, 512).draft_ms
    costs = {0: plain, 1: cost_surface.step_ms(Place(rows, 1, 512)), 4: cost_surface.step_ms(place)}
    expected = sum(costs[depth] * float((depth_of == depth).mean()) for depth in costs)
    assert cost_surface.step_ms(place, Drafts(0.5, (0.3 + 0.8) / 0.5)) == pytest.approx(expected, rel=0.005)


def test_passes_saved_are_those_of_plain_decoding_less_those_made() -> None:
    assert target_passes_saved(2.5, 51.0) == pytest.approx(50.0 - 20.0)
    assert target_passes_saved(1.0, 51.0) == 0.0
    assert target_passes_saved(3.0, 1.0) == 0.0  # the prefill gives the only token

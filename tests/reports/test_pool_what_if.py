"""The pool-wise what-if: what acceptance makes of slices together, against Amdahl's law written out."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from shadowspec.planning.cost_model import CostSurface
from shadowspec.planning.frontier import Work
from shadowspec.reports.figures.cells import MeasuredCell
from shadowspec.reports.figures.predictions import NOT_PROFILED
from shadowspec.reports.figures.token_costs import DeviceTime
from shadowspec.reports.pages.pool_what_if import PoolWhatIf, pool_what_if
from shadowspec.types import Place
from tests.builders.profiled_worlds import CHAT, CODE, profiled
from tests.reports.worlds import config

LOAD, K, OUTPUT = 4, 4, 61.0
CONFIGS = {config().fingerprint: config()}
COSTS = profiled()


def cell(slice_key: str = CODE, *, length: float = 2.5, tokens: float = 1_000.0, prompt: float = 90.0) -> MeasuredCell:
    return MeasuredCell(
        slice_key, LOAD, config().fingerprint, 100, 0, length, Work(prompt, OUTPUT), None,
        num_drafts=1_000, num_drafted_tokens=K * 1_000, device=DeviceTime(weighted_tokens=tokens),
    )  # fmt: skip


def pool(*cells: MeasuredCell, factor: float = 1.0) -> PoolWhatIf:
    (found,) = pool_what_if(cells, CONFIGS, {COSTS.key: COSTS}, factor)
    return found


def amdahl(length: float, prompt: float = 90.0) -> tuple[float, float]:
    """Baseline and speculative time of a request: the prefill, which speculation leaves as it is, and the decoding."""
    surface = CostSurface(COSTS.points)
    place = Place(LOAD, K, prompt)
    middle = place.grown(OUTPUT / 2)
    prefill, decode = surface.prefill_ms(place.baseline), (OUTPUT - 1) * surface.step_ms(middle.baseline)
    share = decode / (prefill + decode)
    decode_speedup = length * surface.step_ms(middle.baseline) / surface.step_ms(middle)
    return prefill + decode, (prefill + decode) * ((1 - share) + share / decode_speedup)


@pytest.mark.parametrize(("factor", "length"), [(0.0, 1.0), (0.5, 1.75), (1.0, 2.5), (2.0, 4.0), (9.0, 5.0)])
def test_one_slice_follows_amdahls_law_up_to_all_that_is_drafted(factor: float, length: float) -> None:
    found = pool(cell(), factor=factor)
    before, after = amdahl(length)
    assert found.tried == pytest.approx(before / after)
    before, most = amdahl(1.0 + K)
    assert found.limit == pytest.approx(before / most)
    assert found.measured == pool(cell()).tried
    assert found.limit >= (found.tried or math.inf)


def test_slices_count_by_the_output_tokens_of_their_traffic() -> None:
    long, short = cell(length=4.0, tokens=3_000.0), cell(length=1.5, tokens=1_000.0, prompt=200.0)
    found = pool(long, replace(short, slice_key="prompt_class=sql,sampling_regime=greedy"))
    (base, fast), (other_base, slow) = amdahl(4.0), amdahl(1.5, 200.0)
    assert found.measured == pytest.approx((3 * base + other_base) / (3 * fast + slow))
    assert (found.num_slices, found.num_left_out) == (2, 0)


def test_a_slice_without_costs_is_counted_and_left_out() -> None:
    alone = pool(cell())
    found = pool(cell(), cell(CHAT, tokens=9_000.0))  # sampled requests were not profiled
    assert NOT_PROFILED not in found.texts
    assert (found.num_slices, found.num_left_out) == (2, 1)
    assert (found.measured, found.limit) == (alone.measured, alone.limit)
    assert found.texts[-1] == "2 slices, 1 not predicted"
    nothing = pool(cell(CHAT))
    assert (nothing.measured, nothing.tried, nothing.limit) == (None, None, None)

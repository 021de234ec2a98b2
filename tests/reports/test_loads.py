"""By load: break-even lies where the measured speedups cross, costs are device time at a price."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from shadowspec.reports.figures import token_costs as costs
from shadowspec.reports.pages import load_cells as loads
from shadowspec.store import GroupSums, RollupSums
from shadowspec.types import Arm, Decision, Verdict
from tests.reports import worlds
from tests.store import examples

CONFIG = worlds.config()


def at(load: int, speedup: float | None, verdict: Verdict = Verdict.HOLD, slice_key: str = "") -> Decision:
    base = examples.decision(verdict)
    test = replace(base.tests[0], estimate=speedup, lower=0.9, upper=1.9, threshold=1.05)
    return replace(base, concurrency=load, slice_key=slice_key, tests=(test,))


def even(*decisions: Decision) -> loads.BreakEven:
    (found,) = loads.break_evens(loads.load_cells(decisions, ""))
    return found


def test_break_even_is_straight_on_logarithmic_axes() -> None:
    found = even(at(8, 0.8), at(2, 1.25))
    (crossing,) = found.crossings
    assert (crossing.below, crossing.above, crossing.is_downward) == (2, 8, True)
    assert crossing.load == pytest.approx(4.0)  # half-way between 2 and 8, as log 1.25 = -log 0.8
    assert "interpolated between 2 and 8" in found.words


def test_speedup_need_not_fall_with_load_throughout() -> None:
    found = even(at(1, 0.9), at(4, 1.3), at(16, 0.7))
    assert [each.is_downward for each in found.crossings] == [False, True]
    assert "begins to pay" in found.words
    assert "stops paying" in found.words


@pytest.mark.parametrize(
    ("decisions", "says"),
    [
        ([at(4, 1.3)], "estimated faster at the only load measured, 4"),
        ([at(4, 1.3), at(8, 1.1)], "faster at every load measured (4 to 8)"),
        ([at(4, 0.9), at(8, 0.8)], "estimated not faster at every load measured"),
        ([at(4, None)], "nothing measured yet"),
    ],
)
def test_nothing_is_said_beyond_what_was_measured(decisions: list[Decision], says: str) -> None:
    assert says in even(*decisions).words


def test_cells_are_of_one_slice() -> None:
    cells = loads.load_cells([at(8, 1.1), at(4, 1.2), at(4, 2.0, slice_key="a=b")], "")
    assert [(cell.concurrency, loads.estimate(cell)) for cell in cells] == [(4, 1.2), (8, 1.1)]


def group(load: int, **changes: float) -> GroupSums:
    entry = {
        "num_runs": 10, "num_timed": 10, "timed_weight": 20.0, "baseline_prefill_ms": 100.0,
        "baseline_decode_ms": 900.0, "speculative_prefill_ms": 100.0, "speculative_decode_ms": 400.0,
        "baseline_num_output_tokens": 100, "speculative_num_output_tokens": 100,
    }  # fmt: skip
    return GroupSums("chat", "", "fp", load, None, RollupSums(**(entry | changes)))  # type: ignore[arg-type]


def test_a_request_holds_its_share_of_the_device() -> None:
    time = costs.device_time([group(4)])
    assert time.seconds_per_million(Arm.BASELINE) == pytest.approx(1000 / 4 / 100 / 1000 * 1e6)
    assert time.cost_per_million(Arm.BASELINE, 3.6) == pytest.approx(2.5)
    assert time.saved_per_million(3.6) == pytest.approx(1.25)
    assert costs.device_time([group(4), group(8)]).baseline_ms == pytest.approx(375.0)


def test_a_month_is_as_much_longer_than_what_was_watched() -> None:
    time = costs.device_time([group(4)])
    hour = time.saved_per_million(3.6)
    assert hour is not None
    whole = costs.saved_per_month(time, 2.0, 1.0, 3.6)
    assert whole == pytest.approx(hour * 200 / 2 * costs.HOURS_PER_MONTH / 1e6)  # each request stood for two
    assert costs.saved_per_month(time, 2.0, 0.25, 3.6) == pytest.approx(whole / 4)


def test_nothing_timed_costs_nothing_known() -> None:
    nothing = costs.device_time([])
    assert nothing.seconds_per_million(Arm.SPECULATIVE) is None
    assert nothing.saved_per_million(3.6) is None
    assert costs.saved_per_month(nothing, 2.0, 1.0, 3.6) is None
    assert costs.saved_per_month(costs.device_time([group(4)]), 0.0, 1.0, 3.6) is None


def test_the_level_moves_the_break_even() -> None:
    cells = loads.load_cells([at(2, 1.25), at(8, 0.8)], "")
    (proven,) = loads.break_evens(cells, level=1.05)
    assert proven.crossings[0].load < 4.0
    assert math.isfinite(proven.crossings[0].load)

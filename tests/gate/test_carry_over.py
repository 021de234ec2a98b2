"""What the order of the arms adds to the speedup: its two estimates, and the HOLD that rests on them."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from shadowspec.gate.evidence.carry_over import CarryOver, explains, order_totals
from shadowspec.gate.evidence.hypothesis import HypothesisEvidence
from shadowspec.gate.evidence.series import add_times
from shadowspec.gate.evidence.units import BlockUnit
from shadowspec.types import Arm, ArmOrder, Verdict
from tests.builders.hypothesis_evidence import POLICY, Seen, look, result
from tests.gate.worlds import block_unit, cluster_unit, run_of

CARRY, FIRST = math.log(1.2), math.log(1.1)


def ordered(
    num_blocks: int,
    *,
    truth: float = 0.0,
    carry: float = CARRY,
    first: float = FIRST,
    noise: float = 0.0,
    repeats_every: int = 0,
    seed: int = 0,
) -> list[BlockUnit]:
    """Blocks of one device: the baseline pays `carry` right after speculation, and the first arm pays `first`."""
    rng, units, before = np.random.default_rng(seed), [], None
    for place in range(num_blocks):
        is_first = bool(rng.random() < 0.5)
        arms: list[int | None] = [None, 0] if is_first else [0, None]
        order = ArmOrder.of(arms, 0, before)
        is_hit = order.baseline_ran_after is Arm.SPECULATIVE
        before = Arm.SPECULATIVE if is_first else Arm.BASELINE
        log = truth + carry * is_hit + (first if is_first else -first)
        if repeats_every and place % repeats_every == 0:
            again = carry * is_hit + first * is_first + float(rng.normal(0.0, noise))
            order = replace(order, baseline_repeat_ms=100.0 * math.exp(-again))
        runs = [
            replace(run_of(4 * place + i, "b", log_speedup=log + float(rng.normal(0.0, noise))), order=order)
            for i in range(4)
        ]
        unit = block_unit(place, runs)
        units.append(replace(unit, block=replace(unit.block, first_arm=Arm.BASELINE if is_first else Arm.SPECULATIVE)))
    return units


def seen(units: list[BlockUnit]) -> Seen:
    clusters = [cluster_unit(m.run.key.offset, [m.run]) for unit in units for m in unit.runs]
    return Seen(tuple(clusters), tuple(units))


def found(units: list[BlockUnit]) -> CarryOver | None:
    return CarryOver.of(order_totals(add_times(units), POLICY.log_speedup_clip))


def test_without_noise_the_order_shows_exactly_what_it_adds_and_what_is_left() -> None:
    """Half of the blocks have the baseline second; of the others, those after a block that ended with speculation."""
    units = ordered(200, truth=math.log(1.3))
    estimate = found(units)
    assert estimate is not None
    share = sum(u.runs[0].run.order.baseline_ran_after is Arm.SPECULATIVE for u in units[1:]) / 199  # type: ignore[union-attr]
    assert estimate.added == pytest.approx(share * CARRY, abs=0.02)
    assert estimate.without == pytest.approx(math.log(1.3), abs=1e-9)
    assert estimate.error == pytest.approx(0.0, abs=1e-6)


def test_a_cost_that_speculation_pays_too_counts_as_production_has_it() -> None:
    """Speculation after speculation is what production runs: a cost of that stays in the speedup."""
    units = []
    for unit in ordered(200, carry=0.0, first=0.0):
        order = unit.runs[0].run.order
        assert order is not None
        log = CARRY * (order.baseline_ran_after is Arm.SPECULATIVE) - CARRY * (
            order.speculative_ran_after is Arm.SPECULATIVE
        )
        runs = [replace(run_of(m.run.key.offset, "b", log_speedup=log), order=order) for m in unit.runs]
        units.append(replace(block_unit(unit.block.sequence, runs), block=unit.block))
    estimate = found(units)
    assert estimate is not None
    assert estimate.without == pytest.approx(-CARRY, abs=1e-9)


def test_repeats_show_it_where_the_orders_alone_do_not() -> None:
    """With the baseline always second its cost and speculation's gain are one; repeats tell them apart."""
    units = [unit for unit in ordered(200, repeats_every=10) if unit.block.first_arm is Arm.SPECULATIVE]
    estimate = found(units)
    assert estimate is not None
    assert estimate.added == pytest.approx(CARRY)
    assert found([unit for unit in ordered(200) if unit.block.first_arm is Arm.SPECULATIVE]) is None


def test_folding_in_pieces_leaves_the_same_figures() -> None:
    units = ordered(60, noise=0.1, repeats_every=5)
    whole = HypothesisEvidence().fold((), units, POLICY).tests["speedup"].totals
    pieces = HypothesisEvidence()
    for start in range(0, 60, 7):
        pieces = pieces.fold((), units[start : start + 7], POLICY)
    assert dict(pieces.tests["speedup"].totals) == pytest.approx(dict(whole))


def test_a_speedup_that_the_order_explains_holds_and_names_the_remedy() -> None:
    decision = look(seen(ordered(300, noise=0.05)))
    assert result(decision, "speedup").outcome == "pass"
    assert (decision.verdict, decision.reason_code) == (Verdict.HOLD, "carry_over")
    assert "pause_s" in decision.reason
    assert "the limit is 1.0%" in decision.reason
    assert look(seen(ordered(300, noise=0.05)), replace(POLICY, max_carry_over=0.5)).reason_code != "carry_over"


def test_a_true_speedup_is_enabled_and_shows_its_figures() -> None:
    decision = look(seen(ordered(300, truth=math.log(1.3), carry=0.0, noise=0.05)))
    assert decision.verdict is Verdict.ENABLE
    figures = result(decision, "speedup").figures
    assert abs(float(figures["carry_over"] or 0.0)) < 3.0 * float(figures["carry_over_error"] or 0.0)
    assert figures["without_carry_over"] == pytest.approx(1.3, rel=0.03)


@pytest.mark.parametrize(
    ("added", "error", "without", "holds"),
    [
        (0.009, 0.001, 0.0, False),  # within the limit
        (0.02, 0.001, 0.2, True),  # shown beyond it
        (0.02, 0.006, 0.2, False),  # not shown, and the margin is met without it
        (0.02, 0.006, 0.04, True),  # not shown, and the margin is not met without it
    ],
)
def test_the_rule(added: float, error: float, without: float, holds: bool) -> None:
    assert explains(CarryOver(added, error, without), POLICY) == holds


def test_nothing_is_said_without_the_order() -> None:
    units = [
        replace(unit, runs=tuple(replace(m, run=replace(m.run, order=None)) for m in unit.runs)) for unit in ordered(40)
    ]
    assert found(units) is None
    assert "carry_over" not in result(look(seen(units)), "speedup").figures

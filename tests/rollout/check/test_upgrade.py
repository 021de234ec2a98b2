"""Accepted upgrades that each lose too little to be refused must not add up."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from shadowspec.rollout.check.upgrade import kept_acceptance
from shadowspec.types import ACCEPTANCE_KEPT, Decision, ReasonCode, TestResult
from tests.builders.decisions import decision
from tests.gate.worlds import START

MARGIN = 0.02


def upgrade(number: int, upper: float | None, *, slice_key: str = "a", is_accepted: bool = True) -> Decision:
    """The decision on one upgrade, whose acceptance changed by at most `upper`."""
    kept = TestResult(ACCEPTANCE_KEPT, "open", -0.01, -0.1, upper, -MARGIN, 0.01, "block", 40, 10, None,
                      figures={"baseline_acceptance": 0.7, "speculative_acceptance": 0.69})  # fmt: skip
    code = ReasonCode.MAY_REPLACE if is_accepted else ReasonCode.MUST_NOT_REPLACE
    plain = decision(f"f{number}", None, slice_key=slice_key, name=f"next-{number}")
    return replace(plain, tests=(kept,), reason_code=code, decided_at=START + timedelta(days=number))


@pytest.mark.parametrize(
    ("before", "is_refused"),
    [
        ([], False),
        ([upgrade(1, -0.015)], True),
        ([upgrade(1, -0.005)], False),
        ([upgrade(1, -0.004), upgrade(2, -0.004)], True),
        ([upgrade(1, -0.015, slice_key="b")], False),
        ([upgrade(1, -0.015, is_accepted=False)], False),
        ([upgrade(1, None)], False),
        ([upgrade(9, -0.015)], False),  # decided later
    ],
)
def test_losses_of_one_slice_add_up_over_accepted_upgrades(before: list[Decision], is_refused: bool) -> None:
    asked = upgrade(5, -0.013)
    kept = kept_acceptance(asked, [*before, asked])
    assert (kept.loss(MARGIN) is not None) == is_refused
    assert kept.loss(None) is None
    assert kept.text == "acceptance 0.700 in the deployment that serves, 0.690 in the other"


def test_an_upgrade_alone_is_refused_by_the_gate_and_not_here() -> None:
    alone = upgrade(1, -0.5)
    assert kept_acceptance(alone, [alone]).loss(MARGIN) is None

"""Hypotheses that are not expected to reach ENABLE: said at 95% over all looks, and measured at the smallest rate."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from shadowspec.gate.evidence.betting_tests import defined_tests
from shadowspec.gate.stats.betting import log_capital_path
from shadowspec.gate.verdict.lifecycle import is_open
from shadowspec.gate.verdict.required_tests import FUTILE_LEVEL, is_futile
from shadowspec.reports.content.explanation import _next
from shadowspec.types import Dependence, ReasonCode, TestState, Verdict
from tests.builders.hypothesis_evidence import POLICY, draw_runs, evidence_of, look, result


def test_what_does_not_reach_its_limit_is_futile_before_it_is_disabled() -> None:
    runs = draw_runs(400, speedup=1.0)
    seen = [look(evidence_of(runs[:number])) for number in range(60, 401, 20)]
    codes = [decision.reason_code for decision in seen]
    assert set(codes) == {ReasonCode.TOO_FEW_UNITS, ReasonCode.FUTILE, ReasonCode.SLOWDOWN}
    order: list[str] = [ReasonCode.TOO_FEW_UNITS, ReasonCode.FUTILE, ReasonCode.SLOWDOWN]
    assert codes == sorted(codes, key=lambda code: order.index(code))
    for decision in seen:
        capital = result(decision, "speedup").betting
        assert capital is not None
        if decision.reason_code == ReasonCode.FUTILE:
            assert decision.verdict is Verdict.HOLD
            assert capital.log10_capital_fail >= -math.log10(FUTILE_LEVEL)
            assert not is_open(decision.verdict, decision.reason_code)
            assert "try another candidate" in _next(decision, replace(POLICY, min_span_s=86_400.0 * 7))
        elif decision.verdict is Verdict.HOLD:
            assert capital.log10_capital_fail < -math.log10(FUTILE_LEVEL)


@pytest.mark.parametrize(
    "changes",
    [
        {"name": "acceptance"},  # it disables nothing: its HOLD has a reason of its own
        {"is_required": False},
        {"outcome": "fail"},
        {"betting": None},
        {"dependence": Dependence(0.4, TestState(0, 1), None)},  # neighbours resemble each other
    ],
)
def test_only_an_open_test_of_independent_units_that_may_disable_is_futile(changes: dict[str, object]) -> None:
    hopeless = result(look(evidence_of(draw_runs(240, speedup=1.0))), "speedup")
    assert is_futile(hopeless)
    assert not is_futile(replace(hopeless, **changes))  # type: ignore[arg-type]


def test_at_its_limit_a_test_is_called_futile_at_most_as_often_as_stated() -> None:
    """At the margin the mean is at its limit: the share of paths that ever cross is at most FUTILE_LEVEL (Ville)."""
    (test,) = (test for test in defined_tests(POLICY) if test.name == "speedup")
    assert test.above is not None
    rng, ever = np.random.default_rng(3), 0
    for _ in range(400):
        values = test.above + 0.4 * rng.choice([-1.0, 1.0], 300)
        ratios = (test.above - values) / test.series.worst("upper", test.above)
        ever += bool((log_capital_path(ratios) >= -math.log(FUTILE_LEVEL)).any())
    assert 0 < ever <= 400 * FUTILE_LEVEL + 2 * math.sqrt(400 * FUTILE_LEVEL)

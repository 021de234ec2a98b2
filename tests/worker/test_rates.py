"""Rates: full while anything that a slice feeds is undecided, `min_rate` afterwards."""

from __future__ import annotations

import pytest

from shadowspec.gate.verdict.lifecycle import CurrentVerdicts
from shadowspec.gate.verdict.trial_levels import HypothesisId
from shadowspec.types import Verdict
from shadowspec.worker.service import SliceRates
from tests.fakes import endpoint_rule

RULE = endpoint_rule(name="chat", served_models=("m",), sample_rate=0.5, min_rate=0.02)
A, B = "class=a", "class=b"
OPEN = (Verdict.HOLD, "too_few_units")


def rates(current: CurrentVerdicts) -> tuple[float, float]:
    """The rates of slices a and b at loads 4 and 16 with one config."""
    slice_rates = SliceRates({"chat": (4, 16)})
    slice_rates.measure_with({"chat": ("f",)})
    slice_rates.refresh({"chat": current})
    assert slice_rates(RULE, "") == min(slice_rates(RULE, A), slice_rates(RULE, B))
    return slice_rates(RULE, A), slice_rates(RULE, B)


def decided(*slices: str, verdict: Verdict = Verdict.ENABLE, code: str = "") -> dict[HypothesisId, tuple[Verdict, str]]:
    return {(each, load, "f"): (verdict, code) for each in slices for load in (4, 16)}


def test_a_slice_drops_once_it_and_the_endpoint_are_decided_at_every_load() -> None:
    assert rates(decided("", A)) == (0.02, 0.5)
    assert rates(decided("", A, verdict=Verdict.DISABLE)) == (0.02, 0.5)
    assert rates(decided("", A, B)) == (0.02, 0.02)


def test_it_keeps_its_rate_while_anything_that_it_feeds_is_open() -> None:
    assert rates({}) == (0.5, 0.5)
    assert rates(decided(A)) == (0.5, 0.5)  # the endpoint's own hypothesis is open
    assert rates(decided("")) == (0.5, 0.5)
    assert rates(decided("", A) | {(A, 16, "f"): OPEN}) == (0.5, 0.5)
    assert rates(decided("", A) | {("", 4, "f"): OPEN}) == (0.5, 0.5)


@pytest.mark.parametrize(
    ("verdict", "code", "is_open"),
    [
        (Verdict.DISABLE, "drift", True),  # an alarm's, until the run after it has its own
        (Verdict.HOLD, "drift", True),
        (Verdict.HOLD, "changed_fingerprint", True),
        (Verdict.HOLD, "dependent", True),
        (Verdict.HOLD, "missing_data", True),
        (Verdict.HOLD, "low_acceptance", True),
        (Verdict.DISABLE, "slowdown", False),
        (Verdict.HOLD, "futile", False),
        (Verdict.HOLD, "undecidable", False),
        (Verdict.HOLD, "no_level_left", False),
        (Verdict.HOLD, "unprovable", False),
        (Verdict.HOLD, "other_engine", False),
    ],
)
def test_what_more_evidence_may_change_is_open(verdict: Verdict, code: str, *, is_open: bool) -> None:
    current = (verdict, code)
    assert rates(decided("", A) | {(A, 4, "f"): current}) == (0.5 if is_open else 0.02, 0.5)
    assert rates(decided("", A, B) | {("", 4, "f"): current}) == ((0.5, 0.5) if is_open else (0.02, 0.02))


def test_verdicts_on_another_config_decide_nothing() -> None:
    rates = SliceRates({"chat": (4, 16)})
    rates.refresh({"chat": decided("", A)})
    assert rates(RULE, A) == 0.5  # nobody has said yet what is measured
    rates.measure_with({"chat": ("f", "new")})
    rates.refresh({"chat": decided("", A)})
    assert rates(RULE, A) == 0.5


def test_min_rate_never_raises_a_rate() -> None:
    rates = SliceRates({"chat": (4,)})
    rates.measure_with({"chat": ("f",)})
    rates.refresh({"chat": decided("", A)})
    assert rates(endpoint_rule(name="chat", served_models=("m",), sample_rate=0.001), A) == 0.001

"""Rates: full while anything that a slice feeds is undecided, `min_rate` afterwards."""

from __future__ import annotations

from shadowspec.types import Verdict
from shadowspec.worker.rates import SliceRates
from tests.fakes import endpoint_rule

RULE = endpoint_rule(name="chat", served_models=("m",), sample_rate=0.5, min_rate=0.02)
A, B = "class=a", "class=b"


def rates(verdicts: dict[tuple[str, int, str], Verdict]) -> tuple[float, float]:
    """The rates of slices a and b at loads 4 and 16 with one config."""
    slice_rates = SliceRates({"chat": (4, 16)})
    slice_rates.measure_with({"chat": ("f",)})
    slice_rates.refresh({"chat": verdicts})
    return slice_rates(RULE, A), slice_rates(RULE, B)


def decided(*slices: str, verdict: Verdict = Verdict.ENABLE) -> dict[tuple[str, int, str], Verdict]:
    return {(each, load, "f"): verdict for each in slices for load in (4, 16)}


def test_a_slice_drops_once_it_and_the_endpoint_are_decided_at_every_load() -> None:
    assert rates(decided("", A)) == (0.02, 0.5)
    assert rates(decided("", A, verdict=Verdict.DISABLE)) == (0.02, 0.5)
    assert rates(decided("", A, B)) == (0.02, 0.02)


def test_it_keeps_its_rate_while_anything_that_it_feeds_is_open() -> None:
    assert rates({}) == (0.5, 0.5)
    assert rates(decided(A)) == (0.5, 0.5)  # the endpoint's own hypothesis is open
    assert rates(decided("")) == (0.5, 0.5)
    assert rates(decided("", A) | {(A, 16, "f"): Verdict.HOLD}) == (0.5, 0.5)
    assert rates(decided("", A) | {("", 4, "f"): Verdict.HOLD}) == (0.5, 0.5)


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
    rates.refresh({"chat": {("", 4, "f"): Verdict.ENABLE, (A, 4, "f"): Verdict.ENABLE}})
    assert rates(endpoint_rule(name="chat", served_models=("m",), sample_rate=0.001), A) == 0.001

"""The gate's promise, kept in quick runs; and what a broken sequence does to them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from shadowspec.gate.stats import betting, capital
from shadowspec.simulate.repetition import repeat, seed_of
from shadowspec.simulate.results import WorldResult, tally
from shadowspec.simulate.run_worlds import run_worlds
from shadowspec.simulate.summary import broken_promises, summarise
from shadowspec.simulate.worlds import QUICK_WORLDS, WORLDS

REPETITIONS = 60


@cache
def quick(repetitions: int) -> Mapping[str, WorldResult]:
    """What `shadowspec simulate --quick` runs, on two processes."""
    return run_worlds([WORLDS[name] for name in QUICK_WORLDS], repetitions, 1, 2)


@pytest.mark.slow
@pytest.mark.representative("12")
@pytest.mark.parametrize("repetitions", [12, REPETITIONS])
def test_the_gate_keeps_its_promise(repetitions: int) -> None:
    found = quick(repetitions)
    assert broken_promises(found.values()) == []
    assert summarise(found["minimum_effect"]).enabled.value == pytest.approx(1.0, abs=0.1)


@pytest.mark.all
@pytest.mark.slow
def test_naive_gates_visibly_fail() -> None:
    found = quick(REPETITIONS)
    margin, sessions = summarise(found["margin"]).naive, summarise(found["session_correlation"]).naive
    for name in ("naive_z", "fixed_n_t", "mann_whitney", "threshold_checks"):
        assert margin[name].lower > 0.1, name
        assert sessions[name].lower > 0.2, name
    acceptance = summarise(found["session_length"]).naive
    assert acceptance["token_independent"].lower > 0.1
    assert summarise(found["minimum_effect"]).naive["rolling_mean"].upper < 0.1, "off for ever, where it should be on"


def grown(log_capital_path: Callable[..., np.ndarray]) -> Callable[..., np.ndarray]:
    """A capital path that pays out 5% too much at every unit."""
    return lambda ratios, weights: log_capital_path(np.maximum(ratios + 0.05, -1.0), weights)


def test_bets_that_pay_too_much_break_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(betting, "log_capital_path", grown(betting.log_capital_path))
    fold = capital.CapitalTable.fold
    monkeypatch.setattr(
        capital.CapitalTable,
        "fold",
        lambda self, values, weights: fold(self, values + 0.05 if self.side == "lower" else values - 0.05, weights),
    )
    world = WORLDS["margin"]
    changed = replace(
        world, policy=replace(world.policy, rule_set=1)
    )  # the means of batches would hold these bets back
    repetitions = [repeat(changed, seed_of(world, 1, index)) for index in range(20)]
    assert broken_promises([tally(world, 1, repetitions, 0.0)]) != []


def test_a_margin_that_is_forgotten_breaks_it() -> None:
    """The boundary is 1.05: tested against 1.00 it is an effect."""
    world = WORLDS["margin"]
    changed = replace(world, policy=replace(world.policy, margin=0.0))
    repetitions = [repeat(changed, seed_of(world, 1, index)) for index in range(20)]
    result = tally(world, 1, repetitions, 0.0)
    assert result.false_enables > 10
    assert broken_promises([result]) != []

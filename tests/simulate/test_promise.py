"""The gate's promise, kept in quick runs; and what a broken sequence does to them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from shadowspec.gate.stats import autocorrelation, betting, capital
from shadowspec.simulate import paths
from shadowspec.simulate.gate_under_test import watch
from shadowspec.simulate.repetition import draw, repeat, seed_of
from shadowspec.simulate.results import WorldResult, tally
from shadowspec.simulate.rows import CONFIG, SimulatedRows
from shadowspec.simulate.run_worlds import run_worlds
from shadowspec.simulate.summary import broken_promises, summarise
from shadowspec.simulate.world import World
from shadowspec.simulate.worlds import QUICK_WORLDS, WORLDS
from shadowspec.types import Arm, Block, Run, Verdict

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
    return lambda ratios, *rest, **named: log_capital_path(np.maximum(ratios + 0.05, -1.0), *rest, **named)


def until_broken(world: World) -> WorldResult:
    """The result of the first repetitions that show that the promise is broken, at most 20."""
    repetitions = []
    for index in range(20):
        repetitions.append(repeat(world, seed_of(WORLDS[world.name], 1, index)))
        result = tally(world, 1, repetitions, 0.0)
        if broken_promises([result]):
            break
    return result


@pytest.mark.all
def test_bets_that_pay_too_much_break_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(betting, "log_capital_path", grown(betting.log_capital_path))
    fold = capital.CapitalTable.fold
    monkeypatch.setattr(
        capital.CapitalTable,
        "fold",
        lambda self, values, weights: fold(self, values + 0.05 if self.side == "lower" else values - 0.05, weights),
    )
    world = WORLDS["margin"]
    monkeypatch.setattr(autocorrelation.BatchSums, "errors", lambda *_: math.inf)  # these bets would be held back
    monkeypatch.setattr(paths, "errors_path", lambda sums, *_: np.full(len(sums.values), math.inf))
    assert broken_promises([until_broken(world)]) != []


def test_a_margin_that_is_forgotten_breaks_it() -> None:
    """The boundary is 1.05: tested against 1.00 it is an effect."""
    world = WORLDS["margin"]
    changed = replace(world, policy=replace(world.policy, margin=0.0))
    result = until_broken(changed)
    assert result.false_enables > result.repetitions / 2
    assert broken_promises([result]) != []


def enabled(world: World, rows_as: Callable[[SimulatedRows], SimulatedRows] = lambda rows: rows) -> int:
    """In how many of three repetitions the gate says ENABLE."""
    found = 0
    for index in range(3):
        drawn = draw(world, seed_of(world, 1, index))
        outcomes = watch(rows_as(drawn.rows), drawn.requests, world.policy, [CONFIG], world.arrivals.concurrency)
        found += any(outcome.verdict is Verdict.ENABLE for outcome in outcomes)
    return found


def baseline_first_or_last(block: Block, num_candidates: int) -> list[int | None]:
    candidates = list(range(num_candidates))
    return [None, *candidates] if block.first_arm is Arm.BASELINE else [*candidates, None]


@pytest.mark.all
def test_candidates_that_are_never_first_break_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """As engines ran them once: the first arm's penalty falls on the baseline, and never on these candidates.

    It is 30%: with 15% the means of batches hold the gate back for as long as the world lasts.
    """
    world, penalty = WORLDS["three_candidates"], math.log(1.3)
    worlds = [
        replace(world, effects=replace(world.effects, candidate=candidate, first_arm_log=penalty))
        for candidate in range(3)
    ]
    assert [enabled(each) for each in worlds] == [0, 0, 0]
    monkeypatch.setattr(Block, "arm_order", baseline_first_or_last)
    assert [enabled(each) for each in worlds] == [0, 3, 3]


def without_lost_time(rows: SimulatedRows) -> SimulatedRows:
    """As servers were timed once: from the attempt that was answered."""

    def answered(run: Run) -> Run:
        timing = run.speculative
        assert timing is not None
        return replace(run, speculative=replace(timing, prefill_ms=timing.prefill_ms - timing.queue_ms))

    return replace(rows, runs=[answered(run) for run in rows.runs])


@pytest.mark.all
def test_dropping_the_time_of_failed_attempts_breaks_it() -> None:
    assert enabled(WORLDS["retries"]) == 0
    assert enabled(WORLDS["retries"], without_lost_time) == 3

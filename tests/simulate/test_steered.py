"""Rates that follow the verdicts bias nothing after ENABLE, through alarm and recovery."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shadowspec.simulate.gate_under_test import HypothesisOutcome
from shadowspec.simulate.repetition import Repetition, seed_of
from shadowspec.simulate.results import tally
from shadowspec.simulate.steered import watch_steered
from shadowspec.simulate.worlds import STEERED_WORLDS
from shadowspec.types import Verdict

WORLDS = {world.name: world for world in STEERED_WORLDS}


def endpoint_runs(name: str) -> list[HypothesisOutcome]:
    """The runs of the endpoint's own hypothesis, in their order, in one repetition."""
    world = WORLDS[name]
    seed = seed_of(world, 1, 0)
    found = watch_steered(world, seed)
    return sorted((each for each in found if not each.slice_key), key=lambda each: each.num_restarts)


@pytest.mark.representative("steered_constant")
@pytest.mark.parametrize("name", ["steered_constant", "steered_open"])
def test_an_endpoint_whose_truth_is_constant_has_no_alarm(name: str) -> None:
    (run,) = endpoint_runs(name)
    assert (run.verdict, run.alarm_block) == (Verdict.ENABLE, None)


@pytest.mark.all
def test_a_run_after_an_alarm_is_not_enabled_by_the_slices_that_recovered() -> None:
    first, second = endpoint_runs("steered_recovery")
    assert (first.verdict, second.verdict) == (Verdict.ENABLE, Verdict.DISABLE)


@pytest.mark.all
def test_a_main_slice_that_decays_alone_alarms_its_endpoint() -> None:
    first, *_ = endpoint_runs("steered_decay")
    assert first.verdict is Verdict.ENABLE
    assert first.alarm_block is not None


def test_the_command_counts_a_false_alarm_as_a_false_disable_and_a_right_one_by_its_delay() -> None:
    constant, decay = WORLDS["steered_constant"], WORLDS["steered_decay"]
    enabled = HypothesisOutcome("", "one", 0, 0, 0.045, Verdict.ENABLE, "", 60, 60, False, {}, alarm_block=100)
    counted = tally(constant, 1, [Repetition((enabled,), {})], 0.0)
    assert (counted.false_disables, counted.alarm_blocks, counted.num_alarmed_early) == (1, (), 1)
    counted = tally(decay, 1, [Repetition((enabled,), {})], 0.0)
    assert (counted.false_disables, counted.alarm_blocks, counted.num_alarmed_early) == (0, ((40, 1),), 0)


def test_only_a_run_after_the_alarm_is_enabled_wrongly_where_slices_recover() -> None:
    world = WORLDS["steered_recovery"]
    first = HypothesisOutcome("", "one", 0, 0, 0.045, Verdict.ENABLE, "", 60, 60, False, {})
    assert tally(world, 1, [Repetition((first,), {})], 0.0).false_enables == 0
    assert tally(world, 1, [Repetition((first, replace(first, num_restarts=1)), {})], 0.0).false_enables == 1


def test_a_look_at_which_the_first_request_still_waits_for_its_block_folds_nothing() -> None:
    world = WORLDS["steered_open"]
    assert watch_steered(replace(world, num_sessions=1), seed_of(world, 1, 33)) == []

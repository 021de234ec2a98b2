"""Rates that follow the verdicts bias nothing after ENABLE, through alarm and recovery; with the old rules they do.

The old rules run in `make test-all`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from dataclasses import replace

import pytest

from shadowspec.gate.verdict.lifecycle import Standing
from shadowspec.simulate.gate_under_test import HypothesisOutcome
from shadowspec.simulate.repetition import Repetition, seed_of
from shadowspec.simulate.results import tally
from shadowspec.simulate.steered import watch_steered
from shadowspec.simulate.worlds import STEERED_WORLDS
from shadowspec.types import Verdict

WORLDS = {world.name: world for world in STEERED_WORLDS}


def decided_before(standing: Standing, loads: Collection[int], fingerprints: Collection[str]) -> set[str]:
    """The rule of rule set 1: whatever is not HOLD is decided, and a run after an alarm is DISABLE at first."""
    wanted = {(load, fingerprint) for load in loads for fingerprint in fingerprints}
    decided: dict[str, set[tuple[int, str]]] = defaultdict(set)
    for (slice_key, load, fingerprint), (verdict, _) in standing.items():
        if verdict is not Verdict.HOLD:
            decided[slice_key].add((load, fingerprint))
    if not wanted <= decided[""]:
        return set()
    return {slice_key for slice_key, item in decided.items() if wanted <= item} - {""}


def endpoint_runs(name: str, *, is_old: bool = False) -> list[HypothesisOutcome]:
    """The runs of the endpoint's own hypothesis, in their order, in one repetition."""
    world = WORLDS[name]
    seed = seed_of(world, 1, 0)
    if is_old:
        found = watch_steered(replace(world, policy=replace(world.policy, rule_set=1)), seed, decided_before)
    else:
        found = watch_steered(world, seed)
    return sorted((each for each in found if not each.slice_key), key=lambda each: each.num_restarts)


@pytest.mark.representative("steered_constant")
@pytest.mark.parametrize("name", ["steered_constant", "steered_open"])
def test_an_endpoint_whose_truth_is_constant_has_no_alarm(name: str) -> None:
    (run,) = endpoint_runs(name)
    assert (run.verdict, run.alarm_block) == (Verdict.ENABLE, None)


@pytest.mark.all
@pytest.mark.parametrize("name", ["steered_constant", "steered_open"])
def test_the_old_rules_alarm_an_endpoint_whose_truth_is_constant(name: str) -> None:
    assert endpoint_runs(name, is_old=True)[0].alarm_block is not None


@pytest.mark.all
def test_a_run_after_an_alarm_is_not_enabled_by_the_slices_that_recovered() -> None:
    first, second = endpoint_runs("steered_recovery")
    assert (first.verdict, second.verdict) == (Verdict.ENABLE, Verdict.DISABLE)


@pytest.mark.all
def test_the_old_rules_enable_it_by_the_slices_that_recovered() -> None:
    assert endpoint_runs("steered_recovery", is_old=True)[1].verdict is Verdict.ENABLE


@pytest.mark.all
def test_a_main_slice_that_decays_alone_alarms_its_endpoint() -> None:
    first, *_ = endpoint_runs("steered_decay")
    assert first.verdict is Verdict.ENABLE
    assert first.alarm_block is not None


@pytest.mark.all
def test_the_old_rules_do_not_alarm_an_endpoint_whose_main_slice_decays() -> None:
    assert endpoint_runs("steered_decay", is_old=True)[0].alarm_block is None


def test_the_command_counts_a_false_alarm_as_a_false_disable_and_a_right_one_by_its_delay() -> None:
    constant, decay = WORLDS["steered_constant"], WORLDS["steered_decay"]
    enabled = HypothesisOutcome("", "one", 0, 0, 0.045, Verdict.ENABLE, "", 60, 60, False, {}, alarm_block=100)
    counted = tally(constant, 1, [Repetition((enabled,), {})], 0.0)
    assert (counted.false_disables, counted.alarm_blocks, counted.num_alarmed_early) == (1, [], 1)
    counted = tally(decay, 1, [Repetition((enabled,), {})], 0.0)
    assert (counted.false_disables, counted.alarm_blocks, counted.num_alarmed_early) == (0, [40], 0)


def test_only_a_run_after_the_alarm_is_enabled_wrongly_where_slices_recover() -> None:
    world = WORLDS["steered_recovery"]
    first = HypothesisOutcome("", "one", 0, 0, 0.045, Verdict.ENABLE, "", 60, 60, False, {})
    assert tally(world, 1, [Repetition((first,), {})], 0.0).false_enables == 0
    assert tally(world, 1, [Repetition((first, replace(first, num_restarts=1)), {})], 0.0).false_enables == 1

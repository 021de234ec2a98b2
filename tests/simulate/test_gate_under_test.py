"""The simulated gate is the real one: skipping looks changes nothing that it says."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

import numpy as np
import pytest
from msgspec import structs

from shadowspec.gate.evidence.units import Cluster
from shadowspec.gate.run.endpoint_look import Decided, EndpointLook
from shadowspec.gate.run.gate_run import BeginsAnewError, EndpointGateRun, run_endpoint_gate
from shadowspec.gate.run.memory_store import MemoryStore
from shadowspec.simulate import gate_under_test
from shadowspec.simulate.gate_under_test import AcceleratorError, HypothesisOutcome, is_verdict, watch
from shadowspec.simulate.paths import possible_looks
from shadowspec.simulate.repetition import Draw, draw, repeat, seed_of
from shadowspec.simulate.rows import LookMoments, configs_of, moments_of
from shadowspec.simulate.traffic import ENDPOINT, NEVER, PLACE, START, Bools
from shadowspec.simulate.world import World
from shadowspec.simulate.worlds import WORLDS
from shadowspec.types import Decision, Verdict, Watermark

LATER = -0.3  # so that an alarm comes soon


def shortened(name: str, num_sessions: int) -> World:
    world = WORLDS[name]
    return replace(world, arrivals=replace(world.arrivals, num_sessions=num_sessions))


def stored(drawn: Draw, world: World) -> MemoryStore:
    store = MemoryStore(ENDPOINT, PLACE, configs_of(world.releases))
    store.add(drawn.rows.records, drawn.rows.blocks, drawn.rows.runs)
    return store


def moments(drawn: Draw, world: World) -> tuple[LookMoments, Sequence[Cluster]]:
    """By a fold of the whole input."""
    store = stored(drawn, world)
    store.finish(len(drawn.rows.records), Watermark(START, is_ended=True))
    gate = EndpointGateRun(ENDPOINT, world.policy, None, START)
    (clusters,) = gate.fold(store).completed.entered.values()
    return moments_of(drawn.requests, clusters), clusters


def watched(drawn: Draw, world: World) -> list[HypothesisOutcome]:
    configs = configs_of(world.releases)
    return watch(drawn.rows, drawn.requests, world.policy, configs, world.arrivals.concurrency)


@pytest.mark.representative("failures-240-0")
@pytest.mark.parametrize(
    ("name", "num_sessions", "index"),
    [
        ("minimum_effect", 360, 0),  # ENABLE
        ("slowdown", 240, 0),  # DISABLE
        ("steered_sampling", 420, 1),  # three hypotheses; a slice waits for its independence to show
        ("ar1_nine", 480, 3),  # restarts with merged units
        ("session_length", 240, 1),  # sessions that are timed late, or not at all
        ("fingerprint_change", 320, 0),
        ("twelve_releases", 480, 0),
        ("failures", 240, 0),
        ("carry_over_20", 320, 0),  # HOLD, where every test passes
        ("shedding", 400, 0),  # lost requests count at their worst
        ("decay", 640, 0),  # ENABLE, an alarm, and the run after it
        ("decay_of_tail", 560, 0),  # the same, by the detector of the slowed share
        ("faults_after_enable", 480, 0),  # ENABLE, revoked
    ],
)
def test_the_outcome_is_that_of_a_gate_that_is_run_at_every_look(name: str, num_sessions: int, index: int) -> None:
    world = shortened(name, num_sessions)
    if world.effects.change_block is not None:
        change = num_sessions // 8 if world.releases else 60 if world.name == "decay" else 90
        later = world.effects.log_speedup_later if world.effects.slowed_later else LATER
        world = replace(
            world,
            effects=replace(world.effects, change_block=change, log_speedup_later=later),
            releases=(change,) if world.releases else (),
        )
    elif world.releases:
        world = replace(world, releases=(30, 60, 90))
    at_every_look(world, draw(world, seed_of(world, 7, index)))


def test_a_disable_that_new_evidence_refutes_is_that_of_a_gate_that_is_run_at_every_look() -> None:
    """An incident of 30 blocks, and a gain from then on."""
    world = shortened("decay", 1_200)
    incident = replace(world.effects, log_speedup=math.log(0.8), change_block=30, log_speedup_later=math.log(1.3))
    world = replace(world, name="incident", kind="null", effects=incident)
    first, second = at_every_look(world, draw(world, seed_of(world, 7, 0)))
    assert (first.verdict, second.verdict) == (Verdict.DISABLE, Verdict.ENABLE)
    assert first.reopened_block is not None


def at_every_look(world: World, drawn: Draw) -> list[HypothesisOutcome]:
    """What the quick way says, once it is what a gate says that is run at every look."""
    quick = watched(drawn, world)
    found, _ = moments(drawn, world)
    store = stored(drawn, world)
    verdicts: dict[tuple[str, str, int], Decision] = {}
    alarms: dict[tuple[str, str, int], int] = {}
    was_dependent = set()
    for look in range(len(found.looks)):
        store.finish(*found.known_at(look))
        for decision in run_endpoint_gate(store, ENDPOINT, world.policy, now=START).decisions:
            trial = decision.run
            if trial is None or (decision.slice_key and world.arrivals.num_slices == 1):
                continue  # a slice that is its whole endpoint: the same hypothesis
            run = (decision.slice_key, decision.fingerprint, trial.num_restarts)
            if decision.reason_code == "dependent":
                was_dependent.add(run)
            if is_verdict(decision):
                verdicts.setdefault(run, decision)
            is_revoked = decision.verdict is Verdict.DISABLE and verdicts.get(run, decision).verdict is Verdict.ENABLE
            if is_revoked or decision.ends_run:
                alarms.setdefault(run, decision.num_blocks)

    assert len(quick) >= 1
    for outcome in quick:
        run = (outcome.slice_key, outcome.fingerprint, outcome.num_restarts)
        said = (outcome.verdict, outcome.reason_code, outcome.num_blocks, outcome.num_clusters, outcome.start_blocks)
        slow = verdicts.pop(run, None)
        if slow is None:
            assert outcome.verdict is Verdict.HOLD
        else:
            trial = slow.run
            assert trial is not None
            assert said == (slow.verdict, slow.reason_code, slow.num_blocks, slow.num_clusters, trial.start_blocks)
            assert trial.level == outcome.level
        if not outcome.start_blocks:  # a run after an alarm gives that as its reason to hold, whatever else
            assert outcome.was_dependent == (run in was_dependent)
        assert (outcome.alarm_block or outcome.reopened_block) == alarms.pop(run, None)
    assert (verdicts, alarms) == ({}, {}), "the quick way missed something"
    if world.kind == "effect" and world.effects.change_block is not None:
        assert quick[0].alarm_block is not None, "the world was to show an alarm"
    return quick


SLOT = 0.025 / 4  # of alpha, for each of four slices


@pytest.mark.all
@pytest.mark.parametrize(
    ("late_s", "speedup", "concurrency", "first_level"),
    [
        (9_000.0, 1.3, 4, 0.9 * (SLOT + 0.025 / 4)),  # the endpoint comes to ENABLE before its slices
        # The first slice is the whole endpoint until the second one comes.
        (12_000.0, 1.5, 1, 0.9 * 0.025),
    ],
)
def test_a_level_that_others_pass_on_is_used_from_the_next_look_on(
    late_s: float, speedup: float, concurrency: int, first_level: float
) -> None:
    world = shortened("eight_slices", 640)
    world = replace(
        world,
        arrivals=replace(world.arrivals, num_slices=2, late_slice_s=late_s, concurrency=concurrency),
        effects=replace(world.effects, log_speedup=math.log(speedup)),
        policy=replace(world.policy, max_hypotheses=5),
    )
    outcomes = at_every_look(world, draw(world, seed_of(world, 7, 0)))
    assert [outcome.verdict for outcome in outcomes] == [Verdict.ENABLE] * 3
    levels = [0.9 * 0.025, first_level, 0.9 * (SLOT + (0.025 + SLOT) / 3)]
    assert [outcome.level for outcome in outcomes] == pytest.approx(levels)


def test_a_key_that_dominates_is_cut_at_every_look_and_here() -> None:
    """Where one session sends most of what its slice has at its entry."""
    world = shortened("session_correlation", 120)
    drawn = draw(world, seed_of(world, 1, 0))
    long = drawn.rows.records[0].session_hash
    busy = [structs.replace(each, session_hash=long) if at < 60 else each for at, each in enumerate(drawn.rows.records)]
    drawn = replace(drawn, rows=replace(drawn.rows, records=busy))
    with pytest.raises(BeginsAnewError):
        moments(drawn, world)
    (outcome,) = watched(drawn, world)
    store = stored(drawn, world)
    store.finish(len(busy), Watermark(START, is_ended=True))
    decision = run_endpoint_gate(store, ENDPOINT, world.policy, now=START).decisions[0]
    assert decision.evidence.counts.num_dominant_keys == 1
    assert (outcome.num_blocks, outcome.num_clusters) == (decision.num_blocks, decision.num_clusters)


def test_what_the_accelerator_rules_out_is_not_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    def nowhere(*arguments: Any) -> tuple[Bools, Bools]:
        possible, waits = possible_looks(*arguments)
        return np.zeros_like(possible), waits

    monkeypatch.setattr(gate_under_test, "possible_looks", nowhere)
    world = shortened("slowdown", 240)
    with pytest.raises(AcceleratorError, match="DISABLE at look"):
        watched(draw(world, seed_of(world, 7, 0)), world)


@pytest.mark.parametrize("name", ["margin", "minimum_effect", "several_devices"])
def test_no_world_is_decided_but_by_the_gate(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(current: EndpointLook, now: datetime) -> Decided:
        raise NotImplementedError

    monkeypatch.setattr(EndpointLook, "decide", refuse)
    with pytest.raises(NotImplementedError):
        repeat(WORLDS[name], seed_of(WORLDS[name], 1, 0))


def test_the_looks_cover_every_block_and_every_cluster() -> None:
    world = shortened("margin", 200)
    drawn = draw(world, seed_of(world, 1, 0))
    found, clusters = moments(drawn, world)
    assert set(found.looks.tolist()) == {*found.block_us.values(), *found.cluster_us.values()}
    assert len(found.cluster_us) == len(clusters) == 200
    assert found.looks[-1] == NEVER


def test_a_cluster_waits_for_the_block_that_an_earlier_request_is_in() -> None:
    """The watermark stands still while an admitted request is not measured yet."""
    world = shortened("low_traffic", 200)
    drawn = draw(world, seed_of(world, 1, 0))
    found, clusters = moments(drawn, world)
    for cluster in clusters:
        entered = found.cluster_us[cluster.slice_key, cluster.key, cluster.first_event]
        for block, started in zip(drawn.requests.blocks, drawn.requests.started_us.tolist(), strict=True):
            if any(prompt.key in cluster.members for prompt in block.requests):
                assert entered >= started

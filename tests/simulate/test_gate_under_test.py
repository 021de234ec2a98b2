"""The simulated gate is the real one: skipping looks changes nothing that it says."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shadowspec.gate.units import fold_clusters
from shadowspec.gating import decide_endpoint
from shadowspec.simulate.gate_under_test import is_verdict, watch
from shadowspec.simulate.moments import moments_of, rows_at
from shadowspec.simulate.repetition import draw, seed_of
from shadowspec.simulate.rows import CHANGED, CONFIG
from shadowspec.simulate.traffic import NEVER, START
from shadowspec.simulate.world import World
from shadowspec.simulate.worlds import WORLDS
from shadowspec.types import Decision, Verdict

LATER = -0.3  # so that an alarm comes soon


def shortened(name: str, num_sessions: int) -> World:
    world = WORLDS[name]
    return replace(world, arrivals=replace(world.arrivals, num_sessions=num_sessions))


@pytest.mark.parametrize(
    ("name", "num_sessions", "index"),
    [
        ("minimum_effect", 360, 0),  # ENABLE
        ("slowdown", 240, 0),  # DISABLE
        ("steered_sampling", 420, 1),  # three hypotheses; a slice waits for its independence to show
        ("ar1_nine", 480, 3),  # restarts with merged units
        ("session_length", 240, 1),  # sessions that are timed late, or not at all
        ("fingerprint_change", 320, 0),
        ("failures", 240, 0),
        ("decay", 640, 0),  # ENABLE, an alarm, and the run after it
    ],
)
def test_what_is_said_is_what_the_gate_says_when_it_is_asked_at_every_look(
    name: str, num_sessions: int, index: int
) -> None:
    world = shortened(name, num_sessions)
    if world.effects.change_block is not None:
        change = num_sessions // 8 if world.changes_fingerprint else 60
        world = replace(world, effects=replace(world.effects, change_block=change, log_speedup_later=LATER))
    drawn = draw(world, seed_of(world, 7, index))
    configs = {CONFIG.fingerprint: CONFIG} | ({CHANGED.fingerprint: CHANGED} if world.changes_fingerprint else {})
    quick = watch(drawn.evidence, drawn.requests, world.policy, configs, [world.arrivals.concurrency])

    moments = moments_of(drawn.requests, fold_clusters(drawn.evidence.records, world.policy, input_ended=True))
    standing: dict[tuple[str, str], Decision] = {}
    verdicts: dict[tuple[str, str, int], Decision] = {}
    alarms: dict[tuple[str, str, int], int] = {}
    was_dependent = set()
    for look_us in moments.looks.tolist():
        rows = rows_at(drawn.evidence, drawn.requests, moments, look_us)
        for decision in decide_endpoint(
            rows,
            world.policy,
            configs,
            [world.arrivals.concurrency],
            list(standing.values()),
            input_ended=look_us == NEVER,
            now=START,
        ):
            standing[decision.slice_key, decision.fingerprint] = decision
            run = (decision.slice_key, decision.fingerprint, int(decision.details.get("num_restarts") or 0))
            if decision.reason_code == "dependent":
                was_dependent.add(run)
            if is_verdict(decision):
                verdicts.setdefault(run, decision)
            if decision.details.get("ends_run") and decision.reason_code == "drift":
                alarms.setdefault(run, decision.num_blocks)

    assert len(quick) >= 1
    for outcome in quick:
        run = (outcome.slice_key, outcome.fingerprint, outcome.num_restarts)
        said = (outcome.verdict, outcome.reason_code, outcome.num_blocks, outcome.num_clusters, outcome.start_blocks)
        slow = verdicts.pop(run, None)
        if slow is None:
            assert outcome.verdict is Verdict.HOLD
        else:
            start_blocks = slow.details["start_blocks"]
            assert said == (slow.verdict, slow.reason_code, slow.num_blocks, slow.num_clusters, start_blocks)
            assert slow.details["level"] == outcome.level
        if not outcome.start_blocks:  # a run after an alarm gives that as its reason to hold, whatever else
            assert outcome.was_dependent == (run in was_dependent)
        assert outcome.alarm_block == alarms.pop(run, None)
    assert (verdicts, alarms) == ({}, {}), "the quick way missed something"


def test_the_looks_cover_every_block_and_every_cluster() -> None:
    world = shortened("margin", 200)
    drawn = draw(world, seed_of(world, 1, 0))
    folding = fold_clusters(drawn.evidence.records, world.policy, input_ended=True)
    moments = moments_of(drawn.requests, folding)
    assert set(moments.looks.tolist()) == {*moments.block_us.values(), *moments.cluster_us.values()}
    assert len(moments.cluster_us) == len(folding.clusters) == 200
    assert moments.looks[-1] == NEVER


def test_a_cluster_waits_for_the_block_that_an_earlier_request_is_in() -> None:
    """The watermark stands still while an admitted request is not measured yet."""
    world = shortened("low_traffic", 200)
    drawn = draw(world, seed_of(world, 1, 0))
    folding = fold_clusters(drawn.evidence.records, world.policy, input_ended=True)
    moments = moments_of(drawn.requests, folding)
    for cluster in folding.clusters:
        entered = moments.cluster_us[cluster.slice_key, cluster.key, cluster.first_event]
        for block, started in zip(drawn.requests.blocks, drawn.requests.started_us.tolist(), strict=True):
            if any(prompt.key in cluster.members for prompt in block.requests):
                assert entered >= started

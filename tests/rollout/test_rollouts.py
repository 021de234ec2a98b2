"""Rollouts in the database: moved on by the gate's decisions, back by alarms and overrides, each change a row."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest

from kernels.benchmarks.pools import PoolWorld, draw_windows
from shadowspec.gate.verdict.current_decision import read_endpoint_decisions
from shadowspec.rollout.endpoint_run import advance_rollouts, read_controls
from shadowspec.rollout.rollout_policy import RolloutPolicy
from shadowspec.store import Store
from shadowspec.types import Clearing, Decision, DriftFigures, EvidenceSummary, ReasonCode, Stage, Verdict
from tests.store import examples

NOON = examples.NOON
DAY = timedelta(days=1)
POLICY = RolloutPolicy(
    require_confirmed=False, shadow_soak_s=3_600.0, partial_soak_s=3_600.0, min_soak_blocks=10, depth_soak_s=3_600.0
)


def decided(
    at: datetime,
    verdict: Verdict = Verdict.ENABLE,
    *,
    slice_key: str = "",
    code: str = "all_tests_pass",
    **changes: Any,
) -> Decision:
    plain = examples.decision(verdict)
    blocks = 100 + int((at - NOON).total_seconds() / 60)
    evidence = EvidenceSummary(newest_evidence=at)
    decision = replace(
        plain, slice_key=slice_key, decided_at=at, num_blocks=blocks, reason_code=code, evidence=evidence
    )
    return replace(decision, verdict_since=NOON - DAY, **changes)


def look(store: Store, at: datetime, *decisions: Decision) -> tuple[Stage, str | None]:
    store.append_decisions(decisions)
    (step,) = advance_rollouts(store, "chat", None, POLICY, at)
    return step.rollout.stage, step.waits_for


def test_the_whole_way_and_back(store: Store) -> None:
    store.save_fingerprints([examples.config()])
    assert advance_rollouts(store, "chat", None, POLICY, NOON) == []
    hours = [NOON + timedelta(hours=number) for number in range(8)]
    assert look(store, NOON, decided(NOON))[0] is Stage.SHADOW
    assert look(store, NOON, decided(NOON))[0] is Stage.SHADOW
    assert look(store, hours[1], decided(hours[1]))[0] is Stage.PARTIAL
    assert look(store, hours[2], decided(hours[2])) == (Stage.BROAD, None)

    # A detector of a slice has gone off: one stage back, once.
    slice_alarm = decided(hours[3], Verdict.DISABLE, slice_key="prompt_class=code", code=ReasonCode.DRIFT)
    slice_alarm = examples.in_traffic(slice_alarm, 0.01)
    assert look(store, hours[3], decided(hours[3]), slice_alarm)[0] is Stage.PARTIAL
    stage, waits_for = look(store, hours[4], decided(hours[4]))
    assert (stage, waits_for) == (Stage.PARTIAL, "drift in prompt_class=code to be over")

    # It is over, but advice of the endpoint itself moves it back again.
    over = decided(hours[5], slice_key="prompt_class=code")
    stage, _ = look(store, hours[5], decided(hours[5], drift=DriftFigures(4.6, "speedup")), over)
    assert stage is Stage.SHADOW

    # An override keeps it there, and no longer when it is cleared.
    override_id = store.add_override(examples.override())
    assert look(store, hours[6], decided(hours[6])) == (Stage.SHADOW, "a current ENABLE")
    store.clear_override(Clearing(override_id, "mended", "grace", hours[6]))
    assert look(store, hours[7], decided(hours[7]))[0] is Stage.PARTIAL

    history = store.rollout_history("chat")
    assert [(row.stage, row.reason_code) for row in history] == [
        (Stage.SHADOW, "chosen"),
        (Stage.PARTIAL, "advanced"),
        (Stage.BROAD, "advanced"),
        (Stage.PARTIAL, "alarm"),
        (Stage.SHADOW, "alarm"),
        (Stage.PARTIAL, "advanced"),
    ]
    assert store.rollouts() == [history[-1]]
    assert history[2].share == 1.0


def produce(store: Store, speedup: float, begin: datetime, days: float) -> None:
    drawn = list(draw_windows(PoolWorld("drawn", "", speedup=speedup, days=days), seed=1))
    shift = begin - drawn[0].began_at
    with store.live_session("chat") as session:
        session.keep(
            [], [replace(each, began_at=each.began_at + shift, ended_at=each.ended_at + shift) for each in drawn]
        )


@pytest.mark.representative("postgres")
def test_each_load_compares_the_pools_since_its_stage_began(store: Store) -> None:
    store.save_fingerprints([examples.config()])
    store.append_decisions([decided(NOON)])
    begun = replace(examples.rollout(), since=NOON)
    store.append_rollouts([begun, replace(begun, concurrency=8, since=NOON + DAY)])
    produce(store, 1.3, NOON, 2.0)
    policy = replace(POLICY, has_control=True)
    found, current = read_endpoint_decisions(store, "chat", None, NOON), store.rollouts("chat")
    controls = read_controls(store, "chat", found, current, policy)
    assert {
        load: each.comparisons[0].num_intervals + each.num_small + each.num_unlike for load, each in controls.items()
    } == {4: 287, 8: 143}
    (speedup,) = [test for test in decided(NOON).tests if test.name == "speedup"]
    assert (controls[4].promised, controls[8].promised) == (speedup.lower, None)
    assert read_controls(store, "chat", found, current, POLICY) == {}


@pytest.mark.representative("postgres")
def test_production_moves_the_partial_stage_by_its_pools_since_the_stage_began(store: Store) -> None:
    store.save_fingerprints([examples.config()])
    policy = replace(POLICY, has_control=True, shadow_soak_s=0.0, partial_soak_s=0.0, depth_soak_s=0.0)

    def step_at(at: datetime, policy: RolloutPolicy = policy) -> tuple[Stage, str]:
        store.append_decisions([decided(at)])
        (step,) = advance_rollouts(store, "chat", None, policy, at)
        return step.rollout.stage, step.waits_for or step.rollout.reason

    produce(store, 0.7, NOON - 2 * DAY, 2.0)  # before the stage: it is not of this rollout
    step_at(NOON)
    assert step_at(NOON + DAY / 24) == (
        Stage.PARTIAL,
        "the control: the pools are not compared yet: no interval is over in which both pools were read",
    )
    produce(store, 1.3, NOON + DAY / 12, 2.0)
    stage, why = step_at(NOON + 3 * DAY)
    assert stage is Stage.BROAD, why
    produce(store, 0.7, NOON + 3.1 * DAY, 2.0)
    without = replace(policy, has_control=False)
    assert step_at(NOON + 6 * DAY, without)[0] is Stage.BROAD
    stage, why = step_at(NOON + 6 * DAY)
    assert stage is Stage.PARTIAL
    newest = store.rollouts("chat")[-1]
    assert (newest.reason_code, newest.reason[:51]) == (
        "control",
        "control: production is worse with speculation: end-",
    )
    assert step_at(NOON + 6.1 * DAY)[0] is Stage.PARTIAL, "its windows are of the stage before"


def test_an_override_takes_what_is_served_back_into_the_shadow(store: Store) -> None:
    store.save_fingerprints([examples.config()])
    for hour in range(3):
        look(store, NOON + timedelta(hours=hour), decided(NOON + timedelta(hours=hour)))
    store.add_override(examples.override(Verdict.HOLD))
    (step,) = advance_rollouts(store, "chat", None, POLICY, NOON + timedelta(hours=3))
    assert (step.rollout.stage, step.rollout.reason_code) == (Stage.SHADOW, "not_enabled")
    assert "by ada" in step.rollout.reason


def test_a_disabled_slice_with_much_traffic_is_seen_by_its_share(store: Store) -> None:
    store.save_fingerprints([examples.config()])
    look(store, NOON, decided(NOON))
    later = NOON + timedelta(hours=1)
    harmed = decided(later, Verdict.DISABLE, slice_key="prompt_class=code", code="slowdown")
    harmed = examples.in_traffic(harmed, 0.3)
    stage, waits_for = look(store, later, decided(later), harmed)
    assert (stage, waits_for) == (Stage.SHADOW, "prompt_class=code, 30% of the traffic, to be no longer DISABLEd")


def test_an_override_of_a_slice_that_nobody_decided_keeps_the_stage(store: Store) -> None:
    store.save_fingerprints([examples.config()])
    hours = [NOON + timedelta(hours=number) for number in range(3)]
    look(store, hours[0], decided(hours[0]))
    override_id = store.add_override(examples.override(slice_key="tier=gold"))
    stage, waits_for = look(store, hours[1], decided(hours[1]))
    assert (stage, f"override {override_id}" in str(waits_for)) == (Stage.SHADOW, True)
    store.clear_override(Clearing(override_id, "mended", "grace", hours[1]))
    assert look(store, hours[2], decided(hours[2]))[0] is Stage.PARTIAL

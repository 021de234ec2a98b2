"""A rollout moves forward by one stage on a current ENABLE that was measured again, and back at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from datetime import datetime, timedelta
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.benchmarks.pools import PoolWorld, draw_windows
from shadowspec.gate.verdict.current_decision import LatestDecision, evidence_time
from shadowspec.gate.verdict.current_verdict import CurrentVerdict, overridden
from shadowspec.rollout.control import Control, ControlVerdict, compare_pools
from shadowspec.rollout.rollout_policy import RolloutPolicy
from shadowspec.rollout.stages import StageLook, next_step, proven_depths
from shadowspec.types import Decision, EvidenceSummary, LiveWindow, Rollout, Stage, Verdict
from shadowspec.types.served_methods import settings_text
from tests.store import examples

NOON = examples.NOON
DAY = timedelta(days=1)
POLICY = RolloutPolicy(require_confirmed=False)
CODE, CHAT = "prompt_class=code,context_bucket=<512", "prompt_class=chat,context_bucket=8k-32k"


def decided(
    verdict: Verdict = Verdict.ENABLE,
    *,
    at: datetime = NOON,
    since: datetime = NOON - 30 * DAY,
    blocks: int = 100,
    slice_key: str = "",
    fingerprint: str = "fp",
    lower: float = 1.1,
    evidence: datetime | None = None,
    depth: int = 8,
) -> Decision:
    plain = examples.decision(verdict, fingerprint=fingerprint)
    return replace(
        plain,
        slice_key=slice_key,
        num_blocks=blocks,
        decided_at=at,
        config=replace(plain.config, name=f"config-{fingerprint}", num_speculative_tokens=depth),
        tests=(replace(plain.tests[0], lower=lower),),
        verdict_since=since,
        evidence=EvidenceSummary(newest_evidence=evidence or at),
    )


def look(*decisions: Decision, now: datetime = NOON, **more: Any) -> StageLook:
    latest = [
        LatestDecision(CurrentVerdict(each, None), is_current=True, evidence_at=evidence_time(each, ()))
        for each in decisions
    ]
    return StageLook("chat", 4, latest, now, **more)


def rollout_at(stage: Stage, *, since: datetime = NOON - 10 * DAY, caps: Mapping[str, int] | None = None) -> Rollout:
    """A rollout of config fp that has been in its stage for ten days."""
    entry = caps if caps is not None else {} if stage is Stage.SHADOW else {"": 8}
    at = None if stage is Stage.SHADOW else since
    share = POLICY.share_of(stage)
    return Rollout("chat", 4, stage, "fp", since, since, "advanced", "ENABLE stands", 20, (), at, entry, share)


@cache
def pools(speedup: float = 1.0, failures: float = 0.005, days: float = 3.0) -> tuple[LiveWindow, ...]:
    world = PoolWorld("drawn", "", speedup=speedup, speculative_failures=failures, days=days)
    return tuple(draw_windows(world, seed=1))


def controlled(speedup: float, **more: float) -> Control:
    return compare_pools(pools(speedup, **more), None, POLICY)


def test_it_begins_in_the_shadow_and_waits_for_a_verdict() -> None:
    step = next_step(None, look(decided(Verdict.HOLD)), POLICY)
    assert (step.rollout.stage, step.rollout.share, step.rollout.depth_caps) == (Stage.SHADOW, 0.0, {})
    assert step.waits_for == "a current ENABLE"
    assert step.is_change(None)
    assert not next_step(step.rollout, look(decided(Verdict.HOLD)), POLICY).is_change(step.rollout)


def test_an_enable_takes_it_from_the_shadow_to_everyone_one_stage_at_a_time() -> None:
    rollout, stages = next_step(None, look(decided(blocks=60)), POLICY).rollout, []
    for day in range(1, 30):
        now = NOON + day * DAY
        rollout = next_step(rollout, look(decided(at=now, blocks=60 + 10 * day), now=now), POLICY).rollout
        stages.append((rollout.stage, rollout.share, rollout.depth_caps.get("")))
    assert stages[:7] == [(Stage.PARTIAL, 0.1, 8)] * 7, "the one depth that is proven, from the first day on"
    assert stages[7:] == [(Stage.BROAD, 1.0, 8)] * 22


def ladder(now: datetime, *depths: int) -> list[Decision]:
    """Decisions on one draft at several depths; that of config fp is the deepest."""
    names = {depth: "fp" if depth == max(depths) else f"k{depth}" for depth in depths}
    return [
        decided(at=now, blocks=60 + 10 * (now - NOON).days, depth=depth, fingerprint=name, lower=1.0 + depth / 10)
        for depth, name in names.items()
    ]


def test_depths_go_from_one_proven_depth_to_the_next() -> None:
    policy = replace(POLICY, partial_max_depth=4)
    rollout, depths = next_step(None, look(*ladder(NOON, 2, 4, 8)), policy).rollout, []
    for day in range(1, 12):
        now = NOON + day * DAY
        rollout = next_step(rollout, look(*ladder(now, 2, 4, 8), now=now), policy).rollout
        depths.append((rollout.stage, rollout.depth_caps[""]))
    assert depths[:3] == [(Stage.PARTIAL, 2), (Stage.PARTIAL, 4), (Stage.PARTIAL, 4)]
    assert depths[7:9] == [(Stage.BROAD, 4), (Stage.BROAD, 8)]
    lost = next_step(rollout, look(*ladder(NOON + 12 * DAY, 2, 8), now=NOON + 12 * DAY), policy).rollout
    assert lost.depth_caps == {"": 8}


@pytest.mark.parametrize(
    "other",
    [
        {"config": "another draft"},
        {"engine": "vllm/0.32.0"},
        {"verdict": Verdict.HOLD},
        {"slice_key": CODE},
    ],
)
def test_a_depth_is_proven_by_the_same_draft_on_the_same_engine_for_the_whole_endpoint_alone(
    other: dict[str, Any],
) -> None:
    four = decided(depth=4, fingerprint="k4")
    if "config" in other:
        other = {"config": replace(four.config, draft=other["config"])}
    here = look(decided(), replace(four, **other))
    assert proven_depths(decided(), here) == (8,)
    assert proven_depths(decided(), look(decided(), four)) == (4, 8)


def test_without_a_proof_within_the_limit_nothing_is_served_and_it_says_so() -> None:
    policy = replace(POLICY, partial_max_depth=4)
    step = next_step(rollout_at(Stage.SHADOW), look(decided()), policy)
    assert step.rollout.stage is Stage.SHADOW
    assert step.waits_for == "a proof at 4 tokens or fewer, which is all that the next stage may serve: 8 are proven"
    lowered = next_step(rollout_at(Stage.PARTIAL, caps={"": 8}), look(decided(blocks=30)), policy)
    assert (lowered.rollout.depth_caps, lowered.rollout.reason_code) == ({"": 0}, "limited")


def test_a_rollout_from_before_moves_to_the_proven_depth_when_its_depth_has_been_soaked() -> None:
    old = rollout_at(Stage.PARTIAL, caps={"": 2}, since=NOON - DAY / 2)
    waiting = next_step(old, look(decided(blocks=30)), POLICY).rollout
    assert waiting.depth_caps == {"": 0}, "2 tokens were never measured"
    later = NOON + 2 * DAY
    assert next_step(waiting, look(decided(at=later, blocks=30), now=later), POLICY).rollout.depth_caps == {"": 8}


@pytest.mark.parametrize("stage", [Stage.PARTIAL, Stage.BROAD])
@pytest.mark.parametrize("verdict", [Verdict.HOLD, Verdict.DISABLE, None])
def test_without_a_current_enable_it_falls_into_the_shadow(stage: Stage, verdict: Verdict | None) -> None:
    decisions = [decided(fingerprint="other")] + ([decided(verdict)] if verdict else [])
    step = next_step(rollout_at(stage), look(*decisions), POLICY)
    assert (step.rollout.stage, step.rollout.reason_code, step.rollout.share) == (Stage.SHADOW, "not_enabled", 0.0)
    assert step.rollout.depth_caps == {}
    assert step.rollout.since == NOON


def test_an_override_is_no_current_enable() -> None:
    killed = overridden(decided(), [replace(examples.override(), override_id=3)], NOON)
    step = next_step(rollout_at(Stage.BROAD), look(killed), POLICY)
    assert step.rollout.stage is Stage.SHADOW
    assert "Override 3 by ada" in step.rollout.reason


def test_an_alarm_moves_it_back_once_and_holds_it_there() -> None:
    alarm = "acceptance of prompt_class=code"
    back = next_step(rollout_at(Stage.BROAD), look(decided(), alarms=(alarm,)), POLICY)
    assert (back.rollout.stage, back.rollout.reason_code, back.rollout.depth_caps) == (Stage.PARTIAL, "alarm", {"": 8})
    later = NOON + 20 * DAY
    still = next_step(back.rollout, look(decided(at=later, blocks=900), now=later, alarms=(alarm,)), POLICY)
    assert still.rollout == back.rollout
    second = next_step(still.rollout, look(decided(at=later), now=later, alarms=("another", alarm)), POLICY)
    assert second.rollout.stage is Stage.SHADOW
    assert still.waits_for == "acceptance of prompt_class=code to be over"
    over = next_step(still.rollout, look(decided(at=later, blocks=900), now=later), POLICY)
    assert over.rollout.stage is Stage.BROAD


def test_nothing_moves_forward_on_silence_or_on_the_past() -> None:
    silent = next_step(rollout_at(Stage.PARTIAL), look(decided(blocks=69)), POLICY)
    assert silent.rollout.stage is Stage.PARTIAL
    assert silent.waits_for == "1 more blocks measured in this stage"
    stale = next_step(rollout_at(Stage.PARTIAL), look(decided(at=NOON - 2 * DAY)), POLICY)
    assert stale.rollout.stage is Stage.PARTIAL
    assert "a fresh decision" in str(stale.waits_for)
    unfed = next_step(rollout_at(Stage.PARTIAL), look(decided(evidence=NOON - 2 * DAY)), POLICY)
    assert unfed.rollout.stage is Stage.PARTIAL
    assert unfed.waits_for == f"a fresh decision: the last rests on evidence of {NOON - 2 * DAY:%Y-%m-%d %H:%M} UTC"
    young = next_step(rollout_at(Stage.PARTIAL), look(decided(since=NOON - 6 * DAY)), POLICY)
    assert young.waits_for == "ENABLE to be in force for 86400 s more"


def test_a_disabled_slice_with_much_traffic_keeps_it_where_it_is() -> None:
    slices = decided(Verdict.DISABLE, slice_key=CODE)
    kept = next_step(rollout_at(Stage.PARTIAL), look(decided(), slices, shares={CODE: 0.05}), POLICY)
    assert kept.rollout.stage is Stage.PARTIAL
    assert "no longer DISABLEd" in str(kept.waits_for)
    small = next_step(rollout_at(Stage.PARTIAL), look(decided(), slices, shares={CODE: 0.04}), POLICY)
    assert small.rollout.stage is Stage.BROAD
    unknown = next_step(rollout_at(Stage.PARTIAL), look(decided(), slices, shares={}), POLICY)
    assert "an unknown share of the traffic" in str(unknown.waits_for)
    other = decided(Verdict.DISABLE, slice_key=CODE, fingerprint="other")
    assert next_step(rollout_at(Stage.PARTIAL), look(decided(), other, shares={CODE: 0.5}), POLICY).rollout.share == 1.0


@pytest.mark.parametrize("verdict", [Verdict.DISABLE, Verdict.HOLD])
def test_an_override_of_slices_keeps_it_where_it_is_though_nobody_decided_them(verdict: Verdict) -> None:
    def after(slice_key: str, *, load: int | None = None, **shares: float) -> str | None:
        order = replace(examples.override(verdict, slice_key=slice_key), override_id=3, concurrency=load)
        known = {CODE: shares.get("code", 0.96), CHAT: shares.get("chat", 0.04)}
        step = next_step(rollout_at(Stage.PARTIAL), look(decided(), orders=(order,), shares=known), POLICY)
        assert step.rollout.stage is (Stage.BROAD if step.waits_for is None else Stage.PARTIAL)
        return step.waits_for

    assert after("tier=gold") == "override 3 of tier=gold to end"
    assert after("tier=gold", load=8) is None
    assert after("prompt_class=code") == "override 3 of prompt_class=code to end"
    assert after("prompt_class=chat") is None, "4% of the traffic"
    assert after("prompt_class=chat", chat=0.05) is not None


def test_in_the_shadow_the_best_proven_config_is_chosen_and_kept() -> None:
    young = rollout_at(Stage.SHADOW, since=NOON)
    slow, fast = decided(fingerprint="slow", lower=1.1), decided(fingerprint="fast", lower=1.3)
    lost = next_step(young, look(slow, fast, decided(Verdict.HOLD)), POLICY)
    assert (lost.rollout.fingerprint, lost.rollout.reason_code) == ("fast", "chosen")
    assert lost.rollout.since == young.since
    kept = next_step(lost.rollout, look(replace(slow, tests=decided(lower=1.9).tests), fast), POLICY)
    assert kept.rollout == lost.rollout


def test_a_context_bucket_deepens_only_where_its_own_slices_stand() -> None:
    partial = rollout_at(Stage.PARTIAL, caps={"": 2, "<512": 2, "8k-32k": 2}, since=NOON - 2 * DAY)
    proven = [decided(), *(decided(depth=depth, fingerprint=f"k{depth}") for depth in (1, 2, 3))]
    decisions = [*proven, decided(slice_key=CODE), decided(Verdict.DISABLE, slice_key=CHAT)]
    deeper = next_step(partial, look(*decisions), POLICY).rollout
    assert deeper.depth_caps == {"": 3, "<512": 3, "8k-32k": 2}
    assert (deeper.reason_code, deeper.since) == ("deeper", partial.since)
    assert not next_step(deeper, look(*decisions, now=NOON + DAY / 2), POLICY).is_change(deeper)
    limits = replace(POLICY, context_max_depths={"<512": 0, "128k+": 1})
    lower = next_step(deeper, look(*decisions), limits).rollout
    assert lower.depth_caps == {"": 3, "128k+": 1, "<512": 0, "8k-32k": 2}
    assert lower.reason_code == "deeper"  # the new bucket begins


def test_the_control_moves_the_partial_stage_on_holds_it_or_moves_it_back() -> None:
    partial = rollout_at(Stage.PARTIAL)
    faster, same, slower = controlled(1.25), controlled(1.0, days=0.5), controlled(0.85)
    verdicts = [each.verdict for each in (faster, same, slower)]
    assert verdicts == [ControlVerdict.FORWARD, ControlVerdict.HOLD, ControlVerdict.REVERT]
    assert next_step(partial, look(decided(), control=faster), POLICY).rollout.stage is Stage.BROAD
    held = next_step(partial, look(decided(), control=same), POLICY)
    assert held.rollout.stage is Stage.PARTIAL
    assert (held.waits_for or "").startswith("the control: not yet proven to be no slower")
    back = next_step(partial, look(decided(), control=slower), POLICY)
    assert (back.rollout.stage, back.rollout.reason_code) == (Stage.SHADOW, "control")
    assert back.rollout.reason.startswith("control: production is worse with speculation: end-to-end time 0.85")
    assert back.waits_for == "7 days after the control moved it back, or another config"


def test_a_config_that_the_control_moved_back_waits_and_another_does_not() -> None:
    back = next_step(rollout_at(Stage.PARTIAL), look(decided(), control=controlled(0.85)), POLICY).rollout
    for days, stage in ((6.9, Stage.SHADOW), (7.1, Stage.PARTIAL)):
        now = NOON + days * DAY
        step = next_step(back, look(decided(at=now, blocks=300), now=now), POLICY)
        assert step.rollout.stage is stage
    now = NOON + 2 * DAY
    other = look(
        decided(Verdict.HOLD, at=now),
        decided(at=now, since=NOON - 3 * DAY, blocks=300, fingerprint="other"),
        now=now,
    )
    chosen = next_step(back, other, POLICY)
    assert (chosen.rollout.fingerprint, chosen.rollout.reason_code) == ("other", "chosen")
    assert "control" not in (chosen.waits_for or "")


def test_the_control_moves_the_broad_stage_back_by_one_and_serves_no_depth_that_was_not_served() -> None:
    broad = rollout_at(Stage.BROAD, caps={"": 4})
    step = next_step(broad, look(*ladder(NOON, 4, 8), control=controlled(0.85)), POLICY)
    assert (step.rollout.stage, step.rollout.depth_caps) == (Stage.PARTIAL, {"": 4})
    at_once = next_step(
        broad, look(*ladder(NOON, 4, 8), control=controlled(0.85)), replace(POLICY, alarm_stage="shadow")
    )
    assert at_once.rollout.stage is Stage.SHADOW


CASES: dict[str, tuple[object, Callable[[RolloutPolicy], object]]] = {
    "partial_share": (0.3, lambda policy: next_step(rollout_at(Stage.SHADOW), look(decided()), policy)),
    "shadow_soak_s": (11 * 86_400.0, lambda policy: next_step(rollout_at(Stage.SHADOW), look(decided()), policy)),
    "partial_soak_s": (11 * 86_400.0, lambda policy: next_step(rollout_at(Stage.PARTIAL), look(decided()), policy)),
    "min_soak_blocks": (81, lambda policy: next_step(rollout_at(Stage.PARTIAL), look(decided()), policy)),
    "max_decision_age_s": (
        3_600.0,
        lambda policy: next_step(rollout_at(Stage.PARTIAL), look(decided(at=NOON - DAY)), policy),
    ),
    "max_disabled_share": (
        0.5,
        lambda policy: next_step(
            rollout_at(Stage.PARTIAL),
            look(decided(), decided(Verdict.DISABLE, slice_key=CODE), shares={CODE: 0.2}),
            policy,
        ),
    ),
    "alarm_stage": (
        "shadow",
        lambda policy: next_step(rollout_at(Stage.BROAD), look(decided(), alarms=("a",)), policy),
    ),
    "first_depth": (
        4,
        lambda policy: next_step(
            rollout_at(Stage.SHADOW), look(*ladder(NOON + 3 * DAY, 2, 4, 8), now=NOON + 3 * DAY), policy
        ),
    ),
    "depth_soak_s": (
        11 * 86_400.0,
        lambda policy: next_step(rollout_at(Stage.BROAD, caps={"": 4}), look(*ladder(NOON, 4, 8)), policy),
    ),
    "require_confirmed": (True, lambda policy: next_step(rollout_at(Stage.SHADOW), look(decided()), policy)),
    "partial_max_depth": (2, lambda policy: next_step(rollout_at(Stage.PARTIAL), look(decided(blocks=30)), policy)),
    "broad_max_depth": (2, lambda policy: next_step(rollout_at(Stage.BROAD), look(decided()), policy)),
    "context_max_depths": ({"128k+": 0}, lambda policy: next_step(rollout_at(Stage.BROAD), look(decided()), policy)),
    "control_level": (0.5, lambda policy: compare_pools(pools(days=1.0), None, policy)),
    "control_run_length": (1, lambda policy: compare_pools(pools(speedup=0.97, days=0.5), None, policy).verdict),
    "control_interval_s": (1_200.0, lambda policy: compare_pools(pools(), None, policy)),
    "control_requests": (1_000, lambda policy: compare_pools(pools(), None, policy)),
    "max_slowdown": (0.2, lambda policy: compare_pools(pools(speedup=0.9), None, policy).verdict),
    "max_first_token_slowdown": (0.01, lambda policy: compare_pools(pools(speedup=0.9), None, policy).comparisons[1]),
    "max_failure_increase": (0.1, lambda policy: compare_pools(pools(failures=0.05), None, policy).verdict),
    "max_load_difference": (0.0, lambda policy: compare_pools(pools(), None, policy).num_unlike),
    "control_retry_s": (
        20 * 86_400.0,
        lambda policy: next_step(replace(rollout_at(Stage.SHADOW), reason_code="control"), look(decided()), policy),
    ),
}
OF_ENDPOINTS = {"has_control"}  # whether there is a control, not how it is judged: tests/rollout/test_rollouts.py


@pytest.mark.parametrize("name", [field.name for field in fields(RolloutPolicy) if field.name not in OF_ENDPOINTS])
def test_every_parameter_changes_some_rollout(name: str) -> None:
    value, decide = CASES[name]
    changed = replace(POLICY, **{name: value})  # type: ignore[arg-type]
    assert decide(changed) != decide(POLICY)
    assert getattr(changed, name) != getattr(POLICY, name)


VERDICTS = st.sampled_from([Verdict.ENABLE, Verdict.ENABLE, Verdict.HOLD, Verdict.DISABLE])
DAYS = st.tuples(VERDICTS, VERDICTS, st.integers(0, 60), st.booleans(), st.floats(0.0, 3.0))


@settings(max_examples=200, deadline=None)
@given(st.lists(DAYS, max_size=40))
def test_whatever_happens_nothing_is_served_without_a_current_enable(
    days: list[tuple[Verdict, Verdict, int, bool, float]],
) -> None:
    policy = replace(POLICY, shadow_soak_s=86_400.0, partial_soak_s=86_400.0, min_soak_blocks=20)
    order = list(Stage)
    rollout, blocks, now, since = None, 0, NOON, {"a": NOON, "b": NOON}
    verdicts = {"a": Verdict.HOLD, "b": Verdict.HOLD}
    for first, second, measured, is_alarmed, passed in days:
        now, blocks = now + passed * DAY, blocks + measured
        for name, verdict in (("a", first), ("b", second)):
            since[name] = since[name] if verdicts[name] is verdict else now
            verdicts[name] = verdict
        decisions = [decided(v, at=now, since=since[n], blocks=blocks, fingerprint=n) for n, v in verdicts.items()]
        alarms = ("drift",) if is_alarmed else ()
        before, rollout = rollout, next_step(rollout, look(*decisions, now=now, alarms=alarms), policy).rollout
        if rollout.stage is Stage.SHADOW:
            assert (rollout.share, rollout.depth_caps) == (0.0, {})
        else:
            assert verdicts[rollout.fingerprint or ""] is Verdict.ENABLE
            assert rollout.depth_caps[""] == 8
        if before is not None:
            assert order.index(rollout.stage) <= order.index(before.stage) + 1
            if order.index(rollout.stage) > order.index(before.stage):
                assert not is_alarmed
                assert now - before.since >= DAY
                assert blocks - before.num_blocks >= 20
            if rollout.stage is not Stage.SHADOW and before.stage is not Stage.SHADOW:
                assert rollout.fingerprint == before.fingerprint


def exported(*, load: int = 4, code: str = "all_tests_pass", schedule: object = None) -> Decision:
    """A decision on the exported configuration itself, with this schedule of depths."""
    plain = decided(Verdict.ENABLE if code == "all_tests_pass" else Verdict.HOLD)
    settings_of = {} if schedule is None else {"num_speculative_tokens_per_batch_size": schedule}
    config = replace(plain.config, proposer="mtp", speculative_config=settings_text(settings_of))
    return replace(plain, config=config, concurrency=load, reason_code=code)


def test_the_config_that_was_measured_as_it_is_exported_takes_the_place_of_the_one_that_waits_for_it() -> None:
    of_export = replace(exported(), fingerprint="exported")
    for policy, chosen in ((replace(POLICY, require_confirmed=True), "exported"), (POLICY, "fp")):
        step = next_step(rollout_at(Stage.SHADOW), look(decided(), of_export), policy)
        assert step.rollout.fingerprint == chosen


SCHEDULE = [[1, 8, 8], [9, 2**31 - 1, 0]]
LACKS = "a load of 9 or more, where the schedule drafts nothing"


@pytest.mark.parametrize(
    ("decision", "elsewhere", "waits_for"),
    [
        (decided(), (), "a run of the export itself: config-fp was not measured"),
        (exported(), (), None),
        (exported(schedule=[[1, 2**31 - 1, 8]]), (), None),
        (exported(schedule=SCHEDULE), (), LACKS),
        (exported(schedule=SCHEDULE), (exported(load=16, code="undecided", schedule=SCHEDULE),), LACKS),
        (
            exported(schedule=SCHEDULE),
            (exported(load=8, code="may_replace", schedule=SCHEDULE),),
            "a load of 9 or more",
        ),
        (exported(schedule=SCHEDULE), (exported(load=16, code="may_replace", schedule=SCHEDULE),), None),
    ],
)
def test_only_a_config_that_was_measured_as_it_is_exported_leaves_the_shadow(
    decision: Decision, elsewhere: tuple[Decision, ...], waits_for: str | None
) -> None:
    step = next_step(rollout_at(Stage.SHADOW), look(decision, elsewhere=elsewhere), RolloutPolicy())
    if waits_for is None:
        assert step.rollout.stage is Stage.PARTIAL
    else:
        assert step.rollout.stage is Stage.SHADOW
        assert (step.waits_for or "").startswith(waits_for)

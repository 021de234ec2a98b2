"""The line of time says what, when, who and why; before and after stand on the right sides of the moment."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from shadowspec.gate.policy import GatePolicy
from shadowspec.reports.content.changes import ChangeKind
from shadowspec.reports.pages import before_after
from shadowspec.reports.pages import policy_parameters as policy
from shadowspec.reports.pages import timeline as changes
from shadowspec.rollout.rollout_policy import RolloutPolicy
from shadowspec.store import AdviceChange, GroupSums, Histogram, RollupSums, VerdictChange
from shadowspec.types import (
    Arm,
    Clearing,
    EvidenceSummary,
    FingerprintedConfig,
    MixChange,
    OverrideRecord,
    RateChange,
    Supersession,
    Verdict,
)
from tests.reports import worlds
from tests.store import examples

NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)
OLD = worlds.config("draft-k4")
NEW = replace(
    worlds.config("draft-k4"),
    fingerprint="draft-k4-aaaaaaaaaaaa",
    engine="shadowspec-torch/0.2.0",
    details={**OLD.details, "draft_weights": "ffff"},
)
CONFIGS: dict[str, FingerprintedConfig] = {OLD.fingerprint: OLD, NEW.fingerprint: NEW}


def verdict(before: Verdict | None, after: Verdict, **changed: Any) -> VerdictChange:
    change = VerdictChange(
        7, "chat", "a=b", 4, OLD.fingerprint, before, after, "all_tests_pass", "every required test passes", NOON,
        EvidenceSummary(), None,
    )  # fmt: skip
    return replace(change, **changed)


def test_verdicts_alarms_and_fingerprints_are_told_apart() -> None:
    reported = changes.verdict_changes(
        [
            verdict(None, Verdict.HOLD),
            verdict(Verdict.HOLD, Verdict.ENABLE),
            verdict(Verdict.ENABLE, Verdict.DISABLE, reason_code="drift", reason="speedup no longer holds 1.05"),
            verdict(
                Verdict.ENABLE,
                Verdict.HOLD,
                reason_code="changed_fingerprint",
                reason="ENABLE was superseded",
                supersession=Supersession(NEW.fingerprint, Verdict.ENABLE),
            ),
            verdict(Verdict.ENABLE, Verdict.DISABLE, reason_code="parity_fault", reason="1 differs"),
            verdict(Verdict.HOLD, Verdict.DISABLE, reason_code="parity_fault", reason="1 differs"),
        ],
        CONFIGS,
    )
    assert [change.kind for change in reported] == [
        ChangeKind.VERDICT,
        ChangeKind.VERDICT,
        ChangeKind.ALARM,
        ChangeKind.FINGERPRINT,
        ChangeKind.ALARM,
        ChangeKind.VERDICT,
    ]
    assert reported[4].what == "DISABLE: ENABLE is revoked"
    assert reported[0].what == "first verdict: HOLD"
    assert reported[1].what == "HOLD \u2192 ENABLE"
    assert reported[3].why.endswith(
        "different: engine (shadowspec-torch/0.1.0 torch/2.13.0 \u2192 shadowspec-torch/0.2.0), draft weights"
    )
    assert "ffff" not in reported[3].why  # a digest leads to nobody's weights
    assert {change.who for change in reported} == {"the gate"}
    assert {change.config_name for change in reported} == {"draft-k4"}


def test_advice_and_a_shift_of_one_look_are_two_changes() -> None:
    change = MixChange(2.5, True, {"speedup": RateChange(-0.1, 0.0, "all mix")})
    advice_change = AdviceChange(9, "chat", "", 4, "unknown-fingerprint", "speedup", True, True, True, NOON, change)
    reported = changes.advice_changes([advice_change], CONFIGS)
    assert [each.kind for each in reported] == [ChangeKind.ADVICE, ChangeKind.MIX]
    assert reported[1].why == "all mix"
    assert reported[0].config_name == "unknown-fing"


def test_an_override_is_told_with_its_end() -> None:
    order = replace(examples.override(), override_id=3)
    clearing = Clearing(3, "mended", "grace", NOON + timedelta(hours=1))
    expired = replace(order, override_id=4, expires_at=NOON + timedelta(hours=2))
    later = replace(order, override_id=5, expires_at=NOON + timedelta(days=2))
    records = [OverrideRecord(order, clearing), OverrideRecord(expired, None), OverrideRecord(later, None)]
    reported = changes.override_changes(records, NOON + timedelta(days=1))
    assert [(change.what.split(":")[0], change.who) for change in reported] == [
        ("override 3 set", "ada"), ("override 3 cleared", "grace"),
        ("override 4 set", "ada"), ("override 4 expired", "its expiry"),
        ("override 5 set", "ada"),
    ]  # fmt: skip
    assert reported[0].why == "it answers nonsense"


def test_rollouts_and_the_order_of_all() -> None:
    rollouts = changes.rollout_changes([examples.rollout()], CONFIGS)
    assert rollouts[0].what == "partial: 10% of the enabled traffic, drafting any context \u2264 2"
    line = changes.timeline(
        [*rollouts, *changes.verdict_changes([verdict(None, Verdict.HOLD, decided_at=NOON + timedelta(hours=1))], {})]
    )
    assert [change.at for change in line] == sorted((change.at for change in line), reverse=True)
    assert changes.timeline(line, since=NOON + timedelta(minutes=1)) == line[:1]
    assert changes.timeline(line, limit=1) == line[:1]


def test_enablings_are_changes_to_enable() -> None:
    found = before_after.enablings(
        [
            verdict(Verdict.HOLD, Verdict.ENABLE, evidence=EvidenceSummary(newest_record=NOON - timedelta(hours=2))),
            verdict(Verdict.ENABLE, Verdict.DISABLE),
            verdict(None, Verdict.ENABLE, evidence=EvidenceSummary(newest_record=NOON - timedelta(days=400))),
        ],
        CONFIGS,
    )
    assert [enabling.marked_at for enabling in found] == [NOON, NOON - timedelta(days=400)]
    assert found[0].config_name == "draft-k4"


def group(hour: int, slice_key: str = "a=b", load: int = 4, fingerprint: str = OLD.fingerprint) -> GroupSums:
    sums = RollupSums(
        num_runs=5, num_timed=5, weight=10.0, timed_weight=10.0, weighted_baseline_end_to_end_ms=1000.0,
        weighted_speculative_end_to_end_ms=500.0, baseline_decode_ms=500.0, speculative_decode_ms=250.0,
        baseline_num_output_tokens=100, speculative_num_output_tokens=100,
    )  # fmt: skip
    return GroupSums("chat", slice_key, fingerprint, load, NOON + timedelta(hours=hour), sums)


def test_hours_and_periods_of_one_hypothesis() -> None:
    (enabling,) = before_after.enablings([verdict(Verdict.HOLD, Verdict.ENABLE)], CONFIGS)
    every = [group(0), group(1), group(1, slice_key="c=d"), group(1, load=8), group(1, fingerprint="other")]
    groups = before_after.own_groups(every, enabling)
    assert groups == every[:2]
    whole = before_after.own_groups(every, replace(enabling, slice_key=""))
    assert whole == every[:3]
    points = before_after.hour_points(whole)
    assert [(each.requests_per_hour, each.baseline_ms, each.speculative_ms, each.speedup) for each in points] == [
        (10.0, 100.0, 50.0, 2.0),
        (20.0, 100.0, 50.0, 2.0),
    ]
    period = before_after.period(whole, is_after=True)
    assert (period.num_requests, period.requests_per_hour) == (15, 15.0)
    assert (period.baseline_tokens_per_s, period.speculative_tokens_per_s) == (200.0, 400.0)
    assert before_after.period([], is_after=False).requests_per_hour is None


def test_quantiles_of_too_few_requests_are_not_said() -> None:
    twenty = Histogram({10: 20}, {10: 20.0})
    found = before_after.arm_quantiles(Arm.BASELINE, twenty, is_after=True)
    assert found.quantiles[0.5] is not None
    assert found.quantiles[0.95] is not None
    assert found.quantiles[0.99] is None
    assert found.num_requests == 20


def test_the_policy_in_force_with_what_was_changed() -> None:
    gate_policy = GatePolicy(window_s=0.0, margin=0.1, entry_clusters=5)
    frozen = {"entry_clusters": 20, "z_clip": 0.2, "max_cost_per_million_tokens": None}
    decision = replace(examples.decision(), frozen_parameters=frozen)
    found = {each.name: each for each in policy.gate_parameters(gate_policy, [decision])}
    assert (found["margin"].value, found["margin"].default, found["margin"].is_changed) == ("0.1", "0.05", True)
    assert found["entry_clusters"].fixed == ("20",)
    assert not found["z_clip"].fixed
    assert not found["margin"].is_fixed_at_entry
    assert found["near_tie_logit"].value == "none"
    rollout = {each.name: each for each in policy.rollout_parameters(RolloutPolicy(partial_share=0.2))}
    assert rollout["partial_share"].is_changed
    assert not rollout["first_depth"].is_changed


@pytest.mark.parametrize("name", ["margin", "cluster_idle_s", "log_speedup_clip", "context_max_depths", "on_alarm"])
def test_parameters_have_their_meaning_from_the_template(name: str) -> None:
    from shadowspec.config.template import parameter_meanings

    assert len(parameter_meanings()[name]) > 8

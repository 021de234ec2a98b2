"""Which decisions switch something on."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from shadowspec.gate.verdict.current_decision import endpoint_decisions
from shadowspec.gate.verdict.current_verdict import overridden
from shadowspec.rollout.served_decision import Off, describe, judge_decisions
from shadowspec.store import Traffic
from shadowspec.types import Decision, EvidenceSummary, FingerprintedConfig, Override, Rollout, Stage, Verdict
from tests.rollout.export.worlds import NOW, WEEK, config, decision, judged


def test_a_fresh_enable_is_on() -> None:
    (current,) = judged([decision()])
    assert current.is_on
    assert current.num_speculative_tokens == 4
    assert current.expires_at == NOW - timedelta(hours=2) + WEEK
    assert describe([current]) == [
        "chat, whole endpoint, load 4, draft_model-4: on, 4 tokens, decision 1, measured on engine/1"
    ]


@pytest.mark.parametrize(("verdict", "off"), [(Verdict.HOLD, Off.HELD), (Verdict.DISABLE, Off.DISABLED)])
def test_another_verdict_is_off(verdict: Verdict, off: Off) -> None:
    (current,) = judged([decision(verdict, reason_code="too_few_units")])
    why = {Off.HELD: "not proven", Off.DISABLED: "proven harmful"}[off]
    assert current.off is off
    assert current.num_speculative_tokens == 0
    assert f"off ({why}; {verdict}: as the test says)" in describe([current])[0]


def test_old_evidence_and_an_old_decision_are_stale() -> None:
    second = timedelta(seconds=1)
    assert judged([decision()], evidence_at=NOW - WEEK - second)[0].off is Off.STALE
    assert judged([decision()], evidence_at=NOW - WEEK)[0].is_on
    assert judged([decision(decided_at=NOW - WEEK - second)])[0].off is Off.STALE
    unknown = endpoint_decisions([decision()], None, (), NOW, measured=(), configs={}).latest
    assert judge_decisions(unknown, now=NOW, max_age=WEEK)[0].off is Off.STALE


def test_what_a_decision_rests_on_is_dated_by_the_decision_itself() -> None:
    """What was measured since may say something else, and is not in evidence yet."""
    newest = NOW - timedelta(days=2)
    old_decision = replace(decision(), evidence=EvidenceSummary(newest_evidence=newest))
    (current,) = judged([old_decision], evidence_at=NOW)
    assert current.expires_at == newest + WEEK


@pytest.mark.parametrize("forced", [Verdict.DISABLE, Verdict.HOLD])
def test_an_overridden_decision_is_off(forced: Verdict) -> None:
    order = Override(7, "chat", "", None, forced, "incident", "ops", NOW)
    (current,) = judged([overridden(decision(), [order], NOW)])
    assert current.off is Off.OVERRIDDEN


def test_an_override_leaves_nothing_on_whatever_verdict_it_carries() -> None:
    assert judged([decision(Verdict.ENABLE, reason_code="override")])[0].off is Off.OVERRIDDEN


def test_one_fingerprint_of_a_candidate_is_on_at_most() -> None:
    old = decision(fingerprint="old", decided_at=NOW - timedelta(hours=3))
    new = decision(fingerprint="new")
    assert [current.off for current in judged([old, new])] == [Off.SUPERSEDED, None]
    held = decision(Verdict.HOLD, fingerprint="new")
    assert [current.off for current in judged([old, held])] == [Off.SUPERSEDED, Off.HELD]
    other = decision(of=config(2))
    assert all(current.is_on for current in judged([new, other]))


def test_a_fingerprint_that_is_no_longer_measured_is_off_before_the_gate_has_said_so() -> None:
    old_decision = decision(fingerprint="old")
    names = {"old": old_decision.config.name, "new": old_decision.config.name, "other": "another candidate"}
    configs = {
        each: FingerprintedConfig(
            replace(old_decision.config, name=name), old_decision.engine, "cpu", "float32", {}, each
        )
        for each, name in names.items()
    }

    def off(**hours: tuple[int, int]) -> Off | None:
        measured = [
            Traffic("", each, 4, 1.0, NOW.replace(hour=first), NOW.replace(hour=newest))
            for each, (first, newest) in hours.items()
        ]
        found = endpoint_decisions([old_decision], None, (), NOW, measured=measured, configs=configs)
        return judge_decisions(found.latest, now=NOW, max_age=WEEK, configs=configs)[0].off

    assert off(old=(1, 8), new=(9, 9)) is Off.SUPERSEDED
    assert off(old=(1, 9), new=(9, 9)) is Off.SUPERSEDED, "both are measured while one takes over from the other"
    assert off(old=(8, 8), new=(8, 8)) is Off.SUPERSEDED, "the gate would have judged the new one if it were older"
    assert off(old=(1, 11), new=(8, 9)) is None, "it came back"
    assert off(old=(1, 8), other=(9, 9)) is None


@pytest.mark.parametrize(
    ("measured", "expected", "is_on"),
    [
        ("vllm/0.32.0", "vllm", True),
        ("vllm/0.32.0", "vllm/0.32.0", True),
        ("vllm/0.32.0", "vllm/0.31.0", False),
        ("shadowspec-torch/0.1 torch/2.13.0", "vllm", False),
        ("vllm/0.32.0 torch/2.13.0", "torch/2.13.0", True),
        ("vllm-fork/1.0", "vllm", False),
    ],
)
def test_another_engine_is_off(measured: str, expected: str, is_on: bool) -> None:
    (current,) = judged([decision(engine=measured)], engine=expected)
    assert current.off is (None if is_on else Off.OTHER_ENGINE)


def rollout(stage: Stage, *, fingerprint: str = "fp-draft_model-4", share: float = 0.2, **caps: int) -> Rollout:
    named = {"" if name == "any" else name: cap for name, cap in caps.items()}
    return Rollout("chat", 4, stage, fingerprint, NOW, NOW, "advanced", "it stands", depth_caps=named, share=share)


def test_a_rollout_says_what_is_served() -> None:
    def only(*rollouts: Rollout) -> tuple[Off | None, int, float]:
        (current,) = judged([decision()], rollouts=rollouts)
        return current.off, current.num_speculative_tokens, current.share

    assert only(rollout(Stage.SHADOW)) == (Off.NOT_ROLLED_OUT, 0, 1.0)
    assert only(rollout(Stage.PARTIAL, any=4)) == (None, 4, 0.2)
    assert only(rollout(Stage.PARTIAL, any=3)) == (Off.TOO_DEEP, 0, 1.0), "3 tokens were never measured"
    assert only(rollout(Stage.PARTIAL, any=0))[0] is Off.TOO_DEEP, "no depth is proven within the limits"
    assert only(rollout(Stage.BROAD, any=9, share=1.0)) == (None, 4, 1.0)
    assert only(rollout(Stage.BROAD, fingerprint="other", any=9))[0] is Off.NOT_ROLLED_OUT
    assert only(rollout(Stage.PARTIAL, any=4, share=0.0))[0] is Off.NOT_ROLLED_OUT
    assert only(rollout(Stage.PARTIAL, any=4, long=1))[0] is Off.TOO_DEEP, "any context: the smallest depth holds"


def test_a_smaller_depth_is_served_by_the_decision_that_proves_it() -> None:
    def served(*decisions: Decision, depth: int) -> dict[str, Off | None]:
        found = judged(decisions, rollouts=[rollout(Stage.PARTIAL, any=depth)])
        return {f"{one.decision.config.draft} {one.decision.config.num_speculative_tokens}": one.off for one in found}

    deep, shallow = decision(), decision(of=config(2))
    other = replace(shallow, fingerprint="other", config=replace(shallow.config, name="another", draft="another"))
    draft = deep.config.draft
    found = served(deep, shallow, other, depth=2)
    assert found == {f"{draft} 4": Off.TOO_DEEP, f"{draft} 2": None, "another 2": Off.NOT_ROLLED_OUT}
    found = served(deep, shallow, depth=4)
    assert found == {f"{draft} 4": None, f"{draft} 2": Off.NOT_ROLLED_OUT}
    assert served(deep, replace(shallow, verdict=Verdict.HOLD), depth=2) == {
        f"{draft} 4": Off.TOO_DEEP,
        f"{draft} 2": Off.HELD,
    }


def test_a_slice_of_one_context_has_its_own_cap() -> None:
    old_decision = decision(slice_key="context_bucket=long")
    (current,) = judged([old_decision], rollouts=[rollout(Stage.BROAD, any=1, long=4, share=1.0)])
    assert current.num_speculative_tokens == 4

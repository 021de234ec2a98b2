"""The next step: every reason has one, the board gives it for rows without a decision, and orders come first."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from shadowspec.gate.verdict.reasons import REASONS
from shadowspec.reports.content.next_steps import next_action, next_step
from shadowspec.reports.pages.board import build_board
from shadowspec.types import EvidenceSummary, OverriddenVerdict, Override, ReasonCode, Rollout, Stage, Verdict
from tests.builders.board_values import board, decision, sums, values
from tests.reports.worlds import NOW

ORDER = Override(7, "chat", "", None, Verdict.DISABLE, "it answers nonsense", "ada", NOW)


@pytest.mark.parametrize("code", ReasonCode)
def test_every_reason_has_a_step(code: ReasonCode) -> None:
    assert next_action(decision(reason_code=code, clusters_needed=50)) == REASONS[code].step


def test_a_reason_of_a_later_version_has_a_step_too() -> None:
    assert next_action(decision(reason_code="unheard_of")).startswith("send traffic")


def test_a_hold_counts_what_is_needed_before_the_order() -> None:
    held = decision(clusters_needed=50)
    assert next_step(held) == (
        "chat HOLD: about 50 more sessions (12 hours of this traffic); send traffic, then run `shadowspec gate` again"
    )
    assert next_action(held) == "send traffic, then run `shadowspec gate` again"
    assert next_action(replace(held, recording_only=True)).startswith("record more sessions")


def test_a_hold_that_more_traffic_will_not_decide_asks_the_plan() -> None:
    step = next_action(decision())
    assert step.startswith("try another candidate: more of this traffic is not expected to decide the speedup")
    assert "send traffic" in next_action(decision(reason_code="too_few_clusters"))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"verdict": Verdict.ENABLE}, "`shadowspec check --endpoint chat` shows the missing conditions of draft-k4"),
        ({"verdict": Verdict.ENABLE, "recording_only": True}, "valid for the recording only"),
        ({"verdict": Verdict.DISABLE, "reason_code": "slowdown"}, "keep speculation off; to try now"),
        ({"verdict": Verdict.DISABLE, "reason_code": "parity_fault"}, "report the difference"),
        ({"override": OverriddenVerdict(7, None, Verdict.ENABLE, "fast")}, "`shadowspec override clear 7` ends it"),
    ],
)
def test_each_verdict_has_its_order(changes: dict[str, object], said: str) -> None:
    assert said in next_action(replace(decision(), **changes))  # type: ignore[arg-type]


def test_rows_without_a_decision_have_a_step_too() -> None:
    (unmeasured,) = board().endpoints
    assert unmeasured.head.next_action.startswith("measure its traffic with `shadowspec run FILE`")
    assert unmeasured.head.reason == "no request was measured yet"
    (measured,) = build_board(values([], [sums("chat", "", 0, num_runs=3)]), (), NOW).endpoints
    assert measured.head.next_action.startswith("run `shadowspec gate`")
    (ordered,) = board(overrides=(ORDER,)).endpoints
    assert "`shadowspec override clear 7` ends it" in ordered.head.next_action


def test_what_is_rolled_out_stays_on() -> None:
    enabled = decision(verdict=Verdict.ENABLE, engine="vllm/0.32.0")
    of_16 = replace(enabled, concurrency=16)
    caps = {"": enabled.config.num_speculative_tokens}
    rollout = Rollout("chat", 4, Stage.BROAD, enabled.fingerprint, NOW, NOW, "", "", share=1.0, depth_caps=caps)

    def step(**changes: Any) -> str:
        rollouts = [replace(rollout, concurrency=load, **changes) for load in (4, 16)]
        (endpoint,) = build_board(replace(values([enabled, of_16]), rollouts=rollouts), (), NOW).endpoints
        return endpoint.head.next_action

    assert step().startswith("keep speculation on")
    promote = "promote draft-k4: `shadowspec check --endpoint chat`, then `shadowspec export --endpoint chat`"
    assert step(stage=Stage.PARTIAL, share=0.5) == promote
    assert step(stage=Stage.SHADOW, share=0.0).startswith("wait for the rollout, which serves 0% yet")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, "measure on the engine that serves, through its servers"),
        (
            {"engine": "vllm/0.32.0", "evidence": EvidenceSummary(newest_evidence=NOW - timedelta(days=8))},
            "measure newer",
        ),
        ({"engine": "vllm/0.32.0"}, "promote draft-k4: `shadowspec check --endpoint chat`"),
    ],
)
def test_the_board_promotes_only_what_an_export_switches_on(changes: dict[str, Any], said: str) -> None:
    decisions = [decision(verdict=Verdict.ENABLE, concurrency=load, **changes) for load in (4, 16)]
    (endpoint,) = build_board(values(decisions), (), NOW).endpoints
    assert endpoint.head.next_action.startswith(said)

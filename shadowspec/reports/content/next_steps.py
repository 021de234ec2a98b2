"""The next step of an endpoint: the command to run, or the evidence to wait for."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final

from shadowspec.gate.verdict.figure_texts import subject_of
from shadowspec.gate.verdict.hold_reasons import not_trending, still_needed
from shadowspec.gate.verdict.reasons import REASONS, SEND_TRAFFIC
from shadowspec.reports.content.definitions import find_test
from shadowspec.rollout.check.answer import Answer
from shadowspec.rollout.check.outcome import Outcome
from shadowspec.rollout.check.plain_text import finding_title
from shadowspec.rollout.served_decision import Off
from shadowspec.text import plain_text
from shadowspec.types import Decision, ReasonCode, Verdict

RECORD_MORE: Final = "record more sessions and try them with another --out"
# Of an ENABLE that exports switch off, by why; the first that applies.
OFF_STEPS: Final = {
    Off.NOT_FOR_SERVING: "measure on the engine that serves, through its servers, and name it (serving_engine, "
    "docs/policy.md). This verdict is for an engine without clients, and exports refuse it",
    Off.STALE: "measure newer traffic, then run `shadowspec gate`: the evidence is older than exports accept",
    Off.SUPERSEDED: "run `shadowspec gate`: the candidate was measured again, with another fingerprint",
    Off.NOT_ROLLED_OUT: "wait for the rollout, which serves 0% yet. Continue to measure and run `shadowspec gate`, "
    "which prints the conditions of the next stage",
    Off.FLEET: f"{SEND_TRAFFIC}: the fleet's false discovery rate (fleet_fdr) asks for more evidence",
    Off.TOO_DEEP: "serve the smaller depth that the rollout is at; `shadowspec gate` moves it deeper",
}
MEASURED_ONLY: Final = "run `shadowspec gate`: requests are measured, and the gate has not decided on them"
NOT_MEASURED: Final = (
    "measure its traffic with `shadowspec run FILE`; `shadowspec doctor --traffic FILE` shows the matches"
)
STEPS: Final = {code.value: text.step for code, text in REASONS.items()}


def best_decision(decisions: Iterable[Decision]) -> Decision | None:
    """The decision on the whole endpoint with the best verdict, then with the best lower bound of speedup."""

    def merit(decision: Decision) -> tuple[bool, float]:
        speedup = find_test(decision, "speedup")
        lower = None if speedup is None else speedup.lower
        return decision.verdict is Verdict.ENABLE, -math.inf if lower is None else lower

    return max((decision for decision in decisions if not decision.slice_key), key=merit, default=None)


def keep_off(override_id: int) -> str:
    """What to do while an override is in force."""
    return f"keep speculation off while the override is in force; `shadowspec override clear {override_id}` ends it"


def is_on(answer: Answer | None) -> bool:
    """Whether `check` passes, and an export switches on what it asks about."""
    return answer is not None and answer.outcome is Outcome.ENABLE


def next_action(decision: Decision, answer: Answer | None = None) -> str:
    """What to do after a decision, as an order: `send traffic, then run `shadowspec gate` again`.

    `answer` is that of `check` on the decision's slice or endpoint: only where it is ENABLE the order is to promote.
    """
    if decision.override is not None:
        return keep_off(decision.override.override_id)
    if decision.verdict is Verdict.ENABLE and decision.recording_only:
        return "measure mirrored traffic with a production policy: this verdict is valid for the recording only"
    if decision.verdict is Verdict.ENABLE:
        return _promotion(decision, answer)
    is_estimated = bool(decision.clusters_needed)
    if decision.reason_code == ReasonCode.TOO_FEW_UNITS and not is_estimated and (undecided := not_trending(decision)):
        return (
            "try another candidate: more of this traffic is not expected to decide "
            f"{', '.join(f'the {subject_of(test)}' for test in undecided)} (`shadowspec plan`)"
        )
    step = STEPS.get(decision.reason_code, SEND_TRAFFIC)  # the latter of a later version's decision
    return RECORD_MORE if decision.recording_only and step == SEND_TRAFFIC else step


def _promotion(decision: Decision, answer: Answer | None) -> str:
    """The order after an ENABLE: to promote it, or what it lacks before `check` passes and an export is on."""
    name, config = plain_text(decision.endpoint), plain_text(decision.config.name)
    labels = (
        ""
        if answer is None
        else "".join(f" --slice {key}={value}" for key, value in answer.question.slice_labels.items())
    )
    asking = f"`shadowspec check --endpoint {name}{plain_text(labels)}`"
    if answer is None:
        return f"{asking} shows the missing conditions of {config}"
    if is_on(answer):
        return f"promote {plain_text(str(answer.config_name))}: {asking}, then `shadowspec export --endpoint {name}`"
    finding = answer.blocking[0]
    offs = {load.off_because for load in finding.loads}
    step = next((step for off, step in OFF_STEPS.items() if off in offs), None)
    return step or f"{asking} answers {answer.outcome}: {finding_title(finding)}, {finding.reason}"


def next_step(decision: Decision, answer: Answer | None = None) -> str:
    """What to do after the decision that speaks for its endpoint, such as
    `chat HOLD: about 40 more sessions (5 minutes of this traffic); send traffic, then run `shadowspec gate` again`.
    """
    needed, action = still_needed(decision), next_action(decision, answer)
    step = action if needed is None or decision.verdict is not Verdict.HOLD else f"{needed.text}; {action}"
    return f"{plain_text(decision.endpoint)} {decision.verdict}: {step}"

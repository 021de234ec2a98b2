"""The answer in plain text, line by line, for a log and a JUnit report."""

from __future__ import annotations

from shadowspec.rollout.check.answer import Answer, Bounds, Finding, Role
from shadowspec.rollout.check.outcome import Outcome
from shadowspec.text import DASH, age, moment, percent, plain_text, slice_title, times
from shadowspec.types.serving_engines import verdict_engine_text

SHOWN_CHARACTERS = 12  # of a fingerprint

_ROLE = {
    Role.REQUIRED: "must be ENABLE",
    Role.WATCHED: "must not be DISABLE",
    Role.ORDERED: "ordered by an operator",
    Role.SHOWN: "shown only, under 5% of the traffic",
}
_UPGRADE_ROLE = {Role.REQUIRED: "must be REPLACE", Role.WATCHED: "must not be KEEP"}
_UPGRADE_MEANING = {
    Outcome.ENABLE: "{} may replace the deployment that serves",
    Outcome.DISABLE: "{} must not replace the deployment that serves",
    Outcome.HOLD: "whether {} may replace the deployment that serves is not decided yet",
    Outcome.UNUSABLE: "there is no usable verdict on {}",
}


def answer_lines(answer: Answer) -> list[str]:
    """The answer, its subject, and every finding with its evidence."""
    lines = [headline(answer), *subject_lines(answer)]
    for finding in answer.findings:
        lines += [
            "",
            f"{finding_title(finding)}: {answer.shown(finding.outcome)} ({_role(answer, finding)})",
            f"  speedup {speedup_text(finding.speedup)}, since {moment(finding.since)}, "
            f"evidence age {age(finding.age)}, traffic {percent(finding.traffic_share)}, {decisions_text(finding)}",
            f"  {finding.reason}",
        ]
    return lines


def _role(answer: Answer, finding: Finding) -> str:
    words = _ROLE[finding.role]
    return words if not answer.question.is_upgrade else _UPGRADE_ROLE.get(finding.role, words)


def headline(answer: Answer) -> str:
    """The outcome in one sentence."""
    asked = f"{answer.question.endpoint}{_describe_question(answer)}"
    if answer.problem is not None:
        return f"no answer for {asked}: {plain_text(answer.problem)}"
    blocking = answer.blocking
    if answer.question.is_upgrade:
        because = ", ".join(finding_title(finding) for finding in blocking if finding.outcome is answer.outcome)
        said = _UPGRADE_MEANING[answer.outcome].format(answer.config_name)
        return f"{answer.shown_outcome} {asked}: {said}{f' ({because})' if because else ''}"
    if answer.outcome is Outcome.ENABLE:
        where = "here" if answer.is_for_serving else f"for {plain_text(answer.verdict_engine)} only"
        limit = answer.schedule_limit if answer.question.accepts_schedule else None
        up_to = "" if limit is None else f" up to load {limit}, and off above"
        part = "" if answer.served_share >= 1.0 else f", for {percent(answer.served_share, 0)} of the traffic"
        return f"ENABLE {asked}: speculation with {answer.config_name} is proven {where}{up_to}{part}"
    named = ", ".join(finding_title(finding) for finding in blocking if finding.outcome is answer.outcome)
    meaning = {
        Outcome.DISABLE: f"speculation with {answer.config_name} must stay off",
        Outcome.HOLD: f"speculation with {answer.config_name} is not proven or not rolled out yet",
        Outcome.UNUSABLE: "there is no usable verdict",
    }
    said = f"{answer.outcome} {asked}: {meaning[answer.outcome]} ({named})"
    if answer.outcome is Outcome.DISABLE and (limit := answer.schedule_limit) is not None:
        said += f"; a schedule is proven, on up to load {limit} and off above: --accept-schedule accepts it"
    return said


def subject_lines(answer: Answer) -> list[str]:
    """The answer's config and engine, the candidates that it was chosen from, and its remarks."""
    if answer.config_name is None:
        return []
    fingerprints = ", ".join(fingerprint[:SHOWN_CHARACTERS] for fingerprint in answer.fingerprints)
    lines = [f"config {answer.config_name}, fingerprint {fingerprints}, measured with {engines_text(answer)}"]
    lines.append(f"the verdict is for {verdict_engine_words(answer)}")
    if answer.others:
        lines.append("other candidates: " + ", ".join(f"{name} {outcome}" for name, outcome in answer.others))
    loads = [] if answer.loads is None else answer.loads.lines()
    return [*lines, *(f"loads: {line}" for line in loads), *(plain_text(remark) for remark in answer.remarks)]


def engines_text(answer: Answer) -> str:
    """The engines on which its latency was measured, by name and version."""
    return plain_text("; ".join(answer.engines) or "unknown")


def verdict_engine_words(answer: Answer) -> str:
    """The engine that the answer is for, with the remark that the endpoint names none."""
    return plain_text(verdict_engine_text(answer.serving_engine, " ".join(answer.engines)))


def finding_title(finding: Finding) -> str:
    """The slice; of an order, its number before it."""
    order = "" if finding.override_id is None else f"override {finding.override_id}: "
    return plain_text(f"{order}{slice_title(finding.slice_key)}")


def speedup_text(bounds: Bounds | None) -> str:
    """Estimate with bounds, as in `1.31x [1.12x, 1.54x]`."""
    return f"{times(bounds.estimate)} [{times(bounds.lower)}, {times(bounds.upper)}]" if bounds else DASH


def decisions_text(finding: Finding) -> str:
    """The ids by which the decisions can be looked up and explained."""
    ids = ", ".join(str(decision.decision_id) for decision in finding.decisions) or "none"
    return f"{'decision' if len(finding.decisions) == 1 else 'decisions'} {ids}"


def _describe_question(answer: Answer) -> str:
    question = answer.question
    parts = [f"{name}={value}" for name, value in question.slice_labels.items()]
    if question.concurrency is not None:
        parts.append(f"load {question.concurrency}")
    return plain_text(f" ({', '.join(parts)})") if parts else ""

"""One finding from the decisions at several loads, each weighed by its share of the endpoint's traffic."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from itertools import groupby

from shadowspec.gate.verdict.current_decision import LatestDecision, is_stale
from shadowspec.gate.verdict.slice_rules import SHARE_TOLERANCE, bears_on_endpoint
from shadowspec.rollout.check.answer import Bounds, CheckInput, Finding, LoadFinding, Question, Role
from shadowspec.rollout.check.outcome import Outcome
from shadowspec.rollout.served_decision import ServedDecision
from shadowspec.text import age as age_text
from shadowspec.text import percent, plain_text, sentence
from shadowspec.types import Decision, TestResult, Verdict

Place = tuple[str, int, str]  # slice key, concurrency, fingerprint


def find(
    slice_key: str,
    role: Role,
    fingerprint: str,
    shares: Mapping[int, float],
    traffic_share: float | None,
    served: Mapping[Place, ServedDecision],
    inputs: CheckInput,
    question: Question,
    now: datetime,
) -> Finding:
    """The finding on the endpoint as a whole ("") or one slice; `shares` are those of its loads and add up to 1.

    DISABLE where it is at loads that carry MIN_SLICE_SHARE of the traffic together.  ENABLE where it is at all loads;
    or at all but less than that, if the speedup is still proven on average over the loads.  ENABLE up to a load and
    DISABLE at every larger one is a schedule: ENABLE where the question accepts that, else DISABLE and never HOLD.
    """
    loads = tuple(
        _load(slice_key, concurrency, share, fingerprint, served, inputs, question, now)
        for concurrency, share in sorted(shares.items())
    )
    by_outcome = {outcome: sum(load.share for load in loads if load.outcome is outcome) for outcome in Outcome}
    speedup, is_proven = _speedup(loads, inputs.terms.policy.log_speedup_clip)
    if bears_on_endpoint(by_outcome[Outcome.DISABLE]):
        outcome = Outcome.DISABLE
    elif bears_on_endpoint(by_outcome[Outcome.UNUSABLE]):
        outcome = Outcome.UNUSABLE
    else:
        missing = 1.0 - by_outcome[Outcome.ENABLE]
        is_enabled = missing <= SHARE_TOLERANCE or (not bears_on_endpoint(missing) and is_proven)
        outcome = Outcome.ENABLE if is_enabled else Outcome.HOLD
    on_up_to = _on_up_to(loads)
    if on_up_to is not None and question.accepts_schedule:
        outcome = Outcome.ENABLE
    elif on_up_to is not None and outcome is Outcome.HOLD:
        outcome = Outcome.DISABLE
    decisions = [load.decision for load in loads if load.decision is not None and load.outcome is outcome]
    return Finding(
        slice_key=slice_key,
        role=role,
        outcome=outcome,
        reason=_reason(loads),
        traffic_share=traffic_share,
        speedup=speedup,
        since=max((decision.since for decision in decisions), default=None),
        age=max((load.age for load in loads if load.age is not None), default=None),
        loads=loads,
        on_up_to=on_up_to,
    )


def _on_up_to(loads: Sequence[LoadFinding]) -> int | None:
    """The last of the loads at ENABLE, where DISABLE follows at every larger one; None where it is otherwise."""
    groups = [(outcome, list(group)) for outcome, group in groupby(loads, key=lambda load: load.outcome)]
    is_schedule = [outcome for outcome, _ in groups] == [Outcome.ENABLE, Outcome.DISABLE]
    return groups[0][1][-1].concurrency if is_schedule else None


def _load(
    slice_key: str,
    concurrency: int,
    share: float,
    fingerprint: str,
    served: Mapping[Place, ServedDecision],
    inputs: CheckInput,
    question: Question,
    now: datetime,
) -> LoadFinding:
    here = [
        latest
        for latest in inputs.decisions.latest
        if (latest.decision.slice_key, latest.decision.concurrency) == (slice_key, concurrency)
    ]
    own = next((latest for latest in here if latest.is_current and latest.decision.fingerprint == fingerprint), None)
    if own is None:
        return LoadFinding(concurrency, share, None, None, _explain_unjudged(here, fingerprint, inputs))
    decision, evidence_at = own.decision, own.evidence_at
    age = None if evidence_at is None else max(now - evidence_at, timedelta(0))
    problem = _staleness(decision, age, question.max_age, now) if is_stale(evidence_at, question.max_age, now) else None
    return LoadFinding(concurrency, share, served[slice_key, concurrency, fingerprint], age, problem)


def _explain_unjudged(here: Sequence[LatestDecision], fingerprint: str, inputs: CheckInput) -> str | None:
    """A note where only another fingerprint of the same candidate was decided; None without one."""
    config = inputs.configs.get(fingerprint)
    if config is None or config.config.name not in {latest.decision.config.name for latest in here}:
        return None
    name = config.config.name
    return (
        f"the candidate {name} is measured with fingerprint {fingerprint[:12]} now, which the gate has not judged yet"
    )


def _staleness(decision: Decision, age: timedelta | None, limit: timedelta | None, now: datetime) -> str:
    """Why a decision is too old to be used."""
    if age is None:
        return f"stale: there is no evidence as young as {age_text(limit)}"
    if age == now - decision.decided_at:  # later measurements are not in evidence
        return f"stale: decided {age_text(age)} ago, the limit is {age_text(limit)}"
    return f"stale: the newest evidence is {age_text(age)} old, the limit {age_text(limit)}"


def _speedup(loads: Sequence[LoadFinding], clip: float) -> tuple[Bounds | None, bool]:
    """The mean speedup over the loads (of logarithms, by share), and whether it is proven against the threshold.

    The bounds of all loads hold at once, so that any weighted mean of them holds too.
    """
    tests = [(load.share, _speedup_test(load.decision)) for load in loads]
    judged = [test for _, test in tests if test is not None]
    if not judged:
        return None, False
    lower = sum(share * _log(test.lower if test else None, -clip) for share, test in tests)
    upper = sum(share * _log(test.upper if test else None, clip) for share, test in tests)
    known = [(share, test.estimate) for share, test in tests if test is not None and test.estimate]
    estimate = math.exp(sum(share * math.log(value) for share, value in known)) if len(known) == len(tests) else None
    thresholds = [test.threshold for test in judged if test.threshold]
    is_proven = bool(thresholds) and lower > math.log(max(thresholds))
    return Bounds(estimate, math.exp(lower), math.exp(upper)), is_proven


def _speedup_test(decision: Decision | None) -> TestResult | None:
    return decision.find_test("speedup") if decision else None


def _log(bound: float | None, otherwise: float) -> float:
    return math.log(bound) if bound else otherwise


def _reason(loads: Sequence[LoadFinding]) -> str:
    said = [_describe(load) for load in loads]
    if len(loads) == 1:
        return said[0]
    return " ".join(
        f"Load {load.concurrency} ({percent(load.share)}) is {load.outcome}: {text.rstrip('.')}."
        for load, text in zip(loads, said, strict=True)
    )


def _describe(load: LoadFinding) -> str:
    if load.decision is None:
        return load.problem or f"not judged at load {load.concurrency}"
    reason, why = plain_text(load.decision.reason), load.problem
    if load.served is not None and load.decision.verdict is Verdict.ENABLE and not why:
        why = plain_text(load.served.reason)
    return f"{sentence(why)} {load.decision.verdict}: {reason}" if why else reason

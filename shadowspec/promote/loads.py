"""One finding from the decisions at several loads, each weighed by its share of the endpoint's traffic."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final

from shadowspec.gate.endpoint import SHARE_TOLERANCE, bears_on_endpoint
from shadowspec.promote.answer import Bounds, Finding, LoadFinding, Role
from shadowspec.promote.outcome import Outcome
from shadowspec.promote.question import Question, Standing
from shadowspec.types import Decision, TestResult, Verdict
from shadowspec.words import age as age_text
from shadowspec.words import percent, plain_text

_WORST_FIRST: Final = (Verdict.DISABLE, Verdict.HOLD, Verdict.ENABLE)


def find(
    slice_key: str,
    role: Role,
    fingerprints: Collection[str],
    shares: Mapping[int, float],
    traffic_share: float | None,
    standing: Standing,
    question: Question,
    now: datetime,
) -> Finding:
    """The finding on the endpoint as a whole ("") or one slice; `shares` are those of its loads and add up to 1.

    DISABLE where it is at loads that carry MIN_SLICE_SHARE of the traffic together.  ENABLE where it is at all loads;
    or at all but less than that, if the speedup is still proven on average over the loads.
    """
    loads = tuple(
        _load(slice_key, concurrency, share, fingerprints, standing, question, now)
        for concurrency, share in sorted(shares.items())
    )
    by_outcome = {each: sum(load.share for load in loads if load.outcome is each) for each in Outcome}
    speedup, is_proven = _speedup(loads, standing.log_speedup_clip)
    if bears_on_endpoint(by_outcome[Outcome.DISABLE]):
        outcome = Outcome.DISABLE
    elif bears_on_endpoint(by_outcome[Outcome.UNUSABLE]):
        outcome = Outcome.UNUSABLE
    else:
        missing = 1.0 - by_outcome[Outcome.ENABLE]
        is_enabled = missing <= SHARE_TOLERANCE or (not bears_on_endpoint(missing) and is_proven)
        outcome = Outcome.ENABLE if is_enabled else Outcome.HOLD
    own = [load.decision for load in loads if load.decision is not None and load.outcome is outcome]
    return Finding(
        slice_key=slice_key,
        role=role,
        outcome=outcome,
        reason=_reason(loads),
        traffic_share=traffic_share,
        speedup=speedup,
        since=max(map(_since, own), default=None),
        age=max((load.age for load in loads if load.age is not None), default=None),
        loads=loads,
    )


def _load(
    slice_key: str,
    concurrency: int,
    share: float,
    fingerprints: Collection[str],
    standing: Standing,
    question: Question,
    now: datetime,
) -> LoadFinding:
    """The worst decision, where a config is measured under several fingerprints at once (two devices, a change)."""
    own = [
        d
        for d in standing.decisions
        if d.endpoint == question.endpoint
        and d.slice_key == slice_key
        and d.concurrency == concurrency
        and d.fingerprint in fingerprints
    ]
    decision = min(own, key=lambda d: (_WORST_FIRST.index(d.verdict), d.fingerprint), default=None)
    if decision is None:
        return LoadFinding(concurrency, share, None, None)
    newest = _newest_evidence(decision, standing)
    age = max(now - newest, timedelta(0)) if newest else None
    return LoadFinding(concurrency, share, decision, age, _staleness(decision, age, question.max_age, now))


def _newest_evidence(decision: Decision, standing: Standing) -> datetime | None:
    """When the newest of what the decision rests on happened, or the hour of the newest that was measured.

    An hour counts from its start: evidence is never younger than it is said to be.
    """
    stored = decision.details.get("newest_evidence")
    if isinstance(stored, str):
        return datetime.fromisoformat(stored)
    hours = (
        row.newest_hour
        for row in standing.traffic
        if decision.slice_key in ("", row.slice_key)
        and (row.concurrency, row.fingerprint) == (decision.concurrency, decision.fingerprint)
    )
    return max(hours, default=None)


def _staleness(decision: Decision, age: timedelta | None, limit: timedelta | None, now: datetime) -> str | None:
    """Why a decision is too old to be used; None if it is not."""
    if limit is None:
        return None
    if age is None:
        return f"stale: there is no evidence as young as {age_text(limit)}"
    if age > limit:
        return f"stale: the newest evidence is {age_text(age)} old, the limit {age_text(limit)}"
    if now - decision.decided_at > limit:
        return f"stale: decided {age_text(now - decision.decided_at)} ago, the limit is {age_text(limit)}"
    return None


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
    return next((test for test in decision.tests if test.name == "speedup"), None) if decision else None


def _log(bound: float | None, otherwise: float) -> float:
    return math.log(bound) if bound else otherwise


def _since(decision: Decision) -> datetime:
    stored = decision.details.get("verdict_since")
    return datetime.fromisoformat(stored) if isinstance(stored, str) else decision.decided_at


def _reason(loads: Sequence[LoadFinding]) -> str:
    said = [_said(load) for load in loads]
    if len(loads) == 1:
        return said[0]
    return "; ".join(
        f"load {load.concurrency} ({percent(load.share)}) {load.outcome}: {text}"
        for load, text in zip(loads, said, strict=True)
    )


def _said(load: LoadFinding) -> str:
    if load.decision is None:
        return f"not judged at load {load.concurrency}"
    reason = plain_text(load.decision.reason)
    return f"{load.problem}; {load.decision.verdict}, {reason}" if load.problem else reason

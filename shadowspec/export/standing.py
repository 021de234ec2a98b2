"""Which decisions switch something on, and why the others do not.

On is an ENABLE that stands, is fresh and is not overridden, of the engine that was asked for, of the one
fingerprint of its candidate that stands, and rolled out where stages are used.  All else is off, with its reason.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Protocol

from shadowspec.engine_names import is_measured_on
from shadowspec.gate.overrides import REASON_CODE as OVERRIDE
from shadowspec.types import Decision, Override, Rollout, Stage, Verdict

Hypothesis = tuple[str, str, int, str]  # endpoint, slice key, concurrency, fingerprint


class Measured(Protocol):
    """What says that something was measured in an hour: the key of a rollup."""

    @property
    def endpoint(self) -> str: ...
    @property
    def hour(self) -> datetime: ...
    @property
    def slice_key(self) -> str: ...
    @property
    def fingerprint(self) -> str: ...
    @property
    def concurrency(self) -> int: ...


class Off(StrEnum):
    """Why a decision exports as off."""

    HELD = "held"
    DISABLED = "disabled"
    OVERRIDDEN = "overridden"
    STALE = "stale"  # no evidence younger than the largest age
    OTHER_ENGINE = "other_engine"  # measured with another engine than the one asked for
    SUPERSEDED = "superseded"  # its candidate has been measured with another fingerprint since
    AMBIGUOUS = "ambiguous"  # more than one fingerprint of the same candidate stands
    NOT_ROLLED_OUT = "not_rolled_out"  # the endpoint's stage is shadow, or another config is rolled out


@dataclass(frozen=True, slots=True)
class Standing:
    """What one decision exports as.

    `expires_at` is when its evidence becomes stale; `off` is None where it is on.  `max_num_speculative_tokens` is
    the depth that the rollout allows (None: any), `share` how much of the traffic it lets through.
    """

    decision: Decision
    expires_at: datetime
    off: Off | None
    max_num_speculative_tokens: int | None = None
    share: float = 1.0

    @property
    def is_on(self) -> bool:
        return self.off is None

    @property
    def num_speculative_tokens(self) -> int:
        if not self.is_on:
            return 0
        depth = self.decision.config.num_speculative_tokens
        return depth if self.max_num_speculative_tokens is None else min(depth, self.max_num_speculative_tokens)

    @property
    def speedup_lower(self) -> float:
        """Lower bound of the speedup; 0 where there is none."""
        bounds = [test.lower for test in self.decision.tests if test.name == "speedup"]
        return bounds[0] if bounds and bounds[0] is not None else 0.0


def judge_decisions(
    decisions: Iterable[Decision],
    *,
    newest: Mapping[Hypothesis, datetime],
    now: datetime,
    max_age: timedelta,
    names: Mapping[str, str] | None = None,
    engine: str | None = None,
    rollouts: Iterable[Rollout] = (),
) -> list[Standing]:
    """Every decision, as overrides leave it, with what it exports as.

    `newest` is when the newest evidence of each happened; one that is not in it has none that is young enough.
    `names` are the candidates' names by fingerprint, also of those on which nothing was decided yet.  `engine`, by
    name or by name and version ("vllm", "vllm/0.32.0"), turns off what others measured.  Where an endpoint has a
    rollout at a load, that says what is served of it; where it has none, stages are not used.
    """
    stages = {(rollout.endpoint, rollout.concurrency): rollout for rollout in rollouts}
    standings = [_judge(decision, newest, now, max_age, engine) for decision in decisions]
    current = _current(newest, names or {})
    standings = [_unsuperseded(standing, current) for standing in standings]
    fingerprints: dict[tuple[str, str, int, str], set[str]] = defaultdict(set)
    for standing in standings:
        if standing.is_on:
            fingerprints[_candidate(standing.decision)].add(standing.decision.fingerprint)
    return [_rolled_out(_unambiguous(standing, fingerprints), stages) for standing in standings]


def evidence_times(measured: Iterable[Measured]) -> dict[Hypothesis, datetime]:
    """When the newest evidence of each hypothesis happened, from the hours in which anything was measured.

    The start of the hour stands for it, so that evidence is never taken for younger than it is.
    """
    newest: dict[Hypothesis, datetime] = {}
    for key in measured:
        for slice_key in {"", key.slice_key}:
            hypothesis = key.endpoint, slice_key, key.concurrency, key.fingerprint
            newest[hypothesis] = max(newest.get(hypothesis, key.hour), key.hour)
    return newest


def is_disabled(standing: Standing) -> bool:
    """Whether harm is proven or an operator has ordered it off, fresh or not."""
    return standing.off in (Off.DISABLED, Off.OVERRIDDEN)


def describe(standings: Sequence[Standing]) -> list[str]:
    """One line for each: what it is about, what it exports as, and the decision that says so."""
    return [_line(standing) for standing in standings]


def describe_orders(overrides: Iterable[Override]) -> list[str]:
    """One line for each order in force on some slices, whether anything was decided there or not."""
    lines = []
    for order in (each for each in overrides if each.slice_key):
        load = "every load" if order.concurrency is None else f"concurrency {order.concurrency}"
        covered = f"{order.endpoint}, {order.slice_key}, {load}"
        lines.append(f"{covered}: off, and what cannot tell these slices apart (override {order.override_id})")
    return lines


def _judge(
    decision: Decision,
    newest: Mapping[Hypothesis, datetime],
    now: datetime,
    max_age: timedelta,
    engine: str | None,
) -> Standing:
    hypothesis = decision.endpoint, decision.slice_key, decision.concurrency, decision.fingerprint
    since = min(decision.decided_at, newest.get(hypothesis, now - max_age))
    expires_at = since + max_age
    off = None
    if decision.reason_code == OVERRIDE:
        off = Off.OVERRIDDEN
    elif decision.verdict is Verdict.DISABLE:
        off = Off.DISABLED
    elif decision.verdict is not Verdict.ENABLE:
        off = Off.HELD
    elif expires_at <= now:
        off = Off.STALE
    elif engine is not None and not is_measured_on(engine, decision.engine):
        off = Off.OTHER_ENGINE
    return Standing(decision, expires_at, off)


def _current(newest: Mapping[Hypothesis, datetime], names: Mapping[str, str]) -> dict[tuple[str, str], set[str]]:
    """The fingerprints that each endpoint's candidates were measured with in their newest hour."""
    hours: dict[tuple[str, str], dict[str, datetime]] = defaultdict(dict)
    for (endpoint, _, _, fingerprint), hour in newest.items():
        if fingerprint in names:
            own = hours[endpoint, names[fingerprint]]
            own[fingerprint] = max(own.get(fingerprint, hour), hour)
    return {
        candidate: {fingerprint for fingerprint, hour in own.items() if hour == max(own.values())}
        for candidate, own in hours.items()
    }


def _unsuperseded(standing: Standing, current: Mapping[tuple[str, str], set[str]]) -> Standing:
    decision = standing.decision
    fingerprints = current.get((decision.endpoint, decision.config.name), {decision.fingerprint})
    is_superseded = standing.is_on and decision.fingerprint not in fingerprints
    return replace(standing, off=Off.SUPERSEDED) if is_superseded else standing


def _unambiguous(standing: Standing, fingerprints: Mapping[tuple[str, str, int, str], set[str]]) -> Standing:
    is_ambiguous = standing.is_on and len(fingerprints[_candidate(standing.decision)]) > 1
    return replace(standing, off=Off.AMBIGUOUS) if is_ambiguous else standing


def _rolled_out(standing: Standing, stages: Mapping[tuple[str, int], Rollout]) -> Standing:
    decision = standing.decision
    rollout = stages.get((decision.endpoint, decision.concurrency))
    if rollout is None or not standing.is_on:
        return standing
    # A context that the slice does not tell apart may be any: the smallest cap of all holds.
    smallest = min(rollout.depth_caps.values(), default=0)
    cap = rollout.depth_caps.get(decision.slice_labels.get("context_bucket", ""), smallest)
    cap = cap if "context_bucket" in decision.slice_labels else smallest
    if rollout.stage is Stage.SHADOW or rollout.fingerprint != decision.fingerprint or cap < 1 or rollout.share <= 0:
        return replace(standing, off=Off.NOT_ROLLED_OUT)
    return replace(standing, max_num_speculative_tokens=cap, share=rollout.share)


def _candidate(decision: Decision) -> tuple[str, str, int, str]:
    return decision.endpoint, decision.slice_key, decision.concurrency, decision.config.name


def _line(standing: Standing) -> str:
    decision = standing.decision
    place = f"{decision.endpoint}, {decision.slice_key or 'whole endpoint'}, concurrency {decision.concurrency}"
    if standing.is_on:
        state = f"on, {standing.num_speculative_tokens} tokens"
    else:
        state = f"off ({standing.off}; {decision.verdict.value} {decision.reason_code})"
    return f"{place}, {decision.config.name}: {state}, decision {decision.decision_id}, measured on {decision.engine}"

"""Whether a decision switches speculation on in production, and why not: one answer for `check`, metrics and exports.

On is an ENABLE that is fresh and not overridden, for an engine that serves clients, of its candidate's current
fingerprint, and rolled out where stages are used.  All else is off, with its reason.  `check` (so the action, the
metric and the board) and every export ask `judge_decisions`; they differ only in what they make of several decisions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final, Protocol

from shadowspec.gate.policy import GatePolicy
from shadowspec.gate.verdict.current_decision import Expectation, LatestDecision, is_stale
from shadowspec.gate.verdict.e_values import Fleet, fleet_of
from shadowspec.gate.verdict.slice_rules import keeps_off
from shadowspec.text import plain_text, plural, slice_title
from shadowspec.types import (
    Decision,
    FingerprintedConfig,
    Override,
    ReasonCode,
    Rollout,
    SpeculationConfig,
    Stage,
    Verdict,
)
from shadowspec.types.serving_engines import EngineName, is_for_serving, parse_engines
from shadowspec.types.speculation import draft_key

NOTHING_EXPECTED: Final = Expectation()
DEFAULT_MAX_AGE: Final = timedelta(days=7)  # of the newest evidence: one cycle of the traffic


class Off(StrEnum):
    """Why a decision exports as off."""

    HELD = "held"
    DISABLED = "disabled"
    OVERRIDDEN = "overridden"
    STALE = "stale"  # no evidence younger than the largest age
    OTHER_ENGINE = "other_engine"  # measured with another engine than the one asked for
    NOT_FOR_SERVING = "not_for_serving"  # a verdict for another engine than the one that serves, or for none that does
    SUPERSEDED = "superseded"  # its candidate has another fingerprint now
    NOT_ROLLED_OUT = "not_rolled_out"  # the endpoint's stage is shadow, or another config is rolled out
    FLEET = "fleet"  # e-BH over all endpoints does not admit it at the policy's false discovery rate
    TOO_DEEP = "too_deep"  # the rollout serves a smaller depth, at which this decision proves nothing


OFF_TEXT: Final = {
    Off.HELD: "not proven",
    Off.DISABLED: "proven harmful",
    Off.OVERRIDDEN: "an operator's override",
    Off.STALE: "evidence older than --max-age",
    Off.OTHER_ENGINE: "measured on another engine",
    Off.NOT_FOR_SERVING: "not for the engine that serves",
    Off.SUPERSEDED: "its candidate was changed or measured again",
    Off.NOT_ROLLED_OUT: "not rolled out yet",
    Off.FLEET: "not admitted at the fleet's false discovery rate",
    Off.TOO_DEEP: "the rollout is at fewer tokens",
}


class FleetSource(Protocol):
    """A store of decisions on every endpoint."""

    def latest_decisions(self) -> Iterable[Decision]: ...


@dataclass(frozen=True, slots=True)
class ServedDecision:
    """One decision as production acts on it.

    `expires_at` is when its evidence becomes stale; `off` is None where it is on, else `reason` says why; `share` is
    the rollout's share of the traffic.  On means the measured depth, and no other.
    """

    decision: Decision
    expires_at: datetime
    off: Off | None
    share: float = 1.0
    detail: str = ""

    @property
    def is_on(self) -> bool:
        return self.off is None

    @property
    def reason(self) -> str:
        """Why it is off; "" where it is on."""
        return self.detail or ("" if self.off is None else OFF_TEXT[self.off])

    @property
    def num_speculative_tokens(self) -> int:
        return self.decision.config.num_speculative_tokens if self.is_on else 0

    @property
    def speedup_lower(self) -> float:
        """Lower bound of the speedup; 0 without one."""
        speedup = self.decision.find_test("speedup")
        return speedup.lower if speedup is not None and speedup.lower is not None else 0.0


def judge_decisions(
    latest: Iterable[LatestDecision],
    *,
    now: datetime,
    max_age: timedelta,
    configs: Mapping[str, FingerprintedConfig] | None = None,
    expected: Expectation = NOTHING_EXPECTED,
    rollouts: Iterable[Rollout] = (),
    reader: str | None = None,
    accepts_any_engine: bool = False,
    fleet: Fleet | None = None,
    policy: GatePolicy | None = None,
) -> list[ServedDecision]:
    """Every latest decision of one endpoint as production acts on it.

    A decision that is not `expected` is off; `configs` are every measured one by fingerprint.  Where the endpoint has a
    rollout at a load, the rollout decides what is served there; without a rollout, stages are not used.  `reader` is
    the engine that will serve (None: whichever the verdict is for, if it serves clients); `accepts_any_engine` waives
    it.  With `fleet_fdr` in the `policy` an endpoint that the `fleet` does not admit at that rate is off, and so are
    its slices.
    """
    configs = configs or {}
    latest = list(latest)
    stages = {(rollout.endpoint, rollout.concurrency): rollout for rollout in rollouts}
    measured = {name: config.config for name, config in configs.items()}
    measured |= {latest_decision.decision.fingerprint: latest_decision.decision.config for latest_decision in latest}
    drafts = {name: draft_key(config) for name, config in measured.items()}
    served_decisions = []
    for latest_decision in latest:
        decision, evidence_at = latest_decision.decision, latest_decision.evidence_at
        off = _off(decision)
        if off is None and is_stale(evidence_at, max_age, now):
            off = Off.STALE
        config = configs.get(decision.fingerprint)
        if off is None and expected.difference(decision.fingerprint, decision.engine, config) is not None:
            off = Off.OTHER_ENGINE
        if off is None and not latest_decision.is_current:
            off = Off.SUPERSEDED
        detail = ""
        if off is None and (refused := _refused(decision.endpoint, fleet, policy)) is not None:
            off, detail = Off.FLEET, refused
        expires_at = now if evidence_at is None else evidence_at + max_age
        served = _rolled_out(ServedDecision(decision, expires_at, off, detail=detail), stages, drafts)
        mismatch = engine_mismatch(decision, reader)
        if served.is_on and mismatch is not None and not accepts_any_engine:
            served = replace(served, off=Off.NOT_FOR_SERVING, detail=mismatch)
        served_decisions.append(served)
    return served_decisions


def read_fleet(store: FleetSource, policies: Iterable[GatePolicy]) -> Fleet | None:
    """The fleet of the stored decisions; None where no policy asks for a rate."""
    return fleet_of(store.latest_decisions()) if any(policy.fleet_fdr is not None for policy in policies) else None


def _refused(endpoint: str, fleet: Fleet | None, policy: GatePolicy | None) -> str | None:
    """Why the fleet does not admit an ENABLE; None where it does, or no rate is set."""
    if fleet is None or policy is None or policy.fleet_fdr is None:
        return None
    rate = fleet.rate_of(endpoint)
    if rate <= policy.fleet_fdr:
        return None
    return (
        f"e-BH over {plural(fleet.num_endpoints, 'endpoint')} admits it at a false discovery rate of {rate:.3g}; "
        f"the limit is {policy.fleet_fdr:.3g} (fleet_fdr). More evidence of any ENABLE ends this"
    )


def engine_mismatch(decision: Decision, reader: str | None) -> str | None:
    """How the engine that the verdict is for differs from the one that serves (None: any); None if it does not."""
    if reader is None:
        if is_for_serving(decision.serving_engine, decision.engine):
            return None
        difference = ", which serves no clients"
    else:
        engines = parse_engines(decision.serving_engine or decision.engine)
        if any(EngineName(reader).names(engine) for engine in engines):
            return None
        difference = f", not for {reader}"
    return f"the verdicts on {decision.endpoint} are for {decision.verdict_engine}{difference}"


def is_disabled(served: ServedDecision) -> bool:
    """Whether harm is shown or an operator has ordered it off, fresh or not."""
    return served.off in (Off.DISABLED, Off.OVERRIDDEN) or keeps_off(served.decision)


def describe(served_decisions: Sequence[ServedDecision]) -> list[str]:
    """One line for each decision: its subject, its export, and its id."""
    return [_line(served) for served in served_decisions]


def describe_orders(overrides: Iterable[Override]) -> list[str]:
    """One line for each order in force on some slices, whether anything was decided there or not."""
    lines = []
    for order in (override for override in overrides if override.slice_key):
        load = "every load" if order.concurrency is None else f"load {order.concurrency}"
        covered = f"{order.endpoint}, {slice_title(order.slice_key)}, {load}"
        lines.append(
            f"{covered}: off, as is every request that these labels do not place (override {order.override_id})"
        )
    return lines


def _off(decision: Decision) -> Off | None:
    """Why the verdict itself switches nothing on."""
    if decision.reason_code == ReasonCode.OVERRIDE:
        return Off.OVERRIDDEN
    if decision.verdict is Verdict.DISABLE:
        return Off.DISABLED
    return None if decision.verdict is Verdict.ENABLE else Off.HELD


def _rolled_out(
    served: ServedDecision, stages: Mapping[tuple[str, int], Rollout], drafts: Mapping[str, SpeculationConfig]
) -> ServedDecision:
    """The decision as its rollout serves it: the config that is rolled out, or the same draft proven at its depth."""
    decision = served.decision
    rollout = stages.get((decision.endpoint, decision.concurrency))
    if rollout is None or not served.is_on:
        return served
    # Where the slice does not fix the context it may be any: the smallest cap of all holds.
    smallest = min(rollout.depth_caps.values(), default=0)
    cap = rollout.depth_caps.get(decision.slice_labels.get("context_bucket", ""), smallest)
    cap = cap if "context_bucket" in decision.slice_labels else smallest
    depth, chosen = decision.config.num_speculative_tokens, rollout.fingerprint
    is_chosen = chosen == decision.fingerprint
    is_at_depth = depth == cap and chosen is not None and drafts.get(chosen) == drafts[decision.fingerprint]
    if rollout.stage is Stage.SHADOW or rollout.share <= 0:
        detail = f"not rolled out yet: its stage is {rollout.stage}, which serves 0% of the traffic"
        return replace(served, off=Off.NOT_ROLLED_OUT, detail=detail)
    if not (is_chosen or is_at_depth):
        detail = f"not rolled out: the {rollout.stage} stage serves another config"
        return replace(served, off=Off.NOT_ROLLED_OUT, detail=detail)
    if depth > cap:
        return replace(served, off=Off.TOO_DEEP)
    return replace(served, share=rollout.share)


def _line(served: ServedDecision) -> str:
    decision = served.decision
    place = f"{decision.endpoint}, {slice_title(decision.slice_key)}, load {decision.concurrency}"
    if served.off is None:
        state = f"on, {served.num_speculative_tokens} tokens"
    else:
        state = (
            f"off ({plain_text(served.reason)}; {decision.verdict.value}: {plain_text(decision.reason.rstrip('.'))})"
        )
    return f"{place}, {decision.config.name}: {state}, decision {decision.decision_id}, measured on {decision.engine}"

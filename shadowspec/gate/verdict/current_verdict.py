"""Decisions in force: valid for the engine that serves, with the operator's overrides laid over them.

Check, export, dashboard and rollout act on current decisions.  The stored decisions remain as the evidence decided
them, and evidence is still collected under an override.  Where no decision exists there is nothing to override, so a
caller that covers more than one slice checks the `active` overrides too.  An override only makes the answer safer: a
HOLD takes back an ENABLE, and leaves a DISABLE as it is.

Latency is a property of the engine: a gain or a slowdown of one engine is no verdict on another.  Both are HOLD where
the serving engine is not the one that measured.  Output differences, which come from weights and verify rule, and the
draft's memory carry over: these DISABLE.  The gate decides so and stores it.  Users of decisions apply the rule again
(`for_what_serves`), because an operator may have named the serving engine since.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from shadowspec.gate.policy import GatePolicy
from shadowspec.gate.verdict import reasons
from shadowspec.types import Decision, OverriddenVerdict, Override, OverrideRecord, ReasonCode, Verdict, parse_slice_key


@dataclass(frozen=True, slots=True)
class CurrentVerdict:
    """The verdict in force for one hypothesis (for any config): the gate's, or the override's.

    `measured` is the latest decision from the evidence, None before the first one; `override` is the order in force
    that takes precedence, None without one.
    """

    measured: Decision | None
    override: Override | None

    @property
    def verdict(self) -> Verdict | None:
        """The verdict to act on and to show; None where neither the gate nor an operator has spoken."""
        if self.override is not None:
            return self.override.verdict
        return None if self.measured is None else self.measured.verdict

    @property
    def since(self) -> datetime | None:
        """Since when the verdict is in force; None without a verdict."""
        if self.override is not None:
            return self.override.created_at
        return None if self.measured is None else self.measured.since

    @property
    def decision(self) -> Decision | None:
        """The measured decision after the override; None without a measured decision.

        An overridden decision has the reason code "override"; its `override` holds the measured verdict.
        """
        if self.measured is None or self.override is None:
            return self.measured
        return replace(
            self.measured,
            verdict=self.override.verdict,
            reason_code=ReasonCode.OVERRIDE,
            reason=reasons.overridden(self.override),
            clusters_needed=None,
            verdict_since=self.override.created_at,
            override=OverriddenVerdict(
                self.override.override_id, self.override.expires_at, self.measured.verdict, self.measured.reason
            ),
        )


def current_verdict(
    endpoint: str,
    slice_key: str,
    concurrency: int,
    measured: Decision | None,
    overrides: Iterable[Override],
    now: datetime,
) -> CurrentVerdict:
    """The verdict in force for a hypothesis whose latest decision is `measured`.

    `overrides` are the active ones; of several that cover it DISABLE goes before HOLD, then the newest counts.  One
    that would weaken the measured verdict has no effect.
    """
    order = covering(overrides, endpoint, slice_key, concurrency, now)
    return CurrentVerdict(measured, None if order is not None and weakens(order, measured) else order)


def weakens(order: Override, measured: Decision | None) -> bool:
    """Whether the order says less than the decision that it covers: HOLD where harm is proven."""
    return measured is not None and measured.verdict is Verdict.DISABLE and order.verdict is not Verdict.DISABLE


def overridden(decision: Decision, overrides: Iterable[Override], now: datetime) -> Decision:
    """The decision in force under the active `overrides`: the one of `current_verdict`."""
    place = decision.endpoint, decision.slice_key, decision.concurrency
    in_force = current_verdict(*place, decision, overrides, now).decision
    assert in_force is not None, "something was decided"
    return in_force


def override_text(order: Override) -> str:
    """Who ordered it, and why."""
    return f"override {order.override_id} by {order.author}: {order.reason}"


def current_decisions(
    decisions: Iterable[Decision], records: Iterable[OverrideRecord], now: datetime
) -> list[Decision]:
    """Every decision as it is in force at `now`, with the whole history of overrides given."""
    overrides = active(records, now)
    return [overridden(decision, overrides, now) for decision in decisions]


def active(records: Iterable[OverrideRecord], now: datetime) -> list[Override]:
    """The overrides in force at `now`."""
    return [record.override for record in records if record.is_active(now)]


def covering(
    overrides: Iterable[Override], endpoint: str, slice_key: str, concurrency: int, now: datetime
) -> Override | None:
    """The override that counts for this hypothesis, also where nothing was decided about it yet; None if none does."""
    matching = [
        override
        for override in overrides
        if override.endpoint == endpoint and _covers(override, slice_key, concurrency, now)
    ]
    return max(
        matching,
        key=lambda override: (override.verdict is Verdict.DISABLE, override.created_at, override.override_id),
        default=None,
    )


def select_covering(overrides: Iterable[Override], endpoint: str, slice_key: str) -> list[Override]:
    """Those of active overrides that cover this slice at some load."""
    return [override for override in overrides if override.endpoint == endpoint and has_labels(slice_key, override)]


def has_labels(slice_key: str, override: Override) -> bool:
    """Whether the slice has all the labels that the override names."""
    labels = parse_slice_key(slice_key)
    return all(labels.get(name) == value for name, value in override.slice_labels.items())


def may_meet(override: Override, labels: Mapping[str, str]) -> bool:
    """Whether requests with these labels may exist that the override covers: no label contradicts it.

    This needs no decision or record about them: a kill switch also covers future requests.
    """
    return all(labels.get(name, value) == value for name, value in override.slice_labels.items())


def _covers(override: Override, slice_key: str, concurrency: int, now: datetime) -> bool:
    if override.expires_at is not None and now >= override.expires_at:
        return False
    if override.concurrency is not None and override.concurrency != concurrency:
        return False
    return has_labels(slice_key, override)


DISABLE_CODES: Final = {
    "speedup": ReasonCode.SLOWDOWN,
    "tail": ReasonCode.TAIL_SLOWED,
    "parity_sampled": ReasonCode.PARITY_BIASED,
}  # of DISABLE by a bound, by test
AT_ONCE_CODES: Final = frozenset(
    {ReasonCode.PARITY_FAULT, ReasonCode.STREAM_FAULT, ReasonCode.MEMORY_OVER_BUDGET}
)  # of DISABLE: one observation proves it
CARRIED_CODES: Final = AT_ONCE_CODES | {ReasonCode.PARITY_BIASED}  # of DISABLE: they read no clock


def is_revoked(before: Verdict | None, reason_code: str) -> bool:
    """Whether a decision with this reason took back the ENABLE before it at once, without a detector."""
    return before is Verdict.ENABLE and reason_code in AT_ONCE_CODES


def is_valid_for_engine(verdict: Verdict, reason_code: str, other_engine: str | None) -> bool:
    """Whether an ENABLE or DISABLE is valid for the engine that serves; `other_engine` is as of the policy."""
    is_carried = verdict is Verdict.DISABLE and reason_code in CARRIED_CODES
    return verdict is not Verdict.HOLD and (other_engine is None or is_carried)


def for_what_serves(decisions: Iterable[Decision], policy: GatePolicy) -> list[Decision]:
    """The decisions, with HOLD for those that rest on another engine's latency; their figures do not change.

    Each is for the engine that the policy names, also where it was decided before the policy named one.  Under a trial
    policy each speaks of its recording only.
    """
    as_served = []
    for judged in decisions:
        serving = policy.serving_engine or judged.serving_engine
        decision = judged if serving == judged.serving_engine else replace(judged, serving_engine=serving)
        if policy.recording_only and not decision.recording_only:
            decision = replace(decision, recording_only=True)
        other = policy.other_engine(decision.engine)
        if (
            other is None
            or decision.verdict is Verdict.HOLD
            or is_valid_for_engine(decision.verdict, decision.reason_code, other)
        ):
            as_served.append(decision)
        else:
            held = replace(
                decision,
                verdict=Verdict.HOLD,
                reason_code=ReasonCode.OTHER_ENGINE,
                reason=reasons.other_engine(decision.engine, other),
                clusters_needed=None,
            )
            as_served.append(held)
    return as_served

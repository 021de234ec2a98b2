"""Rollout stages: how much traffic gets an endpoint's proven config, and how deep it may draft.

Everything here is pure: (current stage, current decisions, alarms, control, policy) -> next stage.  A stage moves
forward by one, on an ENABLE in force with new blocks measured in the stage that is left, and out of the partial stage
where the control confirms it in production.  It moves back at once.  Decisions are
current ones, so that an override moves it back too.

A depth is served only where it was proven: another depth has other costs and another speedup.  So depths go from one
proven depth to the next, and where no proven depth is within a limit, nothing is served.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from shadowspec.gate.verdict.current_decision import LatestDecision, is_stale
from shadowspec.gate.verdict.current_verdict import has_labels
from shadowspec.gate.verdict.slice_rules import bears_on_endpoint, keeps_off, named_candidates
from shadowspec.rollout.control import Control, ControlVerdict
from shadowspec.rollout.rollout_policy import RolloutPolicy
from shadowspec.text import slice_title, span_text
from shadowspec.types import Decision, Override, ReasonCode, Rollout, Stage, Verdict
from shadowspec.types.speculation import draft_key

WHOLE_ENDPOINT = ""
CONTROL = "control"  # reason code of a move back
ANY_CONTEXT = ""

_NEXT = {Stage.SHADOW: Stage.PARTIAL, Stage.PARTIAL: Stage.BROAD}
_PREVIOUS = {Stage.PARTIAL: Stage.SHADOW, Stage.BROAD: Stage.PARTIAL}


@dataclass(frozen=True, slots=True)
class StageLook:
    """The inputs for one endpoint at one load.

    `latest` are the decisions on every slice and config at this load; `shares` the slices' shares of the endpoint's
    traffic; `alarms` name the firing detectors; `orders` are the endpoint's overrides in force, which also cover
    undecided slices.  `control` compares production's pools since the stage began; None: there is no plain pool.
    """

    endpoint: str
    concurrency: int
    latest: Sequence[LatestDecision]
    now: datetime
    alarms: tuple[str, ...] = ()
    shares: Mapping[str, float] = field(default_factory=dict)
    orders: tuple[Override, ...] = ()
    control: Control | None = None
    elsewhere: Sequence[Decision] = ()  # on the whole endpoint, at its other loads

    @property
    def decisions(self) -> list[Decision]:
        return [latest.decision for latest in self.latest]


@dataclass(frozen=True, slots=True)
class RolloutStep:
    """The rollout after a look; `waits_for` is the next stage's missing condition, None in the last stage."""

    rollout: Rollout
    waits_for: str | None

    def is_change(self, before: Rollout | None) -> bool:
        """Whether it is worth a row."""
        return self.rollout != before


def next_step(current: Rollout | None, look: StageLook, policy: RolloutPolicy) -> RolloutStep:
    """The stage and depth after this look; `current` is the newest row, None before the first."""
    # 1. The first look puts the endpoint into the shadow.
    if current is None:
        current = _shadow(look, None, "began", "nothing is rolled out yet")

    # 2. Back: the served depths must be proven now, and no alarm may have fired since the stage began.
    if current.stage is not Stage.SHADOW:
        whole_decision = _decision(look, current.fingerprint)
        if whole_decision is None or whole_decision.verdict is not Verdict.ENABLE:
            why = (
                "no current decision"
                if whole_decision is None
                else f"{whole_decision.verdict}: {whole_decision.reason}"
            )
            return RolloutStep(_shadow(look, current.fingerprint, "not_enabled", why), "a current ENABLE")
        back = Stage.SHADOW if policy.alarm_stage == "shadow" else _PREVIOUS[current.stage]
        new = [name for name in look.alarms if name not in current.alarms]  # each moves it back once
        if new:
            return RolloutStep(_move(current, back, look, policy, "alarm", f"alarm: {new[0]}"), f"{new[0]} to be over")

        if look.control is not None and look.control.verdict is ControlVerdict.REVERT:
            moved = _move(current, back, look, policy, CONTROL, f"control: {look.control.reason}")
            return RolloutStep(moved, _retry(moved, look, policy))

    # 3. In the shadow the config may change: the enabled one whose speedup is proven to be highest.
    else:
        best = _best(look, current.fingerprint, policy)
        if best is None:
            return RolloutStep(current, "a current ENABLE")
        if best.fingerprint != current.fingerprint:
            chosen = _shadow(look, best.fingerprint, "chosen", f"{best.config.name} is enabled")
            is_first = current.fingerprint is None  # then all that it was measured with counts
            current = replace(chosen, since=current.since, num_blocks=0 if is_first else chosen.num_blocks)

    if look.alarms != current.alarms:
        current = replace(current, alarms=look.alarms, decided_at=look.now)

    # 4. Forward, one stage at a time.
    decision = _decision(look, current.fingerprint)
    assert decision is not None  # step 2 and 3 have seen it
    waits_for = _missing(current, decision, look, policy)
    if waits_for is None and current.stage in _NEXT:
        stage = _NEXT[current.stage]
        moved = _move(current, stage, look, policy, "advanced", f"ENABLE is in force: {decision.reason}")
        return RolloutStep(moved, _missing(moved, decision, look, policy) if stage in _NEXT else None)

    # 5. Depth, one proven depth at a time.
    return RolloutStep(_deepen(current, decision, look, policy), waits_for)


def _missing(current: Rollout, decision: Decision, look: StageLook, policy: RolloutPolicy) -> str | None:
    """The condition that the rollout lacks for its next stage; None if it lacks none, or there is no next stage."""
    if current.stage not in _NEXT:
        return None
    soak_s = policy.shadow_soak_s if current.stage is Stage.SHADOW else policy.partial_soak_s
    enabled_since = max(current.since, decision.since)
    remaining = enabled_since + timedelta(seconds=soak_s) - look.now
    if look.alarms:
        return f"{look.alarms[0]} to be over"
    evidence_at = next(latest.evidence_at for latest in look.latest if latest.decision is decision)
    if is_stale(evidence_at, timedelta(seconds=policy.max_decision_age_s), look.now):
        newest = "an unknown time" if evidence_at is None else f"{evidence_at:%Y-%m-%d %H:%M} UTC"
        return f"a fresh decision: the last rests on evidence of {newest}"
    for slice_key in _list_disabled(look, current.fingerprint):
        share = look.shares.get(slice_key)
        if bears_on_endpoint(share, policy.max_disabled_share):
            of_traffic = "an unknown share" if share is None else f"{share:.0%}"
            return f"{slice_title(slice_key)}, {of_traffic} of the traffic, to be no longer DISABLEd"
    for order in look.orders:
        if bears_on_endpoint(_ordered_share(order, look), policy.max_disabled_share):
            return f"override {order.override_id} of {slice_title(order.slice_key)} to end"
    if policy.require_confirmed and (unconfirmed := _unconfirmed(decision, look)) is not None:
        return unconfirmed
    if remaining > timedelta(0):
        return f"ENABLE to be in force for {remaining.total_seconds():.0f} s more"
    limit = depth_limits(_NEXT[current.stage], decision, look, policy)[ANY_CONTEXT]
    if not _begin(limit, proven_depths(decision, look), policy.first_depth):
        depth = decision.config.num_speculative_tokens
        return f"a proof at {limit} tokens or fewer, which is all that the next stage may serve: {depth} are proven"
    blocks = decision.num_blocks - current.num_blocks
    if blocks < policy.min_soak_blocks:
        return f"{policy.min_soak_blocks - blocks} more blocks measured in this stage"
    if current.stage is Stage.PARTIAL and look.control is not None and look.control.verdict is ControlVerdict.HOLD:
        return f"the control: {look.control.reason}"
    return _retry(current, look, policy)


def _unconfirmed(decision: Decision, look: StageLook) -> str | None:
    """The run of the exported configuration that is missing before anybody is served by it; None where none is."""
    config = decision.config
    if not config.is_served_method:
        return (
            f"a run of the export itself: {config.name} was not measured as `shadowspec export` writes it. Write FILE "
            "with `shadowspec export --to-confirm`, start the speculative server with it, and give that server a "
            'candidate with `exported = "FILE"` (docs/export.md)'
        )
    off_from = config.off_from
    if off_from is None:
        return None
    harmless = [
        other
        for other in look.elsewhere
        if other.fingerprint == decision.fingerprint and other.reason_code == ReasonCode.MAY_REPLACE
    ]
    if any(config.depth_at(other.concurrency) == 0 for other in harmless):
        return None
    return (
        f"a load of {off_from} or more, where the schedule drafts nothing, to be shown as fast as without speculation: "
        "measure one (`loads`)"
    )


def _retry(current: Rollout, look: StageLook, policy: RolloutPolicy) -> str | None:
    """How long the config waits in the shadow after the control moved it there; None: it does not wait."""
    if current.stage is not Stage.SHADOW or current.reason_code != CONTROL:
        return None
    remaining = (current.since + timedelta(seconds=policy.control_retry_s) - look.now).total_seconds()
    return f"{span_text(remaining)} after the control moved it back, or another config" if remaining > 0 else None


def _move(current: Rollout, stage: Stage, look: StageLook, policy: RolloutPolicy, code: str, reason: str) -> Rollout:
    if stage is Stage.SHADOW:
        return _shadow(look, current.fingerprint, code, reason)
    decision = _decision(look, current.fingerprint)
    assert decision is not None
    limits, proven = depth_limits(stage, decision, look, policy), proven_depths(decision, look)
    before = current.depth_caps if current.stage is not Stage.SHADOW else {}
    caps = {name: _hold(min(limit, before.get(name, 0)), proven) for name, limit in limits.items()}
    if code not in ("alarm", CONTROL):
        caps = {name: cap or _begin(limits[name], proven, policy.first_depth) for name, cap in caps.items()}
    return replace(
        current,
        stage=stage,
        share=policy.share_of(stage),
        since=look.now,
        decided_at=look.now,
        reason_code=code,
        reason=reason,
        num_blocks=decision.num_blocks,
        alarms=look.alarms,
        depth_since=look.now,
        depth_caps=caps,
    )


def _deepen(current: Rollout, decision: Decision, look: StageLook, policy: RolloutPolicy) -> Rollout:
    """The depths, each raised to the next proven one where its time has come, and lowered at once to a proven one."""
    if current.stage is Stage.SHADOW:
        return current
    limits, proven = depth_limits(current.stage, decision, look, policy), proven_depths(decision, look)
    begun = max(current.depth_since or current.since, decision.since)
    may_rise = not look.alarms and look.now - begun >= timedelta(seconds=policy.depth_soak_s)
    caps = {}
    for name, limit in limits.items():
        cap = current.depth_caps.get(name)
        held = _begin(limit, proven, policy.first_depth) if cap is None else _hold(min(limit, cap), proven)
        rises = cap is not None and may_rise and _is_enabled(name, look, decision)
        caps[name] = min((depth for depth in proven if held < depth <= limit), default=held) if rises else held
    if caps == dict(current.depth_caps) and current.share == policy.share_of(current.stage):
        return current
    is_deeper = any(cap > current.depth_caps.get(name, 0) for name, cap in caps.items())
    return replace(
        current,
        share=policy.share_of(current.stage),
        decided_at=look.now,
        reason_code="deeper" if is_deeper else "limited",
        reason=f"ENABLE is in force: {decision.reason}"
        if is_deeper
        else "the policy's limits are lower, or a depth is proven no longer",
        depth_since=look.now,
        depth_caps=caps,
    )


def proven_depths(decision: Decision, look: StageLook) -> tuple[int, ...]:
    """At which depths its draft is enabled for the whole endpoint at this load, on the same engine; rising."""
    draft, engine = draft_key(decision.config), decision.engine
    return tuple(
        sorted(
            {
                decided.config.num_speculative_tokens
                for decided in look.decisions
                if decided.slice_key == WHOLE_ENDPOINT and decided.verdict is Verdict.ENABLE
                if (draft_key(decided.config), decided.engine) == (draft, engine)
            }
        )
    )


def _begin(limit: int, proven: Sequence[int], first_depth: int) -> int:
    """The proven depth to begin with: the deepest up to `first_depth`, else the first within the limit; 0: none is."""
    return _hold(min(limit, first_depth), proven) or min((depth for depth in proven if depth <= limit), default=0)


def _hold(limit: int, proven: Sequence[int]) -> int:
    """The deepest proven depth within the limit; 0: none is."""
    return max((depth for depth in proven if depth <= limit), default=0)


def depth_limits(stage: Stage, decision: Decision, look: StageLook, policy: RolloutPolicy) -> dict[str, int]:
    """The largest depths, per context bucket; never deeper than a measured one."""
    stage_limit = policy.partial_max_depth if stage is Stage.PARTIAL else policy.broad_max_depth
    limit = min(stage_limit, decision.config.num_speculative_tokens)
    buckets = {decision.slice_labels.get("context_bucket", ANY_CONTEXT) for decision in look.decisions}
    names = sorted({ANY_CONTEXT, *buckets, *policy.context_max_depths})
    return {name: min(limit, policy.context_max_depths.get(name, limit)) for name in names}


def _is_enabled(bucket: str, look: StageLook, decision: Decision) -> bool:
    """Whether a context bucket's slices, if it makes slices, are all enabled (at least one, and none DISABLEd)."""
    verdicts = {
        row.verdict
        for row in look.decisions
        if row.fingerprint == decision.fingerprint and row.slice_labels.get("context_bucket") == bucket
    }
    return not verdicts or (Verdict.ENABLE in verdicts and Verdict.DISABLE not in verdicts)


def _shadow(look: StageLook, fingerprint: str | None, code: str, reason: str) -> Rollout:
    decision = _decision(look, fingerprint)
    return Rollout(
        endpoint=look.endpoint,
        concurrency=look.concurrency,
        stage=Stage.SHADOW,
        fingerprint=fingerprint,
        since=look.now,
        decided_at=look.now,
        reason_code=code,
        reason=reason,
        num_blocks=0 if decision is None else decision.num_blocks,
        alarms=look.alarms,
    )


def _decision(look: StageLook, fingerprint: str | None) -> Decision | None:
    """The decision on the whole endpoint with this config."""
    wholes = (decision for decision in look.decisions if decision.slice_key == WHOLE_ENDPOINT)
    return next((decision for decision in wholes if decision.fingerprint == fingerprint), None)


def _best(look: StageLook, current: str | None, policy: RolloutPolicy) -> Decision | None:
    """The enabled config that `slice_rules.named_candidates` names; one that was chosen before stays.

    Where the export itself must be confirmed, a config that was measured as it is exported goes before the others:
    these wait for such a run.
    """
    enabled = [d for d in look.decisions if d.slice_key == WHOLE_ENDPOINT and d.verdict is Verdict.ENABLE]
    confirmed = [d for d in enabled if d.config.is_served_method]
    if policy.require_confirmed and confirmed:
        enabled = confirmed
    named = named_candidates(enabled).get((WHOLE_ENDPOINT, look.concurrency))
    wanted = current if any(d.fingerprint == current for d in enabled) else named
    return next((d for d in enabled if d.fingerprint == wanted), None)


def _ordered_share(order: Override, look: StageLook) -> float | None:
    """Share of the traffic at this load that an order covers; None where no slice with its labels is known."""
    if order.concurrency not in (None, look.concurrency):
        return 0.0
    known = [share for slice_key, share in look.shares.items() if has_labels(slice_key, order)]
    return sum(known) if known else None


def _list_disabled(look: StageLook, fingerprint: str | None) -> list[str]:
    decisions = [d for d in look.decisions if d.fingerprint == fingerprint and d.slice_key != WHOLE_ENDPOINT]
    return [d.slice_key for d in decisions if keeps_off(d)]

"""Everything that changed at the endpoints, as one line of time: what, when, by whom and why.

Decisions, drift alarms, replaced fingerprints and shifts of the traffic are the gate's; overrides and their ends are an
operator's, with the name that was given; rollout stages are the rollout's.  Nothing is judged here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import datetime

from shadowspec.gate.verdict.current_verdict import is_revoked
from shadowspec.reports.content.changes import Change, ChangeKind
from shadowspec.rollout.orders import scope_words
from shadowspec.servers.engines.rules import ENGINE_OPTIONS
from shadowspec.store import AdviceChange, VerdictChange
from shadowspec.text import percent
from shadowspec.types import AUDITOR, GUARD, FingerprintedConfig, OverrideRecord, ReasonCode, Rollout, Verdict

GATE, ROLLOUT, CLOCK = "the gate", "the rollout", "its expiry"
SYSTEMS = (AUDITOR, GUARD)  # whose overrides are alarms
KINDS = (  # that the timeline distinguishes
    ChangeKind.VERDICT,
    ChangeKind.ALARM,
    ChangeKind.FINGERPRINT,
    ChangeKind.MIX,
    ChangeKind.ADVICE,
    ChangeKind.OVERRIDE,
    ChangeKind.ROLLOUT,
)


def timeline(changes: Iterable[Change], *, since: datetime | None = None, limit: int | None = None) -> list[Change]:
    """The changes newest first, from `since` on."""
    kept = [change for change in changes if since is None or change.at >= since]
    ordered = sorted(
        kept, key=lambda change: (change.at, change.decision_id or 0, change.endpoint, change.slice_key), reverse=True
    )
    return ordered[:limit]


def verdict_changes(recorded: Iterable[VerdictChange], configs: Mapping[str, FingerprintedConfig]) -> list[Change]:
    """Changes of verdict; where an alarm, a fault or a replaced fingerprint made them, they are of that kind."""
    changes = []
    for change in recorded:
        replaced = None if change.supersession is None else change.supersession.by
        if change.reason_code == ReasonCode.DRIFT:
            kind, what = ChangeKind.ALARM, f"{change.verdict}: a drift alarm"
        elif change.reason_code == ReasonCode.REOPENED:
            kind, what = ChangeKind.ALARM, f"{change.verdict}: new evidence refutes it"
        elif is_revoked(change.before, change.reason_code):
            kind, what = ChangeKind.ALARM, f"{change.verdict}: ENABLE is revoked"
        elif change.reason_code == ReasonCode.CHANGED_FINGERPRINT:
            kind, what = ChangeKind.FINGERPRINT, f"{change.verdict}: the fingerprint changed"
            if replaced is not None:
                what = f"{change.fingerprint[:12]} was replaced by {replaced[:12]}"
        else:
            kind = ChangeKind.VERDICT
            what = (
                f"first verdict: {change.verdict}"
                if change.before is None
                else f"{change.before} \u2192 {change.verdict}"
            )
        why = change.reason
        if replaced is not None:
            differs = differing_parts(configs.get(change.fingerprint), configs.get(replaced))
            why += f"; different: {', '.join(differs)}" if differs else ""
        changes.append(
            Change.of_hypothesis(change, kind, what, why, configs, who=GATE, before=change.before, after=change.verdict)
        )
    return changes


def advice_changes(recorded: Iterable[AdviceChange], configs: Mapping[str, FingerprintedConfig]) -> list[Change]:
    """New advice beside a current ENABLE: figures that came down, and another mix of the traffic."""
    changes = []
    for change in recorded:
        changes_here = []
        if change.is_new_advice:
            what = f"{change.advice} is lower than at ENABLE"
            changes_here.append((ChangeKind.ADVICE, what, "an advisory detector; every proven limit still holds"))
        if change.is_new_shift:
            rates = {} if change.mix_change is None else change.mix_change.rates
            why = "; ".join(rate.text for rate in rates.values()) or "the slices' shares differ from those at ENABLE"
            changes_here.append((ChangeKind.MIX, "the traffic mix has shifted since ENABLE", why))
        changes += [
            Change.of_hypothesis(change, kind, what, why, configs, who=GATE, after=Verdict.ENABLE)
            for kind, what, why in changes_here
        ]
    return changes


def override_changes(records: Iterable[OverrideRecord], now: datetime) -> list[Change]:
    """Overrides as they were set, and as they ended: cleared by somebody, or run out."""
    changes = []
    for record in records:
        override = record.override
        scope = scope_words(override)
        kind = ChangeKind.ALARM if override.author in SYSTEMS else ChangeKind.OVERRIDE
        what = f"override {override.override_id} set: {scope} is {override.verdict}"
        begun = Change.of_order(override, override.created_at, kind, what, override.reason, override.author)
        changes.append(replace(begun, after=override.verdict))
        if (end := record.clearing) is not None:
            what, ended_at, why, who = "cleared", end.cleared_at, end.reason, end.author
        elif override.expires_at is not None and override.expires_at <= now:
            what, ended_at, why, who = "expired", override.expires_at, override.reason, CLOCK
        else:
            continue
        what = f"override {override.override_id} {what}: {scope}"
        changes.append(Change.of_order(override, ended_at, ChangeKind.OVERRIDE, what, why, who))
    return changes


def rollout_changes(history: Iterable[Rollout], configs: Mapping[str, FingerprintedConfig]) -> list[Change]:
    """Changes of rollout stage or depth."""
    return [
        Change.of_rollout(
            rollout,
            f"{rollout.stage}: {percent(rollout.share, 0)} of the enabled traffic{_depth_words(rollout)}",
            configs,
            ROLLOUT,
        )
        for rollout in history
    ]


def differing_parts(old: FingerprintedConfig | None, new: FingerprintedConfig | None) -> list[str]:
    """The names of what makes two fingerprints differ: digests are not shown, versions and devices are."""
    if old is None or new is None:
        return []
    differences = []
    for name in ("engine", "device", "dtype"):
        before, after = getattr(old, name), getattr(new, name)
        if before != after:
            differences.append(f"{name} ({before} \u2192 {after})")
    differences += [name.replace("_", " ") for name in old.differing_details(new)]
    names = ("target", "draft", "proposer", "num_speculative_tokens", "verify_rule", "backend", "speculative_config")
    for name in (*names, *ENGINE_OPTIONS):
        if getattr(old.config, name) != getattr(new.config, name):
            differences.append(name.replace("_", " "))
    return differences


def _depth_words(rollout: Rollout) -> str:
    if not rollout.depth_caps:
        return ""
    caps = (f"{bucket or 'any context'} \u2264 {cap}" for bucket, cap in sorted(rollout.depth_caps.items()))
    return f", drafting {', '.join(caps)}"

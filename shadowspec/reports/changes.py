"""Everything that changed at the endpoints, as one line of time: what, when, by whom and why.

Decisions, drift alarms, replaced fingerprints and shifts of the traffic are the gate's; overrides and their ends are an
operator's, with the name that was given; rollout stages are the rollout's.  Nothing is judged here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from shadowspec.gate.restarts import CHANGED_FINGERPRINT, DRIFT
from shadowspec.gating.audits import AUTHOR as AUDITOR
from shadowspec.gating.live import AUTHOR as GUARD
from shadowspec.gating.orders import scope_words
from shadowspec.reports.words import config_name
from shadowspec.store import AdviceChange, VerdictChange
from shadowspec.types import FingerprintedConfig, OverrideRecord, Rollout, Verdict
from shadowspec.words import percent

GATE, ROLLOUT, CLOCK = "the gate", "the rollout", "its expiry"


class Kind(StrEnum):
    """What kind of change it was."""

    VERDICT = "verdict"
    ALARM = "alarm"
    FINGERPRINT = "fingerprint"
    MIX = "mix shift"
    ADVICE = "advice"
    OVERRIDE = "override"
    ROLLOUT = "rollout"


@dataclass(frozen=True, slots=True)
class Change:
    """One change.  `before` and `after` are verdicts where it was one; None where it was not, or was the first.

    `slice_key` "" is the whole endpoint, `concurrency` None every load; `decision_id` leads to the evidence.
    """

    at: datetime
    kind: Kind
    endpoint: str
    slice_key: str
    concurrency: int | None
    config_name: str | None
    fingerprint: str | None
    what: str
    why: str
    who: str
    before: Verdict | None = None
    after: Verdict | None = None
    decision_id: int | None = None


def timeline(changes: Iterable[Change], *, since: datetime | None = None, limit: int | None = None) -> list[Change]:
    """The changes newest first, from `since` on."""
    kept = [each for each in changes if since is None or each.at >= since]
    ordered = sorted(
        kept, key=lambda each: (each.at, each.decision_id or 0, each.endpoint, each.slice_key), reverse=True
    )
    return ordered[:limit]


def verdict_changes(found: Iterable[VerdictChange], configs: Mapping[str, FingerprintedConfig]) -> list[Change]:
    """Changes of verdict; where a drift alarm or a replaced fingerprint made them, they are of that kind."""
    changes = []
    for own in found:
        replaced = own.details.get("superseded_by")
        if own.reason_code == DRIFT:
            kind, what = Kind.ALARM, f"{own.verdict}: a drift alarm"
        elif own.reason_code == CHANGED_FINGERPRINT:
            kind, what = Kind.FINGERPRINT, f"{own.verdict}: the fingerprint changed"
            if isinstance(replaced, str):
                what = f"{own.fingerprint[:12]} was replaced by {replaced[:12]}"
        else:
            kind = Kind.VERDICT
            what = f"first word: {own.verdict}" if own.before is None else f"{own.before} \u2192 {own.verdict}"
        why = own.reason
        if isinstance(replaced, str):
            differs = differing_parts(configs.get(own.fingerprint), configs.get(replaced))
            why += f"; what differs: {', '.join(differs)}" if differs else ""
        changes.append(_gate_change(own, configs, kind, what, why, before=own.before, after=own.verdict))
    return changes


def advice_changes(found: Iterable[AdviceChange], configs: Mapping[str, FingerprintedConfig]) -> list[Change]:
    """What came to be said beside a standing ENABLE: figures that came down, and another mix of the traffic."""
    changes = []
    for own in found:
        told = []
        if own.is_new_advice:
            what = f"{own.advice} came down from where it stood at ENABLE"
            told.append((Kind.ADVICE, what, "an advisory detector; the promise itself still holds"))
        if own.is_new_shift:
            parts = [own.details.get(f"change_of_{name}") for name in ("speedup", "acceptance")]
            why = "; ".join(str(part) for part in parts if part) or "slices come in other shares than at ENABLE"
            told.append((Kind.MIX, "the mix of the traffic is another than at ENABLE", why))
        changes += [_gate_change(own, configs, kind, what, why, after=Verdict.ENABLE) for kind, what, why in told]
    return changes


def override_changes(records: Iterable[OverrideRecord], now: datetime) -> list[Change]:
    """Overrides as they were set, and as they ended: cleared by somebody, or run out."""
    changes = []
    for record in records:
        own = record.override
        scope = scope_words(own)
        told = [(own.created_at, f"override {own.override_id} set: {scope} is {own.verdict}", own.reason, own.author)]
        if record.clearing is not None:
            end = record.clearing
            told.append((end.cleared_at, f"override {own.override_id} cleared: {scope}", end.reason, end.author))
        elif own.expires_at is not None and own.expires_at <= now:
            told.append((own.expires_at, f"override {own.override_id} ran out: {scope}", own.reason, CLOCK))
        changes += [
            Change(
                at=at,
                kind=Kind.ALARM if own.author in (AUDITOR, GUARD) and at == own.created_at else Kind.OVERRIDE,
                endpoint=own.endpoint,
                slice_key=own.slice_key,
                concurrency=own.concurrency,
                config_name=None,
                fingerprint=None,
                what=what,
                why=why,
                who=who,
                after=own.verdict if at == own.created_at else None,
            )
            for at, what, why, who in told
        ]
    return changes


def rollout_changes(history: Iterable[Rollout], configs: Mapping[str, FingerprintedConfig]) -> list[Change]:
    """Changes of rollout stage or depth."""
    return [
        Change(
            at=own.decided_at,
            kind=Kind.ROLLOUT,
            endpoint=own.endpoint,
            slice_key="",
            concurrency=own.concurrency,
            config_name=None if own.fingerprint is None else config_name(configs, own.fingerprint),
            fingerprint=own.fingerprint,
            what=f"{own.stage}: {percent(own.share, 0)} of the enabled traffic{_depth_words(own)}",
            why=own.reason,
            who=ROLLOUT,
        )
        for own in history
    ]


def differing_parts(old: FingerprintedConfig | None, new: FingerprintedConfig | None) -> list[str]:
    """The names of what makes two fingerprints differ: digests are not shown, versions and devices are."""
    if old is None or new is None:
        return []
    found = []
    for name in ("engine", "device", "dtype"):
        before, after = getattr(old, name), getattr(new, name)
        if before != after:
            found.append(f"{name} ({before} \u2192 {after})")
    for name in sorted(old.details.keys() | new.details.keys()):
        if old.details.get(name) != new.details.get(name):
            found.append(name.replace("_", " "))
    for name in ("target", "draft", "proposer", "num_speculative_tokens", "verify_rule", "backend"):
        if getattr(old.config, name) != getattr(new.config, name):
            found.append(name.replace("_", " "))
    return found


def _gate_change(
    own: VerdictChange | AdviceChange,
    configs: Mapping[str, FingerprintedConfig],
    kind: Kind,
    what: str,
    why: str,
    *,
    before: Verdict | None = None,
    after: Verdict,
) -> Change:
    return Change(
        at=own.decided_at,
        kind=kind,
        endpoint=own.endpoint,
        slice_key=own.slice_key,
        concurrency=own.concurrency,
        config_name=config_name(configs, own.fingerprint),
        fingerprint=own.fingerprint,
        what=what,
        why=why,
        who=GATE,
        before=before,
        after=after,
        decision_id=own.decision_id,
    )


def _depth_words(rollout: Rollout) -> str:
    if not rollout.depth_caps:
        return ""
    caps = (f"{bucket or 'any context'} \u2264 {cap}" for bucket, cap in sorted(rollout.depth_caps.items()))
    return f", drafting {', '.join(caps)}"

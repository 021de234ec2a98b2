"""What happened within a span of time: verdicts that changed, alarms, orders, rollout steps, configs."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime

from shadowspec.gate.verdict.current_verdict import is_revoked, override_text
from shadowspec.gate.verdict.trial_levels import HypothesisId, hypothesis_id
from shadowspec.reports.content.changes import Change, ChangeKind
from shadowspec.reports.content.definitions import config_name
from shadowspec.store import Store
from shadowspec.store.read.change_reads import AdviceChange, VerdictChange
from shadowspec.text import percent, plural
from shadowspec.types import (
    AUDITOR,
    GUARD,
    Decision,
    FingerprintedConfig,
    Override,
    OverrideRecord,
    ReasonCode,
    Rollout,
    Stage,
)

MAX_CHANGES = 1_000  # of each sort that are read and listed; what is left out is counted

_Key = tuple[str, HypothesisId]
_KINDS = {kind: place for place, kind in enumerate(ChangeKind)}


def changes_within(
    source: Store,
    since: datetime,
    until: datetime,
    before: Sequence[Decision],
    after: Sequence[Decision],
    rollouts: Iterable[Rollout],
) -> tuple[list[Change], bool]:
    """Everything from `since` up to, but without, `until`, by kind and each oldest first; whether some was left out.

    `before` and `after` are the current decisions at the one and at the other.
    """
    configs = source.fingerprints()
    words = source.verdict_changes(since=since, until=until, limit=MAX_CHANGES + 1)
    advice = source.advice_changes(since=since, until=until, limit=MAX_CHANGES + 1)
    changes = [
        *_verdict_changes(words[:MAX_CHANGES], before, after, configs),
        *(_of_advice(advised, configs) for advised in advice[:MAX_CHANGES]),
        *_of_fingerprints(words[:MAX_CHANGES], before, configs),
        *_of_overrides(source.overrides(), since, until),
    ]
    changes += _of_rollouts(rollouts, since, until, configs)
    has_left_out = max(len(words), len(advice)) > MAX_CHANGES
    return sorted(
        changes, key=lambda change: (_KINDS[change.kind], change.at, change.endpoint, change.slice_key)
    ), has_left_out


def events_within(source: Store, since: datetime, until: datetime, events: Collection[str]) -> list[Change]:
    """The changes from `since` up to, but without, `until` that are such events."""
    before, after = source.decisions_at(since), source.decisions_at(until)
    changes, _ = changes_within(source, since, until, before, after, source.rollout_history())
    return [change for change in changes if is_event(change, events)]


def is_event(change: Change, events: Collection[str]) -> bool:
    """Whether a change is one of these events: "alarm", "reversion" of a rollout to an earlier stage, "verdict"."""
    if change.kind is ChangeKind.ROLLOUT:
        stages = list(Stage)
        is_back = (
            change.before is not None
            and change.after is not None
            and (stages.index(Stage(change.after)) < stages.index(Stage(change.before)))
        )
        return is_back and "reversion" in events
    return change.kind.value in events


def _verdict_changes(
    words: Sequence[VerdictChange],
    before: Sequence[Decision],
    after: Sequence[Decision],
    configs: Mapping[str, FingerprintedConfig],
) -> list[Change]:
    changes = []
    alarmed = {_key(decision) for decision in before if decision.reason_code == ReasonCode.DRIFT}
    for change in sorted(words, key=lambda change: change.decision_id):
        key = (change.endpoint, (change.slice_key, change.concurrency, change.fingerprint))
        if change.before is not None and change.before is not change.verdict:
            changes.append(_verdict_change(change, ChangeKind.VERDICT, f"{change.before} to {change.verdict}", configs))
        elif change.before is None:
            changes.append(_verdict_change(change, ChangeKind.NEW, f"first verdict: {change.verdict}", configs))
        if is_revoked(change.before, change.reason_code):
            changes.append(
                _verdict_change(change, ChangeKind.ALARM, f"ENABLE is revoked: now {change.verdict}", configs)
            )
        if change.reason_code == ReasonCode.DRIFT and key not in alarmed:
            alarmed.add(key)
            changes.append(_verdict_change(change, ChangeKind.ALARM, f"drift alarm: now {change.verdict}", configs))
        elif change.reason_code != ReasonCode.DRIFT and key in alarmed:
            alarmed.remove(key)
            changes.append(
                _verdict_change(change, ChangeKind.ALARM_CLEARED, f"no longer alarmed: {change.verdict}", configs)
            )
    for decision in after:  # the tests may give the same verdict that the alarm gave
        if decision.reason_code != ReasonCode.DRIFT and _key(decision) in alarmed:
            what, same = f"no longer alarmed: {decision.verdict}", decision.verdict.value
            changes.append(
                Change.of_hypothesis(
                    decision, ChangeKind.ALARM_CLEARED, what, decision.reason, configs, before=same, after=same
                )
            )
    return changes


def _verdict_change(
    change: VerdictChange, kind: ChangeKind, what: str, configs: Mapping[str, FingerprintedConfig]
) -> Change:
    before = None if change.before is None else change.before.value
    return Change.of_hypothesis(change, kind, what, change.reason, configs, before=before, after=change.verdict.value)


def _of_advice(change: AdviceChange, configs: Mapping[str, FingerprintedConfig]) -> Change:
    parts = [f"{change.advice} has come down"] if change.is_new_advice else []
    parts += ["the mix of prompts has shifted"] if change.is_new_shift else []
    return Change.of_hypothesis(change, ChangeKind.ADVICE, "; ".join(parts), "since ENABLE, which is in force", configs)


def _of_fingerprints(
    words: Sequence[VerdictChange], before: Sequence[Decision], configs: Mapping[str, FingerprintedConfig]
) -> list[Change]:
    """The first decision with each fingerprint that was not decided on before, per endpoint."""
    known = {(decision.endpoint, decision.fingerprint) for decision in before}
    last = {
        (decision.endpoint, decision.config.name): decision.fingerprint
        for decision in sorted(before, key=lambda decision: decision.decided_at)
    }
    changes = []
    for change in sorted(words, key=lambda change: change.decision_id):
        if change.before is not None or (change.endpoint, change.fingerprint) in known:
            continue
        name = config_name(configs, change.fingerprint)
        old = last.get((change.endpoint, name))
        known.add((change.endpoint, change.fingerprint))
        last[change.endpoint, name] = change.fingerprint
        what = "is measured now" if old is None else f"is {change.fingerprint[:12]} now, and was {old[:12]}"
        changes.append(
            replace(
                Change.of_hypothesis(
                    change,
                    ChangeKind.FINGERPRINT,
                    f"{name} {what}",
                    "" if old is None else "its evidence restarts",
                    configs,
                    before=old,
                    after=change.fingerprint,
                ),
                slice_key="",
                concurrency=None,
            )
        )
    return changes


def _of_overrides(records: Iterable[OverrideRecord], since: datetime, until: datetime) -> list[Change]:
    changes = []
    for record in records:
        override, clearing = record.override, record.clearing
        if since <= override.created_at < until:
            ends = (
                "until it is cleared"
                if override.expires_at is None
                else f"until {override.expires_at:%Y-%m-%d %H:%M} UTC"
            )
            kind = ChangeKind.ALARM if override.author in (AUDITOR, GUARD) else ChangeKind.OVERRIDE_SET
            changes.append(_of_order(override, override.created_at, kind, f"{override.verdict} {ends}"))
        for effect in record.effects:
            if since <= effect.observed_at < until:
                kind = ChangeKind.CONFIRMED if effect.is_off else ChangeKind.ALARM
                shown = Change.of_order(override, effect.observed_at, kind, effect.reason, override_text(override))
                changes.append(shown)
        if clearing is not None and since <= clearing.cleared_at < until:
            what = f"override {override.override_id} cleared by {clearing.author}: {clearing.reason}"
            changes.append(_of_order(override, clearing.cleared_at, ChangeKind.OVERRIDE_CLEARED, what))
        elif clearing is None and override.expires_at is not None and since <= override.expires_at < until:
            what = f"override {override.override_id} has expired"
            changes.append(_of_order(override, override.expires_at, ChangeKind.OVERRIDE_EXPIRED, what))
    return changes


def _of_order(override: Override, at: datetime, kind: ChangeKind, what: str) -> Change:
    change = Change.of_order(override, at, kind, what, override_text(override))
    if at == override.created_at:
        return replace(change, after=override.verdict.value)
    return replace(change, before=override.verdict.value)


def _of_rollouts(
    history: Iterable[Rollout], since: datetime, until: datetime, configs: Mapping[str, FingerprintedConfig]
) -> list[Change]:
    changes = []
    latest: dict[tuple[str, int], Rollout] = {}
    for rollout in history:
        place = rollout.endpoint, rollout.concurrency
        old, latest[place] = latest.get(place), rollout
        if not since <= rollout.decided_at < until:
            continue
        moved = (
            f"{old.stage} to {rollout.stage}"
            if old is not None and old.stage is not rollout.stage
            else f"{rollout.stage}"
        )
        depths = ", ".join(
            plural(cap, "token") + (f" in {name}" if name else "") for name, cap in sorted(rollout.depth_caps.items())
        )
        share = f", {percent(rollout.share, 0)} of the enabled traffic" if rollout.share else ""
        changes.append(
            replace(
                Change.of_rollout(rollout, moved + share + (f", at most {depths} deep" if depths else ""), configs),
                before=None if old is None else old.stage.value,
                after=rollout.stage.value,
            )
        )
    return changes


def _key(decision: Decision) -> _Key:
    return decision.endpoint, hypothesis_id(decision)

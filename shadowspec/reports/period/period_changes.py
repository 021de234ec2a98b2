"""What happened within a span of time: verdicts that changed, alarms, orders, rollout steps, configs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime

from shadowspec.gate.audit.audit_run import AUTHOR as AUDITOR
from shadowspec.gate.run.trial_levels import HypothesisId, hypothesis_id
from shadowspec.gate.verdict.effective_decisions import order_words
from shadowspec.gate.verdict.trial import DRIFT
from shadowspec.live.watch import AUTHOR as GUARD
from shadowspec.reports.definitions import config_name
from shadowspec.reports.shared_values import Change, ChangeKind
from shadowspec.store import Store
from shadowspec.store.read.change_reads import AdviceChange, VerdictChange
from shadowspec.text import percent, plural
from shadowspec.types import Decision, FingerprintedConfig, Override, OverrideRecord, Rollout

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

    `before` and `after` are the decisions as they stood at the one and at the other.
    """
    configs = source.fingerprints()
    words = source.verdict_changes(since=since, until=until, limit=MAX_CHANGES + 1)
    advice = source.advice_changes(since=since, until=until, limit=MAX_CHANGES + 1)
    found = [
        *_verdict_changes(words[:MAX_CHANGES], before, after, configs),
        *(_of_advice(each, configs) for each in advice[:MAX_CHANGES]),
        *_of_fingerprints(words[:MAX_CHANGES], before, configs),
        *_of_overrides(source.overrides(), since, until),
    ]
    found += _of_rollouts(rollouts, since, until, configs)
    has_left_out = max(len(words), len(advice)) > MAX_CHANGES
    return sorted(found, key=lambda own: (_KINDS[own.kind], own.at, own.endpoint, own.slice_key)), has_left_out


def _verdict_changes(
    words: Sequence[VerdictChange],
    before: Sequence[Decision],
    after: Sequence[Decision],
    configs: Mapping[str, FingerprintedConfig],
) -> list[Change]:
    found = []
    alarmed = {_key(own) for own in before if own.reason_code == DRIFT}
    for own in sorted(words, key=lambda each: each.decision_id):
        key = (own.endpoint, (own.slice_key, own.concurrency, own.fingerprint))
        if own.before is not None and own.before is not own.verdict:
            found.append(_verdict_change(own, ChangeKind.VERDICT, f"{own.before} to {own.verdict}", configs))
        elif own.before is None:
            found.append(_verdict_change(own, ChangeKind.NEW, f"first verdict: {own.verdict}", configs))
        if own.reason_code == DRIFT and key not in alarmed:
            alarmed.add(key)
            found.append(_verdict_change(own, ChangeKind.ALARM, f"drift alarm: now {own.verdict}", configs))
        elif own.reason_code != DRIFT and key in alarmed:
            alarmed.remove(key)
            found.append(_verdict_change(own, ChangeKind.ALARM_CLEARED, f"no longer alarmed: {own.verdict}", configs))
    for decision in after:  # the tests may give the same verdict that the alarm gave
        if decision.reason_code != DRIFT and _key(decision) in alarmed:
            what, same = f"no longer alarmed: {decision.verdict}", decision.verdict.value
            found.append(
                Change.of_hypothesis(
                    decision, ChangeKind.ALARM_CLEARED, what, decision.reason, configs, before=same, after=same
                )
            )
    return found


def _verdict_change(
    own: VerdictChange, kind: ChangeKind, what: str, configs: Mapping[str, FingerprintedConfig]
) -> Change:
    before = None if own.before is None else own.before.value
    return Change.of_hypothesis(own, kind, what, own.reason, configs, before=before, after=own.verdict.value)


def _of_advice(own: AdviceChange, configs: Mapping[str, FingerprintedConfig]) -> Change:
    parts = [f"{own.advice} has come down"] if own.is_new_advice else []
    parts += ["the mix of prompts has shifted"] if own.is_new_shift else []
    return Change.of_hypothesis(own, ChangeKind.ADVICE, "; ".join(parts), "since ENABLE, which stands", configs)


def _of_fingerprints(
    words: Sequence[VerdictChange], before: Sequence[Decision], configs: Mapping[str, FingerprintedConfig]
) -> list[Change]:
    """The first decision with each fingerprint that was not decided on before, per endpoint."""
    known = {(own.endpoint, own.fingerprint) for own in before}
    last = {(own.endpoint, own.config.name): own.fingerprint for own in sorted(before, key=lambda own: own.decided_at)}
    found = []
    for own in sorted(words, key=lambda each: each.decision_id):
        if own.before is not None or (own.endpoint, own.fingerprint) in known:
            continue
        name = config_name(configs, own.fingerprint)
        old = last.get((own.endpoint, name))
        known.add((own.endpoint, own.fingerprint))
        last[own.endpoint, name] = own.fingerprint
        what = "is measured now" if old is None else f"is {own.fingerprint[:12]} now, and was {old[:12]}"
        found.append(
            replace(
                Change.of_hypothesis(
                    own,
                    ChangeKind.FINGERPRINT,
                    f"{name} {what}",
                    "" if old is None else "its evidence begins anew",
                    configs,
                    before=old,
                    after=own.fingerprint,
                ),
                slice_key="",
                concurrency=None,
            )
        )
    return found


def _of_overrides(records: Iterable[OverrideRecord], since: datetime, until: datetime) -> list[Change]:
    found = []
    for record in records:
        own, clearing = record.override, record.clearing
        if since <= own.created_at < until:
            ends = "until it is cleared" if own.expires_at is None else f"until {own.expires_at:%Y-%m-%d %H:%M} UTC"
            kind = ChangeKind.ALARM if own.author in (AUDITOR, GUARD) else ChangeKind.OVERRIDE_SET
            found.append(_of_order(own, own.created_at, kind, f"{own.verdict} {ends}"))
        if clearing is not None and since <= clearing.cleared_at < until:
            what = f"override {own.override_id} cleared by {clearing.author}: {clearing.reason}"
            found.append(_of_order(own, clearing.cleared_at, ChangeKind.OVERRIDE_CLEARED, what))
        elif clearing is None and own.expires_at is not None and since <= own.expires_at < until:
            what = f"override {own.override_id} has expired"
            found.append(_of_order(own, own.expires_at, ChangeKind.OVERRIDE_EXPIRED, what))
    return found


def _of_order(own: Override, at: datetime, kind: ChangeKind, what: str) -> Change:
    change = Change.of_order(own, at, kind, what, order_words(own))
    if at == own.created_at:
        return replace(change, after=own.verdict.value)
    return replace(change, before=own.verdict.value)


def _of_rollouts(
    history: Iterable[Rollout], since: datetime, until: datetime, configs: Mapping[str, FingerprintedConfig]
) -> list[Change]:
    found = []
    standing: dict[tuple[str, int], Rollout] = {}
    for own in history:
        place = own.endpoint, own.concurrency
        old, standing[place] = standing.get(place), own
        if not since <= own.decided_at < until:
            continue
        moved = f"{old.stage} to {own.stage}" if old is not None and old.stage is not own.stage else f"{own.stage}"
        depths = ", ".join(
            plural(cap, "token") + (f" in {name}" if name else "") for name, cap in sorted(own.depth_caps.items())
        )
        share = f", {percent(own.share, 0)} of the enabled traffic" if own.share else ""
        found.append(
            replace(
                Change.of_rollout(own, moved + share + (f", at most {depths} deep" if depths else ""), configs),
                before=None if old is None else old.stage.value,
                after=own.stage.value,
            )
        )
    return found


def _key(decision: Decision) -> _Key:
    return decision.endpoint, hypothesis_id(decision)

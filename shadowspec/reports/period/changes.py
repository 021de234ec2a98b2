"""What happened within a span of time: words that changed, alarms, orders, rollout steps, configs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime

from shadowspec.gate.overrides import order_words
from shadowspec.gate.restarts import DRIFT
from shadowspec.gating import HypothesisId, hypothesis_id
from shadowspec.gating.audits import AUTHOR as AUDITOR
from shadowspec.gating.live import AUTHOR as GUARD
from shadowspec.reports.period.model import Change, ChangeKind
from shadowspec.reports.period.source import PeriodSource
from shadowspec.reports.words import config_name
from shadowspec.store.changes import AdviceChange, VerdictChange
from shadowspec.types import Decision, FingerprintedConfig, Override, OverrideRecord, Rollout
from shadowspec.words import percent, plural

MAX_CHANGES = 1_000  # of each sort that are read and listed; what is left out is counted

_Key = tuple[str, HypothesisId]
_KINDS = {kind: place for place, kind in enumerate(ChangeKind)}


def changes_within(
    source: PeriodSource,
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
        *_of_words(words[:MAX_CHANGES], before, after, configs),
        *(_of_advice(each, configs) for each in advice[:MAX_CHANGES]),
        *_of_fingerprints(words[:MAX_CHANGES], before, configs),
        *_of_overrides(source.overrides(), since, until),
    ]
    found += _of_rollouts(rollouts, since, until, configs)
    has_left_out = max(len(words), len(advice)) > MAX_CHANGES
    return sorted(found, key=lambda own: (_KINDS[own.kind], own.at, own.endpoint, own.slice_key)), has_left_out


def _of_words(
    words: Sequence[VerdictChange],
    before: Sequence[Decision],
    after: Sequence[Decision],
    configs: Mapping[str, FingerprintedConfig],
) -> list[Change]:
    found = []
    sounding = {_key(own) for own in before if own.reason_code == DRIFT}
    for own in sorted(words, key=lambda each: each.decision_id):
        key = (own.endpoint, (own.slice_key, own.concurrency, own.fingerprint))
        if own.before is not None and own.before is not own.verdict:
            found.append(_of_word(own, ChangeKind.VERDICT, f"{own.before} to {own.verdict}", configs))
        elif own.before is None:
            found.append(_of_word(own, ChangeKind.NEW, f"first word: {own.verdict}", configs))
        if own.reason_code == DRIFT and key not in sounding:
            sounding.add(key)
            found.append(_of_word(own, ChangeKind.ALARM, f"drift alarm: now {own.verdict}", configs))
        elif own.reason_code != DRIFT and key in sounding:
            sounding.remove(key)
            found.append(_of_word(own, ChangeKind.ALARM_CLEARED, f"no longer alarmed: {own.verdict}", configs))
    for decision in after:  # the alarm's word may have become the tests' own without changing
        if decision.reason_code != DRIFT and _key(decision) in sounding:
            found.append(_cleared(decision))
    return found


def _of_word(own: VerdictChange, kind: ChangeKind, what: str, configs: Mapping[str, FingerprintedConfig]) -> Change:
    return Change(
        at=own.decided_at,
        kind=kind,
        endpoint=own.endpoint,
        slice_key=own.slice_key,
        concurrency=own.concurrency,
        what=what,
        why=own.reason,
        before=None if own.before is None else own.before.value,
        after=own.verdict.value,
        config_name=config_name(configs, own.fingerprint),
        fingerprint=own.fingerprint,
        decision_id=own.decision_id,
    )


def _cleared(decision: Decision) -> Change:
    return Change(
        at=decision.decided_at,
        kind=ChangeKind.ALARM_CLEARED,
        endpoint=decision.endpoint,
        slice_key=decision.slice_key,
        concurrency=decision.concurrency,
        what=f"no longer alarmed: {decision.verdict}",
        why=decision.reason,
        before=decision.verdict.value,
        after=decision.verdict.value,
        config_name=decision.config.name,
        fingerprint=decision.fingerprint,
        decision_id=decision.decision_id,
    )


def _of_advice(own: AdviceChange, configs: Mapping[str, FingerprintedConfig]) -> Change:
    parts = [f"{own.advice} has come down"] if own.is_new_advice else []
    parts += ["the mix of prompts has shifted"] if own.is_new_shift else []
    return Change(
        at=own.decided_at,
        kind=ChangeKind.ADVICE,
        endpoint=own.endpoint,
        slice_key=own.slice_key,
        concurrency=own.concurrency,
        what="; ".join(parts),
        why="since ENABLE, which stands",
        config_name=config_name(configs, own.fingerprint),
        fingerprint=own.fingerprint,
        decision_id=own.decision_id,
    )


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
            Change(
                at=own.decided_at,
                kind=ChangeKind.FINGERPRINT,
                endpoint=own.endpoint,
                slice_key="",
                concurrency=None,
                what=f"{name} {what}",
                why="" if old is None else "its evidence begins anew",
                before=old,
                after=own.fingerprint,
                config_name=name,
                fingerprint=own.fingerprint,
                decision_id=own.decision_id,
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
    return Change(
        at=at,
        kind=kind,
        endpoint=own.endpoint,
        slice_key=own.slice_key,
        concurrency=own.concurrency,
        what=what,
        why=order_words(own),
        after=own.verdict.value if at == own.created_at else None,
        before=own.verdict.value if at != own.created_at else None,
    )


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
            Change(
                at=own.decided_at,
                kind=ChangeKind.ROLLOUT,
                endpoint=own.endpoint,
                slice_key="",
                concurrency=own.concurrency,
                what=moved + share + (f", at most {depths} deep" if depths else ""),
                why=own.reason,
                before=None if old is None else old.stage.value,
                after=own.stage.value,
                config_name=None if own.fingerprint is None else config_name(configs, own.fingerprint),
                fingerprint=own.fingerprint,
            )
        )
    return found


def _key(decision: Decision) -> _Key:
    return decision.endpoint, hypothesis_id(decision)

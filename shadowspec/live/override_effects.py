"""Whether production obeys an override: what its counters show after one that covers a whole endpoint.

Speculation is off when requests have ended without any drafted token at every replica since some moment after the
override.  It is still on when a replica drafts in a window that began `off_within_s` or later after the override, or
after it was off.  Either is observed once for each override, and stored: the second is an alarm.  Without requests
nothing is known, and without a reading of every replica nothing is confirmed.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

from shadowspec.store import Store
from shadowspec.text import plural
from shadowspec.types import LiveWindow, OverrideEffect, OverrideRecord
from shadowspec.types.settings import GuardPolicy

MAX_WINDOWS: Final = 10_000  # of an endpoint after an override: the newest


def observe_overrides(
    store: Store, endpoint: str, replicas: Collection[str], policy: GuardPolicy
) -> tuple[list[OverrideEffect], bool]:
    """Store the effects that are seen for the first time; those, and whether any override's is still awaited.

    Raises:
        ServiceUnavailableError, StoreError: the database is gone or refuses.
    """
    now = datetime.now(UTC)
    records = [record for record in store.overrides(endpoint) if _is_observed(record, now)]
    if not records:
        return [], False
    since = min(record.override.created_at for record in records)
    windows = store.live_windows(endpoint, since=since, replicas=replicas, limit=MAX_WINDOWS)
    seen = [effect for record in records for effect in effects_of(record, windows, replicas, policy)]
    store.add_effects(seen)
    known = [effect for record in records for effect in record.effects] + seen
    confirmed = {effect.override_id for effect in known if effect.is_off}
    return seen, any(record.override.override_id not in confirmed for record in records)


def effects_of(
    record: OverrideRecord, windows: Sequence[LiveWindow], replicas: Collection[str], policy: GuardPolicy
) -> list[OverrideEffect]:
    """What these windows, in the order of their ends, show of an override beyond the effects that it already has."""
    override = record.override
    known = {effect.is_off: effect for effect in record.effects}
    later = [window for window in windows if window.began_at >= override.created_at]
    by_replica = {name: [window for window in later if window.replica == name] for name in replicas}
    tails = {name: _without_drafts(of_replica) for name, of_replica in by_replica.items()}
    effects = []
    served = sum(_num_served(window) for tail in tails.values() for window in tail)
    if True not in known and all(tails.values()) and served:
        began_at = max(tail[0].began_at for tail in tails.values())
        ended_at = max(tail[-1].ended_at for tail in tails.values())
        after_s = (began_at - override.created_at).total_seconds()
        reason = (
            f"off in production: no drafted token since {began_at:%H:%M:%S} UTC, {after_s:.0f} s after the override; "
            f"{served:,} tokens were served"
        )
        effects.append(OverrideEffect(override.override_id, True, ended_at, reason))
    due_at = override.created_at + timedelta(seconds=policy.off_within_s)
    if True in known:
        due_at = min(due_at, known[True].observed_at)
    drafting = [window for window in later if window.began_at >= due_at and _num_drafted(window)]
    if False not in known and drafting:
        window = drafting[0]
        reason = (
            f"still on in production: {window.replica} drafted {plural(_num_drafted(window), 'token')} from "
            f"{window.began_at:%H:%M:%S} to {window.ended_at:%H:%M:%S} UTC; look for failed exports "
            "(`shadowspec schedule --list`), or restart the server without speculation"
        )
        effects.append(OverrideEffect(override.override_id, False, window.ended_at, reason))
    return effects


def _is_observed(record: OverrideRecord, now: datetime) -> bool:
    """Whether it switches a whole endpoint off, and not everything is known of its effect."""
    override = record.override
    covers_all = not override.slice_key and override.concurrency is None
    return covers_all and record.is_active(now) and len(record.effects) < len((True, False))


def _without_drafts(windows: Sequence[LiveWindow]) -> list[LiveWindow]:
    """The windows after the last one with a drafted token."""
    last = max((place for place, window in enumerate(windows) if _num_drafted(window)), default=-1)
    return list(windows[last + 1 :])


def _num_drafted(window: LiveWindow) -> int:
    """Drafted tokens, or steps where only these are counted; an engine that counts neither does not speculate."""
    return window.counts.num_draft_tokens or window.counts.num_drafts or 0


def _num_served(window: LiveWindow) -> int:
    return window.counts.num_output_tokens or 0

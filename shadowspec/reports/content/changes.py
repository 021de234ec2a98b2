"""What changed at an endpoint, and when, as the report on a span of time and the dashboard's timeline show it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from shadowspec.reports.content.definitions import config_name
from shadowspec.store import AdviceChange, VerdictChange
from shadowspec.types import Decision, FingerprintedConfig, Override, Rollout, Stage


class ChangeKind(StrEnum):
    """What happened, in the order in which a reader wants to know of it."""

    ALARM = "alarm"  # what was proven no longer holds: by a detector, or by a fault or memory over budget
    OVERRIDE_SET = "override_set"
    VERDICT = "verdict"
    CONFIRMED = "confirmed"  # production's counters show that an order has switched speculation off
    ALARM_CLEARED = "alarm_cleared"
    OVERRIDE_CLEARED = "override_cleared"
    OVERRIDE_EXPIRED = "override_expired"
    ROLLOUT = "rollout"
    FINGERPRINT = "fingerprint"
    ADVICE = "advice"  # something has come down, or the mix has shifted, without an alarm
    NEW = "new"  # the first verdict on a hypothesis
    # Only of the timeline, which divides these otherwise.
    MIX = "mix shift"
    OVERRIDE = "override"  # set, cleared or expired


def moves_traffic(change: Change) -> bool:
    """Whether it is a step of a rollout; to begin in the shadow, or to change the config there, is none."""
    stages = {change.before or Stage.SHADOW, change.after or Stage.SHADOW}
    return change.kind is ChangeKind.ROLLOUT and stages != {Stage.SHADOW}


@dataclass(frozen=True, slots=True)
class Change:
    """One thing that happened.  `slice_key` "" is the whole endpoint, `concurrency` None means every load.

    `before` and `after` are verdicts, stages or fingerprints; None where it has none, or was the first.  `decision_id`
    leads to the evidence.
    """

    at: datetime
    kind: ChangeKind
    endpoint: str
    slice_key: str
    concurrency: int | None
    what: str  # "HOLD to ENABLE"
    why: str
    who: str = ""  # only of the timeline
    before: str | None = None
    after: str | None = None
    config_name: str | None = None
    fingerprint: str | None = None
    decision_id: int | None = None

    @staticmethod
    def of_hypothesis(
        row: VerdictChange | AdviceChange | Decision,
        kind: ChangeKind,
        what: str,
        why: str,
        configs: Mapping[str, FingerprintedConfig],
        *,
        who: str = "",
        before: str | None = None,
        after: str | None = None,
    ) -> Change:
        """A change of one hypothesis, at the decision that made it."""
        return Change(
            at=row.decided_at,
            kind=kind,
            endpoint=row.endpoint,
            slice_key=row.slice_key,
            concurrency=row.concurrency,
            what=what,
            why=why,
            who=who,
            before=before,
            after=after,
            config_name=config_name(configs, row.fingerprint),
            fingerprint=row.fingerprint,
            decision_id=row.decision_id,
        )

    @staticmethod
    def of_order(override: Override, at: datetime, kind: ChangeKind, what: str, why: str, who: str = "") -> Change:
        """An override as it was set, or as it ended."""
        return Change(at, kind, override.endpoint, override.slice_key, override.concurrency, what, why, who)

    @staticmethod
    def of_rollout(rollout: Rollout, what: str, configs: Mapping[str, FingerprintedConfig], who: str = "") -> Change:
        """Another stage or depth of a rollout."""
        return Change(
            at=rollout.decided_at,
            kind=ChangeKind.ROLLOUT,
            endpoint=rollout.endpoint,
            slice_key="",
            concurrency=rollout.concurrency,
            what=what,
            why=rollout.reason,
            who=who,
            config_name=None if rollout.fingerprint is None else config_name(configs, rollout.fingerprint),
            fingerprint=rollout.fingerprint,
        )

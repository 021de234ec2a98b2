"""Runs of one hypothesis: which fingerprint it speaks of, when its tests start afresh, and at what level.

A hypothesis is endpoint x slice x load x the operator's name for a speculation config.  What the name stands for
may change: other weights, another chat template, tokenizer, sampling or engine version make another
fingerprint, and figures of the old one say nothing about the new.  A new fingerprint, or an alarm of a drift
detector, ends the run: the next one starts with no evidence, at half the level.

Invariant: the levels of all runs of a hypothesis sum to no more than its share, whatever happens.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from shadowspec.gate.levels import level_of_run
from shadowspec.types import Decision, Verdict

if TYPE_CHECKING:  # with it comes numpy, which who only reads verdicts does without
    from shadowspec.gate.series import Detail

# A fingerprint that was replaced is current again only when its replacement has not been measured for so long:
# while workers are being restarted one by one, both are measured, and must not end each other's runs.
RETURN_AFTER = timedelta(hours=1)

CHANGED_FINGERPRINT = "changed_fingerprint"
DRIFT = "drift"

HypothesisName = tuple[str, int, str]  # slice key, concurrency, the config's name


@dataclass(frozen=True, slots=True)
class Trial:
    """One run of a hypothesis's tests.

    `share` is what the hypothesis was given of alpha at its entry.  Evidence counts from `start_blocks` blocks
    and `start_clusters` clusters of the fingerprint on, and from `start_lost` lost records of the slice.
    `supersedes` is the fingerprint whose verdict went with the run before (None: the first run, or a restart with
    the same fingerprint).
    """

    fingerprint: str
    share: float
    num_restarts: int = 0
    start_blocks: int = 0
    start_clusters: int = 0
    start_lost: int = 0
    supersedes: str | None = None

    @property
    def level(self) -> float | None:
        """Level of this run; None where the share is used up."""
        return level_of_run(self.share, self.num_restarts)

    def details(self) -> dict[str, Detail]:
        """What a decision keeps of its run, for `trial_of`."""
        return {
            "share": self.share,
            "level": self.level,
            "num_restarts": self.num_restarts,
            "start_blocks": self.start_blocks,
            "start_clusters": self.start_clusters,
            "start_lost": self.start_lost,
            "supersedes": self.supersedes,
        }


@dataclass(frozen=True, slots=True)
class Seen:
    """When a fingerprint was first and last measured."""

    first: datetime
    last: datetime


def current_fingerprint(seen: Mapping[str, Seen]) -> str | None:
    """The fingerprint that a config's name stands for now: the one that appeared last.

    An older one is current again when the newer has not been measured for RETURN_AFTER of its measuring.  Depends
    on what was measured when, not on earlier answers, so that every gate says the same; None of nothing.
    """
    if not seen:
        return None
    newest = max(seen, key=lambda fingerprint: (seen[fingerprint].first, fingerprint))
    latest = max(seen, key=lambda fingerprint: (seen[fingerprint].last, fingerprint == newest, fingerprint))
    return latest if seen[latest].last - seen[newest].last > RETURN_AFTER else newest


def name_of(decision: Decision) -> HypothesisName:
    """The hypothesis that a decision is about, whatever its fingerprint."""
    return decision.slice_key, decision.concurrency, decision.config.name


def trial_of(decision: Decision) -> Trial | None:
    """The run on which a decision rests; None where it had no level."""
    details = decision.details
    share = details.get("share")
    if not isinstance(share, float):
        return None
    supersedes = details.get("supersedes")
    return Trial(
        fingerprint=decision.fingerprint,
        share=share,
        num_restarts=int(details.get("num_restarts") or 0),
        start_blocks=int(details.get("start_blocks") or 0),
        start_clusters=int(details.get("start_clusters") or 0),
        start_lost=int(details.get("start_lost") or 0),
        supersedes=supersedes if isinstance(supersedes, str) else None,
    )


def latest_by_name(decisions: Iterable[Decision]) -> dict[HypothesisName, Decision]:
    """Of each hypothesis the decision of its latest run that had a level: the most restarted one."""
    latest: dict[HypothesisName, tuple[int, Decision]] = {}
    for decision in decisions:
        trial = trial_of(decision)
        if trial is not None and trial.num_restarts >= latest.get(name_of(decision), (0, decision))[0]:
            latest[name_of(decision)] = trial.num_restarts, decision
    return {name: decision for name, (_, decision) in latest.items()}


def next_trial(latest: Decision | None, own: Decision | None, fingerprint: str, share: float) -> Trial:
    """The run that a look at `fingerprint` belongs to.

    `latest` is the latest decision on the hypothesis with whatever fingerprint, `own` the latest one with this
    fingerprint (None: there is none); `share` counts for a first run only.
    """
    trial = trial_of(latest) if latest is not None else None
    if latest is None or trial is None:
        return Trial(fingerprint, share)
    if latest.fingerprint == fingerprint and not has_ended(latest):
        return trial
    folded = trial_of(own) if own is not None else None
    next_ = Trial(
        fingerprint,
        trial.share,
        trial.num_restarts + 1,
        start_blocks=(folded.start_blocks + own.num_blocks) if folded and own else 0,
        start_clusters=(folded.start_clusters + passed_clusters(own)) if folded and own else 0,
        start_lost=trial.start_lost + int(latest.details.get("num_lost") or 0),
    )
    return next_ if latest.fingerprint == fingerprint else replace(next_, supersedes=latest.fingerprint)


def passed_clusters(decision: Decision) -> int:
    """Clusters of its run that came by, in evidence or beyond `max_clusters`: the next run begins after them."""
    return decision.num_clusters + int(decision.details.get("num_capped_clusters") or 0)


def has_ended(decision: Decision) -> bool:
    """Whether a decision ended its run, so that the next look starts afresh."""
    return bool(decision.details.get("ends_run"))


def superseded(decision: Decision, by: str, now: datetime) -> Decision:
    """The row that takes an old fingerprint's verdict out of force: HOLD, its figures as they were."""
    return replace(
        decision,
        verdict=Verdict.HOLD,
        reason_code=CHANGED_FINGERPRINT,
        reason=f"{decision.verdict} was superseded: {decision.config.name} now has fingerprint {by[:12]}",
        clusters_needed=None,
        decided_at=now,
        details={
            **decision.details,
            "ends_run": 1,
            "superseded_by": by,
            "superseded_verdict": str(decision.verdict),
            "verdict_since": now.isoformat(),
        },
    )


def is_superseded(decision: Decision) -> bool:
    """Whether the decision's fingerprint has been replaced."""
    return decision.details.get("superseded_by") is not None

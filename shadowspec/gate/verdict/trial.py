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

from shadowspec.gate.stats.levels import level_of_run
from shadowspec.types import Decision, FingerprintedConfig, Supersession, Trial, Verdict

# A fingerprint that was replaced is current again only when its replacement has not been measured for so long:
# while workers are being restarted one by one, both are measured, and must not end each other's runs.
RETURN_AFTER = timedelta(hours=1)

CHANGED_FINGERPRINT = "changed_fingerprint"
DRIFT = "drift"

HypothesisName = tuple[str, int, str]  # slice key, concurrency, the config's name


@dataclass(frozen=True, slots=True)
class Seen:
    """When a fingerprint was first and last measured."""

    first: datetime
    last: datetime


def current_fingerprint(seen: Mapping[str, Seen]) -> str | None:
    """The fingerprint that a config's name stands for now: the one that appeared last.

    An older one is current again when the newer has not been measured for RETURN_AFTER of its measuring.  Depends
    on what was measured when, not on earlier answers, so that every gate says the same; of several that appeared at
    the same time it is the last of `seen`.  None of nothing.
    """
    if not seen:
        return None
    place = {fingerprint: at for at, fingerprint in enumerate(seen)}
    newest = max(seen, key=lambda fingerprint: (seen[fingerprint].first, place[fingerprint]))
    latest = max(seen, key=lambda fingerprint: (seen[fingerprint].last, fingerprint == newest, place[fingerprint]))
    return latest if seen[latest].last - seen[newest].last > RETURN_AFTER else newest


def name_of(decision: Decision) -> HypothesisName:
    """The hypothesis that a decision is about, whatever its fingerprint."""
    return decision.slice_key, decision.concurrency, decision.config.name


def latest_by_name(decisions: Iterable[Decision]) -> dict[HypothesisName, Decision]:
    """Of each hypothesis the decision of its latest run that had a level: the most restarted one."""
    latest: dict[HypothesisName, tuple[int, Decision]] = {}
    for decision in decisions:
        run = decision.run
        if run is not None and run.num_restarts >= latest.get(name_of(decision), (0, decision))[0]:
            latest[name_of(decision)] = run.num_restarts, decision
    return {name: decision for name, (_, decision) in latest.items()}


def next_trial(latest: Decision | None, own: Decision | None, fingerprint: str, share: float) -> Trial:
    """The run that a look at `fingerprint` belongs to.

    `latest` is the latest decision on the hypothesis with whatever fingerprint, `own` the latest one with this
    fingerprint (None: there is none); `share` counts for a first run only.
    """
    if latest is None or latest.run is None:
        return with_level(Trial(share, None))
    trial = latest.run
    if latest.fingerprint == fingerprint and not latest.ends_run:
        return trial
    folded = own.run if own is not None else None
    next_ = Trial(
        share=trial.share,
        level=None,
        num_restarts=trial.num_restarts + 1,
        start_blocks=(folded.start_blocks + own.num_blocks) if folded and own else 0,
        start_clusters=(folded.start_clusters + passed_clusters(own)) if folded and own else 0,
        start_lost=trial.start_lost + latest.evidence.num_lost,
        supersedes=None if latest.fingerprint == fingerprint else latest.fingerprint,
    )
    return with_level(next_)


def with_level(trial: Trial) -> Trial:
    """The run with the level that its share and the restarts before it leave."""
    return replace(trial, level=level_of_run(trial.share, trial.num_restarts))


def passed_clusters(decision: Decision) -> int:
    """Clusters of its run that came by, in evidence or beyond `max_clusters`: the next run begins after them."""
    return decision.num_clusters + decision.evidence.num_capped_clusters


def recipe_note(old: FingerprintedConfig | None, new: FingerprintedConfig | None) -> str:
    """What a reason adds where the fingerprint changed because its recipe did; "" elsewhere."""
    if old is None or new is None or old.recipe is not None or new.default_sampling is None:
        return ""
    return (
        f" (the fingerprint recipe now includes sampling defaults, here {new.default_sampling}; evidence of "
        f"{old.fingerprint[:12]} was measured under sampling defaults that were not recorded)"
    )


def supersede(decision: Decision, by: str, now: datetime, note: str = "") -> Decision:
    """The row that takes an old fingerprint's verdict out of force: HOLD, its figures as they were."""
    return replace(
        decision,
        verdict=Verdict.HOLD,
        reason_code=CHANGED_FINGERPRINT,
        reason=f"{decision.verdict} was superseded: {decision.config.name} now has fingerprint {by[:12]}{note}",
        clusters_needed=None,
        decided_at=now,
        ends_run=True,
        supersession=Supersession(by, decision.verdict),
        verdict_since=now,
    )


def is_superseded(decision: Decision) -> bool:
    """Whether the decision's fingerprint has been replaced."""
    return decision.supersession is not None

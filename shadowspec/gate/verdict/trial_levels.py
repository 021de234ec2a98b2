"""Runs of a hypothesis and their levels: which fingerprint it speaks of, when its tests restart, and at what level.

A hypothesis is endpoint x slice x load x the operator's name for a speculation config.  The config of the name
may change: other weights, another chat template, tokenizer, sampling or engine version make another
fingerprint, and figures of the old one say nothing about the new.  A new fingerprint, or an alarm of a drift
detector, ends the run: the next one starts with no evidence, at half the level.

Levels are alpha / max_hypotheses for each hypothesis, given at entry, fixed, never reallocated.

Invariant: what has been given never sums to more than alpha, whatever the policy says later.  A hypothesis's
first run uses half of its share, its j-th restart share * 2**-(j + 1), so that all runs that it can ever have
together use no more than the share.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TypeVar

from shadowspec.gate.policy import GatePolicy
from shadowspec.types import Decision, FingerprintedConfig, Supersession, Trial, Verdict

# A fingerprint that was replaced is current again only when its replacement has not been measured for so long:
# while workers are being restarted one by one, both are measured, and must not end each other's runs.
RETURN_AFTER = timedelta(hours=1)

CHANGED_FINGERPRINT = "changed_fingerprint"
CHANGED_RULES = "changed_rules"
DRIFT = "drift"

FIRST_RUN_SHARE = 0.5
MAX_RESTARTS = 30  # a share / 2**31 takes three times the units of a first run: more restarts are a fault elsewhere

HypothesisId = tuple[str, int, str]  # slice key, concurrency, fingerprint
HypothesisName = tuple[str, int, str]  # slice key, concurrency, the config's name
Named = TypeVar("Named", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Seen:
    """When a fingerprint was first and last measured."""

    first: datetime
    last: datetime


def hypothesis_id(decision: Decision) -> HypothesisId:
    """What identifies a decision's hypothesis within its endpoint."""
    return decision.slice_key, decision.concurrency, decision.fingerprint


def frozen_policy(policy: GatePolicy, previous: Decision | None) -> GatePolicy:
    """The policy with a hypothesis's parameters as they were fixed when it entered, its rules when its run began."""
    fixed = previous.frozen_parameters if previous else None
    if previous is None or fixed is None:
        return policy
    return policy.with_frozen_parameters({**fixed, "rule_set": policy.rule_set} if previous.ends_run else fixed)


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


def current_fingerprint(seen: Mapping[str, Seen]) -> str | None:
    """The current fingerprint of a config's name: the one that appeared last.

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


def current_configs(
    configs: Mapping[str, FingerprintedConfig], seen: Mapping[str, Seen]
) -> dict[str, FingerprintedConfig]:
    """The current config of each name, by fingerprint; where none of a name's was measured, all of them."""
    by_name: dict[str, dict[str, FingerprintedConfig]] = {}
    for fingerprint, config in sorted(configs.items()):
        by_name.setdefault(config.config.name, {})[fingerprint] = config
    current: dict[str, FingerprintedConfig] = {}
    for fingerprints in by_name.values():
        chosen = current_fingerprint({name: seen[name] for name in fingerprints if name in seen})
        current |= fingerprints if chosen is None else {chosen: fingerprints[chosen]}
    return current


def entered_in_order(
    positions: Mapping[HypothesisId, int | None],
    configs: Mapping[str, FingerprintedConfig],
    standing: Iterable[Decision],
) -> list[HypothesisId]:
    """The hypotheses that have entered, in the order of entry, of the positions of their slices' entries (None: none).

    What has been given a level has entered for good: with whatever fingerprint, and also where the clusters that let
    it in are open again (more of an input that had ended, and everything folded again).  Its level would be given to
    another otherwise.
    """
    held = latest_by_name(standing)
    entered = {
        key: -1 if position is None else position
        for key, position in positions.items()
        if position is not None or (key[0], key[1], configs[key[2]].config.name) in held
    }
    return sorted(entered, key=lambda key: (entered[key], key))


def assign_trials(
    entered: Sequence[HypothesisId],
    configs: Mapping[str, FingerprintedConfig],
    standing: Sequence[Decision],
    policy: GatePolicy,
) -> dict[HypothesisId, Trial | None]:
    """The run of each hypothesis of `entered`, in the order of entry; None where no level is left.

    `standing` are the endpoint's latest decisions.
    """
    latest, by_id = latest_by_name(standing), {hypothesis_id(row): row for row in standing}
    names: dict[HypothesisId, HypothesisName] = {key: (key[0], key[1], configs[key[2]].config.name) for key in entered}
    held = {name: row.run.share for name, row in latest.items() if row.run is not None}
    shares = assign_shares(list(dict.fromkeys(names.values())), held, policy)
    trials: dict[HypothesisId, Trial | None] = {}
    for key, name in names.items():
        share = shares[name]
        trials[key] = None if share is None else next_trial(latest.get(name), by_id.get(key), key[2], share)
    return trials


def level_of_run(share: float, num_restarts: int) -> float | None:
    """Level of a hypothesis's run after so many restarts; None where none is left."""
    return share * FIRST_RUN_SHARE * 2.0**-num_restarts if num_restarts <= MAX_RESTARTS else None


def shown_level(level: float | None, policy: GatePolicy) -> float:
    """The level at which tests are shown: that of their run, or that of a first one where there is none."""
    return level or _first_share(policy) * FIRST_RUN_SHARE


def assign_shares(
    entered: Sequence[Named], held: Mapping[Named, float], policy: GatePolicy
) -> dict[Named, float | None]:
    """Share of alpha of each hypothesis of `entered` (in order of entry); None where none is left.

    `held` are the shares given at earlier looks, those of hypotheses that are no longer asked about included.
    """
    shares: dict[Named, float | None] = {}
    given = sum(held.values())
    share = _first_share(policy)
    for hypothesis in entered:
        if hypothesis in held:
            shares[hypothesis] = held[hypothesis]
        elif given + share <= policy.alpha * (1.0 + 1e-9):  # sums of equal shares round
            given += share
            shares[hypothesis] = share
        else:
            shares[hypothesis] = None
    return shares


def _first_share(policy: GatePolicy) -> float:
    return policy.alpha / policy.max_hypotheses


def next_trial(latest: Decision | None, same: Decision | None, fingerprint: str, share: float) -> Trial:
    """The run that a look at `fingerprint` belongs to.

    `latest` is the latest decision on the hypothesis with whatever fingerprint, `same` the latest one with this
    fingerprint (None: there is none); `share` counts for a first run only.
    """
    if latest is None or latest.run is None:
        return with_level(Trial(share, None))
    trial = latest.run
    if latest.fingerprint == fingerprint and not latest.ends_run:
        return trial
    folded = same.run if same is not None else None
    next_ = Trial(
        share=trial.share,
        level=None,
        num_restarts=trial.num_restarts + 1,
        start_blocks=(folded.start_blocks + same.num_blocks) if folded and same else 0,
        start_clusters=(folded.start_clusters + passed_clusters(same)) if folded and same else 0,
        start_lost=trial.start_lost + latest.evidence.num_lost,
        supersedes=None if latest.fingerprint == fingerprint else latest.fingerprint,
        follows=_why_ended(latest, fingerprint),
    )
    return with_level(next_)


def _why_ended(latest: Decision, fingerprint: str) -> str:
    """Why the run of `latest` ended, as a reason code; an alarm is in force until a run after it decides."""
    if latest.fingerprint != fingerprint:
        return CHANGED_FINGERPRINT
    alarmed = latest.reason_code == DRIFT or (latest.run is not None and latest.run.follows == DRIFT)
    return DRIFT if alarmed else CHANGED_RULES


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


def superseded_rows(
    trials: Mapping[HypothesisId, Trial | None],
    configs: Mapping[str, FingerprintedConfig],
    previous: Mapping[HypothesisId, Decision],
    now: datetime,
) -> list[Decision]:
    """The rows that take the verdicts of replaced fingerprints out of force; each is written once."""
    replaced = []
    for (slice_key, concurrency, fingerprint), trial in trials.items():
        old = previous.get((slice_key, concurrency, trial.supersedes)) if trial and trial.supersedes else None
        if old is not None and not is_superseded(old):
            note = recipe_note(configs.get(old.fingerprint), configs.get(fingerprint))
            replaced.append(supersede(old, fingerprint, now, note))
    return replaced

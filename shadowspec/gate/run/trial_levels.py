"""Which run of its tests each hypothesis is in at a look: what its config's name stands for, and at what level."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime

from shadowspec.gate.policy import GatePolicy
from shadowspec.gate.stats.levels import assign_shares
from shadowspec.gate.verdict.trial import (
    HypothesisName,
    Seen,
    current_fingerprint,
    is_superseded,
    latest_by_name,
    next_trial,
    recipe_note,
    supersede,
)
from shadowspec.types import Decision, FingerprintedConfig, Trial

HypothesisId = tuple[str, int, str]  # slice key, concurrency, fingerprint


def hypothesis_id(decision: Decision) -> HypothesisId:
    """What identifies a decision's hypothesis within its endpoint."""
    return decision.slice_key, decision.concurrency, decision.fingerprint


def frozen_policy(policy: GatePolicy, previous: Decision | None) -> GatePolicy:
    """The policy with a hypothesis's parameters as they were fixed when it entered."""
    fixed = previous.frozen_parameters if previous else None
    return policy if fixed is None else policy.with_frozen_parameters(fixed)


def current_configs(
    configs: Mapping[str, FingerprintedConfig], seen: Mapping[str, Seen]
) -> dict[str, FingerprintedConfig]:
    """The config that each name stands for now, by fingerprint; where none of a name's was measured, all of them."""
    by_name: dict[str, dict[str, FingerprintedConfig]] = {}
    for fingerprint, config in sorted(configs.items()):
        by_name.setdefault(config.config.name, {})[fingerprint] = config
    current: dict[str, FingerprintedConfig] = {}
    for own in by_name.values():
        chosen = current_fingerprint({name: seen[name] for name in own if name in seen})
        current |= own if chosen is None else {chosen: own[chosen]}
    return current


def entered_in_order(
    positions: Mapping[HypothesisId, int | None],
    configs: Mapping[str, FingerprintedConfig],
    standing: Iterable[Decision],
) -> list[HypothesisId]:
    """The hypotheses that have entered, in the order of entry, of the positions of their slices' entries (None: none).

    What has been given a level has entered for good: with whatever fingerprint, and also where the clusters that let
    it in are open again (more of an input that had ended, and everything folded anew).  Its level would be given to
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
    latest, own = latest_by_name(standing), {hypothesis_id(row): row for row in standing}
    names: dict[HypothesisId, HypothesisName] = {key: (key[0], key[1], configs[key[2]].config.name) for key in entered}
    held = {name: row.run.share for name, row in latest.items() if row.run is not None}
    shares = assign_shares(list(dict.fromkeys(names.values())), held, policy)
    trials: dict[HypothesisId, Trial | None] = {}
    for key, name in names.items():
        share = shares[name]
        trials[key] = None if share is None else next_trial(latest.get(name), own.get(key), key[2], share)
    return trials


def superseded_rows(
    trials: Mapping[HypothesisId, Trial | None],
    configs: Mapping[str, FingerprintedConfig],
    standing: Iterable[Decision],
    now: datetime,
) -> list[Decision]:
    """The rows that take the verdicts of replaced fingerprints out of force; each is written once."""
    rows = {hypothesis_id(row): row for row in standing}
    replaced = []
    for (slice_key, concurrency, fingerprint), trial in trials.items():
        old = rows.get((slice_key, concurrency, trial.supersedes)) if trial and trial.supersedes else None
        if old is not None and not is_superseded(old):
            note = recipe_note(configs.get(old.fingerprint), configs.get(fingerprint))
            replaced.append(supersede(old, fingerprint, now, note))
    return replaced

"""Decides every hypothesis of an endpoint from its folded evidence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from shadowspec.gate.composition import composed, group_key
from shadowspec.gate.decision import Hypothesis, restarted_states
from shadowspec.gate.evidence import HypothesisEvidence
from shadowspec.gate.policy import GatePolicy
from shadowspec.gate.restarts import Trial
from shadowspec.gate.standing import kept_evidence
from shadowspec.gating.folding import Rules
from shadowspec.gating.look import Look
from shadowspec.gating.state import EndpointState, KeptEvidence, way_of
from shadowspec.gating.traffic import traffic_of
from shadowspec.gating.trials import (
    HypothesisId,
    assign_trials,
    current_configs,
    entered_in_order,
    hypothesis_id,
    superseded_rows,
)
from shadowspec.types import Decision, FingerprintedConfig


@dataclass(frozen=True, slots=True)
class Decided:
    """The decisions of a look, and the evidence that they left changed (tests that restart, runs that end)."""

    decisions: tuple[Decision, ...]
    changed: Mapping[HypothesisId, KeptEvidence]


@dataclass(frozen=True, slots=True)
class Standing:
    """What an endpoint is decided from.  `known_until` is the watermark, `loads` and `configs` those to decide on."""

    endpoint: str
    state: EndpointState
    kept: Mapping[HypothesisId, KeptEvidence]
    rules: Rules
    configs: Mapping[str, FingerprintedConfig]
    loads: Sequence[int]
    known_until: datetime | None

    def looks(self) -> dict[HypothesisId, Look]:
        """Every hypothesis at each load and with each config that is current, in the order of `decided`."""
        state, rules = self.state, self.rules
        # 1. The hypotheses.
        current = current_configs(self.configs, state.seen)
        keys = [
            (slice_key, load, fingerprint)
            for slice_key in ("", *sorted(state.slices))
            for load in sorted(self.loads)
            for fingerprint in sorted(current)
        ]

        # 2. Runs and their levels, in the order of entry.
        entries = {key: state.ways[way_of(rules.of(key))].entries.get(key[0]) for key in keys}
        positions = {key: None if entry is None else entry.position for key, entry in entries.items()}
        standing = list(rules.previous.values())
        trials = assign_trials(entered_in_order(positions, current, standing), current, standing, rules.policy)

        # 3. Each with its own evidence.
        looks = {}
        for key in keys:
            policy, trial, own = rules.of(key), trials.get(key), self.kept.get(key)
            evidence = own.evidence if own else HypothesisEvidence()
            looks[key] = Look(
                hypothesis=Hypothesis(self.endpoint, key[0], key[1], current[key[2]]),
                evidence=with_counts(evidence, state, key, policy, trial, self.known_until),
                policy=policy,
                trial=trial,
                has_entered=key in trials,
                previous=rules.previous.get(key),
            )
        return looks

    def decided(self, now: datetime) -> Decided:
        """Decisions on every slice and the endpoint as a whole, at each load and with each config that is current.

        The endpoint as a whole comes first, then the slices by name, and last the rows that take superseded verdicts
        out of force.
        """
        # 1. Each on its own evidence.
        looks = self.looks()
        decisions, changed = [], {}
        for key, look in looks.items():
            own = self.kept.get(key)
            decision = look.decided(now)
            decisions.append(decision)
            if own is not None and (after := evidence_after(own, decision)) is not own:
                changed[key] = after

        # 2. What only all of them together can say, and what they replace.
        rules, standing = self.rules, list(self.rules.previous.values())
        trials = {key: look.trial for key, look in looks.items() if look.has_entered}
        previous = {group_key(row): row for row in standing if not row.slice_key}
        traffic = traffic_of(self.state.traffic, rules.policy, self.known_until)
        replaced = superseded_rows(trials, standing, now)
        for row in replaced:
            key = hypothesis_id(row)
            if key in self.kept:
                changed[key] = evidence_after(self.kept[key], row)
        return Decided((*composed(decisions, previous, traffic, rules.policy), *replaced), changed)


def with_counts(
    evidence: HypothesisEvidence,
    state: EndpointState,
    key: HypothesisId,
    policy: GatePolicy,
    trial: Trial | None,
    known_until: datetime | None,
) -> HypothesisEvidence:
    """The evidence with what is counted of its slice whatever the load and config."""
    progress = state.ways[way_of(policy)]
    return replace(
        evidence,
        num_closed_clusters=progress.closed_in(key[0]),
        num_lost=state.lost_in(key[0]) - (trial.start_lost if trial is not None else 0),
        num_members=progress.members_in(key[0]),
        num_late=progress.late_in(key[0]),
        num_left_out=progress.left_out_in(key[0]),
        num_dominant_keys=progress.dominant_in(key[0]),
        newest_event=known_until,
    )


def evidence_after(kept: KeptEvidence, decision: Decision) -> KeptEvidence:
    """What the next fold goes on from: tests begun anew, detectors started, or nothing of a run that ended."""
    restarted = kept.evidence.restarted(restarted_states(decision))
    after = kept_evidence(restarted, decision)
    is_same = after is restarted and all(own is restarted.tests[name] for name, own in kept.evidence.tests.items())
    return kept if is_same else replace(kept, evidence=after)

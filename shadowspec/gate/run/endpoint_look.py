"""One look: decides every hypothesis of an endpoint from its folded evidence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from shadowspec.gate.evidence.hypothesis import HypothesisEvidence
from shadowspec.gate.policy import GatePolicy
from shadowspec.gate.run.folding import Rules
from shadowspec.gate.run.state import EndpointState, RunEvidence, clustering_id
from shadowspec.gate.run.traffic_counts import traffic_of
from shadowspec.gate.run.trial_levels import (
    HypothesisId,
    assign_trials,
    current_configs,
    entered_in_order,
    hypothesis_id,
    superseded_rows,
)
from shadowspec.gate.verdict.composition import compose_endpoint, group_key
from shadowspec.gate.verdict.decision import Hypothesis, restarted_states
from shadowspec.gate.verdict.lifecycle import next_evidence, standing_decision
from shadowspec.types import Decision, FingerprintedConfig, Trial


@dataclass(frozen=True, slots=True)
class Look:
    """One hypothesis at one look; `policy` has its frozen parameters as at its entry."""

    hypothesis: Hypothesis
    evidence: HypothesisEvidence
    policy: GatePolicy
    trial: Trial | None
    has_entered: bool
    previous: Decision | None

    @property
    def level(self) -> float | None:
        """Level of its run; None where it has none."""
        return self.trial.level if self.trial is not None else None

    def decide(self, now: datetime) -> Decision:
        """The decision on it, with the verdict in force."""
        return standing_decision(
            self.hypothesis,
            self.evidence,
            self.policy,
            trial=self.trial,
            has_entered=self.has_entered,
            previous=self.previous,
            now=now,
        )


@dataclass(frozen=True, slots=True)
class Decided:
    """The decisions of a look, and the evidence that they left changed (tests that restart, runs that end)."""

    decisions: tuple[Decision, ...]
    changed: Mapping[HypothesisId, RunEvidence]


@dataclass(frozen=True, slots=True)
class EndpointLook:
    """What an endpoint is decided from.  `known_until` is the watermark, `loads` and `configs` those to decide on."""

    endpoint: str
    state: EndpointState
    evidence: Mapping[HypothesisId, RunEvidence]
    rules: Rules
    configs: Mapping[str, FingerprintedConfig]
    loads: Sequence[int]
    known_until: datetime | None

    def looks(self) -> dict[HypothesisId, Look]:
        """Every hypothesis at each load and with each config that is current, in the order of `decide`."""
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
        entries = {key: state.clusterings[clustering_id(rules.of(key))].entries.get(key[0]) for key in keys}
        positions = {key: None if entry is None else entry.position for key, entry in entries.items()}
        standing = list(rules.previous.values())
        trials = assign_trials(entered_in_order(positions, current, standing), current, standing, rules.policy)

        # 3. Each with its own evidence.
        looks = {}
        for key in keys:
            policy, trial, own = rules.of(key), trials.get(key), self.evidence.get(key)
            evidence = own.evidence if own else HypothesisEvidence()
            looks[key] = Look(
                hypothesis=Hypothesis(self.endpoint, key[0], key[1], current[key[2]], self._replaced_by(trial)),
                evidence=with_counts(evidence, state, key, policy, trial, self.known_until),
                policy=policy,
                trial=trial,
                has_entered=key in trials,
                previous=rules.previous.get(key),
            )
        return looks

    def _replaced_by(self, trial: Trial | None) -> FingerprintedConfig | None:
        """The config whose verdict a run supersedes, where it supersedes one."""
        return None if trial is None or trial.supersedes is None else self.configs.get(trial.supersedes)

    def decide(self, now: datetime) -> Decided:
        """Decisions on every slice and the endpoint as a whole, at each load and with each config that is current.

        The endpoint as a whole comes first, then the slices by name, and last the rows that take superseded verdicts
        out of force.
        """
        # 1. Each on its own evidence.
        looks = self.looks()
        decisions, changed = [], {}
        for key, look in looks.items():
            own = self.evidence.get(key)
            decision = look.decide(now)
            decisions.append(decision)
            if own is not None and (after := evidence_after(own, decision)) is not own:
                changed[key] = after

        # 2. What only all of them together can say, and what they replace.
        rules, standing = self.rules, list(self.rules.previous.values())
        trials = {key: look.trial for key, look in looks.items() if look.has_entered}
        previous = {group_key(row): row for row in standing if not row.slice_key}
        traffic = traffic_of(self.state.traffic, rules.policy, self.known_until)
        replaced = superseded_rows(trials, self.configs, standing, now)
        for row in replaced:
            key = hypothesis_id(row)
            if key in self.evidence:
                changed[key] = evidence_after(self.evidence[key], row)
        return Decided((*compose_endpoint(decisions, previous, traffic, rules.policy), *replaced), changed)


def with_counts(
    evidence: HypothesisEvidence,
    state: EndpointState,
    key: HypothesisId,
    policy: GatePolicy,
    trial: Trial | None,
    known_until: datetime | None,
) -> HypothesisEvidence:
    """The evidence with what is counted of its slice whatever the load and config."""
    progress = state.clusterings[clustering_id(policy)]
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


def evidence_after(before: RunEvidence, decision: Decision) -> RunEvidence:
    """What the next fold goes on from: tests begun anew, detectors started, or nothing of a run that ended."""
    restarted = before.evidence.restart(restarted_states(decision))
    after = next_evidence(restarted, decision)
    is_same = after is restarted and all(own is restarted.tests[name] for name, own in before.evidence.tests.items())
    return before if is_same else replace(before, evidence=after)

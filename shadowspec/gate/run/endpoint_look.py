"""One look: decides every hypothesis of an endpoint from its folded evidence."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from shadowspec.gate.evidence.guardrails import TASK_SCORE, first_scores
from shadowspec.gate.evidence.hypothesis import HypothesisEvidence, restarted_states
from shadowspec.gate.policy import GatePolicy
from shadowspec.gate.run.folding import FoldRules
from shadowspec.gate.run.state import EndpointState, RunEvidence, clustering_id
from shadowspec.gate.run.traffic_counts import Traffic, traffic_of
from shadowspec.gate.verdict.composition import compose_endpoint, endpoint_bounds, group_key
from shadowspec.gate.verdict.decision import Hypothesis
from shadowspec.gate.verdict.lifecycle import decide_in_run, next_evidence
from shadowspec.gate.verdict.trial_levels import (
    HypothesisId,
    HypothesisName,
    assign_trials,
    current_configs,
    entered_in_order,
    has_passed,
    hypothesis_id,
    name_of,
    superseded_rows,
)
from shadowspec.types import Decision, Evaluation, FingerprintedConfig, SliceCounts, Trial, WeightedBounds


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
        return decide_in_run(
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
    """The inputs of an endpoint's decisions: `known_until` is the watermark, `loads` and `configs` those to decide."""

    endpoint: str
    state: EndpointState
    evidence: Mapping[HypothesisId, RunEvidence]
    rules: FoldRules
    configs: Mapping[str, FingerprintedConfig]
    loads: Sequence[int]
    known_until: datetime | None
    evaluations: Sequence[Evaluation] = ()

    def looks(self) -> dict[HypothesisId, Look]:
        """Every hypothesis at each load and with each config that is current, in the order of `decide`."""
        current = current_configs(self.configs, self.state.seen)
        keys = [
            (slice_key, load, fingerprint)
            for slice_key in ("", *sorted(self.state.slices))
            for load in sorted(self.loads)
            for fingerprint in sorted(current)
        ]
        trials = self.trials(keys)
        return {key: self.look_at(key, trials.get(key), has_entered=key in trials) for key in keys}

    def trials(
        self, keys: Iterable[HypothesisId], passed: Collection[HypothesisName] = ()
    ) -> dict[HypothesisId, Trial | None]:
        """The runs of the hypotheses that have entered, with their levels; None where no level is left.

        Those that `passed` reached ENABLE at this look, and pass their levels on.
        """
        latest_rows, policy = list(self.rules.previous.values()), self.rules.policy
        current = current_configs(self.configs, self.state.seen)
        entered = self.entered(keys, latest_rows)
        in_traffic = self.state.traffic.window(self.known_until, policy.mix_window_s).requests.keys()
        return assign_trials(entered, current, latest_rows, policy, len(self.state.slices), passed, in_traffic)

    def entered(self, keys: Iterable[HypothesisId], latest_rows: Sequence[Decision]) -> list[HypothesisId]:
        """The hypotheses that have entered, in the order of entry; `latest_rows` are their latest decisions."""
        clusterings = {key: self.state.clusterings[clustering_id(self.rules.of(key))] for key in keys}
        entries = {key: progress.entries.get(key[0]) for key, progress in clusterings.items()}
        positions = {key: None if entry is None else entry.position for key, entry in entries.items()}
        return entered_in_order(positions, self.configs, latest_rows)

    def look_at(self, key: HypothesisId, trial: Trial | None, *, has_entered: bool) -> Look:
        """One hypothesis in its run."""
        policy, folded = self.rules.of(key), self.evidence.get(key)
        evidence, previous = folded.evidence if folded else HypothesisEvidence(), self.rules.previous.get(key)
        states = restarted_states(previous) if previous is not None and not previous.ends_run else {}
        evidence = evidence.with_documents(first_scores(self.evaluations, key[2]), policy, states.get(TASK_SCORE))
        hypothesis = Hypothesis(self.endpoint, key[0], key[1], self.configs[key[2]])
        return Look(
            hypothesis=hypothesis,
            evidence=with_counts(evidence, self.state, key, policy, trial, self.known_until),
            policy=_judging(hypothesis, evidence, policy),
            trial=trial,
            has_entered=has_entered,
            previous=previous,
        )

    def decide(self, now: datetime) -> Decided:
        """Decisions on every slice and the endpoint as a whole, at each load and with each config that is current.

        The endpoint as a whole comes first, then the slices by name, and last the rows that take superseded verdicts
        out of force.
        """
        # 1. Each on its evidence, until no new ENABLE has a level that others can use.
        looks = self.looks()
        decided: dict[HypothesisId, Decision] = {}
        passed: set[HypothesisName] = set()
        changing = looks
        while changing:
            # The slices come first: the whole may need their bounds.
            for key in sorted(changing, key=lambda key: not key[0]):
                decided[key] = self.with_mix_bound(looks[key], decided.values()).decide(now)
            new = {name_of(decision) for decision in decided.values() if has_passed(decision)} - passed
            passed |= new
            again = self.trials(looks, passed) if new else {}
            changing = {
                key: self.look_at(key, trial, has_entered=True)
                for key, trial in again.items()
                if (None if trial is None else trial.level) != looks[key].level
            }
            looks |= changing
        decisions, changed = [decided[key] for key in looks], {}
        for key, decision in zip(looks, decisions, strict=True):
            evidence = self.evidence.get(key)
            if evidence is not None and (after := evidence_after(evidence, decision)) is not evidence:
                changed[key] = after

        # 2. Findings across all hypotheses, and the decisions that these replace.
        superseding = {key: look.trial for key, look in looks.items() if look.trial and look.trial.supersedes}
        replaced = superseded_rows(superseding, self.rules.previous, now) if superseding else []
        for row in replaced:
            key = hypothesis_id(row)
            if key in self.evidence:
                changed[key] = evidence_after(self.evidence[key], row)
        return Decided((*self.compose(decisions), *replaced), changed)

    def with_mix_bound(self, look: Look, decisions: Iterable[Decision]) -> Look:
        """The look of a whole endpoint with the bound from its slices' `decisions`, where its policy requires it.

        An endpoint of one slice needs none: its speedup test proves that bound.
        """
        place, policy = look.hypothesis, look.policy
        if place.slice_key or not policy.require_mix_bound:
            return look
        shares = self._traffic().get(place.config.fingerprint, {})
        slices = [
            decision
            for decision in decisions
            if decision.slice_key
            and (decision.fingerprint, decision.concurrency) == (place.config.fingerprint, place.concurrency)
        ]
        bounds = endpoint_bounds(slices, shares, policy.log_speedup_clip)
        lower = math.inf if len(shares) == 1 else _mix_lower(bounds)
        return replace(look, evidence=replace(look.evidence, mix_lower=lower))

    def compose(self, decisions: Sequence[Decision]) -> list[Decision]:
        """The decisions of this look with the findings across all of them."""
        previous = {group_key(row): row for row in self.rules.previous.values() if not row.slice_key}
        return compose_endpoint(decisions, previous, self._traffic(), self.rules.policy)

    def _traffic(self) -> Traffic:
        return traffic_of(self.state.traffic, self.rules.policy, self.known_until)


def _mix_lower(bounds: Mapping[str, WeightedBounds]) -> float | None:
    return bounds["speedup"].lower if "speedup" in bounds else None


def with_counts(
    evidence: HypothesisEvidence,
    state: EndpointState,
    key: HypothesisId,
    policy: GatePolicy,
    trial: Trial | None,
    known_until: datetime | None,
) -> HypothesisEvidence:
    """The evidence with the counts of its slice that do not depend on load and config."""
    progress = state.clusterings[clustering_id(policy)]
    num_compared, num_other = state.compared_in(key[0], key[2])
    # Of evidence whose first rows are gone, losses are counted from its beginning on: those before its run began may be
    # among the rows that are left, or not.
    start_lost = 0 if trial is None or state.num_removed_runs else trial.start_lost
    counts = SliceCounts(
        num_closed_clusters=progress.closed_in(key[0]),
        num_lost=state.lost_in(key[0]) - start_lost,
        num_members=progress.members_in(key[0]),
        num_late=progress.late_in(key[0]),
        num_left_out=progress.left_out_in(key[0]),
        num_dominant_keys=progress.dominant_in(key[0]),
        num_arrived=state.arrived_in(key[0]),
        num_beyond=state.beyond_in(key[0]),
        num_compared_prompts=num_compared,
        num_other_prompts=num_other,
        cached=state.cached_in(key[0], key[2]),
        num_removed_runs=state.num_removed_runs,
        recent_share=progress.recent.share_of(key[0]),
    )
    return replace(evidence, counts=counts, newest_event=known_until)


def look_again(
    decision: Decision,
    evidence: HypothesisEvidence,
    config: FingerprintedConfig,
    policy: GatePolicy,
    evaluations: Iterable[Evaluation] = (),
) -> Look:
    """The look of a decision under another policy, as if it were the first; the counts of its slice remain."""
    documents = first_scores(evaluations, decision.fingerprint)
    evidence = evidence.with_documents(documents, policy, restarted_states(decision).get(TASK_SCORE))
    evidence = replace(
        evidence,
        counts=decision.evidence.counts,
        mix_lower=_mix_lower(decision.composition.bounds if decision.composition else {}),
        newest_event=decision.evidence.newest_record,
    )
    hypothesis = Hypothesis(decision.endpoint, decision.slice_key, decision.concurrency, config)
    judging, has_entered = _judging(hypothesis, evidence, policy), decision.run is not None
    return Look(hypothesis, evidence, judging, decision.run, has_entered=has_entered, previous=None)


def _judging(hypothesis: Hypothesis, evidence: HypothesisEvidence, policy: GatePolicy) -> GatePolicy:
    """The policy with the clip of the evidence.

    Where a server's schedule drafts nothing there is no gain to prove: it is judged as a second deployment is.
    """
    policy, config = evidence.policy_of(policy), hypothesis.config.config
    is_off = config.off_from is not None and config.depth_at(hypothesis.concurrency) == 0
    return replace(policy, is_upgrade=True, acceptance_margin=None) if is_off else policy


def evidence_after(before: RunEvidence, decision: Decision) -> RunEvidence:
    """The evidence that the next fold continues: tests restarted, detectors started; empty where the run ended."""
    after = next_evidence(before.evidence.restart(restarted_states(decision)), decision)
    return before if after is before.evidence else replace(before, evidence=after)

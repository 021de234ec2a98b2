"""A hypothesis's evidence within its run: from which units on it counts, and which of them its detectors watch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from shadowspec.gate.decision import restarted_states
from shadowspec.gate.drift import ADVISORY_WATCHERS, WATCHERS
from shadowspec.gate.evidence import HypothesisEvidence
from shadowspec.gate.policy import GatePolicy
from shadowspec.gate.restarts import has_ended, passed_clusters, trial_of
from shadowspec.gate.standing import watch_start, watch_states
from shadowspec.gate.units import BlockUnit, ClusterUnit
from shadowspec.gating.state import KeptEvidence, evidence_parameters
from shadowspec.types import Decision


def begun_evidence(policy: GatePolicy, previous: Decision | None) -> KeptEvidence:
    """The evidence of no units; units of runs that have ended do not count again."""
    trial = trial_of(previous) if previous is not None else None
    kept = KeptEvidence(HypothesisEvidence(), evidence_parameters(policy))
    if trial is None or previous is None:
        return kept
    ended = has_ended(previous)
    return replace(
        kept,
        skip_clusters=trial.start_clusters + (passed_clusters(previous) if ended else 0),
        skip_blocks=trial.start_blocks + (previous.num_blocks if ended else 0),
    )


def folded_in_run(
    evidence: HypothesisEvidence,
    clusters: Sequence[ClusterUnit],
    blocks: Sequence[BlockUnit],
    policy: GatePolicy,
    in_run: Decision | None,
) -> HypothesisEvidence:
    """The evidence with these units: before the run's ENABLE without detectors, with them after it."""
    states = restarted_states(in_run) if in_run is not None else {}
    watched = watch_states(in_run) if in_run is not None else {}
    if in_run is not None and watched and not evidence.watchers:
        num_blocks, num_clusters = watch_start(in_run)
        head_blocks = max(num_blocks - evidence.runs.num_blocks, 0)
        head_clusters = max(num_clusters - evidence.num_clusters - evidence.num_capped_clusters, 0)
        evidence = evidence.fold(clusters[:head_clusters], blocks[:head_blocks], policy, states=states)
        clusters, blocks = clusters[head_clusters:], blocks[head_blocks:]
        num_passed = evidence.num_clusters + evidence.num_capped_clusters
        if evidence.runs.num_blocks >= num_blocks and num_passed >= num_clusters:
            evidence = replace(evidence, watchers=watched)
    watchers = (*WATCHERS, *ADVISORY_WATCHERS) if evidence.watchers else ()
    return evidence.fold(clusters, blocks, policy, states=states, watchers=watchers)

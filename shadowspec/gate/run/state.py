"""An endpoint's stored state between looks: its state and the evidence of its runs, and both as documents."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from shadowspec.gate.evidence.betting_tests import score_units
from shadowspec.gate.evidence.clusters import ClusterProgress, sum_in_slice
from shadowspec.gate.evidence.entry import Entry
from shadowspec.gate.evidence.hypothesis import HypothesisEvidence, fold_in_run
from shadowspec.gate.evidence.units import BlockUnit, ClusterUnit
from shadowspec.gate.policy import GatePolicy
from shadowspec.gate.run.traffic_counts import TrafficCounts
from shadowspec.gate.verdict.trial_levels import HypothesisId, Seen, passed_clusters
from shadowspec.types import CachedPrompts, Decision, SliceKey, StoredEvidence
from shadowspec.types.codec import from_document, pack, packed_version, to_document, unpack

VERSION = 4
EVIDENCE_VERSION = 8  # of a hypothesis's evidence
FOLD_VERSION = 1  # of a fold's content
FOLD_AGAIN = "run `shadowspec gate`, which folds it again"  # the remedy for evidence of another version

Document = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class EndpointState:
    """One endpoint's counts, and the progress of each clustering.

    `slices` holds every slice seen, with the number of its records that were lost without leaving a run.  Retention had
    removed `num_removed_runs` runs when the evidence began with the rows that were left.
    """

    slices: Mapping[str, int] = field(default_factory=dict)
    clusterings: Mapping[str, ClusterProgress] = field(default_factory=dict)
    seen: Mapping[str, Seen] = field(default_factory=dict)  # by fingerprint
    loads: frozenset[int] = frozenset()
    traffic: TrafficCounts = field(default_factory=TrafficCounts)
    num_records: int = 0
    arrived: Mapping[str, int] = field(default_factory=dict)  # by slice: usable requests
    beyond: Mapping[str, int] = field(default_factory=dict)  # by slice: those beyond `timed_positions`
    # By fingerprint and slice: measured prompts that production counted, and those of which it counts another length.
    compared: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    differing: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    cached: Mapping[str, Mapping[str, CachedPrompts]] = field(default_factory=dict)  # likewise, in prefix caches
    num_removed_runs: int = 0

    def lost_in(self, slice_key: str) -> int:
        """Records of a slice ("" for the whole endpoint) that were lost without leaving a run."""
        return sum_in_slice(self.slices, slice_key)

    def arrived_in(self, slice_key: str) -> int:
        """Usable requests of a slice."""
        return sum_in_slice(self.arrived, slice_key)

    def beyond_in(self, slice_key: str) -> int:
        """Those of them that come later in their session than any request that is timed."""
        return sum_in_slice(self.beyond, slice_key)

    def compared_in(self, slice_key: str, fingerprint: str) -> tuple[int, int]:
        """Measured prompts of a slice and fingerprint that production counted, and those that it counts otherwise."""
        of_fingerprint = (self.compared.get(fingerprint, {}), self.differing.get(fingerprint, {}))
        num_compared, num_differing = (sum_in_slice(counts, slice_key) for counts in of_fingerprint)
        return num_compared, num_differing

    def cached_in(self, slice_key: str, fingerprint: str) -> CachedPrompts:
        """Measured prompts of a slice and fingerprint of which production and both arms say how much was cached."""
        by_slice = self.cached.get(fingerprint, {})
        return sum((found for name, found in by_slice.items() if slice_key in ("", name)), CachedPrompts())


@dataclass(frozen=True, slots=True)
class RunEvidence:
    """A hypothesis's evidence with the parameters under which it was folded.

    Of restarted evidence, `skip_clusters` and `skip_blocks` are the units of earlier runs that are still to come.
    """

    evidence: HypothesisEvidence
    parameters: str
    skip_clusters: int = 0
    skip_blocks: int = 0
    has_windows: bool = False

    def has_other_units(self, policy: GatePolicy) -> bool:
        """Whether it has units, and the policy makes others of the same requests."""
        has_units = self.evidence.runs.num_blocks > 0
        return has_units and self.has_windows != (policy.unit_window is not None)


@dataclass(frozen=True, slots=True)
class Units:
    """The units of one hypothesis that a fold completed, in folding order."""

    clusters: Sequence[ClusterUnit] = ()
    blocks: Sequence[BlockUnit] = ()


def clustering_id(policy: GatePolicy) -> str:
    """The identifier of the policy's clustering, the way in which it makes clusters."""
    return hashlib.sha256(repr(policy.unit_parameters()).encode()).hexdigest()[:16]


def evidence_parameters(policy: GatePolicy) -> str:
    """The parameters under which evidence is folded: the frozen ones, and the nulls that its tables hold exactly."""
    # Not `defined_tests`: of two policies that differ by 1 and 1.0 it knows one, and a digest tells them apart.
    nulls = {test.name: test.nulls for test in score_units((), (), policy)}
    return hashlib.sha256(
        f"{json.dumps(policy.frozen_parameters(), sort_keys=True)} {json.dumps(nulls, sort_keys=True)}".encode()
    ).hexdigest()


@dataclass(frozen=True, slots=True)
class Beginning:
    """What restarted evidence retains, by clustering: entries that were judged, and keys that are cut.

    `num_removed_runs` were in evidence, and retention has removed them since: they are in none from here on.
    """

    entries: Mapping[str, Mapping[str, Entry]] = field(default_factory=dict)
    dominant: Mapping[str, frozenset[SliceKey]] = field(default_factory=dict)
    num_removed_runs: int = 0


def new_progress(
    entries: Mapping[str, Mapping[str, Entry]],
    dominant: Mapping[str, frozenset[SliceKey]],
    num_removed_runs: int = 0,
) -> Document:
    """The document of a fold that restarts evidence."""
    return to_document(Beginning(entries, dominant, num_removed_runs), FOLD_VERSION)


def without_runs(begins: Document, num_removed: int) -> Document:
    """The same beginning of evidence, where retention has removed these runs."""
    beginning = from_document(begins, Beginning, FOLD_VERSION, "a stored fold", FOLD_AGAIN)
    return to_document(replace(beginning, num_removed_runs=num_removed), FOLD_VERSION)


def new_state(begins: Document, clusterings: Mapping[str, GatePolicy]) -> EndpointState:
    """The state of no records that starts from `begins`.

    Raises:
        InputError: it was written by another version of this code.
    """
    beginning = from_document(begins, Beginning, FOLD_VERSION, "a stored fold", FOLD_AGAIN)
    return EndpointState(
        clusterings={
            clustering: ClusterProgress(
                entries=beginning.entries.get(clustering, {}),
                dominant=beginning.dominant.get(clustering, frozenset()),
            )
            for clustering in clusterings
        },
        num_removed_runs=beginning.num_removed_runs,
    )


def encode_state(state: EndpointState) -> dict[str, Any]:
    """The state as a document."""
    return to_document(state, VERSION)


def is_readable(document: Document, stored: Iterable[StoredEvidence]) -> bool:
    """Whether this version of the code wrote the state and the evidence, or writes them alike."""
    is_state_readable = document.get("version") == VERSION
    return is_state_readable and all(packed_version(row.content) == EVIDENCE_VERSION for row in stored)


def decode_state(document: Document) -> EndpointState:
    """The state that was encoded.

    Raises:
        InputError: it was written by another version of this code.
    """
    return from_document(document, EndpointState, VERSION, "the stored state of an endpoint", FOLD_AGAIN)


def encode_evidence(key: HypothesisId, evidence: RunEvidence) -> StoredEvidence:
    """A hypothesis's evidence as it is stored."""
    return StoredEvidence(*key, pack(evidence, EVIDENCE_VERSION))


def decode_evidence(stored: StoredEvidence) -> RunEvidence:
    """The evidence that was encoded.

    Raises:
        InputError: it was written by another version of this code.
    """
    return unpack(stored.content, RunEvidence, EVIDENCE_VERSION, "stored evidence", FOLD_AGAIN)


def has_entered(previous: Decision | None) -> bool:
    """Whether the latest decision on a hypothesis is of a run: its definitions are then fixed."""
    return previous is not None and previous.run is not None


def new_evidence(policy: GatePolicy, previous: Decision | None) -> RunEvidence:
    """The evidence of no units; units of runs that have ended do not count again."""
    trial = previous.run if previous is not None else None
    evidence = RunEvidence(
        HypothesisEvidence(), evidence_parameters(policy), has_windows=policy.unit_window is not None
    )
    if trial is None or previous is None:
        return evidence
    return replace(
        evidence,
        skip_clusters=trial.start_clusters + (passed_clusters(previous) if previous.ends_run else 0),
        skip_blocks=trial.start_blocks + (previous.num_blocks if previous.ends_run else 0),
    )


def fold_units(
    run_evidence: RunEvidence | None, units: Units, policy: GatePolicy, previous: Decision | None
) -> RunEvidence:
    """A hypothesis's evidence with these units, those left out that belong to runs before its current one.

    `previous` is the latest decision on it.
    """
    before = run_evidence or new_evidence(policy, previous)
    num_clusters, num_blocks = (
        min(before.skip_clusters, len(units.clusters)),
        min(before.skip_blocks, len(units.blocks)),
    )
    clusters, blocks = units.clusters[num_clusters:], units.blocks[num_blocks:]
    begun = before.evidence.pass_by(units.blocks[:num_blocks], policy) if num_blocks else before.evidence
    is_in_run = previous is not None and not previous.ends_run and previous.recording_only == policy.recording_only
    in_run = previous if is_in_run else None
    return replace(
        before,
        evidence=fold_in_run(begun, clusters, blocks, policy, in_run),
        skip_clusters=before.skip_clusters - num_clusters,
        skip_blocks=before.skip_blocks - num_blocks,
    )

"""An endpoint's stored state between looks: its state and the evidence of its runs, and both as documents."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from shadowspec.gate.evidence import codec
from shadowspec.gate.evidence.betting_tests import score_units
from shadowspec.gate.evidence.clusters import ClusterProgress, sum_in_slice
from shadowspec.gate.evidence.hypothesis import HypothesisEvidence, fold_in_run
from shadowspec.gate.evidence.units import BlockUnit, ClusterUnit, Entry
from shadowspec.gate.policy import GatePolicy
from shadowspec.gate.run.traffic_counts import TrafficCounts
from shadowspec.gate.verdict.trial_levels import HypothesisId, Seen, passed_clusters
from shadowspec.types import Decision, SliceKey, StoredEvidence
from shadowspec.types.decision_documents import read_iso

VERSION = 1
FOLD_VERSION = 1  # version of the fold's content; folds without a number are of this version

Document = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class EndpointState:
    """One endpoint's counts, and the progress of each clustering.

    `slices` holds every slice seen, with the number of its records that were lost without leaving a run.
    """

    slices: Mapping[str, int] = field(default_factory=dict)
    clusterings: Mapping[str, ClusterProgress] = field(default_factory=dict)
    seen: Mapping[str, Seen] = field(default_factory=dict)  # by fingerprint
    loads: frozenset[int] = frozenset()
    traffic: TrafficCounts = field(default_factory=TrafficCounts)
    num_records: int = 0
    arrived: Mapping[str, int] = field(default_factory=dict)  # by slice: usable requests
    beyond: Mapping[str, int] = field(default_factory=dict)  # by slice: those beyond `timed_positions`

    def lost_in(self, slice_key: str) -> int:
        """Records of a slice ("" for the whole endpoint) that were lost without leaving a run."""
        return sum_in_slice(self.slices, slice_key)

    def arrived_in(self, slice_key: str) -> int:
        """Usable requests of a slice, since they have been counted."""
        return sum_in_slice(self.arrived, slice_key)

    def beyond_in(self, slice_key: str) -> int:
        """Those of them that come later in their session than any request that is timed."""
        return sum_in_slice(self.beyond, slice_key)


@dataclass(frozen=True, slots=True)
class RunEvidence:
    """A hypothesis's evidence with the parameters under which it was folded.

    Of restarted evidence, `skip_clusters` and `skip_blocks` are the units of earlier runs that are still to come.
    """

    evidence: HypothesisEvidence
    parameters: str
    skip_clusters: int = 0
    skip_blocks: int = 0


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


def new_progress(entries: Mapping[str, Mapping[str, Entry]], dominant: Mapping[str, frozenset[SliceKey]]) -> Document:
    """The progress of restarted evidence: by clustering, entries that were judged and keys that are cut."""
    return {
        "version": FOLD_VERSION,
        "entries": {clustering: _entries(entry) for clustering, entry in entries.items()},
        "dominant": {clustering: sorted(map(list, stored)) for clustering, stored in dominant.items()},
    }


def new_state(begins: Document, clusterings: Mapping[str, GatePolicy]) -> EndpointState:
    """The state of no records that starts from `begins`.

    Raises:
        InputError: it was written by another version of this code.
    """
    codec.require_version(begins, FOLD_VERSION)
    return EndpointState(
        clusterings={
            clustering: ClusterProgress(
                entries=_read_entries(begins.get("entries", {}).get(clustering, {})),
                dominant=frozenset((name, key) for name, key in begins.get("dominant", {}).get(clustering, ())),
            )
            for clustering in clusterings
        }
    )


def encode_state(state: EndpointState) -> dict[str, Any]:
    """The state as a document."""
    return {
        "version": VERSION,
        "slices": dict(state.slices),
        "ways": {
            clustering: {
                "num_entered": progress.num_entered,
                "newest_close": None if progress.newest_close is None else progress.newest_close.isoformat(),
                "num_closed": dict(progress.num_closed),
                "num_members": dict(progress.num_members),
                "num_late": dict(progress.num_late),
                "num_left_out": dict(progress.num_left_out),
                "entries": _entries(progress.entries),
                "dominant": sorted(map(list, progress.dominant)),
            }
            for clustering, progress in state.clusterings.items()
        },
        "seen": {name: [seen.first.isoformat(), seen.last.isoformat()] for name, seen in state.seen.items()},
        "loads": sorted(state.loads),
        "traffic": state.traffic.document(),
        "num_records": state.num_records,
        "arrived": dict(state.arrived),
        "beyond": dict(state.beyond),
    }


def is_readable(document: Document, stored: Iterable[StoredEvidence]) -> bool:
    """Whether this version of the code wrote the state and the evidence, or writes them alike."""
    return document.get("version") == VERSION and all(row.document.get("version") == codec.VERSION for row in stored)


def decode_state(document: Document) -> EndpointState:
    """The state that was encoded.

    Raises:
        InputError: it was written by another version of this code.
    """
    codec.require_version(document, VERSION)
    return EndpointState(
        slices=document["slices"],
        clusterings={
            clustering: ClusterProgress(
                num_entered=stored["num_entered"],
                newest_close=read_iso(stored["newest_close"]),
                num_closed=stored["num_closed"],
                num_members=stored.get("num_members", {}),  # counted from here on where it was not before
                num_late=stored["num_late"],
                num_left_out=stored.get("num_left_out", {}),
                entries=_read_entries(stored["entries"]),
                dominant=frozenset((name, key) for name, key in stored["dominant"]),
            )
            for clustering, stored in document["ways"].items()
        },
        seen={
            name: Seen(datetime.fromisoformat(first), datetime.fromisoformat(last))
            for name, (first, last) in document["seen"].items()
        },
        loads=frozenset(document["loads"]),
        traffic=TrafficCounts.of(document["traffic"]),
        num_records=document["num_records"],
        arrived=document.get("arrived", {}),
        beyond=document.get("beyond", {}),
    )


def encode_evidence(key: HypothesisId, evidence: RunEvidence) -> StoredEvidence:
    """A hypothesis's evidence as it is stored."""
    document, tables = codec.encode(evidence.evidence)
    entry = {
        "parameters": evidence.parameters,
        "skip_clusters": evidence.skip_clusters,
        "skip_blocks": evidence.skip_blocks,
    }
    return StoredEvidence(*key, document | {"kept": entry}, tables)


def decode_evidence(stored: StoredEvidence) -> RunEvidence:
    """The evidence that was encoded."""
    return RunEvidence(codec.decode(stored.document, stored.tables), **stored.document["kept"])


def _entries(entries: Mapping[str, Entry]) -> dict[str, list[Any]]:
    return {name: [entry.position, entry.at.isoformat()] for name, entry in entries.items()}


def _read_entries(document: Document) -> dict[str, Entry]:
    return {name: Entry(position, datetime.fromisoformat(at)) for name, (position, at) in document.items()}


def has_entered(previous: Decision | None) -> bool:
    """Whether the latest decision on a hypothesis is of a run: its definitions are then fixed."""
    return previous is not None and previous.run is not None


def new_evidence(policy: GatePolicy, previous: Decision | None) -> RunEvidence:
    """The evidence of no units; units of runs that have ended do not count again."""
    trial = previous.run if previous is not None else None
    evidence = RunEvidence(HypothesisEvidence(), evidence_parameters(policy))
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
    in_run = previous if previous is not None and not previous.ends_run else None
    return replace(
        before,
        evidence=fold_in_run(before.evidence, clusters, blocks, policy, in_run),
        skip_clusters=before.skip_clusters - num_clusters,
        skip_blocks=before.skip_blocks - num_blocks,
    )

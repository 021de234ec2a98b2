"""What is known of an endpoint between looks beside its hypotheses' evidence, and both as documents."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from shadowspec.gate import codec
from shadowspec.gate.evidence import HypothesisEvidence
from shadowspec.gate.open_clusters import ClusterProgress
from shadowspec.gate.policy import GatePolicy
from shadowspec.gate.restarts import Seen
from shadowspec.gate.scores import score_units
from shadowspec.gate.units import Entry
from shadowspec.gating.traffic_counts import TrafficCounts
from shadowspec.gating.trials import HypothesisId
from shadowspec.types import SliceKey, StoredEvidence

VERSION = 1

Document = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class EndpointState:
    """One endpoint's counts, and the progress of each way in which its clusters are made.

    `slices` holds every slice seen, with the number of its records that were lost without leaving a run.
    """

    slices: Mapping[str, int] = field(default_factory=dict)
    ways: Mapping[str, ClusterProgress] = field(default_factory=dict)
    seen: Mapping[str, Seen] = field(default_factory=dict)  # by fingerprint
    loads: frozenset[int] = frozenset()
    traffic: TrafficCounts = field(default_factory=TrafficCounts)
    num_records: int = 0

    def lost_in(self, slice_key: str) -> int:
        """Records of a slice ("" for the whole endpoint) that were lost without leaving a run."""
        return sum(number for name, number in self.slices.items() if slice_key in ("", name))


@dataclass(frozen=True, slots=True)
class KeptEvidence:
    """A hypothesis's evidence with what it was folded under.

    `skip_clusters` and `skip_blocks` are units of earlier runs that are still to come: of evidence begun anew.
    """

    evidence: HypothesisEvidence
    parameters: str
    skip_clusters: int = 0
    skip_blocks: int = 0


def way_of(policy: GatePolicy) -> str:
    """A name for the policy's way of making clusters."""
    return hashlib.sha256(repr(policy.unit_parameters()).encode()).hexdigest()[:16]


def evidence_parameters(policy: GatePolicy) -> str:
    """What evidence is folded under: its frozen parameters, and the nulls that its tables hold exactly."""
    nulls = {test.name: test.nulls for test in score_units((), (), policy)}
    return hashlib.sha256(f"{policy.frozen_parameters()} {json.dumps(nulls, sort_keys=True)}".encode()).hexdigest()


def begun(entries: Mapping[str, Mapping[str, Entry]], dominant: Mapping[str, frozenset[SliceKey]]) -> Document:
    """What evidence that begins anew starts from: by way, entries that were judged and keys that are cut."""
    return {
        "entries": {way: _entries(own) for way, own in entries.items()},
        "dominant": {way: sorted(map(list, own)) for way, own in dominant.items()},
    }


def begun_state(begins: Document, ways: Mapping[str, GatePolicy]) -> EndpointState:
    """The state of no records that starts from `begins`."""
    return EndpointState(
        ways={
            way: ClusterProgress(
                entries=_read_entries(begins.get("entries", {}).get(way, {})),
                dominant=frozenset((name, key) for name, key in begins.get("dominant", {}).get(way, ())),
            )
            for way in ways
        }
    )


def encode_state(state: EndpointState) -> dict[str, Any]:
    """The state as a document."""
    return {
        "version": VERSION,
        "slices": dict(state.slices),
        "ways": {
            way: {
                "num_entered": own.num_entered,
                "newest_close": None if own.newest_close is None else own.newest_close.isoformat(),
                "num_closed": dict(own.num_closed),
                "num_members": dict(own.num_members),
                "num_late": dict(own.num_late),
                "num_left_out": dict(own.num_left_out),
                "entries": _entries(own.entries),
                "dominant": sorted(map(list, own.dominant)),
            }
            for way, own in state.ways.items()
        },
        "seen": {name: [own.first.isoformat(), own.last.isoformat()] for name, own in state.seen.items()},
        "loads": sorted(state.loads),
        "traffic": state.traffic.document(),
        "num_records": state.num_records,
    }


def is_readable(document: Document, stored: Iterable[StoredEvidence]) -> bool:
    """Whether this version of the code wrote the state and the evidence, or writes them alike."""
    return document.get("version") == VERSION and all(each.document.get("version") == codec.VERSION for each in stored)


def decode_state(document: Document) -> EndpointState:
    """The state that was encoded.

    Raises:
        InputError: it was written by another version of this code.
    """
    codec.require_version(document, VERSION)
    return EndpointState(
        slices=document["slices"],
        ways={
            way: ClusterProgress(
                num_entered=own["num_entered"],
                newest_close=_time(own["newest_close"]),
                num_closed=own["num_closed"],
                num_members=own.get("num_members", {}),  # counted from here on where it was not before
                num_late=own["num_late"],
                num_left_out=own.get("num_left_out", {}),
                entries=_read_entries(own["entries"]),
                dominant=frozenset((name, key) for name, key in own["dominant"]),
            )
            for way, own in document["ways"].items()
        },
        seen={
            name: Seen(datetime.fromisoformat(first), datetime.fromisoformat(last))
            for name, (first, last) in document["seen"].items()
        },
        loads=frozenset(document["loads"]),
        traffic=TrafficCounts.of(document["traffic"]),
        num_records=document["num_records"],
    )


def encode_evidence(key: HypothesisId, kept: KeptEvidence) -> StoredEvidence:
    """A hypothesis's evidence as it is stored."""
    document, tables = codec.encode(kept.evidence)
    own = {"parameters": kept.parameters, "skip_clusters": kept.skip_clusters, "skip_blocks": kept.skip_blocks}
    return StoredEvidence(*key, document | {"kept": own}, tables)


def decode_evidence(stored: StoredEvidence) -> KeptEvidence:
    """The evidence that was encoded."""
    return KeptEvidence(codec.decode(stored.document, stored.tables), **stored.document["kept"])


def _entries(entries: Mapping[str, Entry]) -> dict[str, list[Any]]:
    return {name: [entry.position, entry.at.isoformat()] for name, entry in entries.items()}


def _read_entries(document: Document) -> dict[str, Entry]:
    return {name: Entry(position, datetime.fromisoformat(at)) for name, (position, at) in document.items()}


def _time(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)

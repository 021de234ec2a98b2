"""Units of evidence: clusters of requests, and the blocks that went through both arms together.

Invariant: which records make which cluster, and the order in which clusters enter the evidence, depend on
keys and event times alone, never on an outcome or on when a row was committed.  Clusters enter in the order
of their first event time, and only when every cluster of the endpoint that opened earlier is closed (entering
in order of closing would over-sample short sessions).  Everything is folded anew from stored rows at every
look, so each unit counts exactly once however many gates run.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from shadowspec.errors import InputError
from shadowspec.gate.policy import GatePolicy
from shadowspec.types import FunnelCounter, RecordKey, Run, SamplingRegime, StoredBlock, StoredRecord

# Records that were usable traffic, whatever was then done with them.
CLUSTERED = frozenset({FunnelCounter.MEASURED, FunnelCounter.FAILED, FunnelCounter.SAMPLED_OUT, FunnelCounter.SHED})


@dataclass(frozen=True, slots=True)
class Cluster:
    """The first requests of one key within endpoint and slice; `key` is a session, else user, else time block.

    `closes_at` is the event time after which it takes no more records.
    """

    slice_key: str
    key: str
    first_event: datetime
    last_event: datetime
    closes_at: datetime
    is_full: bool
    members: tuple[RecordKey, ...]


@dataclass(frozen=True, slots=True)
class Entry:
    """When a hypothesis enters: `position` in the endpoint's folding order and event time."""

    position: int
    at: datetime


@dataclass(frozen=True, slots=True)
class Folding:
    """An endpoint's clusters that are in evidence, in folding order, and what is not in evidence yet or ever."""

    clusters: tuple[Cluster, ...]
    num_waiting: int  # opened, but they or an earlier one are not closed
    num_late: Mapping[str, int]  # by slice: records between a key's closing and its reopening
    dominant_keys: Mapping[str, int]  # by slice: keys cut into time blocks
    entries: Mapping[str, Entry]  # by slice; "" is the whole endpoint

    def of_slice(self, slice_key: str) -> tuple[Cluster, ...]:
        """The clusters of a slice ("" for the whole endpoint), in folding order."""
        return tuple(cluster for cluster in self.clusters if slice_key in ("", cluster.slice_key))


@dataclass(frozen=True, slots=True)
class MeasuredRun:
    """A run with the sampling regime of its request, which picks the parity test."""

    run: Run
    is_greedy: bool


@dataclass(frozen=True, slots=True)
class ClusterUnit:
    """A cluster with its runs for one hypothesis, at least one."""

    cluster: Cluster
    runs: tuple[MeasuredRun, ...]


@dataclass(frozen=True, slots=True)
class BlockUnit:
    """A block with its own requests' runs for one hypothesis, at least one, in the order of their keys."""

    block: StoredBlock
    runs: tuple[MeasuredRun, ...]


def fold_clusters(records: Iterable[StoredRecord], policy: GatePolicy, *, input_ended: bool) -> Folding:
    """Clusters of one endpoint's records.

    A key with more than `dominant_key_share` of its slice's records at the slice's entry, and more records than
    one cluster counts (below that it cannot dominate), is cut into time blocks.

    Raises:
        InputError: a usable record has no event time or no slice.
    """
    timed = _in_event_order(records)
    plain = _fold(timed, policy, frozenset(), input_ended)
    dominant = _dominant_keys(timed, plain.entries, policy)
    if not dominant:
        return plain
    cut = _fold(timed, policy, dominant, input_ended)
    counts = Counter(slice_key for slice_key, _ in dominant)
    return Folding(cut.clusters, cut.num_waiting, cut.num_late, counts, plain.entries)


def cluster_units(
    clusters: Iterable[Cluster], runs: Mapping[RecordKey, MeasuredRun], max_clusters: int
) -> tuple[ClusterUnit, ...]:
    """The clusters that hold a run of the hypothesis, in folding order, up to `max_clusters`."""
    units = []
    for cluster in clusters:
        found = tuple(runs[key] for key in cluster.members if key in runs)
        if found:
            units.append(ClusterUnit(cluster, found))
            if len(units) == max_clusters:
                break
    return tuple(units)


def block_units(blocks: Iterable[StoredBlock], runs: Mapping[RecordKey, MeasuredRun]) -> tuple[BlockUnit, ...]:
    """The blocks that hold a run of the hypothesis, in start order; an empty block is no unit.

    Raises:
        InputError: a block holds more runs than its full size.
    """
    by_block: dict[str, list[MeasuredRun]] = defaultdict(list)
    for measured in runs.values():
        by_block[measured.run.block_id].append(measured)
    units = []
    # `sequence` counts within one input; the clock orders inputs that were measured one after the other.
    for block in sorted(blocks, key=lambda block: (block.started_at, block.sequence, block.block_id)):
        found = sorted(by_block.get(block.block_id, []), key=lambda measured: measured.run.key)
        if len(found) > block.n_max:
            raise InputError(
                f"block {block.block_id} of endpoint {block.endpoint} holds {len(found)} runs, n_max {block.n_max}"
            )
        if found:
            units.append(BlockUnit(block, tuple(found)))
    return tuple(units)


def is_greedy(record: StoredRecord) -> bool:
    """Whether the record's request was sampled greedily; its label decides."""
    return record.labels.get("sampling_regime") == SamplingRegime.GREEDY


def _in_event_order(records: Iterable[StoredRecord]) -> list[tuple[datetime, StoredRecord]]:
    timed = []
    for record in records:
        if record.event_time is not None and record.counter is not FunnelCounter.MALFORMED:
            timed.append((record.event_time, record))
        elif record.counter in CLUSTERED:
            raise InputError(f"record {record.key} of endpoint {record.endpoint} has no event time")
        if record.counter in CLUSTERED and record.slice_key is None:
            raise InputError(f"record {record.key} of endpoint {record.endpoint} has no slice")
    return sorted(timed, key=lambda pair: (pair[0], pair[1].key))


def _cluster_key(record: StoredRecord, at: datetime, policy: GatePolicy, *, is_dominant: bool) -> str:
    key = _own_key(record)
    if key and not is_dominant:
        return key
    return f"{key}@time:{int(at.timestamp() // policy.time_block_s)}"


def _own_key(record: StoredRecord) -> str:
    if record.session_hash:
        return f"session:{record.session_hash}"
    return f"user:{record.user_hash}" if record.user_hash else ""


def _fold(
    timed: Sequence[tuple[datetime, StoredRecord]],
    policy: GatePolicy,
    dominant: frozenset[tuple[str, str]],
    input_ended: bool,
) -> Folding:
    by_key: dict[tuple[str, str], list[tuple[datetime, RecordKey]]] = defaultdict(list)
    for at, record in timed:
        if record.counter in CLUSTERED:
            slice_key = record.slice_key or ""
            is_dominant = (slice_key, _own_key(record)) in dominant
            key = _cluster_key(record, at, policy, is_dominant=is_dominant)
            by_key[slice_key, key].append((at, record.key))
    opened: list[Cluster] = []
    num_late: Counter[str] = Counter()
    for (slice_key, key), arrivals in by_key.items():
        clusters, late = _clusters_of_key(slice_key, key, arrivals, policy)
        opened.extend(clusters)
        num_late[slice_key] += late
    opened.sort(key=lambda cluster: (cluster.first_event, cluster.key, cluster.slice_key))
    watermark = timed[-1][0] if timed else None
    entered: list[Cluster] = []
    for cluster in opened:
        if not (input_ended or cluster.is_full or (watermark is not None and watermark > cluster.closes_at)):
            break
        entered.append(cluster)
    entries = _entries(entered, policy.entry_clusters)
    return Folding(tuple(entered), len(opened) - len(entered), num_late, {}, entries)


def _clusters_of_key(
    slice_key: str, key: str, arrivals: Sequence[tuple[datetime, RecordKey]], policy: GatePolicy
) -> tuple[list[Cluster], int]:
    """The clusters of one key from its arrivals in event order, and the number of late records."""
    idle, max_age = timedelta(seconds=policy.cluster_idle_s), timedelta(seconds=policy.cluster_max_age_s)
    reopen_after = timedelta(seconds=policy.cluster_reopen_after_s)
    clusters: list[Cluster] = []
    members: list[tuple[datetime, RecordKey]] = []
    closes_at: datetime | None = None
    is_full, num_late = False, 0

    def finished(closing: datetime) -> Cluster:
        keys = tuple(record_key for _, record_key in members)
        return Cluster(slice_key, key, members[0][0], members[-1][0], closing, is_full, keys)

    for at, record_key in arrivals:
        if closes_at is not None and (is_full or at > closes_at):
            if at - closes_at < reopen_after:
                num_late += 1
                continue
            clusters.append(finished(closes_at))
            members = []
        members.append((at, record_key))
        is_full = len(members) == policy.max_requests_per_cluster
        closes_at = at if is_full else min(at + idle, members[0][0] + max_age)
    if closes_at is not None:
        clusters.append(finished(closes_at))
    return clusters, num_late


def _entries(entered: Sequence[Cluster], entry_clusters: int) -> dict[str, Entry]:
    counts: Counter[str] = Counter()
    entries: dict[str, Entry] = {}
    at: datetime | None = None
    for position, cluster in enumerate(entered):
        at = cluster.closes_at if at is None else max(at, cluster.closes_at)
        for slice_key in ("", cluster.slice_key):
            counts[slice_key] += 1
            if counts[slice_key] == entry_clusters:
                entries[slice_key] = Entry(position, at)
    return entries


def _dominant_keys(
    timed: Sequence[tuple[datetime, StoredRecord]], entries: Mapping[str, Entry], policy: GatePolicy
) -> frozenset[tuple[str, str]]:
    """(slice, key) of the keys to cut, judged on the records up to the slice's entry and never again."""
    by_slice: dict[str, Counter[str]] = defaultdict(Counter)
    for at, record in timed:
        slice_key = record.slice_key or ""
        if record.counter in CLUSTERED and slice_key in entries and at <= entries[slice_key].at:
            by_slice[slice_key][_own_key(record)] += 1
    return frozenset(
        (slice_key, key)
        for slice_key, counts in by_slice.items()
        for key, count in counts.items()
        if key and count > policy.max_requests_per_cluster and count > policy.dominant_key_share * sum(counts.values())
    )

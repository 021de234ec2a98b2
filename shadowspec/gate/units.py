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
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from shadowspec.errors import InputError
from shadowspec.gate.policy import GatePolicy
from shadowspec.types import Arrival, FunnelCounter, RecordKey, Run, SamplingRegime, StoredBlock, StoredRecord

# Records that were usable traffic, whatever was then done with them.
CLUSTERED = frozenset({FunnelCounter.MEASURED, FunnelCounter.FAILED, FunnelCounter.SAMPLED_OUT, FunnelCounter.SHED})

_NEVER = datetime.min.replace(tzinfo=UTC)


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

    def is_closed(self, closed_by: datetime | None) -> bool:
        """Whether it takes no more records at this watermark, up to which every record is known (None: none follow)."""
        return closed_by is None or (self.closes_at <= closed_by if self.is_full else self.closes_at < closed_by)


@dataclass(frozen=True, slots=True)
class Entry:
    """When a hypothesis enters: `position` of the cluster that lets it in folding order, and event time."""

    position: int
    at: datetime


@dataclass(frozen=True, slots=True)
class Folding:
    """An endpoint's clusters that are in evidence, in folding order, and what is not in evidence yet or ever."""

    clusters: tuple[Cluster, ...]
    num_waiting: int  # opened, but they or an earlier one are not closed
    num_late: Mapping[str, int]  # by slice: records up to the watermark, between a key's closing and its reopening
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


def fold_clusters(
    records: Iterable[StoredRecord], policy: GatePolicy, *, input_ended: bool, watermark: datetime | None = None
) -> Folding:
    """Clusters of one endpoint's records.

    Unless the input has ended, a cluster is closed if the `watermark` has reached the record that filled it, or is
    past its closing: the event time up to which every record is among `records` (None: the newest of their own).

    A key with more than `dominant_key_share` of its slice's records at the slice's entry, and more records than
    one cluster counts (below that it cannot dominate), is cut into time blocks.

    Raises:
        InputError: a usable record has no event time or no slice.
    """
    timed = in_event_order(records)
    if watermark is None and timed:
        watermark = timed[-1][0]
    closed_by = None if input_ended else watermark or _NEVER
    dominant: frozenset[tuple[str, str]] = frozenset()
    judged: dict[str, Entry] = {}
    folding = _fold(timed, policy, dominant, closed_by)
    while True:
        entries = {**folding.entries, **judged}
        waiting = sorted((entry.position, name) for name, entry in entries.items() if name and name not in judged)
        if not waiting:
            counts = Counter(slice_key for slice_key, _ in dominant)
            return replace(folding, dominant_keys=counts, entries=entries)
        # Slices are judged in the order of their entry; what is cut then changes the order of those after them.
        name = waiting[0][1]
        judged |= {other: entry for other, entry in entries.items() if entry.position <= entries[name].position}
        until = entries[name].at
        held = Counter(own_key(r) for at, r in timed if r.slice_key == name and r.counter in CLUSTERED and at <= until)
        cut = dominant_keys(name, held, policy)
        if cut:
            dominant |= cut
            folding = _fold(timed, policy, dominant, closed_by)


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


def block_units(
    blocks: Iterable[StoredBlock],
    runs: Mapping[RecordKey, MeasuredRun],
    newest: Mapping[str, datetime] | None = None,
) -> tuple[BlockUnit, ...]:
    """The blocks that hold a run of the hypothesis, in the order in which they enter; an empty block is no unit.

    `newest` are the event times of the newest of their own requests, by id: as the watermark reaches them, blocks
    enter, ties in start order.  Without it, all in start order.

    Raises:
        InputError: a block holds more runs than its full size.
    """
    by_block: dict[str, list[MeasuredRun]] = defaultdict(list)
    for measured in runs.values():
        by_block[measured.run.block_id].append(measured)
    units = []
    # `sequence` counts within one input; the clock orders inputs that were measured one after the other.
    times = newest or {}
    in_order = sorted(
        blocks,
        key=lambda each: (times.get(each.block_id, _NEVER), each.started_at, each.sequence, each.block_id),
    )
    for block in in_order:
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


def in_event_order(records: Iterable[StoredRecord]) -> list[tuple[datetime, StoredRecord]]:
    """The records that have an event time, with it, ties by key.

    Raises:
        InputError: a usable record has no event time or no slice.
    """
    timed = []
    for record in records:
        if record.event_time is not None and record.counter is not FunnelCounter.MALFORMED:
            timed.append((record.event_time, record))
        elif record.counter in CLUSTERED:
            raise InputError(f"record {record.key} of endpoint {record.endpoint} has no event time")
        if record.counter in CLUSTERED and record.slice_key is None:
            raise InputError(f"record {record.key} of endpoint {record.endpoint} has no slice")
    timed.sort(key=lambda pair: pair[1].key)
    timed.sort(key=lambda pair: pair[0])
    return timed


def cluster_key(record: StoredRecord, at: datetime, policy: GatePolicy, *, is_dominant: bool) -> str:
    """What the record's cluster is of; a dominant key's are of a time block each."""
    key = own_key(record)
    if key and not is_dominant:
        return key
    return f"{key}@time:{int(at.timestamp() // policy.time_block_s)}"


def own_key(record: StoredRecord) -> str:
    """The record's session, else its user, else nothing."""
    return key_from(record.session_hash, record.user_hash)


def key_from(session_hash: str | None, user_hash: str | None) -> str:
    """The same of the two hashes that it is made of."""
    if session_hash:
        return f"session:{session_hash}"
    return f"user:{user_hash}" if user_hash else ""


def dominant_keys(slice_key: str, counts: Mapping[str, int], policy: GatePolicy) -> frozenset[tuple[str, str]]:
    """(slice, key) of the keys to cut, from the slice's records by key up to its entry; judged once."""
    total = sum(counts.values())
    return frozenset(
        (slice_key, key)
        for key, count in counts.items()
        if key and count > policy.max_requests_per_cluster and count > policy.dominant_key_share * total
    )


def _fold(
    timed: Sequence[tuple[datetime, StoredRecord]],
    policy: GatePolicy,
    dominant: frozenset[tuple[str, str]],
    closed_by: datetime | None,
) -> Folding:
    """`closed_by`: the watermark; None: everything is closed."""
    by_key: dict[tuple[str, str], list[tuple[datetime, RecordKey]]] = defaultdict(list)
    for at, record in timed:
        if record.counter in CLUSTERED:
            slice_key = record.slice_key or ""
            is_dominant = (slice_key, own_key(record)) in dominant
            key = cluster_key(record, at, policy, is_dominant=is_dominant)
            by_key[slice_key, key].append((at, record.key))
    opened: list[Cluster] = []
    num_late: Counter[str] = Counter()
    for (slice_key, key), arrivals in by_key.items():
        clusters, late = clusters_of_key(slice_key, key, arrivals, policy)
        opened.extend(clusters)
        num_late[slice_key] += sum(closed_by is None or at <= closed_by for at, _ in late)
    opened.sort(key=lambda cluster: (cluster.first_event, cluster.key, cluster.slice_key))
    entered: list[Cluster] = []
    for cluster in opened:
        if not cluster.is_closed(closed_by):
            break
        entered.append(cluster)
    entries = _entries(entered, policy.entry_clusters)
    return Folding(tuple(entered), len(opened) - len(entered), num_late, {}, entries)


def clusters_of_key(
    slice_key: str, key: str, arrivals: Sequence[Arrival], policy: GatePolicy, reopens_at: datetime | None = None
) -> tuple[list[Cluster], list[Arrival]]:
    """The clusters of one key from its arrivals in event order, and the arrivals that came too late for one.

    `reopens_at` is when the key's last cluster lets a new one begin, if there was one.
    """
    idle, max_age = timedelta(seconds=policy.cluster_idle_s), timedelta(seconds=policy.cluster_max_age_s)
    reopen_after = timedelta(seconds=policy.cluster_reopen_after_s)
    clusters: list[Cluster] = []
    members: list[Arrival] = []
    late: list[Arrival] = []
    closes_at = datetime.max.replace(tzinfo=UTC)
    is_full = False

    def finish() -> None:
        keys = tuple(record_key for _, record_key in members)
        clusters.append(Cluster(slice_key, key, members[0][0], members[-1][0], closes_at, is_full, keys))

    for at, record_key in arrivals:
        if members and (is_full or at > closes_at):
            reopens_at = closes_at + reopen_after
            if at >= reopens_at:
                finish()
                members = []
        if (not members or is_full or at > closes_at) and reopens_at is not None and at < reopens_at:
            late.append((at, record_key))
            continue
        members.append((at, record_key))
        is_full = len(members) == policy.max_requests_per_cluster
        closes_at = at if is_full else min(at + idle, members[0][0] + max_age)
    if members:
        finish()
    return clusters, late


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

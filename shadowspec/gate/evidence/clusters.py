"""Clusters as records come in, look after look: which open, which close, and which enter the evidence, in order.

Invariant: on records that come in before the watermark passes their event time, the same clusters enter in the same
order, however the records are cut into looks.  A record that comes behind the
watermark joins its cluster while that has not entered, and counts as late once it has.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Protocol

from shadowspec.errors import InputError
from shadowspec.gate.evidence.entry import Entry, RecentRequests, may_enter
from shadowspec.gate.evidence.units import Cluster, cluster_key, clusters_of_key, dominant_keys, own_key
from shadowspec.gate.policy import GatePolicy
from shadowspec.types import ARRIVING, Arrival, FunnelCounter, OpenKey, SliceKey, StoredRecord

# How often each key of a slice has occurred up to an event time.
KeyCounts = Callable[[str, datetime], Mapping[str, int]]


class KeyTable(Protocol):
    """Where open keys are kept between looks: one clustering at one endpoint."""

    def take(self, keys: Iterable[SliceKey]) -> list[OpenKey]:
        """Take out those of these keys that are known."""

    def take_waiting(self, until: datetime | None) -> list[OpenKey]:
        """Take out the keys whose waiting cluster opened at or before this; None: all that wait."""

    def first_unclosed(self, closed_by: datetime) -> datetime | None:
        """The earliest first event of a waiting cluster that is not closed at this watermark."""

    def add(self, keys: Iterable[OpenKey]) -> None:
        """Keep these, none of which is there."""

    def forget(self, reopened_by: datetime) -> None:
        """Drop the keys for which nothing waits and that may reopen at or before this."""


@dataclass(frozen=True, slots=True)
class ClusterProgress:
    """How far an endpoint's clusters have entered: counts by slice, entries, and the keys that are cut.

    `entries` of slices whose keys have been judged are retained when everything is folded again.
    """

    num_entered: int = 0
    newest_close: datetime | None = None
    num_closed: Mapping[str, int] = field(default_factory=dict)  # by slice
    num_members: Mapping[str, int] = field(default_factory=dict)  # by slice: records of the clusters in evidence
    num_late: Mapping[str, int] = field(default_factory=dict)  # by slice
    num_left_out: Mapping[str, int] = field(default_factory=dict)  # by slice: the late that an entered cluster missed
    recent: RecentRequests = field(default_factory=RecentRequests)  # of the clusters in evidence
    entries: Mapping[str, Entry] = field(default_factory=dict)  # by slice; "" is the whole endpoint
    dominant: frozenset[SliceKey] = frozenset()

    def closed_in(self, slice_key: str) -> int:
        """Clusters in evidence of a slice, "" for the whole endpoint."""
        return sum_in_slice(self.num_closed, slice_key)

    def members_in(self, slice_key: str) -> int:
        """Records of the clusters of a slice that are in evidence."""
        return sum_in_slice(self.num_members, slice_key)

    def late_in(self, slice_key: str) -> int:
        """Records of a slice that came too late for their cluster."""
        return sum_in_slice(self.num_late, slice_key)

    def left_out_in(self, slice_key: str) -> int:
        """Of those the ones that came out of order: before their cluster's closing, once it had entered."""
        return sum_in_slice(self.num_left_out, slice_key)

    def dominant_in(self, slice_key: str) -> int:
        """Keys of a slice that are cut into time blocks."""
        return sum(slice_key in ("", name) for name, _ in self.dominant)


@dataclass(frozen=True, slots=True)
class ClusterStep:
    """One look's clusters that enter, in order, and the progress after them.

    Where `new_dominant` is not empty, keys of a slice that entered must be cut, and the evidence folded again from
    the first record on, with `progress.dominant` and `progress.entries` kept.
    """

    entered: tuple[Cluster, ...]
    progress: ClusterProgress
    new_dominant: frozenset[SliceKey] = frozenset()


def step(
    table: KeyTable,
    progress: ClusterProgress,
    records: Iterable[StoredRecord],
    policy: GatePolicy,
    closed_by: datetime | None,
    key_counts: KeyCounts,
) -> ClusterStep:
    """Take in one look's new records, and let in the clusters that are closed by the watermark `closed_by`.

    Raises:
        InputError: a usable record has no event time or no slice.
    """
    # Changed entries leave the table and return once, at the end: a backlog's clusters come and go.
    opened, late = _take(table, progress, records, policy, closed_by)
    progress = replace(
        progress,
        num_late=dict(Counter(progress.num_late) + late.every),
        num_left_out=dict(Counter(progress.num_left_out) + late.left_out),
    )
    result = _enter(table, opened, progress, policy, closed_by, key_counts)
    if closed_by is not None:
        opened = {place: open_key for place, open_key in opened.items() if not is_over(open_key, closed_by)}
        table.forget(closed_by)
    table.add(opened.values())
    return result


def in_event_order(records: Iterable[StoredRecord]) -> list[tuple[datetime, StoredRecord]]:
    """The records that have an event time, with it, ties by key.

    Raises:
        InputError: a usable record has no event time or no slice.
    """
    timed = []
    for record in records:
        if record.event_time is not None and record.counter is not FunnelCounter.MALFORMED:
            timed.append((record.event_time, record))
        elif record.counter in ARRIVING:
            raise InputError(f"record {record.key} of endpoint {record.endpoint} has no event time")
        if record.counter in ARRIVING and record.slice_key is None:
            raise InputError(f"record {record.key} of endpoint {record.endpoint} has no slice")
    timed.sort(key=lambda pair: pair[1].key)
    timed.sort(key=lambda pair: pair[0])
    return timed


@dataclass(frozen=True, slots=True)
class _Late:
    """Records that were too late, by slice; and those of them that their cluster, already in evidence, missed."""

    every: Counter[str] = field(default_factory=Counter)
    left_out: Counter[str] = field(default_factory=Counter)


def _take(
    table: KeyTable,
    progress: ClusterProgress,
    records: Iterable[StoredRecord],
    policy: GatePolicy,
    closed_by: datetime | None,
) -> tuple[dict[SliceKey, OpenKey], _Late]:
    """The keys of the records, with them added; and how many were too late."""
    new: dict[SliceKey, list[Arrival]] = {}
    for at, record in in_event_order(records):
        if record.counter in ARRIVING:
            slice_key = record.slice_key or ""
            is_dominant = (slice_key, own_key(record)) in progress.dominant
            key = cluster_key(record, at, policy, is_dominant=is_dominant)
            new.setdefault((slice_key, key), []).append((at, record.key))
    known = {(open_key.slice_key, open_key.key): open_key for open_key in table.take(new)}
    every, opened = _Late(), {}
    reopen_after = timedelta(seconds=policy.cluster_reopen_after_s)
    for place, arrivals in new.items():
        before = known.get(place)
        if before is None:
            opened[place], late = _open_first(OpenKey(*place, tuple(arrivals)), policy, closed_by)
        else:
            joined = tuple(sorted((*before.arrivals, *arrivals)))
            opened[place], late = _open_first(replace(before, arrivals=joined), policy, closed_by)
        if late:
            every.every[place[0]] += len(late)
            if before is not None and before.reopens_at is not None:
                closed_at = before.reopens_at - reopen_after
                every.left_out[place[0]] += sum(at < closed_at for at, _ in late)
    return opened, every


def _enter(
    table: KeyTable,
    opened: dict[SliceKey, OpenKey],
    progress: ClusterProgress,
    policy: GatePolicy,
    closed_by: datetime | None,
    key_counts: KeyCounts,
) -> ClusterStep:
    """Let clusters in, of the keys in `opened` and of those in the table; `opened` is left as the keys are after it."""
    for open_key in table.take_waiting(_first_unclosed(table, opened, closed_by)):
        opened[open_key.slice_key, open_key.key] = open_key
    waiting = {
        (open_key.first_event, open_key.key, open_key.slice_key): open_key
        for open_key in opened.values()
        if open_key.first_event
    }
    queue = sorted(waiting)
    entered: list[Cluster] = []
    entries, newest = dict(progress.entries), progress.newest_close
    num_closed, num_late = Counter(progress.num_closed), Counter(progress.num_late)
    num_members, num_all = Counter(progress.num_members), num_closed.total()
    recent = progress.recent.counting()
    new_dominant: frozenset[SliceKey] = frozenset()
    while queue and not new_dominant and waiting[queue[0]].is_closed(closed_by):
        open_key = waiting[heapq.heappop(queue)]
        cluster = _first_cluster(open_key, policy)
        rest, num_dropped = _after(open_key, cluster, policy, closed_by)
        num_late[cluster.slice_key] += num_dropped
        num_members[cluster.slice_key] += len(cluster.members)
        recent.add(cluster.slice_key, cluster.first_event, len(cluster.members))
        opened[open_key.slice_key, open_key.key] = rest
        if rest.first_event is not None:
            place = (rest.first_event, rest.key, rest.slice_key)
            waiting[place] = rest
            heapq.heappush(queue, place)
        newest = cluster.closes_at if newest is None else max(newest, cluster.closes_at)
        num_closed[cluster.slice_key] += 1
        num_all += 1
        position = progress.num_entered + len(entered)
        entered.append(cluster)
        for name, number in (("", num_all), (cluster.slice_key, num_closed[cluster.slice_key])):
            if name not in entries and may_enter(number, recent.share_of(name), policy):
                entries[name] = Entry(position, newest)
                if name:
                    new_dominant = dominant_keys(name, key_counts(name, newest), policy)
    after = replace(
        progress,
        num_entered=progress.num_entered + len(entered),
        newest_close=newest,
        num_closed=dict(num_closed),
        num_members=dict(num_members),
        recent=recent.result(),
        num_late=dict(+num_late),  # without zeros: a fold in parts gives the same result as one fold
        entries=entries,
        dominant=progress.dominant | new_dominant,
    )
    return ClusterStep(tuple(entered), after, new_dominant)


def _first_unclosed(table: KeyTable, opened: Mapping[SliceKey, OpenKey], closed_by: datetime | None) -> datetime | None:
    """When the first cluster opened that is not closed; nothing that opened after it enters.  None: all are closed."""
    if closed_by is None:
        return None
    moments = [
        open_key.first_event
        for open_key in opened.values()
        if open_key.first_event and not open_key.is_closed(closed_by)
    ]
    stored = table.first_unclosed(closed_by)
    return min([*moments, *([] if stored is None else [stored])], default=None)


def is_over(open_key: OpenKey, closed_by: datetime) -> bool:
    """Whether nothing of the key is to be remembered."""
    return open_key.first_event is None and open_key.reopens_at is not None and open_key.reopens_at <= closed_by


def _first_cluster(open_key: OpenKey, policy: GatePolicy) -> Cluster:
    """The waiting cluster that the key describes."""
    if len(open_key.arrivals) == 1 and open_key.first_event is not None and open_key.closes_at is not None:
        ((at, key),) = open_key.arrivals
        return Cluster(open_key.slice_key, open_key.key, at, at, open_key.closes_at, open_key.is_full, (key,))
    return clusters_of_key(open_key.slice_key, open_key.key, open_key.arrivals, policy, open_key.reopens_at)[0][0]


def _after(open_key: OpenKey, cluster: Cluster, policy: GatePolicy, closed_by: datetime | None) -> tuple[OpenKey, int]:
    """The key once its first cluster has entered, and how many arrivals were late for that one."""
    reopens_at = cluster.closes_at + timedelta(seconds=policy.cluster_reopen_after_s)
    if len(cluster.members) == len(open_key.arrivals):
        return OpenKey(open_key.slice_key, open_key.key, (), reopens_at), 0
    members = set(cluster.members)
    left = tuple((at, key) for at, key in open_key.arrivals if key not in members)
    rest, late = _open_first(replace(open_key, arrivals=left, reopens_at=reopens_at), policy, closed_by)
    return rest, len(late)


def _open_first(open_key: OpenKey, policy: GatePolicy, closed_by: datetime | None) -> tuple[OpenKey, Set[Arrival]]:
    """The key with its first waiting cluster described, and its arrivals that are dropped as too late.

    They are too late if their cluster is in evidence, or if the watermark has passed them.
    """
    if len(open_key.arrivals) == 1 and open_key.reopens_at is None:
        at = open_key.arrivals[0][0]
        is_full = policy.max_requests_per_cluster == 1
        closes_at = at if is_full else at + timedelta(seconds=min(policy.cluster_idle_s, policy.cluster_max_age_s))
        return OpenKey(open_key.slice_key, open_key.key, open_key.arrivals, None, at, closes_at, is_full), frozenset()
    clusters, late = clusters_of_key(open_key.slice_key, open_key.key, open_key.arrivals, policy, open_key.reopens_at)
    settled = {
        arrival
        for arrival in late
        if closed_by is None or arrival[0] <= closed_by or (open_key.reopens_at and arrival[0] < open_key.reopens_at)
    }
    arrivals = (
        tuple(arrival for arrival in open_key.arrivals if arrival not in settled) if settled else open_key.arrivals
    )
    if not clusters:
        return OpenKey(open_key.slice_key, open_key.key, arrivals, open_key.reopens_at), settled
    first = clusters[0]
    described = first.first_event, first.closes_at, first.is_full
    return OpenKey(open_key.slice_key, open_key.key, arrivals, open_key.reopens_at, *described), settled


def sum_in_slice(numbers: Mapping[str, int], slice_key: str) -> int:
    """A slice's number, or for "" the sum of all."""
    return sum(numbers.values()) if not slice_key else numbers.get(slice_key, 0)

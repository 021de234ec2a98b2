"""Units of evidence: clusters of requests, and the blocks that went through both arms together.

Invariant: which records make which cluster, and the order in which clusters enter the evidence, depend only on keys and
event times, never on an outcome or on when a row was committed.  Clusters enter in the order of their first event time,
and only when every cluster of the endpoint that opened earlier is closed (entering in order of closing would
over-sample short sessions).

Which blocks are in evidence depends only on the watermark, that is on event times.  Workers and devices measure side by
side, and a slow block is written later than fast ones that began with it or after it.  In order of arrival fast blocks
would count first (false in 8 to 93% of simulated runs at 5%, with 2 to 8 devices).  So a block waits until every record
up to its newest one is known.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from shadowspec.errors import InputError
from shadowspec.gate.policy import GatePolicy
from shadowspec.types import Arrival, OpenBlock, RecordKey, Run, SamplingRegime, StoredBlock, StoredRecord

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


@dataclass(frozen=True, slots=True)
class MeasuredRun:
    """A run with facts of its record: the sampling regime, which picks the parity test, and how it was drawn."""

    run: Run
    is_greedy: bool
    is_thinned: bool = False  # left out of the whole endpoint's evidence where its units are blocks
    sampling_rate: float = 1.0  # the inclusion probability of its session


@dataclass(frozen=True, slots=True)
class ClusterUnit:
    """A cluster with its runs for one hypothesis, at least one."""

    cluster: Cluster
    runs: tuple[MeasuredRun, ...]


@dataclass(frozen=True, slots=True)
class BlockUnit:
    """A block with its measured requests' runs for one hypothesis, at least one, in the order of their keys.

    `newest` is the event time of its newest measured request.
    """

    block: StoredBlock
    runs: tuple[MeasuredRun, ...]
    newest: datetime = _NEVER


def block_units(
    blocks: Iterable[StoredBlock], runs: Mapping[RecordKey, MeasuredRun], newest: Mapping[str, datetime] | None = None
) -> tuple[BlockUnit, ...]:
    """The blocks that hold a run of the hypothesis, in the order in which they enter; an empty block is no unit.

    `newest` are the event times of each block's newest measured request, by block id: blocks enter as the watermark
    reaches them, ties in start order.  Without `newest`, all enter in start order.

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
        blocks, key=lambda block: (times.get(block.block_id, _NEVER), block.started_at, block.sequence, block.block_id)
    )
    for block in in_order:
        block_runs = sorted(by_block.get(block.block_id, []), key=lambda measured: measured.run.key)
        if len(block_runs) > block.n_max:
            raise InputError(
                f"block {block.block_id} of endpoint {block.endpoint} holds {len(block_runs)} runs, n_max {block.n_max}"
            )
        if block_runs:
            units.append(BlockUnit(block, tuple(block_runs), times.get(block.block_id, _NEVER)))
    return tuple(units)


def unthinned(runs: Iterable[MeasuredRun]) -> tuple[MeasuredRun, ...]:
    """The runs that count for the whole endpoint: their mix is the traffic's, although slices have different rates."""
    return tuple(measured for measured in runs if not measured.is_thinned)


def is_greedy(record: StoredRecord) -> bool:
    """Whether the record's request was sampled greedily; its label decides."""
    return record.labels.get("sampling_regime") == SamplingRegime.GREEDY


def cluster_key(record: StoredRecord, at: datetime, policy: GatePolicy, *, is_dominant: bool) -> str:
    """The key of the record's cluster: its unit as the tap numbered it; a dominant key has one cluster per time block.

    A unit that is not stored is its session, or its user.
    """
    key = own_key(record)
    if key and not is_dominant:
        return record.unit_key or key
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


@dataclass(frozen=True, slots=True)
class BlockStep:
    """One look's blocks: those that enter, and those that are to be kept as they are now."""

    entered: Mapping[str, datetime]  # with the newest event time of each
    begun: Mapping[str, OpenBlock]


def take_blocks(
    before: Mapping[str, OpenBlock],
    runs: Iterable[Run],
    event_times: Mapping[RecordKey, datetime],
    num_runs: Callable[[str], int],
    closed_by: datetime | None,
) -> BlockStep:
    """Take in one look's new runs, and let in the whole blocks that the watermark has reached (None: nothing follows).

    `num_runs` is how many runs a block was stored with.
    """
    new: dict[str, list[RecordKey]] = defaultdict(list)
    for run in runs:
        new[run.block_id].append(run.key)
    entered, begun = {}, {}
    for block_id, block in before.items():
        if block_id not in new and is_known(block.newest, closed_by) and len(block.runs) >= num_runs(block_id):
            entered[block_id] = block.newest
    for block_id, keys in new.items():
        joined = _join(before.get(block_id), keys, [event_times[key] for key in keys])
        if is_known(joined.newest, closed_by) and len(joined.runs) >= num_runs(block_id):
            entered[block_id] = joined.newest
        else:
            begun[block_id] = joined
    return BlockStep(entered, begun)


def is_known(newest: datetime, closed_by: datetime | None) -> bool:
    """Whether every record up to the block's newest measured one is known at this watermark."""
    return closed_by is None or newest <= closed_by


def _join(before: OpenBlock | None, keys: list[RecordKey], times: list[datetime]) -> OpenBlock:
    if before is None:
        return OpenBlock(tuple(keys), max(times))
    return OpenBlock((*before.runs, *keys), max(before.newest, *times))

"""The queue time that each arm would see under the recorded arrivals: derived, and judged by nobody.

The newest requests of an endpoint, measured or not, are sent at the times at which they came through a server with as
many slots as the load at which the arms were timed.  A request that was timed there takes what it took; any other one
takes what a timed request of its slice took, drawn by a hash of its key: the same one for both arms, whose difference
is then theirs and not the draw's.  Where only some of the sessions are sampled the clock runs as much faster.

Recorded traffic is that of all replicas, or of a mirror's part of it: what it does to one server says little by itself.
So the same arrivals are also sent at the speeds at which the baseline's slots would be busy for a given share of the
time.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from shadowspec import metrics
from shadowspec.planning.queueing import Queue, replay_queue, utilisation
from shadowspec.text import milliseconds, moment, number, percent, plural, times
from shadowspec.types import (
    ARRIVING,
    Arm,
    ArrivedRequest,
    FingerprintedConfig,
    RecordKey,
    Run,
    ServedRequest,
    SpeculationConfig,
    StoredBlock,
    StoredRecord,
)

MAX_ARRIVALS: Final = 5_000  # the newest; some hundredths of a second for a load and config
MIN_ARRIVALS: Final = 100
MIN_SERVED: Final = 30  # timed requests from which the others draw
BUSY: Final = (0.5, 0.8, 0.95)  # of the baseline's slots
MS_PER_S: Final = 1_000.0


@dataclass(frozen=True, slots=True)
class ArmQueue:
    """What one arm's queue comes to; the times are None where more comes in than is served."""

    utilisation: float
    mean_queue_ms: float | None
    p95_queue_ms: float | None
    p99_queue_ms: float | None
    waiting_share: float | None  # of the requests
    mean_response_ms: float | None  # queue, prefill and decode

    @property
    def is_overloaded(self) -> bool:
        return self.mean_queue_ms is None


@dataclass(frozen=True, slots=True)
class QueueRow:
    """Both arms under the same arrivals; `traffic` is how many times what was recorded."""

    traffic: float
    baseline: ArmQueue
    speculative: ArmQueue

    @property
    def response_speedup(self) -> float | None:
        """Baseline over speculative mean time from arrival to last token."""
        times = self.baseline.mean_response_ms, self.speculative.mean_response_ms
        return None if times[0] is None or times[1] is None else metrics.ratio(times[0], times[1])


@dataclass(frozen=True, slots=True)
class QueueCell:
    """An endpoint's queue at one load with one config; where it has no rows `reason` says why."""

    concurrency: int
    fingerprint: str
    engine: str  # what the service times were measured on
    config: SpeculationConfig
    num_arrivals: int
    num_timed: int  # of the arrivals, in both arms
    num_borrowed: int  # of a slice of which nothing was timed: they drew from the whole endpoint
    thinning: float  # requests of the traffic for each one that was recorded
    first: datetime
    last: datetime
    rows: tuple[QueueRow, ...] = ()  # at the recorded traffic, then by the share of the baseline's time
    reason: str | None = None


def newest_arrivals(records: Iterable[StoredRecord]) -> list[ArrivedRequest]:
    """The newest usable requests among stored records, in the order in which they came."""
    found = [
        ArrivedRequest(
            record.key,
            record.slice_key,
            record.event_time,
            ArrivedRequest.weight_of(record.counter, record.reason, record.sampling_rate),
        )
        for record in records
        if record.counter in ARRIVING and record.slice_key is not None and record.event_time is not None
    ]
    return sorted(found, key=lambda served: (served.at, served.key))[-MAX_ARRIVALS:]


def timed_requests(runs: Iterable[Run], blocks: Iterable[StoredBlock]) -> list[ServedRequest]:
    """The runs that were timed in both arms."""
    block_of = {block.block_id: block for block in blocks}
    return [
        ServedRequest(
            run.key,
            block_of[run.block_id].slice_key,
            block_of[run.block_id].concurrency,
            run.fingerprint,
            run.baseline.end_to_end_ms,
            run.speculative.end_to_end_ms,
        )
        for run in runs
        if run.baseline is not None and run.speculative is not None
    ]


def queue_cells(
    arrivals: Sequence[ArrivedRequest],
    timed: Iterable[ServedRequest],
    configs: Mapping[str, FingerprintedConfig],
    busy: Sequence[float] = BUSY,
) -> list[QueueCell]:
    """One for each load and known config that was timed, by config, K and load.

    Args:
        arrivals: in the order in which they came; only what was timed of these counts.
        busy: the shares of the time, above 0, at which the baseline's slots are to be busy, beside the recorded one.
    """
    known = {arrival.key for arrival in arrivals}
    by_cell: dict[tuple[int, str], list[ServedRequest]] = defaultdict(list)
    for served in timed:
        if served.key in known and served.fingerprint in configs:
            by_cell[served.concurrency, served.fingerprint].append(served)
    found = [
        _cell(concurrency, configs[fingerprint], arrivals, served, busy)
        for (concurrency, fingerprint), served in by_cell.items()
    ]
    return sorted(
        found,
        key=lambda cell: (cell.config.name, cell.config.num_speculative_tokens, cell.fingerprint, cell.concurrency),
    )


def _cell(
    concurrency: int,
    config: FingerprintedConfig,
    arrivals: Sequence[ArrivedRequest],
    timed: Sequence[ServedRequest],
    busy: Sequence[float],
) -> QueueCell:
    weight = sum(arrival.weight for arrival in arrivals)
    chosen, num_borrowed = _services(arrivals, timed)
    cell = QueueCell(
        concurrency=concurrency,
        fingerprint=config.fingerprint,
        engine=config.engine,
        config=config.config,
        num_arrivals=len(arrivals),
        num_timed=len({served.key for served in timed}),
        num_borrowed=num_borrowed,
        thinning=max(1.0, weight / len(arrivals)),
        first=arrivals[0].at,
        last=arrivals[-1].at,
    )
    return _with_rows(cell, arrivals, chosen, busy)


def _with_rows(
    cell: QueueCell, arrivals: Sequence[ArrivedRequest], chosen: Sequence[ServedRequest], busy: Sequence[float]
) -> QueueCell:
    if cell.num_arrivals < MIN_ARRIVALS:
        return replace(cell, reason=f"{cell.num_arrivals} recorded arrivals, of {MIN_ARRIVALS} that are needed")
    if cell.num_timed < MIN_SERVED:
        return replace(cell, reason=f"{cell.num_timed} timed requests, of {MIN_SERVED} that are needed")
    first = arrivals[0].at
    arrivals_ms = [(arrival.at - first).total_seconds() * MS_PER_S for arrival in arrivals]
    services = {
        Arm.BASELINE: [served.baseline_ms for served in chosen],
        Arm.SPECULATIVE: [served.speculative_ms for served in chosen],
    }
    recorded = utilisation(arrivals_ms, services[Arm.BASELINE], cell.concurrency, cell.thinning)
    if not recorded:
        return replace(cell, reason="all requests were recorded at one moment")
    rows = []
    for traffic in (1.0, *(share / recorded for share in busy)):
        found = {
            arm: _arm(replay_queue(arrivals_ms, service, cell.concurrency, cell.thinning * traffic))
            for arm, service in services.items()
        }
        rows.append(QueueRow(traffic, found[Arm.BASELINE], found[Arm.SPECULATIVE]))
    return replace(cell, rows=tuple(rows))


def _arm(queue: Queue) -> ArmQueue:
    assert queue.utilisation is not None, "requests came over a span of time"
    if queue.is_overloaded:
        return ArmQueue(queue.utilisation, None, None, None, None, None)
    return ArmQueue(
        utilisation=queue.utilisation,
        mean_queue_ms=queue.mean_ms,
        p95_queue_ms=queue.quantile_ms(0.95),
        p99_queue_ms=queue.quantile_ms(0.99),
        waiting_share=queue.waiting_share,
        mean_response_ms=queue.mean_response_ms,
    )


def _services(arrivals: Sequence[ArrivedRequest], timed: Sequence[ServedRequest]) -> tuple[list[ServedRequest], int]:
    """Whose times each arrival takes, and how many took them of another slice."""
    by_key = {each.key: each for each in timed}
    everywhere = [by_key[key] for key in sorted(by_key)]
    by_slice: dict[str, list[ServedRequest]] = defaultdict(list)
    for each in everywhere:
        by_slice[each.slice_key].append(each)
    chosen, num_borrowed = [], 0
    for arrival in arrivals:
        if (found := by_key.get(arrival.key)) is None:
            pool = by_slice.get(arrival.slice_key)
            num_borrowed += pool is None
            pool = pool or everywhere
            found = pool[_draw_number(arrival.key) % len(pool)]
        chosen.append(found)
    return chosen, num_borrowed


def _draw_number(key: RecordKey) -> int:
    """A number that is the same for a record whenever and wherever it is asked for."""
    return int.from_bytes(hashlib.blake2b(str(key).encode(), digest_size=8).digest(), "big")


QUEUE_HEAD = (
    *("Config", "K", "Load", "Traffic", "Baseline busy", "Baseline queue, mean, p95, p99"),
    *("Speculative busy", "Speculative queue, mean, p95, p99", "Speedup with queue"),
)
DERIVED = "Derived, not measured."
QUEUE_NOTE = (
    "A queue of the recorded arrivals, first come, first served, at a server with as many slots as the load. Each "
    "request takes its measured time in that arm. No verdict uses it."
)
OVERLOADED = "overloaded: the queue grows without limit"


def queue_basis(cell: QueueCell) -> str:
    """What the figures of a load and config rest on."""
    name = f"load {cell.concurrency}, {cell.config.name}, measured on {cell.engine}"
    if cell.reason is not None:
        return f"{name}: nothing is derived: {cell.reason}."
    others = cell.num_arrivals - cell.num_timed
    said = [
        f"{name}: {plural(cell.num_arrivals, 'arrival')} from "
        f"{moment(cell.first)} to {moment(cell.last)}, {cell.num_timed:,} of them timed here"
    ]
    if others:
        said.append(f"{others:,} took the time of a timed request of their slice, drawn by a hash")
    if cell.num_borrowed:
        said.append(f"{cell.num_borrowed:,} of these from any slice, because their slice has no timed request")
    if cell.thinning > 1.0:
        said.append(
            f"one of {number(cell.thinning)} requests was recorded, so that the clock runs faster by this factor"
        )
    return "; ".join(said) + "."


def queue_cells_text(cell: QueueCell, row: QueueRow) -> list[str]:
    """One row of the table, under `QUEUE_HEAD`."""
    return [
        cell.config.name,
        str(cell.config.num_speculative_tokens),
        str(cell.concurrency),
        _traffic(row.traffic),
        percent(row.baseline.utilisation),
        _waits(row.baseline),
        percent(row.speculative.utilisation),
        _waits(row.speculative),
        times(row.response_speedup),
    ]


def _traffic(factor: float) -> str:
    """How many times as fast the recorded arrivals come, to three digits or as a whole number."""
    if factor == 1.0:
        return "as recorded"
    return f"{factor:,.0f}\u00d7" if factor >= 100.0 else f"{factor:.3g}\u00d7"


def _waits(arm: ArmQueue) -> str:
    if arm.is_overloaded:
        return OVERLOADED
    return ", ".join(milliseconds(served) for served in (arm.mean_queue_ms, arm.p95_queue_ms, arm.p99_queue_ms))

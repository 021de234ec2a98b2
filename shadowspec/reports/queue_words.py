"""Derived queue times, in words."""

from __future__ import annotations

from shadowspec.reports.queues import ArmQueue, QueueCell, QueueRow
from shadowspec.words import milliseconds, moment, number, percent, plural, times

HEAD = (
    *("Config", "K", "Load", "Traffic", "Baseline busy", "Baseline queue, mean, p95, p99"),
    *("Speculative busy", "Speculative queue, mean, p95, p99", "Speedup with queue"),
)
DERIVED = "Derived, not measured."
QUEUE_NOTE = (
    "Recorded arrivals are sent through a server with as many slots as the load, first come, first served, in which "
    "every request takes as long as it took in that arm. No verdict reads it."
)
OVERLOADED = "overloaded: it grows without end"


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
        said.append(f"{cell.num_borrowed:,} of these of any slice, as nothing of their own was timed")
    if cell.thinning > 1.0:
        said.append(f"one of {number(cell.thinning)} requests was recorded, so that the clock runs as much faster")
    return "; ".join(said) + "."


def queue_cells_text(cell: QueueCell, row: QueueRow) -> list[str]:
    """One row of the table, under `HEAD`."""
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
    return ", ".join(milliseconds(own) for own in (arm.mean_queue_ms, arm.p95_queue_ms, arm.p99_queue_ms))

"""Verdict and speedup by load, from the cells that were measured, and the load at which speculation breaks even."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from shadowspec.planning.frontier import Crossing, crossings
from shadowspec.reports.definitions import find_test
from shadowspec.types import Decision, TestResult, Verdict


@dataclass(frozen=True, slots=True)
class LoadCell:
    """One slice at one load with one config: the current verdict, and what was measured."""

    concurrency: int
    config_name: str
    depth: int  # num_speculative_tokens
    fingerprint: str
    verdict: Verdict
    reason: str
    decision_id: int | None
    speedup: TestResult | None
    total_time: TestResult | None
    acceptance: TestResult | None

    @property
    def estimate(self) -> float | None:
        """The estimated speedup."""
        return None if self.speedup is None else self.speedup.estimate


@dataclass(frozen=True, slots=True)
class BreakEven:
    """Where one config breaks even, as far as the measured loads show; speedup need not fall with load throughout."""

    config_name: str
    depth: int
    loads: tuple[int, ...]  # measured, rising
    crossings: tuple[Crossing, ...]
    is_first_above: bool | None  # whether the lowest load is above the level; None: nothing measured

    @property
    def words(self) -> str:
        """What is known, in a sentence."""
        if not self.loads:
            return "nothing measured yet"
        if self.crossings:
            parts = [
                f"{'stops paying' if each.is_downward else 'begins to pay'} at a load of about {each.load:.3g} "
                f"(interpolated between {each.below} and {each.above})"
                for each in self.crossings
            ]
            return "; ".join(parts)
        side = "estimated faster" if self.is_first_above else "estimated not faster"
        if len(self.loads) == 1:
            return f"{side} at the only load measured, {self.loads[0]}; measure a second load to find the break-even"
        return f"{side} at every load measured ({self.loads[0]} to {self.loads[-1]})"


def load_cells(decisions: Iterable[Decision], slice_key: str) -> list[LoadCell]:
    """One slice's cells ("" for the whole endpoint) by depth, config and load.

    `decisions` are the endpoint's current ones, overrides laid over them.
    """
    cells = [
        LoadCell(
            concurrency=decision.concurrency,
            config_name=decision.config.name,
            depth=decision.config.num_speculative_tokens,
            fingerprint=decision.fingerprint,
            verdict=decision.verdict,
            reason=decision.reason,
            decision_id=decision.decision_id,
            speedup=find_test(decision, "speedup"),
            total_time=find_test(decision, "total_time"),
            acceptance=find_test(decision, "acceptance"),
        )
        for decision in decisions
        if decision.slice_key == slice_key
    ]
    return sorted(cells, key=lambda cell: (cell.depth, cell.config_name, cell.fingerprint, cell.concurrency))


def break_evens(cells: Sequence[LoadCell], level: float = 1.0) -> list[BreakEven]:
    """Where each config's estimated speedup passes `level`, in the order of the cells."""
    by_config: dict[tuple[int, str, str], list[LoadCell]] = {}
    for cell in cells:
        by_config.setdefault((cell.depth, cell.config_name, cell.fingerprint), []).append(cell)
    return [_break_even(name, depth, load_cells, level) for (depth, name, _), load_cells in by_config.items()]


def _break_even(name: str, depth: int, cells: Sequence[LoadCell], level: float) -> BreakEven:
    measured = [(cell.concurrency, cell.estimate) for cell in cells if cell.estimate]
    return BreakEven(
        config_name=name,
        depth=depth,
        loads=tuple(load for load, _ in measured),
        crossings=tuple(crossings(measured, level)),
        is_first_above=measured[0][1] > level if measured else None,
    )

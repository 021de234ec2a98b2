"""Verdict and speedup by load, from the decisions on measured loads, and the load at which speculation breaks even."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

from shadowspec.planning.frontier import Crossing, crossings
from shadowspec.text import plain_text
from shadowspec.types import Decision


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
                f"{'stops paying' if crossing.is_downward else 'begins to pay'} at a load of about {crossing.load:.3g} "
                f"(interpolated between {crossing.below} and {crossing.above})"
                for crossing in self.crossings
            ]
            return "; ".join(parts)
        side = "estimated faster" if self.is_first_above else "estimated not faster"
        if len(self.loads) == 1:
            return f"{side} at the only load measured, {self.loads[0]}; measure a second load to find the break-even"
        return f"{side} at every load measured ({self.loads[0]} to {self.loads[-1]})"


def load_cells(decisions: Iterable[Decision], slice_key: str) -> list[Decision]:
    """One slice's decisions ("" for the whole endpoint) by depth, config and load.

    `decisions` are the endpoint's current ones, overrides laid over them.
    """
    cells = [decision for decision in decisions if decision.slice_key == slice_key]
    return sorted(cells, key=lambda cell: (*_config(cell), cell.concurrency))


def config_title(cell: Decision) -> str:
    """How a config is called where K matters."""
    return f"K {cell.config.num_speculative_tokens} \u00b7 {plain_text(cell.config.name)} \u00b7 {cell.fingerprint[:6]}"


def estimate(cell: Decision) -> float | None:
    """The estimated speedup."""
    return None if (speedup := cell.find_test("speedup")) is None else speedup.estimate


def break_evens(cells: Sequence[Decision], level: float = 1.0) -> list[BreakEven]:
    """Where each config's estimated speedup passes `level`, in the order of the cells."""
    return [_break_even(*config[:2], list(of_config), level) for config, of_config in groupby(cells, key=_config)]


def _config(cell: Decision) -> tuple[int, str, str]:
    return cell.config.num_speculative_tokens, cell.config.name, cell.fingerprint


def _break_even(depth: int, name: str, cells: Sequence[Decision], level: float) -> BreakEven:
    measured = [(cell.concurrency, speedup) for cell in cells if (speedup := estimate(cell))]
    return BreakEven(
        config_name=name,
        depth=depth,
        loads=tuple(load for load, _ in measured),
        crossings=tuple(crossings(measured, level)),
        is_first_above=measured[0][1] > level if measured else None,
    )

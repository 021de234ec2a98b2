"""What the cost model predicts for every measured cell, beside what was measured there, and the frontier of a slice.

A prediction is made of two measured things: the tokens per step of the cell itself (or of its replayed responses), and
the cost surface of its pair on its device.  It speaks of the engine that measured, and no verdict rests on it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

from shadowspec import metrics
from shadowspec.cost_model import CostSurface
from shadowspec.errors import InputError
from shadowspec.frontier import Choice, Crossing, Drafting, Work, crossings, frontier, gain
from shadowspec.reports import tally
from shadowspec.reports.tally import Tally
from shadowspec.store import GroupSums
from shadowspec.types import (
    CostKey,
    FingerprintedConfig,
    ProfiledCosts,
    SamplingRegime,
    SpeculationConfig,
    parse_slice_key,
)

NOT_PROFILED: Final = "not profiled: run shadowspec profile-device"
REGIME_LABEL: Final = "sampling_regime"

Costs = Mapping[CostKey, ProfiledCosts]


@dataclass(frozen=True, slots=True)
class MeasuredCell:
    """One slice at one load with one config: what prediction needs of it, and what was measured; pooled figures."""

    slice_key: str
    concurrency: int
    fingerprint: str
    num_requests: int
    mean_acceptance_length: float | None
    work: Work | None
    ratio_of_total_times: float | None


@dataclass(frozen=True, slots=True)
class Prediction:
    """One cell's prediction; where there is none, `reason` says why and the figures are None."""

    cell: MeasuredCell
    config: SpeculationConfig
    break_even_length: float | None = None  # tokens per step from which on speculation pays there
    speedup: float | None = None  # end to end, of an average request
    reason: str | None = None

    @property
    def error(self) -> float | None:
        """How far the prediction lies above what was measured, as a share of it."""
        measured = self.cell.ratio_of_total_times
        over = None if self.speedup is None or measured is None else metrics.ratio(self.speedup, measured)
        return None if over is None else over - 1.0


@dataclass(frozen=True, slots=True)
class SliceFrontier:
    """The predicted best way of drafting for one slice over the loads that were profiled."""

    slice_key: str
    work: Work
    choices: tuple[Choice, ...]
    crossings: tuple[Crossing, ...]  # where the best gain passes 1: below or above speculation does not pay


def cells_of_groups(groups: Iterable[GroupSums]) -> list[MeasuredCell]:
    """The cells of grouped sums over all of the time."""
    found = []
    for own in groups:
        pooled = Tally.of_sums(own.sums)
        num_counted = own.sums.num_runs - own.sums.num_failed
        found.append(
            MeasuredCell(
                slice_key=own.slice_key,
                concurrency=own.concurrency,
                fingerprint=own.fingerprint,
                num_requests=num_counted,
                mean_acceptance_length=tally.mean_acceptance_length(pooled),
                work=work_of(own.sums.num_prompt_tokens, own.sums.num_output_tokens, num_counted),
                ratio_of_total_times=tally.ratio_of_total_times(pooled),
            )
        )
    return found


def work_of(num_prompt_tokens: int, num_output_tokens: int, num_requests: int) -> Work | None:
    """The mean request of so many; None of none."""
    prompt, output = (metrics.ratio(tokens, num_requests) for tokens in (num_prompt_tokens, num_output_tokens))
    return None if prompt is None or output is None else Work(prompt, output)


def predictions(
    cells: Sequence[MeasuredCell], configs: Mapping[str, FingerprintedConfig], costs: Costs
) -> list[Prediction]:
    """One for each cell whose config is known, in their order."""
    surfaces = _Surfaces(costs)
    return [_prediction(cell, configs[cell.fingerprint], surfaces) for cell in cells if cell.fingerprint in configs]


def median_error(found: Iterable[Prediction]) -> float | None:
    """The median of the absolute errors; None where no cell has both a prediction and a measurement."""
    errors = [abs(error) for own in found if (error := own.error) is not None]
    return median(errors) if errors else None


def frontiers(
    cells: Sequence[MeasuredCell], configs: Mapping[str, FingerprintedConfig], costs: Costs
) -> list[SliceFrontier]:
    """For each slice, over the loads that were profiled of all of its ways of drafting.

    Tokens per step belong to weights and rule, not to the load: those of the load with the most requests count.
    Slices of which nothing can be predicted are left out; `predictions` says why.
    """
    surfaces = _Surfaces(costs)
    by_slice: dict[str, dict[str, MeasuredCell]] = {}
    for cell in sorted(cells, key=lambda own: own.num_requests):
        by_slice.setdefault(cell.slice_key, {})[cell.fingerprint] = cell
    found = []
    for slice_key, own in sorted(by_slice.items()):
        ways = [
            (cell.work, Drafting(config.config.name, config.config.num_speculative_tokens, length, surface))
            for cell in own.values()
            if (config := configs.get(cell.fingerprint)) is not None
            and (length := cell.mean_acceptance_length) is not None
            and (surface := surfaces.of(config, slice_key)) is not None
            and cell.work is not None
        ]
        made = _slice_frontier(slice_key, ways)
        if made is not None:
            found.append(made)
    return found


def _slice_frontier(slice_key: str, ways: Sequence[tuple[Work, Drafting]]) -> SliceFrontier | None:
    if not ways:
        return None
    work, _ = ways[-1]  # of the config with the most requests
    shared = set.intersection(*(set(way.surface.loads) for _, way in ways))
    try:
        choices = frontier([way for _, way in ways], sorted(shared), work)
    except InputError:  # its requests are longer or shorter than what was profiled
        return None
    best = [(choice.concurrency, max(each.speedup for each in choice.gains)) for choice in choices]
    return SliceFrontier(slice_key, work, tuple(choices), tuple(crossings(best)))


class _Surfaces:
    """Cost surfaces by what they are of, each made once."""

    def __init__(self, costs: Costs) -> None:
        self._costs = costs
        self._made: dict[CostKey, CostSurface] = {}

    def of(self, config: FingerprintedConfig, slice_key: str) -> CostSurface | None:
        """Of the config's requests in this slice; one that does not name its regime may hold sampled ones."""
        if config.config.draft_confidence_threshold > 0.0:
            return None  # its steps cost what its draft is sure of; what was profiled drafts to a fixed depth
        regime = parse_slice_key(slice_key).get(REGIME_LABEL)
        key = CostKey.of(config, is_greedy=regime == SamplingRegime.GREEDY)
        if key not in self._made:
            if key not in self._costs:
                return None
            self._made[key] = CostSurface(self._costs[key].points)
        return self._made[key]


def _prediction(cell: MeasuredCell, config: FingerprintedConfig, surfaces: _Surfaces) -> Prediction:
    own = config.config
    surface = surfaces.of(config, cell.slice_key)
    if surface is None:
        return Prediction(cell, own, reason=NOT_PROFILED)
    if cell.mean_acceptance_length is None or cell.work is None:
        return Prediction(cell, own, reason="nothing was drafted")
    drafting = Drafting(own.name, own.num_speculative_tokens, cell.mean_acceptance_length, surface)
    try:
        found = gain(drafting, cell.concurrency, cell.work)
    except InputError as error:
        return Prediction(cell, own, reason=str(error))
    return Prediction(cell, own, found.break_even_length, found.speedup)

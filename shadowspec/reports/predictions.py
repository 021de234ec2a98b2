"""What the cost model predicts for every measured cell, beside what was measured there, and the frontier of a slice.

A prediction is made of two measured things: the tokens per step of the cell itself (or of its replayed responses), and
the cost surface of its pair on its device.  It speaks of the engine that measured, and no verdict rests on it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

from scipy.stats import t as student

from shadowspec import metrics
from shadowspec.cost_model import CostSurface
from shadowspec.errors import InputError
from shadowspec.frontier import Choice, Crossing, Drafting, Length, Work, crossings, frontier, gain
from shadowspec.reports import tally
from shadowspec.reports.tally import Tally
from shadowspec.store import GroupSums
from shadowspec.types import (
    AcceptanceSums,
    CostKey,
    FingerprintedConfig,
    ProfiledCosts,
    SamplingRegime,
    SpeculationConfig,
    parse_slice_key,
)

NOT_PROFILED: Final = "not profiled: run shadowspec profile-device"
REGIME_LABEL: Final = "sampling_regime"
LEVEL: Final = 0.95  # of the bounds of replayed tokens per step, two-sided, for one look
MIN_UNITS: Final = 2  # sessions, for any bounds

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


def replayed_ways(
    sums: Iterable[AcceptanceSums], configs: Mapping[str, FingerprintedConfig]
) -> list[tuple[str, FingerprintedConfig, Length]]:
    """Slice, config and tokens per step of all that was replayed in a slice, at K that were never measured too."""
    return [
        (own.slice_key, configs[own.fingerprint], length)
        for own in sums
        if own.slice_key and own.fingerprint in configs and (length := _length_of(own)) is not None
    ]


def _length_of(sums: AcceptanceSums) -> Length | None:
    """With the bounds of a ratio of sums over sessions: of one look at a fixed number of them."""
    estimate = metrics.mean_acceptance_length(sums)
    if estimate is None:
        return None
    number, accepted = sums.num_units, estimate - 1.0
    if number < MIN_UNITS:
        return Length(estimate)
    squares = sums.accepted_squares - 2.0 * accepted * sums.accepted_drafts + accepted**2 * sums.drafts_squares
    spread = math.sqrt(max(0.0, squares) * number / (number - 1.0)) / sums.num_drafts
    half = float(student.ppf(0.5 + LEVEL / 2.0, number - 1)) * spread
    return Length(estimate, max(1.0, estimate - half), estimate + half)


def frontiers(
    cells: Sequence[MeasuredCell],
    configs: Mapping[str, FingerprintedConfig],
    costs: Costs,
    replayed: Iterable[tuple[str, FingerprintedConfig, Length]] = (),
) -> list[SliceFrontier]:
    """For each measured slice, over the loads that were profiled of all of its ways of drafting.

    Tokens per step belong to weights and rule, not to the load: those of the load with the most requests count, and
    what replay says of a config in their place.  Slices of which nothing can be predicted are left out; `predictions`
    says why.
    """
    surfaces = _Surfaces(costs)
    ways: dict[str, dict[str, tuple[FingerprintedConfig, Length]]] = {}
    works: dict[str, Work] = {}
    for cell in sorted(cells, key=lambda own: own.num_requests):
        if cell.fingerprint in configs and cell.work is not None and cell.mean_acceptance_length is not None:
            length = Length(cell.mean_acceptance_length)
            ways.setdefault(cell.slice_key, {})[cell.fingerprint] = configs[cell.fingerprint], length
            works[cell.slice_key] = cell.work
    for slice_key, config, length in replayed:
        if slice_key in ways:
            ways[slice_key][config.fingerprint] = config, length
    found = []
    for slice_key, own in sorted(ways.items()):
        draftings = [
            Drafting(config.config.name, config.config.num_speculative_tokens, length, surface)
            for config, length in own.values()
            if (surface := surfaces.of(config, slice_key)) is not None
        ]
        draftings.sort(key=lambda each: (each.name, each.num_speculative_tokens))
        made = _slice_frontier(slice_key, works[slice_key], draftings)
        if made is not None:
            found.append(made)
    return found


def _slice_frontier(slice_key: str, work: Work, ways: Sequence[Drafting]) -> SliceFrontier | None:
    within = [way for way in ways if way.num_speculative_tokens <= max(way.surface.depths)]
    if not within:
        return None
    shared = set.intersection(*(set(way.surface.loads) for way in within))
    try:
        choices = frontier(within, sorted(shared), work)
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
    drafting = Drafting(own.name, own.num_speculative_tokens, Length(cell.mean_acceptance_length), surface)
    try:
        found = gain(drafting, cell.concurrency, cell.work)
    except InputError as error:
        return Prediction(cell, own, reason=str(error))
    return Prediction(cell, own, found.break_even_length, found.speedup)

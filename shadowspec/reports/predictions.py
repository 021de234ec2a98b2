"""What the cost model predicts for every measured cell, beside what was measured there.

A prediction is made of two measured things: the tokens per step of the cell itself (or of its replayed responses), and
the cost surface of its pair on its device.  It speaks of the engine that measured, and no verdict rests on it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

from shadowspec import metrics
from shadowspec.cost_model import Drafts
from shadowspec.errors import InputError
from shadowspec.frontier import Drafting, Gain, Length, Work, gain
from shadowspec.reports.cells import NO_TIME, MeasuredCell
from shadowspec.reports.costs import DeviceTime
from shadowspec.reports.surfaces import Costs, Surfaces
from shadowspec.types import Arm, FingerprintedConfig, SpeculationConfig

NOT_PROFILED: Final = "not profiled: run shadowspec profile-device"
BY_TEXT: Final = "how deep a step drafts depends on how sure the draft is"
PLAIN_STEPS: Final = "some steps drafted nothing"
LOOKUPS: Final = ("ngram", "suffix")


@dataclass(frozen=True, slots=True)
class Prediction:
    """One cell's prediction; where there is none, `reason` says why and the figures are None."""

    cell: MeasuredCell
    config: SpeculationConfig
    break_even_length: float | None = None  # tokens per step from which on speculation pays there
    speedup: float | None = None  # end to end, of an average request
    target_passes_saved: float | None = None  # of an average request
    device: DeviceTime = NO_TIME  # of an average request
    reason: str | None = None

    @property
    def error(self) -> float | None:
        """How far the prediction lies above what was measured, as a share of it."""
        measured = self.cell.ratio_of_total_times
        over = None if self.speedup is None or measured is None else metrics.ratio(self.speedup, measured)
        return None if over is None else over - 1.0

    @property
    def cost_error(self) -> float | None:
        """The same of an output token's device time with speculation, and so of its cost at any price."""
        predicted, measured = (own.device.ms_per_token(Arm.SPECULATIVE) for own in (self, self.cell))
        over = None if predicted is None or measured is None else metrics.ratio(predicted, measured)
        return None if over is None else over - 1.0


def predictions(
    cells: Sequence[MeasuredCell], configs: Mapping[str, FingerprintedConfig], costs: Costs
) -> list[Prediction]:
    """One for each cell whose config is known, in their order."""
    surfaces = Surfaces(costs)
    return [_prediction(cell, configs[cell.fingerprint], surfaces) for cell in cells if cell.fingerprint in configs]


def median_error(found: Iterable[Prediction]) -> float | None:
    """The median of the absolute errors; None where no cell has both a prediction and a measurement."""
    errors = [abs(error) for own in found if (error := own.error) is not None]
    return median(errors) if errors else None


def _prediction(cell: MeasuredCell, config: FingerprintedConfig, surfaces: Surfaces) -> Prediction:
    own = config.config
    if (reason := why_not(cell, own)) is not None:
        return Prediction(cell, own, reason=reason)
    profiled = surfaces.of(config, cell.slice_key)
    if profiled is None:
        return Prediction(cell, own, reason=NOT_PROFILED)
    length = cell.tokens_per_step
    if length is None or cell.work is None:
        return Prediction(cell, own, reason="nothing was drafted")
    drafting = Drafting(own.name, own.num_speculative_tokens, Length(length), profiled.surface, drafts_of(cell, config))
    try:
        found = gain(drafting, cell.concurrency, cell.work)
    except InputError as error:
        return Prediction(cell, own, reason=str(error))
    return Prediction(
        cell,
        own,
        break_even_length=found.break_even_length,
        speedup=found.speedup,
        target_passes_saved=found.target_passes_saved,
        device=predicted_device(found, cell.work),
    )


def why_not(cell: MeasuredCell, config: SpeculationConfig) -> str | None:
    """Why nothing can be predicted of this, whatever is profiled."""
    if config.is_adaptive:
        return BY_TEXT
    if config.proposer not in LOOKUPS and cell.num_plain_steps:  # where the draft's context ends before the request
        return PLAIN_STEPS
    return None


def drafts_of(cell: MeasuredCell, config: FingerprintedConfig) -> Drafts | None:
    """How often and how deep its rows draft, of a proposer that finds its drafts in the text."""
    return cell.drafts if config.config.proposer in LOOKUPS else None


def predicted_device(found: Gain, work: Work) -> DeviceTime:
    """The device time of one average request: at load b it holds 1/b of the device from prefill to last token."""
    return DeviceTime(
        baseline_ms=found.baseline_ms / found.concurrency,
        speculative_ms=found.speculative_ms / found.concurrency,
        baseline_tokens=work.num_output_tokens,
        speculative_tokens=work.num_output_tokens,
    )

"""What the cost model predicts for every measured cell, beside what was measured there.

A prediction is made of two measured things: the tokens per step of the cell itself (or of its replayed responses), and
the cost surface of its pair on an engine and device: those that measured the cell, and any server that was profiled
with the same pair.  Acceptance carries over as far as both draft by the same rules: where they do not, the summary says
so.  A prediction speaks of the engine of the costs, which it names, and is held against what was timed there.  No
verdict rests on it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Final

from shadowspec import metrics
from shadowspec.errors import InputError
from shadowspec.planning.cost_model import Drafts
from shadowspec.planning.frontier import Gain, Length, PricedDrafting, Work, gain
from shadowspec.reports.figures.cells import NO_TIME, Costs, MeasuredCell, ProfiledSurface, Surfaces, is_greedy
from shadowspec.reports.figures.token_costs import DeviceTime
from shadowspec.servers.engines import rule_differences
from shadowspec.text import DASH, number, percent, plural, slice_title, times
from shadowspec.types import Arm, CostKey, FingerprintedConfig, SpeculationConfig

NOT_PROFILED: Final = "not profiled: run shadowspec profile-device"
NOT_PROFILED_SERVER: Final = "not profiled: run shadowspec profile-server"
BY_TEXT: Final = "how deep a step drafts depends on how sure the draft is"
PLAIN_STEPS: Final = "some steps drafted nothing"


@dataclass(frozen=True, slots=True)
class Prediction:
    """One cell's prediction; where there is none, `reason` says why and the figures are None.

    `cell` is where the tokens per step come from, `timed` what was timed on the engine that the prediction speaks of,
    at the same slice, load and depth: the cell itself, or another one, or None.
    """

    cell: MeasuredCell
    config: SpeculationConfig
    engine: str  # whose steps the costs are of
    device: str
    timed: MeasuredCell | None
    break_even_length: float | None = None  # tokens per step from which on speculation pays there
    speedup: float | None = None  # end to end, of an average request
    target_passes_saved: float | None = None  # of an average request
    predicted_device: DeviceTime = NO_TIME  # of an average request
    reason: str | None = None

    @property
    def measured_speedup(self) -> float | None:
        """The ratio of total times, timed on that engine."""
        return None if self.timed is None else self.timed.ratio_of_total_times

    @property
    def measured_device(self) -> DeviceTime:
        """The device time that was measured on that engine."""
        return NO_TIME if self.timed is None else self.timed.device

    @property
    def error(self) -> float | None:
        """How far the prediction lies above what was measured, as a share of it."""
        measured = self.measured_speedup
        over = None if self.speedup is None or measured is None else metrics.ratio(self.speedup, measured)
        return None if over is None else over - 1.0

    @property
    def cost_error(self) -> float | None:
        """The same of an output token's device time with speculation, and so of its cost at any price."""
        predicted, measured = (
            time_.ms_per_token(Arm.SPECULATIVE) for time_ in (self.predicted_device, self.measured_device)
        )
        over = None if predicted is None or measured is None else metrics.ratio(predicted, measured)
        return None if over is None else over - 1.0


def predictions(
    cells: Sequence[MeasuredCell], configs: Mapping[str, FingerprintedConfig], costs: Costs
) -> list[Prediction]:
    """For each cell whose config is known, in order: one on its own engine, then one on each other that serves."""
    surfaces = Surfaces(costs)
    known = [(cell, configs[cell.fingerprint]) for cell in cells if cell.fingerprint in configs]
    timed = {_place(cell, config): cell for cell, config in known}
    predicted = []
    for cell, config in known:
        predicted.append(_prediction(cell, config, None, surfaces.of(config, cell.slice_key), cell))
        for profiled in surfaces.elsewhere(config, cell.slice_key):
            there = timed.get((*_where(cell, config), profiled.key))
            predicted.append(_prediction(cell, config, profiled.key, profiled, there))
    return predicted


def _place(cell: MeasuredCell, config: FingerprintedConfig) -> tuple[str, int, int, CostKey]:
    return *_where(cell, config), CostKey.of(config, is_greedy=is_greedy(cell.slice_key))


def _where(cell: MeasuredCell, config: FingerprintedConfig) -> tuple[str, int, int]:
    return cell.slice_key, cell.concurrency, config.config.num_speculative_tokens


def median_error(shown: Iterable[Prediction]) -> float | None:
    """The median of the absolute errors; None where no cell has both a prediction and a measurement."""
    errors = [abs(error) for prediction in shown if (error := prediction.error) is not None]
    return median(errors) if errors else None


def _prediction(
    cell: MeasuredCell,
    config: FingerprintedConfig,
    elsewhere: CostKey | None,
    profiled: ProfiledSurface | None,
    timed: MeasuredCell | None,
) -> Prediction:
    """`elsewhere`: what the costs are of where that is not what measured the cell."""
    speculation_config, of = config.config, elsewhere or config
    none = Prediction(cell, speculation_config, of.engine, of.device, timed)
    if (reason := why_not(cell, speculation_config)) is not None:
        return replace(none, reason=reason)
    if profiled is None:
        return replace(none, reason=NOT_PROFILED_SERVER if speculation_config.is_served else NOT_PROFILED)
    length = cell.tokens_per_step
    if length is None or cell.work is None:
        return replace(none, reason="nothing was drafted")
    drafting = PricedDrafting(
        speculation_config.name,
        speculation_config.num_speculative_tokens,
        Length(length),
        profiled.surface,
        drafts_of(cell, config),
    )
    try:
        predicted = gain(drafting, cell.concurrency, cell.work)
    except InputError as error:
        return replace(none, reason=str(error))
    return replace(
        none,
        break_even_length=predicted.break_even_length,
        speedup=predicted.speedup,
        target_passes_saved=predicted.target_passes_saved,
        predicted_device=predicted_device(predicted, cell.work),
    )


def why_not(cell: MeasuredCell, config: SpeculationConfig) -> str | None:
    """Why no profile can predict this."""
    if config.is_adaptive:
        return BY_TEXT
    if config.drafts_in_every_step and cell.num_plain_steps:  # where the draft's context ends before the request
        return PLAIN_STEPS
    return None


def drafts_of(cell: MeasuredCell, config: FingerprintedConfig) -> Drafts | None:
    """How often and how deep its rows draft, where not every step is known to have a draft."""
    return None if config.config.drafts_in_every_step else cell.drafts


def predicted_device(gained: Gain, work: Work) -> DeviceTime:
    """The device time of one average request: at load b it holds 1/b of the device from prefill to last token."""
    return DeviceTime(
        baseline_ms=gained.baseline_ms / gained.concurrency,
        speculative_ms=gained.speculative_ms / gained.concurrency,
        baseline_tokens=work.num_output_tokens,
        speculative_tokens=work.num_output_tokens,
    )


PREDICTION_HEAD: Final = (
    *("Slice", "Config", "Engine", "Load", "K", "Tokens per step", "Pays from", "Predicted", "Measured", "Off by"),
    *("Passes saved", "Cost predicted (baseline)", "Cost measured (baseline)", "Cost off by"),
)


def prediction_cells(prediction: Prediction, price_per_hour: float | None) -> list[str]:
    """One row under `PREDICTION_HEAD`; where nothing is predicted the reason takes the prediction's place."""
    return [
        slice_title(prediction.cell.slice_key),
        prediction.config.name,
        prediction.engine,
        str(prediction.cell.concurrency),
        str(prediction.config.num_speculative_tokens),
        number(prediction.cell.tokens_per_step),
        number(prediction.break_even_length),
        prediction.reason or times(prediction.speedup),
        times(prediction.measured_speedup),
        percent(prediction.error),
        number(prediction.target_passes_saved, 1),
        cost_text(prediction.predicted_device, price_per_hour),
        cost_text(prediction.measured_device, price_per_hour),
        percent(prediction.cost_error),
    ]


def cost_text(device: DeviceTime, price_per_hour: float | None) -> str:
    """With speculation, against the baseline: a million output tokens' cost, or device time where no price is set."""
    speculative, baseline = (
        device.seconds_per_million(arm) if price_per_hour is None else device.cost_per_million(arm, price_per_hour)
        for arm in (Arm.SPECULATIVE, Arm.BASELINE)
    )
    if speculative is None or baseline is None:
        return DASH
    unit = "" if price_per_hour is not None else " s"
    return f"{number(speculative)}{unit} ({number(baseline)}{unit})"


def cost_note(price_per_hour: float | None) -> str:
    """The values of the cost columns."""
    how = (
        "With speculation, in brackets without it. A request at load b holds 1/b of the device for its end-to-end time."
    )
    if price_per_hour is None:
        return f"Cost: device time per million output tokens; no price is set ([dashboard] price_per_gpu_hour). {how}"
    return f"Cost: per million output tokens, at {number(price_per_hour)} per device-hour. {how}"


def prediction_summary(shown: Sequence[Prediction]) -> str:
    """How many cells have a prediction on each engine, and how far these are off what was measured there."""
    if not any(prediction.speedup is not None for prediction in shown):
        reasons = list(dict.fromkeys(prediction.reason for prediction in shown if prediction.reason))
        return f"Nothing is predicted here: {'; '.join(reasons)}." if reasons else "Nothing is predicted here."
    lines = []
    for engine in dict.fromkeys(prediction.engine for prediction in shown):
        own_cells = [prediction for prediction in shown if prediction.engine == engine]
        predicted = [own_cell for own_cell in own_cells if own_cell.speedup is not None]
        error = median_error(predicted)
        said = f"{len(predicted)} of {plural(len(own_cells), 'cell')} predicted on {engine}"
        off = f"; median absolute error against the measured figures: {percent(error)}" if error is not None else ""
        lines.append(f"{said}{off}.")
    return " ".join([*lines, *_rule_notes(shown)])


def _rule_notes(shown: Sequence[Prediction]) -> list[str]:
    """Which candidates draft by another rule here than on the engine that something is predicted of."""
    predicted = (prediction for prediction in shown if prediction.speedup is not None)
    notes = [
        f"{prediction.config.name}: {difference.text}."
        for prediction in predicted
        for difference in rule_differences(prediction.config, prediction.engine)
    ]
    return list(dict.fromkeys(notes))

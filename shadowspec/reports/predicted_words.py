"""What the cost model predicts, in sentences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from shadowspec.frontier import Choice, Gain
from shadowspec.reports.costs import DeviceTime
from shadowspec.reports.frontiers import SliceFrontier
from shadowspec.reports.predictions import Prediction, median_error
from shadowspec.types import Arm
from shadowspec.words import DASH, number, percent, plural, slice_title, times

HEAD: Final = (
    *("Slice", "Config", "Engine", "Load", "K", "Tokens per step", "Pays from", "Predicted", "Measured", "Off by"),
    *("Passes saved", "Cost predicted (baseline)", "Cost measured (baseline)", "Cost off by"),
)


def prediction_cells(own: Prediction, price_per_hour: float | None) -> list[str]:
    """One row of the table, under `HEAD`; where nothing is predicted the reason stands for the prediction."""
    return [
        slice_title(own.cell.slice_key),
        own.config.name,
        own.engine,
        str(own.cell.concurrency),
        str(own.config.num_speculative_tokens),
        number(own.cell.tokens_per_step),
        number(own.break_even_length),
        own.reason or times(own.speedup),
        times(own.measured_speedup),
        percent(own.error),
        number(own.target_passes_saved, 1),
        cost_text(own.predicted_device, price_per_hour),
        cost_text(own.measured_device, price_per_hour),
        percent(own.cost_error),
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
    """What stands in the cost columns."""
    how = (
        "With speculation, in brackets without it. A request at load b holds 1/b of the device for its end-to-end time."
    )
    if price_per_hour is None:
        return f"Cost: device time per million output tokens; no price is set ([dashboard] price_per_gpu_hour). {how}"
    return f"Cost: per million output tokens, at {number(price_per_hour)} per device-hour. {how}"


def prediction_summary(found: Sequence[Prediction]) -> str:
    """How many cells have a prediction on each engine, and how far these are off what was measured there."""
    if not any(own.speedup is not None for own in found):
        reasons = list(dict.fromkeys(own.reason for own in found if own.reason))
        return f"Nothing is predicted here: {'; '.join(reasons)}." if reasons else "Nothing is predicted here."
    lines = []
    for engine in dict.fromkeys(own.engine for own in found):
        own_cells = [own for own in found if own.engine == engine]
        predicted = [own for own in own_cells if own.speedup is not None]
        error = median_error(predicted)
        said = f"{len(predicted)} of {plural(len(own_cells), 'cell')} predicted on {engine}"
        off = f"; median absolute error against what was measured there: {percent(error)}" if error is not None else ""
        lines.append(f"{said}{off}.")
    return " ".join(lines)


def frontier_lines(own: SliceFrontier) -> list[str]:
    """One line per load, then where the best way breaks even."""
    lines = [_choice_line(choice) for choice in own.choices]
    for each in own.crossings:
        turn = "stops paying" if each.is_downward else "begins to pay"
        lines.append(f"{turn} at a load of about {each.load:.3g} (between {each.below:g} and {each.above:g})")
    return lines


def _choice_line(choice: Choice) -> str:
    others = ", ".join(_way(each) for each in choice.contenders)
    if choice.best is None:
        return f"load {choice.concurrency:g}: no speculation" + (f"; may pay: {others}" if others else "")
    best = choice.best
    bounds = "" if best.lower is None or best.upper is None else f" [{times(best.lower)}, {times(best.upper)}]"
    said = f"{_way(best)}, {times(best.speedup)}{bounds}"
    return f"load {choice.concurrency:g}: {said}" + (f"; may be as good: {others}" if others else "")


def _way(found: Gain) -> str:
    return f"{found.drafting.name} at K {found.drafting.num_speculative_tokens}"

"""What the cost model predicts, in sentences."""

from __future__ import annotations

from collections.abc import Sequence

from shadowspec.frontier import Choice, Gain
from shadowspec.reports.predictions import Prediction, SliceFrontier, median_error
from shadowspec.words import percent, plural, times


def prediction_summary(found: Sequence[Prediction]) -> str:
    """How many cells have a prediction, and how far these are off."""
    predicted = [own for own in found if own.speedup is not None]
    if not predicted:
        reasons = list(dict.fromkeys(own.reason for own in found if own.reason))
        return f"Nothing is predicted here: {'; '.join(reasons)}." if reasons else "Nothing is predicted here."
    error = median_error(predicted)
    said = f"{len(predicted)} of {plural(len(found), 'cell')} predicted"
    return f"{said}; median absolute error against what was measured there: {percent(error)}." if error else f"{said}."


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

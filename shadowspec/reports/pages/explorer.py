"""Any two dimensions of what was measured, and a figure in each of their cells.

Dimensions that rollups are divided by (slice labels, load, K, config, day) come from all of the time asked for.
Every other label of the records comes only from the newest runs, `MAX_LABELLED` of them at most, and the grid says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from shadowspec import metrics
from shadowspec.reports.figures import tally
from shadowspec.reports.figures.tally import Tally
from shadowspec.store import GroupSums
from shadowspec.store.read.run_pages import PREFIX
from shadowspec.tap.context_buckets import prompt_range
from shadowspec.text import figure as plain_figure
from shadowspec.text import number, percent, plain_text, times
from shadowspec.types import FingerprintedConfig, parse_slice_key

MAX_LABELLED = 5_000  # runs read with their labels: some hundred milliseconds
FEW_RUNS = 30  # a cell of fewer says little, and is drawn so

LOAD, DEPTH, CONFIG, DAY = "load", "K", "config", "day"
PROMPT_TOKENS = "prompt tokens"  # only of single runs: no rollup is divided by it
OWN_DIMENSIONS = (LOAD, DEPTH, CONFIG, DAY)
UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class ExplorerFigure:
    """One figure of a cell: its title with unit, what it means, and how it is formed."""

    title: str
    definition: str
    form: Callable[[Tally], float | None]
    kind: str  # "times", "percent", "tokens" or "count"

    def text(self, value: float | None) -> str:
        """A value of it, as a reader sees it."""
        return _TEXTS[self.kind](value)


_TEXTS: Mapping[str, Callable[[float | None], str]] = {
    "times": times, "percent": percent, "tokens": number, "count": plain_figure,
}  # fmt: skip


FIGURES: Mapping[str, ExplorerFigure] = {
    "speedup": ExplorerFigure(
        "Speedup (\u00d7)",
        "Baseline over speculative end-to-end time of the same request, geometric mean over requests, nothing clipped.",
        tally.speedup,
        "times",
    ),
    "ratio of total times": ExplorerFigure(
        "Ratio of total times (\u00d7)",
        "Total baseline over total speculative end-to-end time: the gain in machine time.",
        tally.ratio_of_total_times,
        "times",
    ),
    "acceptance length": ExplorerFigure(
        "Mean acceptance length (tokens per step)",
        "1 + accepted tokens / steps, with the bonus or recovered token. Plain steps are left out.",
        metrics.mean_acceptance_length,
        "tokens",
    ),
    "first-position acceptance": ExplorerFigure(
        "First-position acceptance rate (%)",
        "Share of steps that accepted the first drafted token; it does not depend on K.",
        metrics.first_position_acceptance_rate,
        "percent",
    ),
    "draft acceptance": ExplorerFigure(
        "Draft acceptance rate (%)",
        "Accepted over drafted tokens; it falls as K grows.",
        metrics.draft_acceptance_rate,
        "percent",
    ),
    "requests": ExplorerFigure(
        "Requests measured (n)",
        "Requests that ran in both arms, with the failed ones.",
        lambda tally: tally.num_runs,
        "count",
    ),
    "failed requests": ExplorerFigure(
        "Failed requests (%)", "Requests of which an arm failed.", tally.failed_share, "percent"
    ),
}


@dataclass(frozen=True, slots=True)
class GridCell:
    """One cell of a grid; the figure is None where it is undefined, and `num_runs` says over how many it is."""

    x: str
    y: str
    figure: float | None
    num_runs: int

    @property
    def is_few(self) -> bool:
        """Whether it rests on too few runs to say much."""
        return self.num_runs < FEW_RUNS


@dataclass(frozen=True, slots=True)
class ExplorerGrid:
    """Cells of two dimensions, with the order of their values; `num_runs` in all.

    `newest_runs` is None where rollups of all the time asked for are in it, else how many newest runs are.
    """

    figure: str
    x: str
    y: str
    x_values: tuple[str, ...]
    y_values: tuple[str, ...]
    cells: tuple[GridCell, ...]
    num_runs: int
    newest_runs: int | None = None

    @property
    def title(self) -> str:
        """The figure and both dimensions."""
        return f"{FIGURES[self.figure].title} by {dimension_title(self.x)} and {dimension_title(self.y)}"


def dimension_title(dimension: str) -> str:
    """A dimension as a reader sees it."""
    return plain_text(dimension.replace("_", " "))


@dataclass(frozen=True, slots=True)
class LabelledTally:
    """A tally with the value of every dimension that it is known under."""

    values: Mapping[str, str]
    tally: Tally


def rollup_points(groups: Iterable[GroupSums], configs: Mapping[str, FingerprintedConfig]) -> list[LabelledTally]:
    """Grouped sums as points: under their slice's labels, load, K and config, and their day if they have one."""
    points = []
    for group in groups:
        values = {
            **parse_slice_key(group.slice_key),
            **_config_values(group.fingerprint, configs),
            LOAD: str(group.concurrency),
        }
        if group.start is not None:
            values[DAY] = f"{group.start:%Y-%m-%d}"
        points.append(LabelledTally(values, Tally.of_sums(group.sums)))
    return points


def run_points(
    runs: Iterable[tuple[Mapping[str, Any], Mapping[str, str]]], configs: Mapping[str, FingerprintedConfig]
) -> list[LabelledTally]:
    """Single runs as points: under all labels of their records, and load, K, config and day."""
    by_prefix = {fingerprint[:PREFIX]: fingerprint for fingerprint in configs}
    points = []
    for row, labels in runs:
        fingerprint = by_prefix.get(row["fingerprint"], row["fingerprint"])
        time: datetime = row["event_time"]
        entry = {
            **labels,
            **_config_values(fingerprint, configs),
            LOAD: str(row["concurrency"]),
            DAY: f"{time:%Y-%m-%d}",
        }
        if (tokens := row["num_prompt_tokens"]) is not None:
            entry[PROMPT_TOKENS] = prompt_range(tokens)
        points.append(LabelledTally(entry, Tally.of_run(row)))
    return points


def dimensions(points: Sequence[LabelledTally]) -> list[str]:
    """What these points can be divided by: labels first, sorted, then what is not a label."""
    names = {name for point in points for name in point.values}
    return [*sorted(names - set(OWN_DIMENSIONS)), *(name for name in OWN_DIMENSIONS if name in names)]


def values_of(points: Iterable[LabelledTally], dimension: str) -> tuple[str, ...]:
    """The values of one dimension, in reading order."""
    return tuple(sorted({point.values.get(dimension, UNKNOWN) for point in points}, key=_reading_order))


def select_points(points: Iterable[LabelledTally], wanted: Mapping[str, Sequence[str]]) -> list[LabelledTally]:
    """The points whose value of each dimension named is among those wanted; nothing wanted means all."""
    return [
        point
        for point in points
        if all(not values or point.values.get(name, UNKNOWN) in values for name, values in wanted.items())
    ]


def grid(
    points: Sequence[LabelledTally], figure: str, x: str, y: str, *, newest_runs: int | None = None
) -> ExplorerGrid:
    """The figure by two dimensions; x and y may be the same one, and only its own cells are then filled."""
    sums: dict[tuple[str, str], Tally] = {}
    for point in points:
        key = point.values.get(x, UNKNOWN), point.values.get(y, UNKNOWN)
        sums[key] = sums.get(key, Tally()) + point.tally
    form = FIGURES[figure].form
    x_values, y_values = values_of(points, x), values_of(points, y)
    return ExplorerGrid(
        figure=figure,
        x=x,
        y=y,
        x_values=x_values,
        y_values=y_values,
        cells=tuple(
            GridCell(x_value, y_value, form(tally), tally.num_runs)
            for y_value in y_values
            for x_value in x_values
            if (tally := sums.get((x_value, y_value)))
        ),
        num_runs=sum(point.tally.num_runs for point in points),
        newest_runs=newest_runs,
    )


def _config_values(fingerprint: str, configs: Mapping[str, FingerprintedConfig]) -> dict[str, str]:
    config = configs.get(fingerprint)
    if config is None:
        return {CONFIG: fingerprint[:12], DEPTH: UNKNOWN}
    return {CONFIG: config.config.name, DEPTH: str(config.config.num_speculative_tokens)}


def _reading_order(value: str) -> tuple[int, float, str]:
    """Numbers by size, then words by name; a bucket such as `<512`, `512-2k` or `128k+` by where it begins."""
    digits = value.lstrip("<").split("-")[0].rstrip("+")
    scale = 1024.0 if digits.endswith("k") else 1.0
    try:
        begins = float(digits.removesuffix("k")) * scale
    except ValueError:
        return 1, 0.0, value
    return 0, begins - 0.5 if value.startswith("<") else begins, value

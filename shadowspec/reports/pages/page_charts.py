"""The charts that only pages of the dashboard have, described as those of the reports are.

In: the rows of the pages.  Out: charts, on the clock of who reads them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final

from shadowspec.gate.verdict.figure_texts import bounds_text
from shadowspec.reports.content.changes import Change, ChangeKind
from shadowspec.reports.content.chart_values import Axis, Chart, Form, Heat, Limit, Mark, Point, Shape
from shadowspec.reports.pages.before_after import HourPoint
from shadowspec.reports.pages.explorer import FIGURES, ExplorerGrid, GridCell, dimension_title
from shadowspec.reports.pages.live_production import LivePoint
from shadowspec.reports.pages.load_cells import config_title
from shadowspec.reports.pages.timeline import KINDS
from shadowspec.text import milliseconds, moment, number, plain_text, plural, slice_title, times
from shadowspec.types import Arm, Decision, Verdict

Clock = Callable[[datetime], datetime]  # a moment without its zone, as the reader's clock shows it
NUM_SERIES = 7  # tones "series-0" to "series-6"
SYMBOLS: Final = ("circle", "square", "diamond", "cross", "triangle-up", "triangle-down", "triangle-right")
# Sign, symbol and tone of each kind of change; the same in the chart and in the table.
KIND_MARKS: Final[Mapping[ChangeKind, tuple[str, str, str]]] = {
    ChangeKind.VERDICT: ("\u25cf", "circle", "series-0"),
    ChangeKind.ALARM: ("\u25b2", "triangle-up", "series-5"),
    ChangeKind.FINGERPRINT: ("\u2716", "cross", "series-3"),
    ChangeKind.MIX: ("\u25bc", "triangle-down", "series-1"),
    ChangeKind.ADVICE: ("\u25b7", "triangle-right", "series-4"),
    ChangeKind.OVERRIDE: ("\u25a0", "square", "series-6"),
    ChangeKind.ROLLOUT: ("\u25c6", "diamond", "series-2"),
}
VERDICT_SYMBOLS: Final = {Verdict.ENABLE: "circle", Verdict.DISABLE: "square", Verdict.HOLD: "diamond"}
HOUR: Final = "hour of event time (your clock)"


def latency_by_hour(points: Sequence[HourPoint], enabled_at: datetime, clock: Clock) -> Chart:
    """Both arms' mean latency, the moment of enabling marked."""
    marks: list[Mark] = []
    for arm in Arm:
        known = [(clock(of.hour), getattr(of, f"{arm}_ms")) for of in points]
        line = tuple(
            Point(hour, value, text=f"{hour:%d %b %H:%M}, {arm}: {milliseconds(value)}")
            for hour, value in known
            if value is not None
        )
        marks += [Mark(Shape.LINE, line, arm.value, arm.value), Mark(Shape.DOTS, line, arm.value)]
    return Chart(
        "Mean end-to-end time of both arms by hour, with the moment of enabling",
        Axis(HOUR),
        Axis("mean time (ms)"),
        tuple(marks),
        (_moment(clock(enabled_at), "ENABLE"),),
    )


def rate_by_hour(points: Sequence[HourPoint], enabled_at: datetime, clock: Clock) -> Chart:
    """Requests per hour, the moment of enabling marked."""
    boxes = tuple(
        Point(hour, of.requests_per_hour, hour + timedelta(hours=1), text=text)
        for of in points
        for hour in [clock(of.hour)]
        for text in [f"{hour:%d %b %H:%M}: {of.requests_per_hour:,.0f} requests"]
    )
    return Chart(
        "Requests per hour, with the moment of enabling",
        Axis(HOUR),
        Axis("requests per hour", Form.COUNT, low=0.0),
        (Mark(Shape.BOXES, boxes, "soft"),),
        (_moment(clock(enabled_at), "ENABLE"),),
    )


def live_throughput(points: Sequence[LivePoint], switched_on: datetime, clock: Clock) -> Chart | None:
    """Output tokens per second of production's engines; None where none was counted."""
    line = tuple(
        Point(began, of.output_tokens_per_s, text=f"{began:%d %b %H:%M}: {number(of.output_tokens_per_s)}")
        for of in points
        for began in [clock(of.began_at)]
        if of.output_tokens_per_s is not None
    )
    if not line:
        return None
    return Chart(
        "Output tokens per second of the production engines, with the moment at which speculation was on",
        Axis("time (your clock)"),
        Axis("tokens per second", low=0.0),
        (Mark(Shape.LINE, line, "soft"), Mark(Shape.DOTS, line, "soft")),
        (_moment(clock(switched_on), "on"),),
    )


def _moment(at: datetime, words: str) -> Limit:
    return Limit(at, words, is_of_x=True, tone="moment")


def where_changed(change: Change) -> str:
    """Endpoint, slice and load of a change."""
    load = "" if change.concurrency is None else f" at load {change.concurrency}"
    return plain_text(f"{change.endpoint}: {slice_title(change.slice_key)}{load}")


def changes_by_endpoint(changes: Sequence[Change], clock: Clock) -> Chart:
    """Every change as a dot, by kind."""
    dots: dict[ChangeKind, list[Point]] = {}
    for change in changes:
        text = f"{moment(change.at)}, {where_changed(change)}: {change.what}, by {change.who}. {change.why[:200]}"
        point = Point(clock(change.at), plain_text(change.endpoint), text=plain_text(text))
        dots.setdefault(change.kind, []).append(point)
    names = tuple(sorted({plain_text(change.endpoint) for change in changes}))
    marks = [
        Mark(Shape.DOTS, tuple(dots[kind]), tone, kind.value, symbol)
        for kind in KINDS
        for _, symbol, tone in [KIND_MARKS[kind]]
        if kind in dots
    ]
    said = f"Timeline of {plural(len(changes), 'change')} at {plural(len(names), 'endpoint')}"
    return Chart(said, Axis("time (your clock)"), Axis("", names=names), tuple(marks))


def speedup_by_load(endpoint: str, cells: Sequence[Decision], margin: float) -> Chart | None:
    """Speedup and its bounds at every measured load, by config; None before a block was timed."""
    configs: dict[str, list[tuple[Verdict, Point]]] = {}
    for cell in cells:
        test = cell.find_test("speedup")
        if test is not None and test.estimate is not None:
            text = (
                f"load {cell.concurrency}, {config_title(cell)}: {times(test.estimate)} {bounds_text(test)}, "
                f"{cell.verdict}, {plural(test.num_units, test.unit)}"
            )
            point = Point(str(cell.concurrency), test.lower, y2=test.upper, text=text)
            dot = Point(str(cell.concurrency), test.estimate, text=text)
            configs.setdefault(config_title(cell), []).append((cell.verdict, point))
            configs[config_title(cell)].append((cell.verdict, dot))
    marks: list[Mark] = []
    for place, (name, of_config) in enumerate(configs.items()):
        tone = f"series-{place % NUM_SERIES}"
        marks.append(Mark(Shape.SPANS, tuple(point for _, point in of_config[::2]), tone, name))
        for verdict, symbol in VERDICT_SYMBOLS.items():
            dots = tuple(dot for of, dot in of_config[1::2] if of is verdict)
            marks.append(Mark(Shape.DOTS, dots, tone, name, symbol))
    if not marks:
        return None
    loads = tuple(map(str, sorted({cell.concurrency for cell in cells})))
    proven = 1.0 + margin
    return Chart(
        f"Speedup and its bounds at each measured load of {endpoint}",
        Axis("load (concurrent requests)", names=loads),
        Axis("speedup (\u00d7)", Form.TIMES),
        tuple(marks),
        (Limit(proven, f"must be above {times(proven)}"), Limit(1.0, "as fast as the baseline")),
    )


def heat_map(grid: ExplorerGrid) -> Chart:
    """The figure of every cell, as words and as a colour."""
    figure = FIGURES[grid.figure]
    cells = tuple(
        Point(plain_text(cell.x), plain_text(cell.y), text=_cell_text(grid, cell), heat=_heat(grid, cell))
        for cell in grid.cells
    )
    mark = Mark(Shape.CELLS, cells, "diverging" if figure.kind == "times" else "sequential")
    return Chart(f"Heat map: {grid.title}", _axis(grid.x, grid.x_values), _axis(grid.y, grid.y_values), (mark,))


def curves(grid: ExplorerGrid) -> Chart:
    """The figure over x, a line for each value of y."""
    figure = FIGURES[grid.figure]
    marks: list[Mark] = []
    for place, y in enumerate(grid.y_values):
        line = tuple(
            Point(plain_text(cell.x), cell.figure, text=_cell_text(grid, cell)) for cell in grid.cells if cell.y == y
        )
        tone, name = f"series-{place % NUM_SERIES}", plain_text(y)
        marks.append(Mark(Shape.LINE, line, tone, name))
        marks.append(Mark(Shape.DOTS, line, tone, name, SYMBOLS[place % len(SYMBOLS)]))
    is_ratio = figure.kind == "times"
    return Chart(
        f"Curves: {grid.title}",
        _axis(grid.x, grid.x_values),
        Axis(
            figure.title,
            _FORMS.get(figure.kind, Form.NUMBER),
            low=0.0 if figure.kind == "count" else None,
        ),
        tuple(marks),
        (Limit(1.0, "1\u00d7: as fast as the baseline"),) if is_ratio else (),
    )


_FORMS: Final = {"times": Form.TIMES, "percent": Form.SHARE, "count": Form.COUNT}


def _axis(dimension: str, values: Sequence[str]) -> Axis:
    return Axis(dimension_title(dimension), names=tuple(map(plain_text, values)))


def _cell_text(grid: ExplorerGrid, cell: GridCell) -> str:
    figure = FIGURES[grid.figure]
    return plain_text(
        f"{grid.x} {cell.x}, {grid.y} {cell.y}: {figure.text(cell.figure)}, {plural(cell.num_runs, 'request')}"
    )


def _heat(grid: ExplorerGrid, cell: GridCell) -> Heat:
    """Ratios diverge about 1, slower and faster than the baseline; other figures go from the least to the most."""
    figure = FIGURES[grid.figure]
    values = [of.figure for of in grid.cells if of.figure is not None]
    place = None
    if cell.figure is not None and figure.kind == "times":
        reach = max(*(abs(value - 1.0) for value in values), 0.05)
        place = 0.5 + (cell.figure - 1.0) / (2 * reach)
    elif cell.figure is not None:
        low, high = min(values), max(values)
        place = (cell.figure - low) / (high - low) if high > low else 1.0
    return Heat(place, (figure.text(cell.figure), f"n {cell.num_runs:,}"), cell.is_few)

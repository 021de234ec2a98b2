"""Each chart of the reports and of the dashboard, described once from its values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from shadowspec.gate.verdict.curves import SequencePoint
from shadowspec.gate.verdict.figure_texts import Format, interval_text, shown_as, title_of_test
from shadowspec.planning.frontier import Gain
from shadowspec.reports.content.chart_values import Axis, Chart, Form, IntervalPicture, Limit, Mark, Point, Shape, side
from shadowspec.reports.figures.frontiers import SliceFrontier
from shadowspec.reports.figures.tally import SpeedupBin
from shadowspec.text import milliseconds, percent, plain_text, plural, times
from shadowspec.types import Arm, TestResult, Verdict

SPEEDUP_RANGE: Final = (0.5, 2.0)  # the shortest axis, so that small differences look small
SPEEDUP_TICKS: Final = (0.25, 0.35, 0.5, 0.7, 1.0, 1.4, 2.0, 2.8, 4.0)
SHARE_TICKS: Final = (0.0, 0.25, 0.5, 0.75, 1.0)
FORM: Final[Mapping[Format, Form]] = {percent: Form.SHARE, times: Form.TIMES}
MAX_DOTTED: Final = 60  # points of a line up to which each has a dot


def speedup_range(intervals: Sequence[TestResult | None]) -> tuple[float, float]:
    """An axis for speedups that holds every bound, at least `SPEEDUP_RANGE`."""
    known = [v for i in intervals if i for v in (i.estimate, i.lower, i.upper, i.threshold) if v is not None and v > 0]
    return min(SPEEDUP_RANGE[0], *known, 1), max(SPEEDUP_RANGE[1], *known, 1)


def interval(test: TestResult, low: float, high: float, *, is_log: bool) -> IntervalPicture | None:
    """The small picture beside a test's figures; None before it has an estimate."""
    if test.estimate is None:
        return None
    shown = shown_as(test.name)
    said = f"{interval_text(test, shown)}, threshold {shown(test.threshold)}"
    return IntervalPicture(test.estimate, test.lower, test.upper, test.threshold, low, high, is_log, said)


@dataclass(frozen=True, slots=True)
class ForestRow:
    """One hypothesis of a forest plot."""

    label: str
    name: str  # in full
    test: TestResult
    verdict: str


def forest(rows: Sequence[ForestRow], axis: tuple[float, float] | None) -> Chart:
    """Bounds of every row's test; `axis` is that of speedups, None for shares."""
    spans, dots = [], []
    shown = percent if axis is None else times
    for row in rows:
        test, text = row.test, f"{row.name}: {interval_text(row.test, shown)}"
        text += f", threshold {shown(test.threshold)}; {plural(test.num_units, test.unit)}; {row.verdict}"
        tone = side(test.lower, test.upper, test.threshold)
        spans.append(Point(test.lower, row.label, test.upper, text=text, tone=tone))
        dots.append(Point(test.estimate, row.label, text=text, tone=tone))
    thresholds = sorted({row.test.threshold for row in rows if row.test.threshold is not None})
    figure = "acceptance" if axis is None else "speedup (\u00d7, log scale)"
    x = (
        Axis(figure, Form.SHARE, low=0.0, high=1.0, at=(0.0, 0.2, 0.4, 0.6, 0.8, 1.0))
        if axis is None
        else Axis(figure, Form.TIMES, is_log=True, low=axis[0], high=axis[1], at=SPEEDUP_TICKS)
    )
    return Chart(
        f"Forest plot of {'acceptance' if axis is None else 'speedup'} with bounds for {plural(len(rows), 'row')}",
        x,
        Axis("", names=tuple(row.label for row in rows)),
        (Mark(Shape.SPANS, tuple(spans), "across"), Mark(Shape.DOTS, tuple(dots), "across")),
        tuple(Limit(value, f"threshold {shown(value)}", is_of_x=True) for value in thresholds),
        tuple((row.label, row.verdict) for row in rows),
    )


def path(
    name: str,
    points: Sequence[SequencePoint],
    threshold: float | None,
    *,
    unit: str = "unit",
    moments: Sequence[datetime | None] = (),
    changes: Sequence[tuple[datetime, str]] = (),
) -> Chart:
    """A test's estimate within its anytime-valid bounds after each unit, or at each look.

    Args:
        unit: what the points count; the title of x, unless the points have moments.
        moments: when each point was known, on the reader's clock; (): by units.
        changes: when the verdict became which.
    """
    shown = shown_as(name)
    at: Sequence[datetime | float | None] = moments or [float(point.num_units) for point in points]
    texts = [
        f"{shown(point.estimate)} [{shown(point.lower)}, {shown(point.upper)}] after {plural(point.num_units, unit)}"
        for point in points
    ]
    known = [(x, point, text) for x, point, text in zip(at, points, texts, strict=True) if point.estimate is not None]
    band = tuple(Point(x, point.lower, y2=point.upper, text=text) for x, point, text in known)
    line = tuple(Point(x, point.estimate, text=text) for x, point, text in known)
    limits = [] if threshold is None else [Limit(threshold, f"threshold {shown(threshold)}")]
    if threshold is not None and name == "parity_sampled":  # it must lie between the two
        limits.append(Limit(-threshold, f"threshold {shown(-threshold)}"))
    last, form = points[-1], FORM.get(shown, Form.NUMBER)
    return Chart(
        f"{title_of_test(name)}: {shown(last.estimate)}, bounds {shown(last.lower)} to {shown(last.upper)}, "
        f"threshold {shown(threshold)}, {plural(len(points), 'point')}",
        Axis("look of the gate (your clock)" if moments else f"{unit}s, in folding order", Form.COUNT),
        Axis(_AXIS_TITLE.get(name, title_of_test(name).lower()), form),
        (
            Mark(Shape.BAND, band, "band"),
            Mark(Shape.LINE, line, "speculative"),
            *([Mark(Shape.DOTS, line, "speculative")] if len(line) < MAX_DOTTED and moments else []),
        ),
        (*limits, *(Limit(moment, words, is_of_x=True, tone="moment") for moment, words in changes)),
    )


_AXIS_TITLE: Final = {
    "speedup": "speedup (\u00d7)",
    "acceptance": "acceptance",
    "tail": "slowed requests",
    "parity_sampled": "teacher-forced z",
}


def positions(marginal: Sequence[float | None], conditional: Sequence[float | None]) -> Chart:
    """Acceptance at each drafted position: of all steps, and of those that accepted the position before."""
    names = tuple(str(position) for position in range(1, len(marginal) + 1))
    rates = {"marginal": ("speculative", marginal), "conditional": ("soft", conditional)}
    said = "; ".join(f"{name} {', '.join(map(percent, values))}" for name, (_, values) in rates.items())
    return Chart(
        f"Acceptance by position in the draft, pooled: {said}",
        Axis("position in the draft, pooled", names=names),
        Axis("share of steps", Form.SHARE, low=0.0, high=1.0, at=SHARE_TICKS),
        tuple(_bars(name, tone, names, values) for name, (tone, values) in rates.items()),
    )


def steps(shares: Sequence[float | None]) -> Chart:
    """Share of steps that accepted exactly j drafted tokens."""
    names = tuple(str(accepted) for accepted in range(len(shares)))
    said = ", ".join(f"{name}: {percent(share)}" for name, share in zip(names, shares, strict=True))
    return Chart(
        f"Accepted tokens per step, pooled share of steps: {said}",
        Axis("accepted tokens in a step, pooled", names=names),
        Axis("share of steps", Form.SHARE, low=0.0, high=1.0, at=SHARE_TICKS),
        (_bars("", "speculative", names, shares),),
    )


def _bars(name: str, tone: str, names: Sequence[str], values: Sequence[float | None]) -> Mark:
    points = tuple(
        Point(place, value, text=f"{place}{f', {name}' if name else ''}: {percent(value)}")
        for place, value in zip(names, values, strict=True)
    )
    return Mark(Shape.BARS, points, tone, name)


@dataclass(frozen=True, slots=True)
class LatencyCurve:
    """One arm's latencies: (milliseconds, share of requests at or below) ascending, and (share, milliseconds)."""

    arm: Arm
    cumulative: tuple[tuple[float, float], ...]
    quantiles: tuple[tuple[float, float | None], ...]
    num_requests: int


def latency(title: str, curves: Sequence[LatencyCurve]) -> Chart | None:
    """Share of requests at or below each latency, both arms over each other; None where nothing took time."""
    drawn = [curve for curve in curves if any(value > 0 for value, _ in curve.cumulative)]
    if not drawn:
        return None
    values = [value for curve in drawn for value, _ in curve.cumulative if value > 0]
    low = min(values)
    said, marks = [], []
    for curve in drawn:
        tone = curve.arm.value
        points = tuple(Point(max(value, low), share) for value, share in curve.cumulative)
        known = [(share, value) for share, value in curve.quantiles if value is not None]
        texts = [f"p{100 * share:g} {milliseconds(value)}" for share, value in known]
        said.append(f"{tone}: {', '.join([*texts, plural(curve.num_requests, 'request')])}")
        dots = tuple(
            Point(max(value, low), share, text=f"{tone}: {text}")
            for (share, value), text in zip(known, texts, strict=True)
        )
        marks += [Mark(Shape.STEPS, points, tone, tone), Mark(Shape.DOTS, dots, tone)]
    return Chart(
        f"{title} of both arms, share of requests at or below; {'; '.join(said)}",
        Axis("ms (log scale)", is_log=True),
        Axis("requests at or below", Form.SHARE, low=0.0, high=1.0, at=(0.0, 0.5, 0.95)),
        tuple(marks),
    )


def speedups(bins: Sequence[SpeedupBin], threshold: float | None) -> Chart | None:
    """Requests by their own speedup, slower ones apart from faster ones; None where there is none."""
    filled = [each_bin for each_bin in bins if each_bin.num_requests]
    if not filled:
        return None
    edges = [edge for each_bin in bins for edge in (each_bin.lower, each_bin.upper) if edge is not None]
    low, high = min(edges), max(edges)
    boxes: dict[str, list[Point]] = {"slower": [], "faster": []}
    for part in filled:
        text = f"{times(part.lower)} to {times(part.upper)}: {plural(part.num_requests, 'request')}"
        kind = "faster" if (part.lower or 0.0) >= 0.999 else "slower"
        left, right = part.lower or low / 1.09, part.upper or high * 1.09
        boxes[kind].append(Point(left, float(part.num_requests), x2=right, text=text))
    numbers = {
        kind: sum(int(point.y) for point in points if isinstance(point.y, float)) for kind, points in boxes.items()
    }
    return Chart(
        f"Histogram of each request's speedup: {numbers['slower']:,} slower, {numbers['faster']:,} faster",
        Axis("speedup of each request (\u00d7, log scale)", Form.TIMES, is_log=True, at=SPEEDUP_TICKS),
        Axis("requests", Form.COUNT, low=0.0),
        tuple(Mark(Shape.BOXES, tuple(points), kind, kind) for kind, points in boxes.items() if points),
        () if threshold is None else (Limit(threshold, f"threshold {times(threshold)}", is_of_x=True),),
    )


def gains(frontier: SliceFrontier) -> Chart:
    """Predicted speedup of every way of drafting over the loads; the best at each load is dotted."""
    lines: dict[str, list[Gain]] = {}
    for choice in frontier.choices:
        for gain in choice.gains:
            name = f"K {gain.drafting.num_speculative_tokens} \u00b7 {plain_text(gain.drafting.name)}"
            lines.setdefault(name, []).append(gain)
    marks: list[Mark] = []
    for place, (name, of_name) in enumerate(lines.items()):
        tone = f"series-{place % 7}"
        marks.append(Mark(Shape.BAND, tuple(Point(g.concurrency, g.least, y2=g.most) for g in of_name), f"{tone} pale"))
        marks.append(
            Mark(Shape.LINE, tuple(Point(g.concurrency, g.speedup, text=_gain_text(g)) for g in of_name), tone, name)
        )
    best = [choice.best for choice in frontier.choices if choice.best is not None]
    marks.append(Mark(Shape.DOTS, tuple(Point(g.concurrency, g.speedup, text=_gain_text(g)) for g in best), "best"))
    loads = tuple(float(choice.concurrency) for choice in frontier.choices)
    return Chart(
        "Predicted speedup by load for every number of speculative tokens",
        Axis("load, requests at once (log scale)", is_log=True, at=loads),
        Axis("predicted speedup (\u00d7)", Form.TIMES, is_log=True),
        tuple(marks),
        (Limit(1.0, "as fast as the baseline"),),
    )


def _gain_text(gain: Gain) -> str:
    pays = "" if gain.break_even_length is None else f", pays from {gain.break_even_length:.2f}"
    return (
        f"load {gain.concurrency:g}: {plain_text(gain.drafting.name)}, K {gain.drafting.num_speculative_tokens}, "
        f"{times(gain.speedup)} at {gain.drafting.length.estimate:.2f} tokens per step{pays}"
    )


def time_parts(parts: Sequence[tuple[str, Sequence[tuple[str, float]]]]) -> Chart:
    """Where the mean request's time goes: of each arm its parts with their milliseconds, in the order of time."""
    strips: dict[str, list[Point]] = {}
    for arm, of_arm in parts:
        start = 0.0
        for part, duration in of_arm:
            text = f"{arm}, {part}: {milliseconds(duration)}"
            strips.setdefault(part, []).append(Point(start, arm, start + duration, text=text))
            start += duration
    said = "; ".join(point.text for points in strips.values() for point in points)
    return Chart(
        f"Mean compute time of a request by part, for both arms: {said}",
        Axis("mean ms of a request", low=0.0),
        Axis("", names=tuple(arm for arm, _ in parts)),
        tuple(Mark(Shape.STRIPS, tuple(points), f"part-{part}", part) for part, points in strips.items()),
    )


def verdict_tone(verdict: Verdict | None) -> str:
    """The tone of a verdict."""
    return "undecided" if verdict is None else verdict.value.lower()

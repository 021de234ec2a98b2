"""The figures of a report as inline SVG: pure functions of its values, each with a name and hover text."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from shadowspec.gate.verdict.curves import SequencePoint
from shadowspec.planning.frontier import Gain
from shadowspec.reports.definitions import MEASURE_TITLE, Format, bounds_text, interval_text, shown_as, title_of_test
from shadowspec.reports.frontiers import SliceFrontier
from shadowspec.reports.report.report_model import Acceptance, Distribution, Hypothesis
from shadowspec.reports.shared_values import SpeedupBin
from shadowspec.reports.svg import Scale, element, log_ticks, path, svg, ticks, tooltip
from shadowspec.text import DASH, milliseconds, percent, plural, slice_title, times
from shadowspec.types import FunnelCounter, TestResult

PANEL_WIDTH, PANEL_HEIGHT = 340, 190  # a third of the page
LEFT, RIGHT, TOP, BOTTOM = 40, 12, 12, 30  # room for axis text
SPEEDUP_RANGE = (0.5, 2.0)  # the shortest axis, so that small differences look small
ROW_HEIGHT = 24
FOREST_WIDTH, FOREST_LABELS, FOREST_GAP = 1080, 300, 44


def speedup_range(intervals: Sequence[TestResult | None]) -> tuple[float, float]:
    """An axis for speedups that holds every bound, at least `SPEEDUP_RANGE`."""
    known = [v for i in intervals if i for v in (i.estimate, i.lower, i.upper, i.threshold) if v is not None and v > 0]
    return min(SPEEDUP_RANGE[0], *known, 1), max(SPEEDUP_RANGE[1], *known, 1)


def interval_strip(
    interval: TestResult | None, low: float, high: float, format_value: Format, *, is_log: bool
) -> Markup:
    """The small bar of the verdict board."""
    if interval is None or interval.estimate is None:
        return Markup("")
    scale = Scale(low, high, 3, 117, is_log)
    return svg(
        120, 16, interval_text(interval, format_value), *_interval(interval, scale, 8, format_value), class_="strip"
    )


def forest(hypotheses: Sequence[Hypothesis]) -> Markup:
    """Speedup and acceptance of every hypothesis with bounds, thresholds and verdicts, one row each."""
    panel = (FOREST_WIDTH - FOREST_LABELS - 2 * FOREST_GAP - 70) / 2
    low, high = speedup_range([h.speedup for h in hypotheses])
    first, second = FOREST_LABELS, FOREST_LABELS + panel + FOREST_GAP
    speedups = Scale(low, high, first, first + panel, is_log=True)
    shares = Scale(0, 1, second, second + panel)
    height = 34 + ROW_HEIGHT * len(hypotheses) + 26
    bottom = height - 24
    drawn = [
        element("text", "Speedup (log scale)", x=first, y=14, class_="head"),
        element("text", "Acceptance", x=second, y=14, class_="head"),
        *_axis(speedups, log_ticks(low, high), 26, bottom, lambda v: f"{v:g}\u00d7"),
        *_axis(shares, (0, 0.2, 0.4, 0.6, 0.8, 1), 26, bottom, lambda v: f"{100 * (v or 0):.0f}%"),
        element("line", x1=speedups(1), x2=speedups(1), y1=26, y2=bottom, class_="one"),
    ]
    for index, hypothesis in enumerate(hypotheses):
        y = 34 + ROW_HEIGHT * index + ROW_HEIGHT / 2
        verdict = hypothesis.verdict.value if hypothesis.verdict else "undecided"
        name = hypothesis.endpoint if not hypothesis.slice_key else slice_title(hypothesis.slice_key)
        indent = 0 if not hypothesis.slice_key else 14
        drawn += [
            element("text", _clip(name, 40), x=indent, y=y + 4, class_="row" if indent else "row whole"),
            *_interval(hypothesis.speedup, speedups, y, times),
            *_interval(hypothesis.acceptance_interval, shares, y, percent),
            element("text", verdict, x=FOREST_WIDTH, y=y + 4, class_=f"word v-{verdict.lower()}", text_anchor="end"),
        ]
    label = f"Forest plot: speedup and acceptance with bounds for {len(hypotheses)} hypotheses"
    return svg(FOREST_WIDTH, height, label, *drawn, class_="chart wide")


def gains_by_load(frontier: SliceFrontier) -> Markup:
    """Predicted speedup of every way of drafting over the loads; the best at each load is dotted."""
    gains = [each for choice in frontier.choices for each in choice.gains]
    known = [value for each in gains for value in (each.least, each.most)]
    x_low, x_high = frontier.choices[0].concurrency, frontier.choices[-1].concurrency
    x = Scale(x_low, max(x_high, 2 * x_low), LEFT, PANEL_WIDTH - RIGHT - 24, is_log=True)  # names are at the right
    low, high = min(1.0, *known) / 1.05, max(1.0, *known) * 1.05
    y = Scale(low, high, PANEL_HEIGHT - BOTTOM, TOP, is_log=True)
    parts = [
        *_axis(x, [each.concurrency for each in frontier.choices], TOP, PANEL_HEIGHT - BOTTOM, lambda v: f"{v:g}"),
        *_grid(y, log_ticks(low, high, 4), lambda v: f"{v:g}\u00d7"),
        element("line", x1=LEFT, x2=PANEL_WIDTH - RIGHT, y1=y(1.0), y2=y(1.0), class_="threshold"),
    ]
    gains_by_depth: dict[tuple[str, int], list[Gain]] = {}
    for each in gains:
        gains_by_depth.setdefault((each.drafting.name, each.drafting.num_speculative_tokens), []).append(each)
    for (name, depth), line in gains_by_depth.items():
        points = [(x(each.concurrency), y(each.speedup)) for each in line]
        text = ", ".join(f"load {each.concurrency:g} {times(each.speedup)}" for each in line)
        parts.append(element("path", tooltip(f"{name}, K {depth}: {text}"), d=path(points), class_="line a-baseline"))
        parts.append(element("text", f"K {depth}", x=points[-1][0] + 4, y=points[-1][1] + 3.5, class_="tick"))
    for choice in frontier.choices:
        if (best := choice.best) is not None:
            text = f"load {choice.concurrency:g}: {best.drafting.name}, K {best.drafting.num_speculative_tokens}"
            at = {"cx": x(choice.concurrency), "cy": y(best.speedup)}
            parts.append(element("circle", tooltip(f"{text}, {times(best.speedup)}"), **at, r=3.5, class_="dot above"))
    parts.append(_caption("load, requests at once (log scale)"))
    return svg(PANEL_WIDTH, PANEL_HEIGHT, "Predicted speedup by load for every number of speculative tokens", *parts)


def acceptance_positions(acceptance: Acceptance) -> Markup:
    """Marginal and conditional acceptance at each drafted position, pooled."""
    rates = list(zip(acceptance.marginal_acceptance_rates, acceptance.conditional_acceptance_rates, strict=True))
    bars = [
        (f"{position}", [("marginal", marginal), ("conditional", conditional)])
        for position, (marginal, conditional) in enumerate(rates, start=1)
    ]
    return _share_bars(
        bars, "Acceptance per position, marginal and conditional, pooled", "position in the draft, pooled"
    )


def acceptance_histogram(acceptance: Acceptance) -> Markup:
    """Share of steps that accepted exactly j drafted tokens, pooled."""
    bars = [(f"{j}", [("steps", share)]) for j, share in enumerate(acceptance.histogram_shares)]
    return _share_bars(bars, "Histogram of accepted tokens per step, pooled", "accepted tokens in a step, pooled")


def latency_ecdf(distributions: Sequence[Distribution], measure: str) -> Markup:
    """Share of requests at or below each latency, both arms over each other, log scale."""
    drawn = [d for d in distributions if d.measure == measure and any(value > 0 for value, _ in d.ecdf)]
    if not drawn:
        return Markup("")
    values = [value for d in drawn for value, _ in d.ecdf if value > 0]
    low, high = min(values) / 1.08, max(values) * 1.08
    x = Scale(low, high, LEFT, PANEL_WIDTH - RIGHT, is_log=True)
    y = Scale(0, 1, PANEL_HEIGHT - BOTTOM, TOP)
    parts = [
        *_axis(x, log_ticks(low, high), TOP, PANEL_HEIGHT - BOTTOM, lambda v: f"{v:g}"),
        *_grid(y, (0, 0.5, 0.95, 1), lambda v: f"p{100 * (v or 0):g}" if 0 < (v or 0) < 1 else ""),
    ]
    for d in drawn:
        points = [(x(max(value, low)), y(share)) for value, share in d.ecdf]
        quantiles = ", ".join(f"p{100 * q.probability:g} {milliseconds(q.value)}" for q in d.quantiles)
        text = f"{d.arm.value}: {quantiles} ({plural(d.num_requests, 'request')})"
        line = path([(points[0][0], y(0)), *points], steps=True)
        parts.append(element("path", tooltip(text), d=line, class_=f"line a-{d.arm.value}"))
    title = MEASURE_TITLE[measure]
    parts.append(_caption(f"{title}, ms (log scale)"))
    return svg(PANEL_WIDTH, PANEL_HEIGHT, f"{title} of both arms: share of requests at or below", *parts)


def speedup_histogram(bins: Sequence[SpeedupBin], threshold: float | None) -> Markup:
    """The number of requests by speedup; log scale, the outermost bins are open."""
    filled = [i for i, b in enumerate(bins) if b.num_requests]
    if not filled:
        return Markup("")
    inner = [edge for b in bins for edge in (b.lower, b.upper) if edge is not None]
    x = Scale(min(inner) / 1.09, max(inner) * 1.09, LEFT, PANEL_WIDTH - RIGHT, is_log=True)
    most = max(b.num_requests for b in bins)
    y = Scale(0, most, PANEL_HEIGHT - BOTTOM, TOP)
    parts = [*_grid(y, ticks(0, most, 4), lambda v: f"{v:g}" if v == int(v or 0) else "")]
    parts += _axis(x, (0.5, 0.7, 1, 1.5, 2, 3, 4), TOP, PANEL_HEIGHT - BOTTOM, lambda v: f"{v:g}\u00d7")
    for b in (bins[i] for i in filled):
        left, right = x(b.lower or x.low), x(b.upper or x.high)
        name = f"{times(b.lower)} to {times(b.upper)}: {plural(b.num_requests, 'request')}"
        kind = "bar faster" if (b.lower or 0) >= 1 else "bar slower"
        box = {"x": left + 0.5, "y": y(b.num_requests), "width": right - left - 1, "height": y(0) - y(b.num_requests)}
        parts.append(element("rect", tooltip(name), class_=kind, **box))
    if threshold is not None:
        parts.append(_threshold(x(threshold), f"threshold {times(threshold)}"))
    parts.append(_caption("speedup of each request (log scale)"))
    return svg(PANEL_WIDTH, PANEL_HEIGHT, "Histogram of each request's speedup", *parts)


def sequence(points: Sequence[SequencePoint], test: TestResult) -> Markup:
    """Estimate and anytime-valid bounds after each unit of a test, with its threshold."""
    format_value, threshold = shown_as(test.name), test.threshold
    known = [v for p in points for v in (p.estimate, p.lower, p.upper, threshold) if v is not None]
    if len(points) < 2 or not known:
        return Markup("")
    margin = (max(known) - min(known)) * 0.06 or 0.05
    low, high = min(known) - margin, max(known) + margin
    x = Scale(points[0].num_units, points[-1].num_units, LEFT + 6, PANEL_WIDTH - RIGHT)
    y = Scale(low, high, PANEL_HEIGHT - BOTTOM, TOP)
    inside = [p for p in points if p.estimate is not None]
    upper = [(x(p.num_units), y(high if p.upper is None else p.upper)) for p in inside]
    lower = [(x(p.num_units), y(low if p.lower is None else p.lower)) for p in inside]
    line = [(x(p.num_units), y(p.estimate)) for p in inside if p.estimate is not None]
    whole = [t for t in ticks(points[0].num_units, points[-1].num_units, 5) if t == int(t)]
    band = path([*upper, *reversed(lower)]) + "Z"
    parts = [
        *_axis(x, whole, TOP, PANEL_HEIGHT - BOTTOM, lambda v: f"{v:g}"),
        *_grid(y, ticks(low, high, 4), _short(format_value)),
        element("path", tooltip(f"{format_value(test.estimate)} {bounds_text(test)}"), d=band, class_="band"),
        element("path", d=path(upper), class_="edge"),
        element("path", d=path(lower), class_="edge"),
        element("path", d=path(line), class_="line estimate"),
    ]
    if threshold is not None:
        box = {"x1": x.start, "x2": x.end, "y1": y(threshold), "y2": y(threshold)}
        parts.append(element("line", tooltip(f"threshold {format_value(threshold)}"), class_="threshold", **box))
    parts.append(_caption(f"{test.unit}s, in folding order"))
    return svg(PANEL_WIDTH, PANEL_HEIGHT, f"Confidence sequence of {title_of_test(test.name)}", *parts)


def funnel_bar(counts: Sequence[tuple[FunnelCounter, int]]) -> Markup:
    """Where the records ended, as parts of one bar."""
    total = sum(number for _, number in counts)
    if not total:
        return Markup("")
    parts, at = [], 0.0
    for counter, number in counts:
        width = 240 * number / total
        if number:
            text = f"{counter.value.replace('_', ' ')}: {number:,} of {total:,}"
            box = {"x": at, "y": 0.0, "width": max(width, 1.0), "height": 10.0}
            parts.append(element("rect", tooltip(text), class_=f"f-{counter.value}", **box))
        at += width
    return svg(240, 10, f"{total:,} records by counter", *parts, class_="funnelbar")


def _interval(interval: TestResult | None, scale: Scale, y: float, format_value: Format) -> list[Markup]:
    if interval is None or interval.estimate is None:
        return [element("text", DASH, x=scale.start, y=y + 4, class_="none")]
    text = interval_text(interval, format_value) + f", threshold {format_value(interval.threshold)}"
    left = scale(scale.low if interval.lower is None else interval.lower)
    right = scale(scale.high if interval.upper is None else interval.upper)
    side = ""
    if interval.threshold is not None:
        above = interval.lower is not None and interval.lower > interval.threshold
        below = interval.upper is not None and interval.upper < interval.threshold
        side = " above" if above else " below" if below else ""
    drawn = [
        element("line", x1=left, x2=right, y1=y, y2=y, class_=f"ci{side}"),
        *(
            element("line", x1=at, x2=at, y1=y - 4, y2=y + 4, class_=f"ci{side}")
            for at, bound in ((left, interval.lower), (right, interval.upper))
            if bound is not None
        ),
        element("circle", cx=scale(interval.estimate), cy=y, r=3.5, class_=f"dot{side}"),
    ]
    if interval.threshold is not None:
        at = scale(interval.threshold)
        drawn.append(element("line", x1=at, x2=at, y1=y - 8, y2=y + 8, class_="threshold"))
    return [element("g", tooltip(text), *drawn)]


def _share_bars(groups: Sequence[tuple[str, list[tuple[str, float | None]]]], label: str, caption: str) -> Markup:
    y = Scale(0, 1, PANEL_HEIGHT - BOTTOM, TOP + 6)
    slot = (PANEL_WIDTH - LEFT - RIGHT) / max(1, len(groups))
    parts = [*_grid(y, (0, 0.25, 0.5, 0.75, 1), lambda v: f"{100 * (v or 0):.0f}%")]
    for index, (name, bars) in enumerate(groups):
        width = min(30.0, slot * 0.8 / len(bars))
        start = LEFT + slot * (index + 0.5) - width * len(bars) / 2
        middle = LEFT + slot * (index + 0.5)
        parts.append(element("text", name, x=middle, y=PANEL_HEIGHT - BOTTOM + 13, class_="tick", text_anchor="middle"))
        for place, (series, share) in enumerate(bars):
            x, top = start + place * width, y(share or 0)
            text = f"{caption} {name}, {series}: {percent(share)}"
            box = {"x": x + 1, "y": top, "width": width - 2, "height": y(0) - top}
            parts.append(element("rect", tooltip(text), class_=f"bar s-{series}", **box))
            if width >= 17:
                text = DASH if share is None else f"{100 * share:.0f}"
                parts.append(element("text", text, x=x + width / 2, y=top - 3, class_="value", text_anchor="middle"))
    parts.append(_caption(caption))
    return svg(PANEL_WIDTH, PANEL_HEIGHT, label, *parts)


def _axis(scale: Scale, at: Sequence[float], top: float, bottom: float, format_value: Format) -> list[Markup]:
    drawn = []
    for value in at:
        x = scale(value)
        drawn.append(element("line", x1=x, x2=x, y1=top, y2=bottom, class_="grid"))
        drawn.append(element("text", format_value(value), x=x, y=bottom + 13, class_="tick", text_anchor="middle"))
    return drawn


def _grid(scale: Scale, at: Sequence[float], format_value: Format) -> list[Markup]:
    drawn = []
    for value in at:
        y = scale(value)
        drawn.append(element("line", x1=LEFT, x2=PANEL_WIDTH - RIGHT, y1=y, y2=y, class_="grid"))
        drawn.append(element("text", format_value(value), x=LEFT - 5, y=y + 3.5, class_="tick", text_anchor="end"))
    return drawn


def _threshold(x: float, text: str) -> Markup:
    return element("line", tooltip(text), x1=x, x2=x, y1=TOP, y2=PANEL_HEIGHT - BOTTOM, class_="threshold")


def _caption(text: str) -> Markup:
    return element(
        "text", text, x=(LEFT + PANEL_WIDTH - RIGHT) / 2, y=PANEL_HEIGHT - 3, class_="caption", text_anchor="middle"
    )


def _short(format_value: Format) -> Format:
    """An axis needs no decimals of a share, and of anything else only those that distinguish ticks."""
    if format_value is percent:
        return lambda value: percent(value, 0)
    return lambda value: "" if value is None else f"{value:g}" + ("\u00d7" if format_value is times else "")


def _clip(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 1] + "\u2026"

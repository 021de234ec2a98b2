"""The charts of the evidence page; each is a pure function of its values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any

import altair as alt

from shadowspec import metrics
from shadowspec.reports.definitions import shown_as
from shadowspec.reports.pages.board import BoardRow
from shadowspec.reports.pages.evidence_page import BinnedDistribution, TestPath, TimeParts
from shadowspec.reports.shared_values import SpeedupBin
from shadowspec.text import percent, plural, slice_title, times
from shadowspec.types import Arm, SpeculationCounts, TestResult

from . import charts, formats
from .board_table import speedup_range
from .sparks import side

SIDE_COLOUR = {"ss-above": charts.GREEN, "ss-below": charts.VERMILION, "ss-across": charts.GREY}
SPEEDUP_TICKS = (0.25, 0.35, 0.5, 0.6, 0.7, 0.8, 0.9, 1, 1.1, 1.2, 1.4, 1.6, 1.8, 2, 2.5, 3, 4)
SHARES = alt.Axis(format=".0%")
ARMS = alt.Scale(domain=[arm.value for arm in Arm], range=[charts.ARM_COLOUR[arm] for arm in Arm])
LEGEND_TOP = alt.Legend(orient="top", title=None)


@charts.keep_drawn
def path(test_path: TestPath, axis_title: str) -> Any:
    """Estimate within its bounds at every look (or after every unit), the threshold, and where the verdict changed."""
    shown = shown_as(test_path.name)
    is_share = test_path.name in ("acceptance", "tail")
    rows = [
        {
            "at": None if p.at is None else formats.in_zone(p.at),
            "units": p.num_units,
            "estimate": p.estimate,
            "lower": p.lower,
            "upper": p.upper,
            "text": f"{shown(p.estimate)} [{shown(p.lower)}, {shown(p.upper)}]",
            "verdict": formats.mark_verdict(p.verdict) if p.verdict is not None else "",
        }
        for p in test_path.points
    ]
    has_times = all(p.at is not None for p in test_path.points)
    look = alt.X(
        "at:T", title="look of the gate (your clock)", axis=charts.DAYS if _is_long(test_path) else charts.HOURS
    )
    x = look if has_times else alt.X("units:Q", title="units, in order", axis=alt.Axis(tickMinStep=1, format="d"))
    y = alt.Y("estimate:Q", title=axis_title, scale=alt.Scale(zero=False), axis=SHARES if is_share else alt.Axis())
    tooltip = [
        alt.Tooltip("text:N", title="estimate and bounds"),
        alt.Tooltip("units:Q", title="units"),
        *([alt.Tooltip("at:T", title="look", format="%Y-%m-%d %H:%M")] if has_times else []),
        alt.Tooltip("verdict:N", title="verdict"),
    ]
    base = alt.Chart(charts.frame(rows)).encode(x=x)
    if len(rows) == 1:  # a band of one look would not be seen
        bounds = base.mark_rule(color=charts.BLUE, strokeWidth=3).encode(
            y=alt.Y("lower:Q", title=axis_title), y2=alt.Y2("upper:Q")
        )
        layers = [bounds, base.mark_point(color=charts.BLUE, filled=True, size=90).encode(y=y, tooltip=tooltip)]
    else:
        band = base.mark_area(color=charts.BLUE, opacity=0.18).encode(
            y=alt.Y("lower:Q", title=axis_title), y2=alt.Y2("upper:Q"), tooltip=tooltip
        )
        layers = [band, base.mark_line(color=charts.BLUE, point=len(rows) < 60).encode(y=y, tooltip=tooltip)]
    if test_path.threshold is not None:
        layers.extend(charts.threshold(test_path.threshold, f"threshold {shown(test_path.threshold)}"))
        if test_path.name == "parity_sampled":  # it must lie between the two
            layers.extend(
                charts.threshold(-test_path.threshold, f"threshold {shown(-test_path.threshold)}", is_below=True)
            )
    moments = [
        {"at": formats.in_zone(p.at), "text": formats.mark_verdict(p.verdict)}
        for p in test_path.changes[1:]  # the first is no change: it is the first look
        if p.at is not None and p.verdict is not None
    ]
    if moments:
        data = alt.Chart(charts.frame(moments)).encode(x=alt.X("at:T"))
        layers.append(data.mark_rule(strokeDash=[2, 3], color=charts.PURPLE))
        layers.append(
            data.mark_text(align="left", dx=4, color=charts.PURPLE).encode(
                text=alt.Text("text:N"), y=charts.pixel_place(alt.YValue, 12)
            )
        )
    return charts.layer(*layers)


def _is_long(path: TestPath) -> bool:
    times_ = [p.at for p in path.points if p.at is not None]
    return bool(times_) and max(times_) - min(times_) > timedelta(days=3)


@dataclass(frozen=True, slots=True)
class _Bounds:
    """One slice's line of a forest plot."""

    slice: str
    label: str
    estimate: float
    lower: float | None
    upper: float | None
    colour: str
    verdict: str
    text: str
    units: str


def label_names(rows: Sequence[BoardRow]) -> tuple[str, ...]:
    """The labels that name the slices of these rows; empty where slices have different ones."""
    names = {tuple(row.labels) for row in rows if row.slice_key}
    return names.pop() if len(names) == 1 else ()


def slice_label(row: BoardRow, rows: Sequence[BoardRow]) -> str:
    """The values of its labels, whose names are in the chart's title: an axis has no room for both."""
    is_short = row.slice_key and label_names(rows)
    return ", ".join(row.labels.values()) if is_short else slice_title(row.slice_key)


def forest(rows: Sequence[BoardRow], figure: str) -> charts.Drawn:
    """Bounds of every slice of one endpoint at one load and config, the whole endpoint first."""
    shown = times if figure == "speedup" else percent
    found: list[_Bounds] = []
    for row in rows:
        interval: TestResult | None = getattr(row, figure)
        if interval is not None and interval.estimate is not None:
            found.append(
                _Bounds(
                    slice=slice_title(row.slice_key),
                    label=slice_label(row, rows),
                    estimate=interval.estimate,
                    lower=interval.lower,
                    upper=interval.upper,
                    colour=SIDE_COLOUR[side(interval)],
                    verdict=formats.mark_verdict(row.verdict),
                    text=f"{shown(interval.estimate)} [{shown(interval.lower)}, {shown(interval.upper)}]",
                    units=plural(interval.num_units, interval.unit),
                )
            )
    thresholds = {getattr(row, figure).threshold for row in rows if getattr(row, figure) is not None} - {None}
    return _forest(tuple(found), tuple(sorted(thresholds)), speedup_range(rows) if figure == "speedup" else None)


@charts.keep_drawn
def _forest(found: Sequence[_Bounds], thresholds: Sequence[float], range_: tuple[float, float] | None) -> Any:
    """The plot of these lines; `range_` is the axis of speedups, None for shares."""
    shown = percent if range_ is None else times
    if range_ is None:
        x = alt.X("lower:Q", scale=alt.Scale(domain=[0, 1]), title="acceptance", axis=SHARES)
    else:
        x = alt.X(
            "lower:Q",
            scale=alt.Scale(type="log", nice=False, domain=list(range_)),
            title="speedup (\u00d7, log scale)",
            axis=alt.Axis(format=".2~f", values=SPEEDUP_TICKS),
        )
    tooltip = [alt.Tooltip(f"{name}:N") for name in ("slice", "verdict", "text", "units")]
    base = alt.Chart(charts.frame([asdict(each) for each in found])).encode(
        y=alt.Y(
            "label:N", sort=[each.label for each in found], title=None, axis=alt.Axis(labelLimit=220, labelFlush=False)
        )
    )
    colour = alt.Color("colour:N", scale=None)
    bounds = base.mark_rule(strokeWidth=3).encode(x=x, x2=alt.X2("upper:Q"), color=colour, tooltip=tooltip)
    point = base.mark_point(filled=True, size=70, opacity=1).encode(
        x=alt.X("estimate:Q"), color=colour, tooltip=tooltip
    )
    lines = [charts.threshold(value, f"threshold {shown(value)}", is_vertical=True) for value in thresholds]
    return charts.layer(bounds, point, *(layer for line in lines for layer in line))


@charts.keep_drawn
def positions(counts: SpeculationCounts) -> Any:
    """Acceptance by drafted position: marginal (of all steps), conditional (of those that accepted the one before)."""
    rates = {
        "marginal": metrics.marginal_acceptance_rates(counts),
        "conditional": metrics.conditional_acceptance_rates(counts),
    }
    rows = [
        {"position": index, "rate": rate, "of": name}
        for name, values in rates.items()
        for index, rate in enumerate(values, start=1)
    ]
    return (
        alt.Chart(charts.frame(rows))
        .mark_bar()
        .encode(
            x=alt.X("position:O", title="position in the draft", axis=alt.Axis(labelAngle=0)),
            xOffset=alt.XOffset("of:N", sort=list(rates)),
            y=alt.Y("rate:Q", title="share of steps", axis=SHARES, scale=alt.Scale(domain=[0, 1])),
            color=alt.Color(
                "of:N", legend=LEGEND_TOP, scale=alt.Scale(domain=list(rates), range=[charts.BLUE, charts.SKY])
            ),
            tooltip=[alt.Tooltip("position:O"), alt.Tooltip("of:N"), alt.Tooltip("rate:Q", format=".1%")],
        )
    )


@charts.keep_drawn
def steps(counts: SpeculationCounts) -> Any:
    """How many drafted tokens a step accepted."""
    rows = [
        {"accepted": number, "steps": steps_, "share": metrics.ratio(steps_, counts.num_drafts)}
        for number, steps_ in enumerate(counts.acceptance_histogram)
    ]
    return (
        alt.Chart(charts.frame(rows))
        .mark_bar(color=charts.BLUE)
        .encode(
            x=alt.X("accepted:O", title="accepted tokens in a step", axis=alt.Axis(labelAngle=0)),
            y=alt.Y("share:Q", title="share of steps", axis=SHARES),
            tooltip=[
                alt.Tooltip("accepted:O"),
                alt.Tooltip("steps:Q", format=","),
                alt.Tooltip("share:Q", format=".1%"),
            ],
        )
    )


@charts.keep_drawn
def latency(found: Sequence[BinnedDistribution]) -> Any:
    """Share of requests at or below each latency, both arms, with their quantiles."""
    rows = [
        {"ms": edge, "share": share, "arm": binned.arm.value} for binned in found for edge, share in binned.cumulative
    ]
    marks = [
        {"ms": quantile.estimate, "share": share, "arm": binned.arm.value, "name": f"p{100 * share:g}"}
        for binned in found
        for share, quantile in binned.quantiles
    ]
    x = alt.X(
        "ms:Q", scale=alt.Scale(type="log", nice=False), title="ms (log scale)", axis=alt.Axis(format="~s", tickCount=6)
    )
    y = alt.Y("share:Q", axis=SHARES, title="requests at or below")
    colour = alt.Color("arm:N", scale=ARMS, legend=LEGEND_TOP)
    dash = alt.StrokeDash("arm:N", scale=alt.Scale(domain=ARMS.domain, range=[[5, 3], [1, 0]]), legend=None)
    line = alt.Chart(charts.frame(rows)).mark_line(interpolate="step-after", strokeWidth=2)
    point = alt.Chart(charts.frame(marks)).mark_point(filled=True, size=55, opacity=1)
    tooltip = [alt.Tooltip("arm:N"), alt.Tooltip("name:N"), alt.Tooltip("ms:Q", format=",.2f")]
    of_arm = alt.Color("arm:N", scale=ARMS, legend=None)
    return charts.layer(
        line.encode(x=x, y=y, color=colour, strokeDash=dash),
        point.encode(x=alt.X("ms:Q"), y=alt.Y("share:Q"), color=of_arm, tooltip=tooltip),
    )


@charts.keep_drawn
def parts(found: Sequence[TimeParts]) -> Any:
    """Where the mean request's time goes: the compute of each arm, in the order in which it happens."""
    order = ["prefill", "decode", "draft", "verify", "other"]
    rows = []
    for arm_times in found:
        is_baseline = arm_times.arm is Arm.BASELINE
        names = ("prefill", "decode") if is_baseline else ("prefill", "draft", "verify", "other")
        rows += [
            {
                "arm": arm_times.arm.value,
                "part": name,
                "ms": getattr(arm_times, f"{name}_ms"),
                "order": order.index(name),
            }
            for name in names
        ]
    colours = [charts.PURPLE, charts.GREY, charts.ORANGE, charts.BLUE, charts.SKY]
    return (
        alt.Chart(charts.frame(rows))
        .mark_bar(height=alt.RelativeBandSize(band=0.7))
        .encode(
            y=alt.Y("arm:N", title=None, sort=[arm.value for arm in Arm]),
            x=alt.X("ms:Q", title="mean ms of a request", stack="zero"),
            color=alt.Color(
                "part:N",
                scale=alt.Scale(domain=order, range=colours),
                legend=alt.Legend(orient="top", title=None, columns=3),  # five beside each other are cut on a phone
            ),
            order=alt.Order("order:Q"),
            tooltip=[alt.Tooltip("arm:N"), alt.Tooltip("part:N"), alt.Tooltip("ms:Q", format=",.1f")],
        )
    )


@charts.keep_drawn
def differences(bars: Sequence[SpeedupBin], threshold: float | None) -> Any:
    """Requests by their own speedup: each is one request through both arms."""
    rows = [
        {
            "from": bar.lower,
            "to": bar.upper,
            "requests": bar.num_requests,
            "side": "faster" if (bar.lower or 0.0) >= 0.999 else "slower",
        }
        for bar in bars
    ]
    scale = alt.Scale(type="log", nice=False)
    colours = alt.Scale(domain=["slower", "faster"], range=[charts.VERMILION, charts.GREEN])
    chart = (
        alt.Chart(charts.frame(rows))
        .mark_rect(stroke="white", strokeWidth=0.5, strokeOpacity=0.6)
        .encode(
            x=alt.X(
                "from:Q", scale=scale, title="speedup of each request (\u00d7, log scale)", axis=alt.Axis(format=".2~f")
            ),
            x2=alt.X2("to:Q"),
            y=alt.Y("requests:Q", title="requests", scale=alt.Scale(zero=True)),
            y2=alt.datum(0),
            color=alt.Color("side:N", scale=colours, legend=LEGEND_TOP),
            tooltip=[
                alt.Tooltip("from:Q", format=".2f"),
                alt.Tooltip("to:Q", format=".2f"),
                alt.Tooltip("requests:Q"),
                alt.Tooltip("side:N"),
            ],
        )
    )
    if threshold is None:
        return chart
    return charts.layer(chart, *charts.threshold(threshold, f"threshold {times(threshold)}", is_vertical=True))

"""The picture of a simulation: false ENABLE of the gate and of the naive gates, world by world."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from kernels.benchmarks.drawing import picture_of
from shadowspec.reports.render.svg import Scale, element, tooltip
from shadowspec.simulate.naive import NAIVE_GATES, NaiveGate
from shadowspec.simulate.summary import Summary

WIDTH, LABELS, ROW, TOP, LEGEND = 960, 190, 24, 40, 22
LOWEST = 0.0005  # of the logarithmic axis: a rate of nothing is drawn at its edge
TICKS = (0.001, 0.01, 0.05, 0.2, 0.5, 1.0)

# Each gate has a colour and a shape of its own.
_MARKS = (
    ("#d55e00", "square"),
    ("#e69f00", "diamond"),
    ("#cc79a7", "up"),
    ("#56b4e9", "square"),
    ("#009e73", "diamond"),
    ("#999999", "up"),
    ("#000000", "cross"),
)


def picture(summaries: Sequence[Summary]) -> str:
    """A self-contained SVG of the null worlds: one row each, the share of runs on a logarithmic axis."""
    nulls = [summary for summary in summaries if summary.world.kind == "null"]
    x = Scale(LOWEST, 1.0, LABELS, WIDTH - 20, is_log=True)
    top = TOP + LEGEND * 3
    bottom = top + ROW * len(nulls)
    parts = _legend()
    for tick in TICKS:
        at = x(tick)
        kind = "alpha" if tick == 0.05 else "grid"
        parts.append(element("line", x1=at, x2=at, y1=top - 4, y2=bottom, class_=kind))
        parts.append(element("text", f"{100 * tick:g}%", x=at, y=bottom + 15, class_="tick", text_anchor="middle"))
    for row, summary in enumerate(nulls):
        y = top + ROW * row + ROW / 2
        parts.append(element("text", summary.world.name, x=LABELS - 12, y=y + 4, text_anchor="end"))
        for place, gate in enumerate(NAIVE_GATES):
            if gate.name not in summary.naive:
                continue
            share = summary.naive[gate.name].value or 0.0
            text = f"{gate.title}: {share:.1%} in {summary.world.name}"
            parts.append(_mark(place, x(max(share, LOWEST)), y, text))
        rate = summary.false_enable
        text = f"the gate: {rate.value or 0.0:.1%} [{rate.lower:.1%}, {rate.upper:.1%}] in {summary.world.name}"
        left, right = x(max(rate.lower, LOWEST)), x(max(rate.upper, LOWEST))
        parts.append(element("line", x1=left, x2=right, y1=y, y2=y, class_="ci"))
        parts.append(element("circle", tooltip(text), cx=x(max(rate.value or 0.0, LOWEST)), cy=y, r=4.5, class_="gate"))
    caption = "runs with a false ENABLE at any look (logarithmic); dashed: alpha"
    parts.append(element("text", caption, x=(LABELS + WIDTH) / 2, y=bottom + 33, class_="tick", text_anchor="middle"))
    label = f"False ENABLE of the gate and of {len(NAIVE_GATES)} other gates in {len(nulls)} worlds"
    style = ".alpha{stroke:#cf222e;stroke-dasharray:4 3}.ci{stroke:#0072b2;stroke-width:2}.gate{fill:#0072b2}"
    return picture_of(label, WIDTH, bottom + 40, style, parts)


def _legend() -> list[Markup]:
    entries: list[tuple[int | None, str]] = [(None, "the gate, with its 95% interval")]
    entries += [(place, _label(gate)) for place, gate in enumerate(NAIVE_GATES)]
    drawn = []
    for index, (place, text) in enumerate(entries):
        at, y = 20 + (index % 3) * 310, TOP - 12 + LEGEND * (index // 3)
        drawn.append(
            element("circle", cx=at, cy=y, r=4.5, class_="gate") if place is None else _mark(place, at, y, text)
        )
        drawn.append(element("text", text, x=at + 12, y=y + 4))
    return drawn


def _label(gate: NaiveGate) -> str:
    return f"{gate.title} ({gate.reads})"


def _mark(place: int, x: float, y: float, text: str) -> Markup:
    colour, shape = _MARKS[place]
    size = 4.0
    outlines = {
        "square": f"M{x - size:.1f} {y - size:.1f}h{2 * size}v{2 * size}h{-2 * size}Z",
        "diamond": f"M{x:.1f} {y - size - 1:.1f}l{size + 1} {size + 1}l{-size - 1} {size + 1}l{-size - 1} {-size - 1}Z",
        "up": f"M{x:.1f} {y - size:.1f}l{size} {2 * size}h{-2 * size}Z",
        "cross": f"M{x - size:.1f} {y - size:.1f}l{2 * size} {2 * size}m0 {-2 * size}l{-2 * size} {2 * size}",
    }
    return element("path", tooltip(text), d=outlines[shape], fill="none", stroke=colour, stroke_width=1.6)

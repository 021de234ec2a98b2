"""The picture of a validation: our figures against vLLM's, acceptance on the left and speedup on the right."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from markupsafe import Markup

from kernels.benchmarks.drawing import legend, picture_of, ticks
from shadowspec.reports.render.svg import Scale, element, tooltip

WIDTH, HEIGHT = 960, 500
TOP, BOTTOM = 70, 440
LEFT, RIGHT = (70, 440), (560, 930)

_COLOURS = {
    "greedy": "#0072b2",
    "greedy_draft": "#56b4e9",
    "rejection": "#d55e00",
    "ngram": "#009e73",
    "ngram_sampled": "#e69f00",
}
Row = Mapping[str, Any]


def picture(document: Row) -> str:
    """A self-contained SVG; each point is a cell, its bar vLLM's interval."""
    parts = [
        *legend({cell["way"]: _COLOURS[cell["way"]] for cell in document["cells"]}, 110, 20, 4.5),
        *_acceptance(document["cells"]),
        *(_speedup(document["speedups"]) if document["speedups"] else ()),
    ]
    width = WIDTH if document["speedups"] else LEFT[1] + 110
    label = "Our acceptance and predicted speedup against vLLM's, cell by cell"
    return picture_of(label, width, HEIGHT, ".even{stroke:#57606a;stroke-dasharray:4 3}", parts, WIDTH)


def _acceptance(cells: Sequence[Row]) -> list[Markup]:
    high = max((cell["vllm"] + cell["vllm_half_width"] for cell in cells), default=1.0)
    scale = (0.0, min(1.0, 1.05 * high))
    x, y = Scale(*scale, *LEFT), Scale(*scale, BOTTOM, TOP)
    drawn = _axes(x, y, "vLLM's acceptance rate, 99% interval", "our loop's", lambda value: f"{100 * value:g}%")
    for cell in cells:
        text = f"{cell['way']} K={cell['K']} {cell['slice']}: vLLM {cell['vllm']:.1%}, loop {cell['loop']:.1%}"
        low, top = cell["vllm"] - cell["vllm_half_width"], cell["vllm"] + cell["vllm_half_width"]
        drawn += _point(x(cell["vllm"]), y(cell["loop"]), x(low), x(top), _COLOURS[cell["way"]], text)
    return drawn


def _speedup(speedups: Sequence[Row]) -> list[Markup]:
    cells = [cell | {"way": speedup["way"]} for speedup in speedups for cell in speedup["cells"]]
    values = [value for cell in cells for value in (cell["lower"], cell["upper"], cell["predicted"])]
    scale = (0.95 * min(values), 1.05 * max(values))
    x, y = Scale(*scale, *RIGHT), Scale(*scale, BOTTOM, TOP)
    drawn = _axes(x, y, "speedup measured on vLLM, 95% interval", "predicted", lambda value: f"{value:g}x")
    for cell in cells:
        text = (
            f"{cell['way']} K={cell['K']} {cell['slice']}, {cell['concurrency']} at once: "
            f"measured {cell['measured']:.2f}x, predicted {cell['predicted']:.2f}x"
        )
        at = x(cell["measured"]), y(cell["predicted"])
        drawn += _point(*at, x(cell["lower"]), x(cell["upper"]), _COLOURS[cell["way"]], text)
    return drawn


def _axes(x: Scale, y: Scale, below: str, beside: str, word: Callable[[float], str]) -> list[Markup]:
    drawn = []
    for tick in ticks(x.low, x.high):
        drawn.append(element("line", x1=x(tick), x2=x(tick), y1=TOP, y2=BOTTOM, class_="grid"))
        drawn.append(element("line", x1=x.start, x2=x.end, y1=y(tick), y2=y(tick), class_="grid"))
        drawn.append(element("text", word(tick), x=x(tick), y=BOTTOM + 16, class_="tick", text_anchor="middle"))
        drawn.append(element("text", word(tick), x=x.start - 6, y=y(tick) + 4, class_="tick", text_anchor="end"))
    drawn.append(element("line", x1=x.start, x2=x.end, y1=BOTTOM, y2=TOP, class_="even"))
    drawn.append(element("text", below, x=(x.start + x.end) / 2, y=BOTTOM + 36, text_anchor="middle"))
    drawn.append(element("text", beside, x=x.start, y=TOP - 10))
    return drawn


def _point(x: float, y: float, left: float, right: float, colour: str, text: str) -> list[Markup]:
    return [
        element("line", x1=left, x2=right, y1=y, y2=y, stroke=colour, stroke_opacity=0.5),
        element("circle", tooltip(text), cx=x, cy=y, r=3.5, fill=colour, fill_opacity=0.8),
    ]

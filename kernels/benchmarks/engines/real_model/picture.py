"""The picture of a real model's results: acceptance on the left, speedup on the right, a row for each cell."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from markupsafe import Markup

from kernels.benchmarks.drawing import legend, picture_of, ticks
from kernels.benchmarks.engines.real_model.dequantised import FLOAT32
from kernels.benchmarks.engines.real_model.prompts import CLASSES
from shadowspec.reports.render.svg import Scale, element, tooltip

WIDTH: Final = 960
TOP, ROW, GAP, FOOT = 76, 18, 26, 50
ACCEPTANCE, SPEEDUP = (250, 560), (620, 930)
_COLOURS: Final = {
    "vllm": "#d55e00",
    "llama.cpp": "#009e73",
    "llama.cpp (edit only)": "#e69f00",
    "llama.cpp Q8_0": "#0072b2",
    "llama.cpp Q8_0 (edit only)": "#56b4e9",
    "vllm with a head": "#cc79a7",
}
_OTHER: Final = "#57606a"
Row = Mapping[str, Any]


def picture(sittings: Sequence[Row], classes: Sequence[str]) -> str:
    """A self-contained SVG; a bar is the 95% interval over requests."""
    cells = [cell | {"engine": short_name(sitting)} for sitting in sittings for cell in sitting["cells"]]
    groups = {name: [cell for cell in cells if cell["prompt_class"] == name] for name in classes}
    height = TOP + sum(GAP + ROW * len(entries) for entries in groups.values()) + FOOT
    bottom = height - FOOT
    bounds = [
        value
        for cell in cells
        if cell["prompt_class"] in groups and cell["speedup"]
        for value in cell["speedup"].values()
        if value is not None
    ]
    x_left = Scale(0.0, 1.0, *ACCEPTANCE)
    x_right = Scale(0.95 * min([*bounds, 0.9]), 1.05 * max([*bounds, 1.1]), *SPEEDUP)
    drawn = [
        *legend({cell["engine"]: _COLOURS.get(cell["engine"], _OTHER) for cell in cells}, 150, 24, 5),
        *_axis(x_left, bottom, "accepted of drafted tokens", "{:.0%}"),
        *_axis(x_right, bottom, "speedup, end to end", "{:g}x"),
        element("line", x1=x_right(1.0), x2=x_right(1.0), y1=TOP - 14, y2=bottom, class_="even"),
    ]
    y = float(TOP)
    for name, entries in groups.items():
        drawn.append(element("text", name, x=16, y=y + 4, class_="group"))
        y += GAP - 6
        for cell in entries:
            drawn.append(element("text", f"{cell['engine']}, {cell['candidate']}", x=24, y=y + 4))
            for scale, key in ((x_left, "acceptance"), (x_right, "speedup")):
                drawn += _point(
                    scale, y, cell[key], _COLOURS.get(cell["engine"], _OTHER), f"{name}, {cell['candidate']}: {key}"
                )
            y += ROW
        y += 6
    style = ".even{stroke:#57606a;stroke-dasharray:4 3}.group{font-weight:bold}"
    label = "Acceptance and speedup of a real model by class, engine and candidate"
    return picture_of(label, WIDTH, height, style, drawn)


def short_name(sitting: Row) -> str:
    """Of the engine, with its weights where they are not float32, its head, and its classes where it had a part."""
    weights = [sitting["weights"]] if sitting["weights"] != FLOAT32 else []
    head = ["with a head"] if sitting["has_head"] else []
    classes = [f"({', '.join(sitting['classes'])} only)"] if len(sitting["classes"]) < len(CLASSES) else []
    return " ".join([sitting["engine"], *weights, *head, *classes])


def _point(scale: Scale, y: float, estimate: Row | None, colour: str, text: str) -> list[Markup]:
    if estimate is None:
        return [element("text", "nothing drafted", x=scale.start, y=y + 4, class_="tick")]
    drawn = []
    if estimate["lower"] is not None:
        ends = scale(estimate["lower"]), scale(estimate["upper"])
        drawn.append(element("line", x1=ends[0], x2=ends[1], y1=y, y2=y, stroke=colour, stroke_width=2, opacity=0.5))
    words = tooltip(f"{text} {estimate['value']:.3f}")
    drawn.append(element("circle", words, cx=scale(estimate["value"]), cy=y, r=4, fill=colour))
    return drawn


def _axis(scale: Scale, bottom: float, title: str, form: str) -> list[Markup]:
    drawn = [element("text", title, x=(scale.start + scale.end) / 2, y=bottom + 38, text_anchor="middle")]
    for tick in ticks(scale.low, scale.high):
        drawn.append(element("line", x1=scale(tick), x2=scale(tick), y1=TOP - 14, y2=bottom, class_="grid"))
        label = form.format(tick)
        drawn.append(element("text", label, x=scale(tick), y=bottom + 18, class_="tick", text_anchor="middle"))
    return drawn

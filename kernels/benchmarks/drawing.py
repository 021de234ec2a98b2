"""The frame of the documentation's pictures: self-contained SVG in the colours of Okabe and Ito."""

from __future__ import annotations

import math
from collections.abc import Mapping

from markupsafe import Markup

from shadowspec.reports.render.svg import element, svg

STYLE = "text{font:12px sans-serif;fill:#24292f}.tick{font-size:11px;fill:#57606a}.grid{stroke:#d0d7de}"


def picture_of(label: str, width: float, height: float, style: str, drawn: list[Markup], right: float = 0.0) -> str:
    """A file; `style`: further rules; `right`: the white ground's width where it is not the picture's."""
    ground = element("rect", x=0, y=0, width=right or width, height=height, fill="#ffffff")
    rules = element("style", Markup(STYLE + style))  # noqa: S704 constants
    text = str(svg(width, height, label, rules, ground, *drawn))
    return text.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1) + "\n"


def legend(names: Mapping[str, str], step: int, left: int, radius: float) -> list[Markup]:
    """Names by their colours, in one line."""
    drawn = []
    for place, (name, colour) in enumerate(names.items()):
        drawn.append(element("circle", cx=left + step * place, cy=24, r=radius, fill=colour))
        drawn.append(element("text", name, x=left + step * place + 12, y=28))
    return drawn


def ticks(low: float, high: float, wanted: int = 5) -> tuple[float, ...]:
    """Round numbers (1, 2 or 5 times a power of ten apart) within [low, high]."""
    least = (high - low) / wanted
    power = 10.0 ** math.floor(math.log10(least))
    step = power * next(digit for digit in (1, 2, 5, 10) if digit * power >= least * (1 - 1e-9))
    first = math.ceil(low / step - 1e-9)
    return tuple(round(i * step, 12) for i in range(first, math.floor(high / step + 1e-9) + 1))

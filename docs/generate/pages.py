"""Which parts each page has, and how they come into it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path

from docs.generate import (
    alerts,
    bench_figures,
    codes,
    database,
    licences,
    metrics,
    planning,
    schemas,
    settings,
    support,
)

DOCS = Path(__file__).parents[1]
PARTS: Mapping[str, Mapping[str, Callable[[], str]]] = {
    "capture.md": {"capture": bench_figures.capture},
    "configuration.md": {"configuration": settings.configuration},
    "policy.md": {"policy": settings.policy},
    "json.md": {"documents": schemas.documents},
    "formats.md": {"funnel": codes.funnel},
    "reading-a-hold.md": {"hold": codes.hold, "other verdicts": codes.other_verdicts},
    "jobs/on-call.md": {"alerts": alerts.alerts},
    "kafka.md": {"tap": bench_figures.tap},
    "metrics.md": {"metrics": metrics.metrics, "verdicts": metrics.verdicts},
    "planning.md": {"fleet week": planning.fleet_week},
    "worker.md": {"endpoints apart": bench_figures.endpoints_apart},
    "tables.md": {"columns": database.columns},
    "licences.md": {"allowed": licences.allowed, "licences": licences.licences},
    "support.md": {"engines": support.engines, "methods": support.methods, "exports": support.exports},
}


def with_parts(text: str, parts: Mapping[str, Callable[[], str]]) -> str:
    """The page with each of its parts as it is now.

    Raises:
        ValueError: the page lacks the place of a part.
    """
    for name, make in parts.items():
        begin, end = f"<!-- made by `make docs`: {name} -->", f"<!-- end of {name} -->"
        place = re.compile(f"{re.escape(begin)}\n.*?{re.escape(end)}", re.DOTALL)
        if len(place.findall(text)) != 1:
            raise ValueError(f"the page must have one part between {begin} and {end}")
        made = f"{begin}\n\n{make().strip()}\n\n{end}"
        text = place.sub(lambda _, made=made: made, text)
    return text


def current(page: str) -> str:
    """A page as it should be."""
    return with_parts((DOCS / page).read_text(encoding="utf-8"), PARTS[page])

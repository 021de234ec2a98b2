"""Numbers, times, verdicts and definitions as the pages write them.

Times are shown in the viewer's zone, with UTC in the hover.  HTML made here is escaped here.
"""

from __future__ import annotations

from datetime import UTC, datetime
from html import escape
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import streamlit as st

from shadowspec.reports.content.definitions import DEFINITIONS, VERDICT_MEANING
from shadowspec.text import DASH, age, markdown_text, moment, plain_text
from shadowspec.types import Verdict

UTC_ZONE = ZoneInfo("UTC")
# Word and shape distinguish verdicts; the style sheet adds a colour.
SHAPE = {Verdict.ENABLE: "\u25cf", Verdict.DISABLE: "\u25a0", Verdict.HOLD: "\u25c6", None: "\u25cb"}
UNDECIDED = "undecided"


def viewer_zone() -> ZoneInfo:
    """The zone of the browser; UTC where it does not say, or names one that is not known here."""
    name = st.context.timezone
    try:
        return ZoneInfo(name) if name else UTC_ZONE
    except (ZoneInfoNotFoundError, ValueError):
        return UTC_ZONE


def local(value: datetime | None) -> str:
    """A time in the viewer's zone, to the minute, with the zone's short name."""
    return DASH if value is None else f"{value.astimezone(viewer_zone()):%Y-%m-%d %H:%M %Z}"


def short_local(value: datetime) -> str:
    """A time in the viewer's zone, as short as a table wants it: the year only where it is another."""
    local = value.astimezone(viewer_zone())
    return f"{local:%d %b %H:%M}" if local.year == now().year else f"{local:%d %b %Y}"


def moment_title(value: datetime) -> str:
    """For the hover: the same time in UTC and in the viewer's zone."""
    return f"{moment(value)} ({local(value)})"


def time_html(value: datetime | None, text: str | None = None) -> str:
    """A time (or `text` in its place) with UTC in the hover."""
    if value is None:
        return DASH
    return f'<time datetime="{value.isoformat()}" title="{moment(value)}">{escape(text or local(value))}</time>'


def ago(value: datetime | None, now: datetime) -> str:
    """How long since a time."""
    return DASH if value is None else f"{age(now - value)} ago"


def ahead(value: datetime | None) -> str:
    """A date that is expected, in the viewer's zone."""
    if value is None:
        return DASH
    local = value.astimezone(viewer_zone())
    return f"{local:%d %b}" if local.year == now().year else f"{local:%d %b %Y}"


def text(value: str) -> str:
    """One line of text for HTML: what comes from traffic can neither mark up nor break the line."""
    return escape(plain_text(value))


def sentence_html(value: str) -> str:
    """A sentence of ours for HTML: its first letter large, its commands (in backticks) as code, a full stop."""
    parts = text(value).split("`")
    marked = "".join(f"<code>{part}</code>" if place % 2 else part for place, part in enumerate(parts))
    return f"{marked[:1].upper()}{marked[1:]}".rstrip(".") + "."


def markdown(value: str) -> str:
    """The same for Markdown."""
    return markdown_text(plain_text(value))


def in_zone(value: datetime) -> datetime:
    """A time as charts take it: without a zone, on the viewer's clock."""
    return value.astimezone(viewer_zone()).replace(tzinfo=None)


def now() -> datetime:
    """This moment, UTC."""
    return datetime.now(UTC)


def verdict_text(verdict: Verdict | None) -> str:
    """The verdict's word; undecided where the gate has not decided."""
    return UNDECIDED if verdict is None else verdict.value


def mark_verdict(verdict: Verdict | None) -> str:
    """Shape and word."""
    return f"{SHAPE[verdict]} {verdict_text(verdict)}"


def meaning(verdict: Verdict | None) -> str:
    """What the verdict says, in a sentence."""
    return "the gate has not decided on it yet" if verdict is None else VERDICT_MEANING[verdict]


def verdict_html(verdict: Verdict | None, hover: str | None = None) -> str:
    """The verdict as a badge; the hover says why, else what the word means."""
    text = escape(hover or meaning(verdict))
    return f'<span class="ss-verdict ss-{verdict_text(verdict).lower()}" title="{text}">{mark_verdict(verdict)}</span>'


def definition(name: str) -> str:
    """What a figure means, for its hover."""
    return DEFINITIONS[name][1]

"""What can be read of a page that AppTest has drawn."""

from __future__ import annotations

import html
import json
import re

from streamlit.testing.v1 import AppTest

TAG = re.compile(r"<[^>]+>")


def said(app: AppTest) -> str:
    """Everything that the page says, without its mark-up."""
    texts = [said_raw(app)]
    texts += [element.value for kind in ("markdown", "caption", "info", "warning") for element in app.get(kind)]
    texts += [f"{metric.label} {metric.value}" for metric in app.metric]
    texts += [table for table in [board_html(app)] if table]
    return html.unescape(TAG.sub(" ", " ".join(texts)))


def said_raw(app: AppTest) -> str:
    """The HTML of the page, with its mark-up, apart from the board's table and the style sheet."""
    return " ".join(block.proto.body for block in app.get("html") if "<style>" not in block.proto.body)


def board_html(app: AppTest) -> str:
    """The board's table; empty where there is none."""
    return next((html for html in _components(app) if "<table" in html), "")


def today_html(app: AppTest) -> str:
    """The board's first part: what changed, what needs somebody, what it costs."""
    return next((html for html in _components(app) if 'class="ss-today"' in html), "")


def _components(app: AppTest) -> list[str]:
    given = [json.loads(each.proto.json or "null") for each in app.get("bidi_component")]
    return [str(each["html"]) for each in given if each and "html" in each]


def endpoints_shown(app: AppTest) -> list[str]:
    """The endpoints of the board's table, in its order."""
    return re.findall(r'data-endpoint="([^"]+)"><tr class="ss-head"', board_html(app))

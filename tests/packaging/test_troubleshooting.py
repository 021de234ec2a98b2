"""Every message that docs/troubleshooting.md explains is one of the code's."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "troubleshooting.md"
ROW = re.compile(r"^- (`+)(.+?)\1: .+ \*\*.+\*\*$", re.MULTILINE)
VARIES = "…"


def texts(source: str) -> Iterator[str]:
    """The literals of a module, with what varies in an f-string as one character."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.JoinedStr):
            yield "".join(each.value if isinstance(each, ast.Constant) else VARIES for each in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def test_every_message_on_the_page_is_in_the_code() -> None:
    messages = [message for _, message in ROW.findall(PAGE.read_text(encoding="utf-8"))]
    assert len(messages) > 20
    known = [text for path in (ROOT / "shadowspec").rglob("*.py") for text in texts(path.read_text(encoding="utf-8"))]
    assert [message for message in messages if not any(message in text for text in known)] == []

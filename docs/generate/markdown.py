"""Tables and lists in Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; a cell holds one line."""
    lines = [_line(head), "|" + "---|" * len(head), *map(_line, rows)]
    return "\n".join(lines) + "\n"


def listing(rows: Iterable[tuple[str, str, str]]) -> str:
    """A list of a name, a remark in brackets (which may be empty), and a text."""
    return "".join(f"- {name}{f' ({remark})' if remark else ''}: {text}\n" for name, remark, text in rows)


def code(text: object) -> str:
    """In the font of code; nothing stays nothing."""
    return f"`{text}`" if str(text) else ""


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"

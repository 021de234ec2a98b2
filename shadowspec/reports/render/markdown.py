"""A report as GitHub-flavoured Markdown, for pull requests, chats and the plain half of an e-mail.

Text from traffic is escaped, so that it can neither link nor mark up.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from shadowspec.reports.content.content_blocks import (
    Block,
    Cell,
    ContentDocument,
    Facts,
    Figure,
    Heading,
    HeadNumbers,
    Lines,
    Note,
    Section,
    Table,
)
from shadowspec.text import markdown_text as _text


def render_markdown(document: ContentDocument) -> str:
    """The whole report, but for the definitions of its terms."""
    parts = [f"# {_text(document.title)}", _text(". ".join(document.facts)), *_blocks(document.blocks, 2)]
    return "\n\n".join(part for part in [*parts, _text(document.footer)] if part) + "\n"


def _blocks(blocks: Iterable[Block], level: int) -> Iterator[str]:
    for block in blocks:
        yield from _block(block, level)


def _block(block: Block, level: int) -> Iterator[str]:
    match block:
        case Section():
            verdict = "" if block.verdict is None else f": {cell_text(block.verdict)}"
            yield f"{'#' * level} {_text(block.title)}{verdict}"
            if block.facts:
                yield _text("; ".join(block.facts))
            yield from _blocks(block.blocks, min(level + 1, 6))
        case Table():
            yield _table(block)
        case Note():
            yield (f"**{_text(block.lead)}** " if block.lead else "> " * (block.look == "note")) + _text(block.text)
        case Lines():
            yield _list(block.lines)
        case HeadNumbers():
            yield ", ".join(f"{_text(word)} {number}" for number, word, _ in block.numbers)
        case Heading():
            yield f"{'#' * min(level, 6)} {_text(block.title)}"
        case Figure():
            note = f" ({_text(block.note)})" if block.note else ""
            yield f"**{_text(block.title)}**{note}: {_text(block.chart.said)}"
            if block.lines:
                yield _list(block.lines)
        case Facts():
            facts = [f"- {_text(name)}: {_text(value)}" for name, value, _ in block.pairs]
            yield "\n".join([*([f"**{_text(block.title)}**", ""] if block.title else []), *facts])


def _list(lines: Iterable[str]) -> str:
    return "\n".join(f"- {_text(line)}" for line in lines)


def _table(table: Table) -> str:
    if not table.rows:
        return _text(table.empty)
    head = [_text(column.title) for column in table.columns]
    lines = [head, ["---"] * len(head), *([cell_text(cell) for cell in row] for row in table.rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def cell_text(cell: Cell) -> str:
    """Text and notes in one line; verdicts and what is strong are bold."""
    text = _text(cell.text)
    if cell.is_strong or cell.tone in ("enable", "disable", "hold"):
        text = f"**{text}**"
    if cell.link and not cell.link.startswith("#"):
        text = f"[{text}]({cell.link})"
    return (" " if cell.text.endswith(".") else "; ").join((text, *map(_text, cell.notes)))

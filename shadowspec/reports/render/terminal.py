"""Blocks of content for a terminal.  Every text is literal: names from traffic are never read as markup."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from rich import box
from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table as RichTable
from rich.text import Text

from shadowspec.reports.content.content_blocks import (
    Block,
    Cell,
    Facts,
    Figure,
    Heading,
    HeadNumbers,
    Lines,
    Note,
    Section,
    Table,
)

STYLE: Final = {
    "enable": "bold green",
    "disable": "bold red",
    "hold": "yellow",
    "undecided": "dim",
    "fail": "red",
    "pass": "green",
}


def render_terminal(blocks: Iterable[Block]) -> list[RenderableType]:
    """Renderables in reading order."""
    return [drawn for block in blocks for drawn in _block(block)]


def _block(block: Block) -> Iterator[RenderableType]:
    match block:
        case Section():
            yield Text(block.title, style="bold")
            for fact in block.facts:
                yield _line(fact, "dim")
            for inner in block.blocks:
                yield from _block(inner)
            yield Text("")
        case Table():
            yield _table(block) if block.rows else Text(block.empty)
        case Note():
            lead = (f"{block.lead} ", "dim") if block.lead else ""
            style = {"note": "bold", "reason": ""}.get(block.look, "dim")
            yield Padding(Text.assemble(lead, (block.text, style)), (0, 0, 0, 1))
        case Lines():
            for line in block.lines:
                yield _line(line, "dim")
        case HeadNumbers():
            yield _line(", ".join(f"{word} {number}" for number, word, _ in block.numbers), "")
        case Heading():
            yield Text(block.title, style="bold")
        case Figure():
            yield _line(f"{block.title}: {block.chart.said}", "dim")
            for line in (block.note, *block.lines):
                yield _line(line, "dim")
        case Facts():
            yield Text(block.title, style="bold")
            for name, value, _ in block.pairs:
                yield _line(f"{name}: {value}", "")


def _line(text: str, style: str) -> RenderableType:
    return Padding(Text(text, style), (0, 0, 0, 1))


def _table(table: Table) -> RenderableType:
    drawn = RichTable(box=box.SIMPLE_HEAD, header_style="dim", pad_edge=False)
    for column in table.columns:
        drawn.add_column(
            Text(column.title),
            justify="right" if column.is_number else "left",
            overflow="fold",
            no_wrap=column.is_whole,
        )
    for row in table.rows:
        drawn.add_row(*map(_cell, row))
    return drawn


def _cell(cell: Cell) -> Text:
    style = STYLE.get(cell.tone, "bold" if cell.is_strong else "")
    return Text("\n").join([Text(cell.text, style=style), *(Text(note.replace(" [", "\n[")) for note in cell.notes)])

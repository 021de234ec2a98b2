"""Tables of the content as the dashboard shows them: HTML, escaped here, or a grid that sorts."""

from __future__ import annotations

from html import escape

import streamlit as st

from shadowspec.reports.content.content_blocks import Cell, Column, Table
from shadowspec.text import plain_text

from . import charts
from .formats import definition

MARKS = {"pass": "\u2713", "open": "\u25cb", "fail": "\u2715"}


def table_html(table: Table) -> str:
    """The whole table.  Each cell but the first is labelled with its head, which a phone does not show."""
    heads = "".join(
        f'<th scope="col" title="{escape(_meaning(column))}">{escape(column.title)}</th>' for column in table.columns
    )
    rows = "".join(
        f'<tr><th scope="row">{_cell(row[0])}</th>'
        + "".join(
            f'<td data-label="{escape(column.title)}">{_cell(cell)}</td>'
            for column, cell in zip(table.columns[1:], row[1:], strict=True)
        )
        + "</tr>"
        for row in table.rows
    )
    return (
        f'<table class="ss-board ss-plain"><caption>{escape(table.name)}</caption><thead><tr>{heads}</tr></thead>'
        f"<tbody>{rows}</tbody></table>"
    )


def show_grid(table: Table) -> None:
    """The table as a grid that sorts and can be copied."""
    columns = {
        column.title: [plain_text(row[place].line) for row in table.rows] for place, column in enumerate(table.columns)
    }
    values = {title: _whole_numbers(texts) or texts for title, texts in columns.items()}
    rows = [dict(zip(values, row, strict=True)) for row in zip(*values.values(), strict=True)]
    helped = {column.title: _meaning(column) for column in table.columns}
    settings = {title: st.column_config.TextColumn(help=text) for title, text in helped.items() if text}
    st.dataframe(charts.frame(rows), hide_index=True, column_config=settings)


def _meaning(column: Column) -> str:
    return column.meaning or (definition(column.term) if column.term else "")


def _cell(cell: Cell) -> str:
    text = escape(plain_text(cell.text))
    if cell.tone in MARKS:
        text = f'<span class="ss-out-{cell.tone}">{MARKS[cell.tone]} {text}</span>'
    if cell.hover:
        text = f'<span title="{escape(cell.hover)}">{text}</span>'
    return text + "".join(f"<small>{escape(plain_text(note))}</small>" for note in cell.notes)


def _whole_numbers(texts: list[str]) -> list[int] | None:
    """A column of whole numbers as such, so that it sorts by value; None where one is written otherwise."""
    digits = [text.replace(",", "") for text in texts]
    return [int(text) for text in digits] if all(text.isdecimal() for text in digits) else None

"""A report as one self-contained HTML file: no network, no script, every value escaped.

Parts fold.  A browser opens the part that a link leads into, and the style sheet opens all of them for print.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Final

from markupsafe import Markup

from shadowspec.reports.content.content_blocks import (
    Block,
    Cell,
    Column,
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
from shadowspec.reports.render.svg import element, picture_svg
from shadowspec.reports.render.vega import chart_svg

MARKS: Final = {"pass": "\u2713", "fail": "\u2717", "open": "\u25cb"}  # beside the word, for those who see no colour
VERDICTS: Final = ("enable", "disable", "hold", "undecided")
POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


def render_html(document: ContentDocument) -> str:
    """The whole page.  Safe to open and to send anywhere: it loads nothing."""
    page = _Page({key: sentence for key, _, sentence in document.definitions})
    folds = any(isinstance(block, Section) and _folds(block) for block in document.blocks)
    head = element(
        "head",
        Markup('<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'),
        Markup('<meta http-equiv="Content-Security-Policy" content="{}">').format(POLICY),
        element("title", document.title),
        _style(),
    )
    definitions = [
        element("div", element("dt", name), element("dd", sentence), id=f"def-{key}")
        for key, name, sentence in document.definitions
    ]
    facts = [element("span", fact) for fact in document.facts]
    main = element(
        "main",
        element("header", element("h1", document.title), element("div", *facts, class_="facts")),
        *page.blocks(document.blocks),
        *([_definitions(definitions, folds=folds)] if definitions else []),
        element("footer", document.footer),
    )
    body = element("body", main)
    return f"<!DOCTYPE html>\n{element('html', head, body, lang='en')}\n"


def _definitions(definitions: list[Markup], *, folds: bool) -> Markup:
    """The sentences of the terms, at the end; folded where other parts fold."""
    listed = element("dl", *definitions, class_="defs")
    if not folds:
        return element("section", element("h2", "Definitions", id="definitions"), listed)
    return _details([element("span", "Definitions", class_="name")], [listed], "definitions")


def _details(summary: list[Markup], inner: list[Markup], anchor: str, *, is_open: bool = False) -> Markup:
    """A part that folds.  Its anchor is within it: a browser opens a part to show what a link leads to."""
    body = element("div", *inner, class_="body", id=anchor or None)
    return element("details", element("summary", *summary), body, class_="hyp", open="" if is_open else None)


@cache
def _style() -> Markup:
    """The style sheet, which a test holds free of addresses."""
    return Markup("<style>\n{}</style>").format(
        Markup((Path(__file__).parent / "style.css").read_text(encoding="utf-8"))  # noqa: S704 our own file
    )


def _folds(section: Section) -> bool:
    return section.is_folding or any(isinstance(block, Section) and _folds(block) for block in section.blocks)


class _Page:
    """Blocks as elements; `definitions` are the sentences of the terms that the page explains."""

    def __init__(self, definitions: Mapping[str, str]) -> None:
        self._definitions = definitions

    def blocks(self, blocks: Iterable[Block], level: int = 2) -> list[Markup]:
        """In order; figures that follow each other share a row, and so do lists of facts."""
        drawn: list[Markup] = []
        for kind, following in groupby(blocks, type):
            if kind is Figure:
                figures = list(following)
                is_wide = any(isinstance(block, Figure) and block.chart.y.names for block in figures)
                drawn.append(element("div", *map(self._figure, figures), class_="card halves" if is_wide else "plots"))
            elif kind is Facts:
                drawn.append(element("div", *(self._facts(block) for block in following), class_="cols"))
            else:
                drawn += [self._block(block, level) for block in following]
        return drawn

    def _block(self, block: Block, level: int) -> Markup:
        match block:
            case Section():
                return self._folding(block, level) if block.is_folding else self._section(block, level)
            case Table():
                return self._table(block)
            case Note():
                lead = [element("strong", block.lead), Markup(" ")] if block.lead else []
                return element("p", *lead, block.text, class_=_NOTE_CLASS[block.look])
            case Lines() if block.look == "facts":
                return element("div", *(element("span", line) for line in block.lines), class_="facts")
            case Lines():
                return element("ul", *(element("li", line) for line in block.lines), class_="small muted")
            case HeadNumbers():
                numbers = [
                    element("div", element("b", number), element("span", word), class_=tone and f"v-{tone}")
                    for number, word, tone in block.numbers
                ]
                return element("div", *numbers, class_="tally", role="group", aria_label=block.name)
            case Heading():
                return element("h3", self._term(block.title, block.term))
            case Figure():
                return self._figure(block)
            case Facts():
                return self._facts(block)

    def _section(self, section: Section, level: int) -> Markup:
        title = element(f"h{level}", self._term(section.title, section.term), id=section.anchor or None)
        facts = element("div", *(element("span", fact) for fact in section.facts), class_="facts")
        inner = [title, *([facts] if section.facts else []), *self.blocks(section.blocks, level + 1)]
        return element("section", *inner, aria_labelledby=section.anchor or None)

    def _folding(self, section: Section, level: int) -> Markup:
        chip = [_chip(section.verdict)] if section.verdict is not None else []
        facts = [element("span", " \u00b7 ".join(section.facts), class_="muted small")] if section.facts else []
        summary = [element("span", section.title, class_="name"), *chip, *facts]
        inner = self.blocks(section.blocks, level + 1)
        return _details(summary, inner, section.anchor, is_open=section.is_open)

    def _term(self, text: str, term: str) -> Markup | str:
        """The text with its definition behind it, where the page has one."""
        if term not in self._definitions:
            return text
        return element("a", text, class_="term", href=f"#def-{term}", title=self._definitions[term])

    def _figure(self, figure: Block) -> Markup:
        assert isinstance(figure, Figure)
        note = [Markup(" "), element("small", self._term(figure.note, figure.term))] if figure.note else []
        caption = element("figcaption", figure.title, *note)
        lines = element("ul", *(element("li", line) for line in figure.lines), class_="small muted")
        return element("figure", caption, chart_svg(figure.chart), *([lines] if figure.lines else []))

    def _facts(self, facts: Block) -> Markup:
        assert isinstance(facts, Facts)
        pairs = [
            element("div", element("dt", self._term(name, term)), element("dd", value))
            for name, value, term in facts.pairs
        ]
        title = [element("h3", facts.title)] if facts.title else []
        return element("div", *title, element("dl", *pairs, class_="kv"))

    def _table(self, table: Table) -> Markup:
        if not table.rows:
            return element("div", table.empty, class_="card empty")
        heads = [
            element(
                "th",
                self._term(column.title, column.term),
                scope="col",
                class_="n" if column.is_number else None,
                title=column.meaning or None,
            )
            for column in table.columns
        ]
        is_board = table.look == "board"
        rows = [
            element(
                "tr",
                *(self._cell(column, cell) for column, cell in zip(table.columns, row, strict=True)),
                class_=("slice" if row[0].is_part else "whole") if is_board else None,
            )
            for row in table.rows
        ]
        inner = element("thead", element("tr", *heads)), element("tbody", *rows)
        drawn = element("table", *inner, class_=table.look, aria_label=table.name)
        return element("div", drawn, class_="scroll" if table.look.startswith("dense") else "card scroll")

    def _cell(self, column: Column, cell: Cell) -> Markup:
        classes = [*(["n"] if column.is_number else []), *(["why"] if column.title == "Why" else [])]
        notes = [element("span", note, class_="sub") for note in cell.notes]
        picture = [picture_svg(cell.picture)] if cell.picture is not None else []
        label = column.title if not column.is_number else None
        return element(
            "td",
            _text(cell),
            *notes,
            *picture,
            class_=" ".join(classes) or None,
            data_label=label,
            title=cell.hover or None,
        )


def _text(cell: Cell) -> Markup | str:
    if cell.tone in VERDICTS:
        return _chip(cell)
    text: Markup | str = f"{MARKS[cell.tone]} {cell.text}" if cell.tone in MARKS else cell.text
    if cell.tone:
        text = element("span", text, class_=f"o-{cell.tone}")
    if cell.is_strong:
        text = element("strong", text)
    if cell.is_code:
        text = element("code", text)
    return element("a", text, class_="to", href=cell.link) if cell.link else text


def _chip(cell: Cell) -> Markup:
    return element("span", cell.text, class_=f"chip v-{cell.tone}", title=cell.hover or None)


_NOTE_CLASS: Final = {"small": "small muted", "note": "note", "reason": "reason"}

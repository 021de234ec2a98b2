"""The blocks that reports are made of.

Invariant: a text is final; a renderer escapes it, places it and adds nothing.  Every figure that a picture shows is
also a text of the block.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from shadowspec.reports.content.chart_values import Chart, IntervalPicture, Shares


@dataclass(frozen=True, slots=True)
class Cell:
    """One cell of a table: its text, and smaller lines below it."""

    text: str
    notes: tuple[str, ...] = ()
    tone: str = ""  # "enable", "disable", "hold", "undecided" (a verdict); "pass", "fail", "open"; "soft"
    hover: str = ""
    link: str = ""  # "#anchor", or an address
    picture: IntervalPicture | Shares | None = None
    is_strong: bool = False
    is_code: bool = False
    is_part: bool = False  # in the first cell: the row is of a slice, below its endpoint's

    @property
    def line(self) -> str:
        """Text and notes in one line."""
        return (" " if self.text.endswith(".") else "; ").join((self.text, *self.notes)) if self.notes else self.text


@dataclass(frozen=True, slots=True)
class Column:
    """The head of a column; `term` names a definition, `meaning` says what the column holds."""

    title: str
    is_number: bool = False
    term: str = ""
    meaning: str = ""
    is_whole: bool = False  # a narrow terminal does not break it


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of cells under columns; `empty` is said where there is no row."""

    name: str  # for those who cannot see where it stands
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    empty: str = ""
    look: str = "dense"  # "dense"; "board": whole endpoints with their slices below them; "plain"


@dataclass(frozen=True, slots=True)
class Note:
    """A paragraph; `lead` is its first words, which stand out."""

    text: str
    lead: str = ""
    look: str = "small"  # "small"; "note": set apart; "reason": the size of the page


@dataclass(frozen=True, slots=True)
class Lines:
    """A list of short lines; `look` "facts" sets them beside each other."""

    lines: tuple[str, ...]
    look: str = "list"


@dataclass(frozen=True, slots=True)
class Facts:
    """Names with their values under a title; a name may have a definition."""

    title: str
    pairs: tuple[tuple[str, str, str], ...]  # name, value, term ("": none)


@dataclass(frozen=True, slots=True)
class HeadNumbers:
    """Large numbers at the head of a report, each with its word and its tone."""

    name: str
    numbers: tuple[tuple[str, str, str], ...]  # number, word, tone


@dataclass(frozen=True, slots=True)
class Heading:
    """A title within a section."""

    title: str
    term: str = ""


@dataclass(frozen=True, slots=True)
class Figure:
    """A chart under its title; `note` says how to read it, `lines` what it comes to."""

    chart: Chart
    title: str
    note: str = ""
    term: str = ""
    lines: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Section:
    """A part of a report with a title; one that folds shows its title, verdict and facts when it is closed."""

    title: str
    blocks: tuple[Block, ...]
    anchor: str = ""
    term: str = ""
    verdict: Cell | None = None
    facts: tuple[str, ...] = ()
    is_folding: bool = False
    is_open: bool = False


Block = Section | Table | Note | Lines | Facts | HeadNumbers | Heading | Figure


@dataclass(frozen=True, slots=True)
class ContentDocument:
    """A whole report.  `definitions` (key, name, sentence) explain its terms; without them terms are plain words."""

    title: str
    facts: tuple[str, ...]
    blocks: tuple[Block, ...]
    footer: str
    definitions: tuple[tuple[str, str, str], ...] = ()


def table(name: str, columns: Sequence[Column], rows: Iterable[Sequence[Cell | str]], **looks: str) -> Table:
    """A table whose plain cells are written as text."""
    cells = tuple(tuple(cell if isinstance(cell, Cell) else Cell(cell) for cell in row) for row in rows)
    assert all(len(row) == len(columns) for row in cells), "a cell for every column"
    return Table(name, tuple(columns), cells, **looks)

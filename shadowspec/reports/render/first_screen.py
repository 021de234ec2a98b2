"""The first screen of every command that answers: at most 25 lines with a row an endpoint, then what to do next.

In: the rows of a `FirstScreen`.
Out: lines for a terminal of any width, and the same rows as a table of a report.

Where rows do not fit with their reasons, the last ones say their next step only; where they still do not fit, those
that need attention are shown, and a line says how many are not.  On a narrow terminal a row is a few lines with all of
its figures; where not all rows fit so, each is one line with its speedup.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from typing import Final

from rich.cells import cell_len, set_cell_size
from rich.text import Text

from shadowspec.reports.content.screen_rows import FirstScreen, ScreenRow, count_verdicts
from shadowspec.reports.render.terminal import STYLE
from shadowspec.text import plain_text, plural

MAX_LINES: Final = 25
MAX_WIDTH: Final = 100  # columns, so that a line stays readable
NARROW: Final = 86  # columns below which a row is set in lines instead of columns
LONGEST_NAME: Final = 26
SHORTEST_NAME: Final = 8
HEADS: Final = ("", "verdict", "speedup", "accepted", "slowed", "evidence")
NAMES: Final = ("speedup", "accepted", "slowed")

Form = Callable[[FirstScreen, Sequence[ScreenRow], int], list[Text]]  # of rows, in lines of a width


def draw_screen(screen: FirstScreen, width: int, *, is_whole: bool = False) -> list[Text]:
    """The screen in lines of at most `width` columns.

    Args:
        is_whole: every row with its reason, however many lines that takes.
    """
    width, every = max(min(width, MAX_WIDTH), 20), len(screen.rows)
    form = _table if width >= NARROW else _list

    def drawn(number: int, num_reasons: int) -> list[Text]:
        return _draw(screen, form, screen.rows[:number], width, num_reasons)

    if is_whole:
        return drawn(every, every)
    if form is _list and len(drawn(every, 0)) > MAX_LINES:
        form = _short
    shown = next((number for number in range(every, 0, -1) if len(drawn(number, 0)) <= MAX_LINES), min(every, 1))
    reasons = next((number for number in range(shown, 0, -1) if len(drawn(shown, number)) <= MAX_LINES), 0)
    return drawn(shown, reasons)


def _draw(screen: FirstScreen, form: Form, rows: Sequence[ScreenRow], width: int, num_reasons: int) -> list[Text]:
    """These rows; the first `num_reasons` of them with their reasons, the others with their next step only."""
    lines = [*_wrapped(screen.headline, width, style="bold"), *([Text("")] if screen.headline else [])]
    lines += form(screen, rows, width)
    has_name = len(screen.rows) > 1
    said = [
        line for row in rows[:num_reasons] if row.action for line in _step(row, row.action, width, has_name=has_name)
    ]
    said += [_one_line(row, width, has_name=has_name) for row in rows[num_reasons:] if row.step]
    if said:
        lines += [Text(""), Text("What to do next", "bold"), *said]
    if len(rows) < len(screen.rows):
        hidden = screen.rows[len(rows) :]
        rest = f"{plural(len(hidden), f'more {screen.of_rows}')} not shown: {count_verdicts(hidden)}."
        lines += [Text(""), *_wrapped(rest, width, style="bold")]
    below = [line for note in (*screen.all_notes, screen.more) for line in _wrapped(note, width, style="dim")]
    return [*lines, *([Text("")] if below else []), *below]


def _table(screen: FirstScreen, rows: Sequence[ScreenRow], width: int) -> list[Text]:
    """Columns, with the limits under their heads."""
    cells = [(plain_text(row.name), row.verdict, *row.figures, row.evidence) for row in rows]
    return _columns(HEADS, screen.limits, rows, cells, width)


def _short(screen: FirstScreen, rows: Sequence[ScreenRow], width: int) -> list[Text]:
    """A line a row, for a narrow terminal: the speedup and the evidence, where there is room for them."""
    cells = [(plain_text(row.name), row.verdict, row.figures[0], row.evidence) for row in rows]
    heads, needed = (*HEADS[:3], HEADS[-1]), ("", "needed", screen.limits[0], "")
    ends = accumulate(max(map(cell_len, column)) + 2 for column in list(zip(heads, needed, *cells, strict=True))[1:])
    number = 1 + sum(SHORTEST_NAME + end <= width for end in ends)
    return _columns(
        heads[:number], screen.limits[: min(max(number - 2, 0), 1)], rows, [row[:number] for row in cells], width
    )


def _columns(
    names: tuple[str, ...],
    needed: tuple[str, ...],
    rows: Sequence[ScreenRow],
    cells: Sequence[tuple[str, ...]],
    width: int,
) -> list[Text]:
    limits = ("", "needed", *needed, "")[: len(names)]
    heads = [names, *([limits] if any(needed) else [])]
    widths = [max(map(cell_len, column)) for column in zip(*heads, *cells, strict=True)]
    spare = width - sum(widths[1:]) - 2 * (len(widths) - 1)
    widths[0] = max(min(widths[0], spare), SHORTEST_NAME)
    lines = [Text(_row(head, widths), "dim") for head in heads]
    for row, texts in zip(rows, cells, strict=True):
        line = Text(_row(texts, widths))
        start = widths[0] + 2
        line.stylize(STYLE.get(row.tone, ""), start, start + len(row.verdict))
        lines.append(line)
    return [_cut(line, width) for line in lines]


def _row(cells: Iterable[str], widths: Sequence[int]) -> str:
    return "  ".join(_fit(cell, width) for cell, width in zip(cells, widths, strict=True)).rstrip()


def _fit(text: str, width: int) -> str:
    return set_cell_size(text, width) if cell_len(text) <= width else f"{set_cell_size(text, width - 1)}\u2026"


def _list(screen: FirstScreen, rows: Sequence[ScreenRow], width: int) -> list[Text]:
    """Lines, for a narrow terminal."""
    lines = []
    for row in rows:
        head = Text.assemble((_fit(plain_text(row.name), min(len(row.name), LONGEST_NAME)), "bold"), "  ")
        head.append(row.verdict, STYLE.get(row.tone, ""))
        lines.append(_cut(head, width))
        for place, (name, figures) in enumerate(zip(NAMES, row.figures, strict=True)):
            limit = f" ({row.limits[place]})" if row.limits[place] else ""
            lines.append(_cut(Text(f"  {name:<9}{figures}{limit}"), width))
        lines.append(_cut(Text(f"  {'evidence':<9}{row.evidence}"), width))
    return lines


def _step(row: ScreenRow, step: str, width: int, *, has_name: bool) -> list[Text]:
    """One row's next step, under its name."""
    name = f"{plain_text(row.name)}: " if has_name else ""
    lines = _wrapped(f"  {name}{plain_text(step)}", width, indent="    ")
    lines[0].stylize("bold", 2, 2 + len(name))
    return lines


def _one_line(row: ScreenRow, width: int, *, has_name: bool) -> Text:
    """The next step on one line: without the part behind a colon or a semicolon where it is too long."""
    lines = _step(row, row.step, width, has_name=has_name)
    if len(lines) == 1:
        return lines[0]
    for end in ("; ", ": ", ", "):
        lines = _step(row, f"{row.step.rpartition(end)[0]}.", width, has_name=has_name)
        if len(lines) == 1 and end in row.step:
            return lines[0]
    (line, *_) = _step(row, row.step, width, has_name=has_name)
    return _cut(Text.assemble(line, "\u2026"), width)


def _wrapped(text: str, width: int, *, indent: str = "", style: str = "") -> list[Text]:
    lines = textwrap.wrap(text, width, subsequent_indent=indent, break_on_hyphens=False)
    return [Text(line, style) for line in lines]


def _cut(line: Text, width: int) -> Text:
    line.truncate(width, overflow="ellipsis")
    return line

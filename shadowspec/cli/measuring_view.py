"""How measuring is shown while it goes on: a live table on a terminal, lines at intervals elsewhere."""

from __future__ import annotations

import time
from collections.abc import Sequence
from math import inf
from operator import attrgetter
from typing import Self

from rich import box
from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from shadowspec.app.progress_bar import SECONDS_BETWEEN_LINES, notes
from shadowspec.app.rehearsals import MeasuringProgress
from shadowspec.gate.verdict.figure_texts import interval_text
from shadowspec.reports.content.definitions import find_test
from shadowspec.text import DASH, distinct_slices, percent, plural, slice_title, span_text, times
from shadowspec.types import Decision


def shown_decisions(decisions: Sequence[Decision]) -> list[Decision]:
    """Of several endpoints the decisions on each as a whole; of one those by slice and candidate."""
    is_one = len({decision.endpoint for decision in decisions}) == 1
    shown = [decision for decision in decisions if is_one or not decision.slice_key]
    return sorted(
        distinct_slices(shown, attrgetter("slice_key")),
        key=attrgetter("endpoint", "slice_key", "config.name"),
    )


class MeasuringView:
    """Shows progress on stderr.  Lives while a recording is measured."""

    def __init__(self) -> None:
        self._progress: MeasuringProgress | None = None
        self._shown_at = time.monotonic()
        self._next_line = 0.0
        self._has_figures = False
        self._live = Live(
            console=notes, get_renderable=self._table, transient=True, refresh_per_second=2, auto_refresh=True
        )

    def __enter__(self) -> Self:
        if notes.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if notes.is_terminal:
            self._live.stop()

    def show(self, progress: MeasuringProgress) -> None:
        """Take the newest progress."""
        self._progress, self._shown_at = progress, time.monotonic()
        is_first_figure = bool(progress.decisions) and not self._has_figures
        if not notes.is_terminal and (is_first_figure or self._shown_at >= self._next_line):
            self._has_figures = bool(progress.decisions)
            self._next_line = self._shown_at + SECONDS_BETWEEN_LINES
            for line in progress_lines(progress):
                notes.print(line, markup=False, highlight=False, soft_wrap=True)

    def _table(self) -> RenderableType:
        """Drawn twice a second: the clock goes on while a block is measured."""
        if self._progress is None:
            return Text("measuring the first block")
        since = time.monotonic() - self._shown_at
        line = Text(_headline(self._progress, since))
        if not self._progress.decisions:
            return Group(line, Text("the first figures come with the first block", style="dim"))
        table = Table(box=box.SIMPLE_HEAD, header_style="dim", pad_edge=False)
        for title in ("", "verdict so far", "speedup [bounds]", "acceptance [bounds]", "blocks"):
            table.add_column(title)
        for row in _rows(self._progress.decisions):
            table.add_row(*map(Text, row))
        return Group(line, table)


def progress_lines(progress: MeasuringProgress) -> list[str]:
    """The progress in words, and one line for each verdict so far."""
    return [
        _headline(progress),
        *(
            f"  {name}: {verdict} so far, speedup {speedup}, acceptance {acceptance}, blocks {blocks}"
            for name, verdict, speedup, acceptance, blocks in _rows(progress.decisions)
        ),
    ]


def _rows(decisions: Sequence[Decision]) -> list[tuple[str, str, str, str, str]]:
    """Name, verdict, speedup, acceptance and blocks of each decision that is shown."""
    rows, shown = [], shown_decisions(decisions)
    has_candidates = len({decision.config.name for decision in shown}) > 1
    for decision in shown:
        speedup, acceptance = find_test(decision, "speedup"), find_test(decision, "acceptance")
        where = f", {slice_title(decision.slice_key)}" if decision.slice_key else ""
        rows.append(
            (
                f"{decision.config.name if has_candidates else decision.endpoint}{where}",
                f"{decision.verdict}{' (trial)' if decision.recording_only else ''}",
                interval_text(speedup, times) if speedup else DASH,
                interval_text(acceptance, percent) if acceptance else DASH,
                f"{decision.num_blocks:,}",
            )
        )
    return rows


def _headline(progress: MeasuringProgress, since: float = 0.0) -> str:
    """Counts and times; `since` seconds have passed since it was taken."""
    done = progress.done
    measured_before = f", {done.requests_found:,} measured before" if done.requests_found else ""
    limit_s, eta_s = max(progress.limit_s - since, 0.0), progress.eta_s
    limit = (
        f", --minutes ends it in {span_text(limit_s)}" if limit_s < (inf if eta_s is None else eta_s - since) else ""
    )
    rest = "" if eta_s is None else f", about {span_text(max(eta_s - since, 0.0))} to the end of the recording"
    return (
        f"{done.records_read:,}/{plural(progress.num_records, 'record')}, {plural(done.blocks_measured, 'block')}, "
        f"{plural(done.requests_measured, 'request')}{measured_before}, "
        f"{span_text(progress.seconds + since)}{rest}{limit}"
    )

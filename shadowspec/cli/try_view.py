"""How a trial that is being measured is shown: a live table on a terminal, lines at intervals elsewhere."""

from __future__ import annotations

import time
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Self

from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from shadowspec.app.console import SECONDS_BETWEEN_LINES, notes

if TYPE_CHECKING:
    from shadowspec.app.try_out.measuring import TrialProgress
    from shadowspec.types import Decision


def shown_decisions(decisions: Sequence[Decision]) -> list[Decision]:
    """The decisions by slice and candidate, without those on a slice that is its whole endpoint."""
    is_divided = len({each.slice_key for each in decisions if each.slice_key}) > 1
    shown = [each for each in decisions if is_divided or not each.slice_key]
    return sorted(shown, key=lambda each: (each.slice_key, each.config.name))


class TrialView:
    """Shows progress on stderr.  Lives while a trial is measured."""

    def __init__(self) -> None:
        self._progress: TrialProgress | None = None
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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if notes.is_terminal:
            self._live.stop()

    def show(self, progress: TrialProgress) -> None:
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
        from shadowspec.reports.report.terminal import verdict_tables

        if self._progress is None:
            return Text("measuring the first block")
        since = time.monotonic() - self._shown_at
        line = Text(_headline(self._progress, since))
        if not self._progress.decisions:
            return Group(line, Text("the first figures come with the first block", style="dim"))
        return Group(line, Text(""), *verdict_tables(shown_decisions(self._progress.decisions)))


def progress_lines(progress: TrialProgress) -> list[str]:
    """The progress in words, and one line for each verdict so far."""
    from shadowspec.reports.definitions import find_test, interval_text
    from shadowspec.text import percent, slice_title, times

    lines = [_headline(progress)]
    for each in shown_decisions(progress.decisions):
        speedup, acceptance = find_test(each, "speedup"), find_test(each, "acceptance")
        where = f", {slice_title(each.slice_key)}" if each.slice_key else ""
        lines.append(
            f"  {each.config.name}{where}: {each.verdict} (trial) so far"
            + (f", speedup {interval_text(speedup, times)}" if speedup else "")
            + (f", acceptance {interval_text(acceptance, percent)}" if acceptance else "")
        )
    return lines


def _headline(progress: TrialProgress, since: float = 0.0) -> str:
    """Counts and times; `since` seconds have passed since it was taken."""
    from shadowspec.text import plural, span_text

    found = f", {progress.requests_found:,} measured before" if progress.requests_found else ""
    return (
        f"{progress.records_read:,}/{plural(progress.num_records, 'record')}, "
        f"{plural(progress.blocks_measured, 'block')}, {plural(progress.requests_measured, 'request')}{found}, "
        f"{span_text(progress.seconds + since)}, about {span_text(max(progress.eta_s - since, 0.0))} left"
    )

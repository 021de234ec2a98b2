"""Progress on stderr: notes, and a bar where there is a terminal."""

from __future__ import annotations

import errno
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from shadowspec.tap.sources import RawRecord, read_records
from shadowspec.text import span_text

SECONDS_BETWEEN_LINES = 15.0  # of progress, where there is no terminal to draw a bar on


class OutputConsole(Console):
    """A console whose closed pipe is an error; rich would end the process with 1, which is a verdict of `check`."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError(errno.EPIPE, "the reader of the output has closed it")


notes = OutputConsole(stderr=True)  # progress and logs


class _Bar(Progress):
    """A progress bar; where stderr is no terminal, a line now and then."""

    _next_line = 0.0

    def update(self, task_id: TaskID, **changes: Any) -> None:
        super().update(task_id, **changes)
        now = time.monotonic()
        if self.disable and now >= self._next_line:
            self._next_line = now + SECONDS_BETWEEN_LINES
            task = self._tasks[task_id]
            total = "" if task.total is None else f"/{task.total:.0f}"
            left = "" if task.time_remaining is None else f"about {span_text(task.time_remaining)} left"
            parts = f"{task.description}: {task.completed:.0f}{total}", task.fields.get("detail", ""), left
            line = ", ".join(filter(None, parts))
            notes.print(line, markup=False, highlight=False, soft_wrap=True)


@contextmanager
def progress_bar() -> Iterator[Progress]:
    """A progress bar on stderr, gone when done; lines where stderr is no terminal."""
    with _Bar(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[detail]}"),
        console=notes,
        transient=True,
        disable=not notes.is_terminal,
    ) as bar:
        yield bar


def track_records(path: str, bar: Progress, verb: str, detail: Callable[[], str]) -> Iterator[RawRecord]:
    """The records of a file, with their number shown as they are taken; standard input's (-) is not known before."""
    records: Iterable[RawRecord] = read_records(path)
    total = None
    if path != "-":
        records = list(records)  # held once, in order to know its length
        total = len(records)
    task = bar.add_task(f"{verb} {path}", total=total, detail="")
    for number, raw in enumerate(records, start=1):
        yield raw
        bar.update(task, completed=number, detail=detail())

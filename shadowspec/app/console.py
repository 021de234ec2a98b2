"""What every command shares: where results and progress go, and how errors end the process."""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

SCHEMA_VERSION = 1

SECONDS_BETWEEN_LINES = 15.0  # of progress, where there is no terminal to draw a bar on
WIDTH_OF_NO_TERMINAL = 120  # columns, where stdout is a file or a pipe

# stdout: what was asked for
results = Console(width=None if sys.stdout.isatty() else WIDTH_OF_NO_TERMINAL)
notes = Console(stderr=True)  # progress and logs


def is_verbose() -> bool:
    """Whether everything of ours is logged."""
    return logging.getLogger("shadowspec").isEnabledFor(logging.DEBUG)


def print_json(document: Mapping[str, Any]) -> None:
    """One JSON document on stdout."""
    sys.stdout.write(json.dumps({"schema_version": SCHEMA_VERSION, **document}, indent=2, ensure_ascii=False) + "\n")


def set_up_logging(verbose: bool) -> None:
    """Log to stderr; our own warnings always, everything of ours with --verbose.

    Other libraries' progress bars and advice are switched off: stdout and stderr are ours.
    """
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    if verbose:
        logging.getLogger("shadowspec").setLevel(logging.DEBUG)


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
            line = f"{task.description}: {task.completed:.0f}{total} {task.fields.get('detail', '')}".rstrip()
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
        TextColumn("{task.fields[detail]}"),
        console=notes,
        transient=True,
        disable=not notes.is_terminal,
    ) as bar:
        yield bar

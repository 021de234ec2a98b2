"""The first screen on standard output, and with --verbose the details below it.

In: a `FirstScreen`, and the details of the command.
Out: text for a terminal, a file or a pipe.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from rich.console import RenderableType

from shadowspec.cli.console import is_verbose, results
from shadowspec.reports.content.screen_rows import FirstScreen
from shadowspec.reports.render.first_screen import draw_screen


def print_screen(screen: FirstScreen, details: Callable[[], Iterable[RenderableType]] = tuple) -> None:
    """Print a command's answer.

    Args:
        details: everything that the screen leaves out; asked for only with --verbose.
    """
    for line in draw_screen(screen, results.width, is_whole=is_verbose()):
        results.print(line, soft_wrap=True)
    if is_verbose():
        results.print()
        for part in details():
            results.print(part, soft_wrap=isinstance(part, str), markup=False, highlight=False)


def screen_lines(screen: FirstScreen) -> list[str]:
    """The same as plain lines, for an output that something else writes."""
    return [line.plain for line in draw_screen(screen, results.width, is_whole=is_verbose())]

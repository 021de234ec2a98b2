"""A report as the terminal prints it."""

from __future__ import annotations

from collections.abc import Sequence
from io import StringIO

from rich.console import Console


def printed(tables: Sequence[object]) -> str:
    console = Console(file=StringIO(), width=400, color_system=None)
    for table in tables:
        console.print(table)
    file = console.file
    assert isinstance(file, StringIO)
    return file.getvalue()

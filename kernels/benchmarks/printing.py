"""How the benchmarks print their figures."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table


def show(title: str, rows: list[dict[str, Any]]) -> None:
    """Print one table."""
    table = Table(*rows[0], title=title)
    for row in rows:
        table.add_row(*(f"{each:.4g}" if isinstance(each, float) else str(each) for each in row.values()))
    Console().print(table)

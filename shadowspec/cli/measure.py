"""`shadowspec run`: measure files of mirrored traffic."""

from __future__ import annotations

from typing import Annotated

import typer

from shadowspec.cli.console import print_json, results
from shadowspec.cli.options import ConfigOption, JsonOption


def run(
    files: Annotated[list[str], typer.Argument(help="Files of JSON lines (gzip or not); - is standard input.")],
    config_path: ConfigOption = None,
    max_requests: Annotated[
        int | None, typer.Option("--max-requests", min=1, help="Stop reading once so many requests are measured.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Measure mirrored traffic: both arms on every timed request, rows into the database.

    Safe to interrupt: the same command goes on where it stopped, and a second full run changes nothing.
    """
    from shadowspec.cli.pipeline import measure_files
    from shadowspec.config import find_config, load_config

    config = load_config(find_config(config_path))
    done = measure_files(config, files, max_requests=max_requests)
    totals = {
        "records_read": sum(progress.records_read for progress in done),
        "blocks_measured": sum(progress.blocks_measured for progress in done),
        "blocks_found": sum(progress.blocks_found for progress in done),
        "requests_measured": sum(progress.requests_measured for progress in done),
    }
    if as_json:
        print_json({"files": files, **totals})
        return
    results.print(
        f"{totals['records_read']} records read, {totals['requests_measured']} requests measured in "
        f"{totals['blocks_measured']} blocks"
        + (f" ({totals['blocks_found']} blocks were there already)" if totals["blocks_found"] else ""),
        highlight=False,
    )
    results.print("next: shadowspec gate, then shadowspec report", highlight=False)

"""`shadowspec report`: the gating report of everything stored, as of the latest decisions."""

from __future__ import annotations

from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from shadowspec.cli.console import notes, results
from shadowspec.cli.options import ConfigOption

DATA_NOTE = "Mirrored traffic, measured in shadow: nothing was returned to anyone."
DEFAULT_OUT = Path("report.html")


class Format(StrEnum):
    """What a report is written as."""

    HTML = "html"
    MD = "md"
    JSON = "json"


def write_file(path: Path, text: str) -> None:
    """Write a result file.

    Raises:
        InputError: the place cannot be written to.
    """
    from shadowspec.errors import InputError

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({error.strerror})") from error


def report(
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="File to write; default: report.html, else standard output.")
    ] = None,
    form: Annotated[Format, typer.Option("--format", "-f", help="What to write.")] = Format.HTML,
    config_path: ConfigOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="The same as --format json.")] = False,
) -> None:
    """Write the gating report: verdicts, their evidence, latency, acceptance, parity, memory and the funnel."""
    from shadowspec.config import find_config, load_config
    from shadowspec.reports import build_report, render_html, render_json, render_markdown
    from shadowspec.store import Store

    form = Format.JSON if as_json else form
    config = load_config(find_config(config_path))
    policies = {name: settings.policy for name, settings in config.endpoints.items()}
    with Store.open(config.database_url) as store:
        built = build_report(store, policies, datetime.now(UTC), data_note=DATA_NOTE)
    text = {Format.HTML: render_html, Format.MD: render_markdown, Format.JSON: render_json}[form](built)
    if out is None and form is not Format.HTML:
        results.out(text, highlight=False)
        return
    path = out or DEFAULT_OUT
    write_file(path, text)
    notes.print(f"written: {path}", highlight=False)

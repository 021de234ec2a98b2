"""`shadowspec doctor`: check a configuration, and count what it would measure of a recording."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from shadowspec.app.configuration_checks import doctor_document, examine
from shadowspec.cli.console import print_json, results
from shadowspec.cli.options import ConfigOption, JsonOption, MapOption, chosen_map


def doctor(
    config_path: ConfigOption = None,
    traffic: Annotated[
        str | None,
        typer.Option(
            "--traffic",
            metavar="FILE",
            help="Also count the records of this recording that the endpoints would measure.",
        ),
    ] = None,
    field_map: MapOption = None,
    as_json: JsonOption = False,
) -> None:
    """Check configuration, secret, database, broker, schedule, receivers, scores, device, models and servers.

    A failed check says how to fix it. Receivers get no message; each server gets one short request and one short
    chat. With --traffic it also counts the records that each endpoint takes, those it refuses and why, and the
    requests to be timed.
    """
    checked = examine(config_path, traffic, chosen_map(field_map))
    if as_json:
        print_json(doctor_document(checked))
    else:
        table = Table("check", "", "found", box=None)
        for result in checked:
            table.add_row(result.check, "[green]ok[/]" if result.ok else "[bold red]wrong[/]", escape(result.found))
        results.print(table)
    if failed := [result.exit_code for result in checked if not result.ok]:
        raise typer.Exit(failed[0])

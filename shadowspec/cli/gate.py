"""`shadowspec gate`: decide from the stored evidence."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from shadowspec.cli.console import print_json, results
from shadowspec.cli.options import ConfigOption, JsonOption

if TYPE_CHECKING:
    from shadowspec.config import Config
    from shadowspec.reports import Report
    from shadowspec.types import Decision


def decide(config: Config, endpoint: str | None, *, input_ended: bool) -> tuple[list[Decision], Report]:
    """Decide the configured endpoints (or one of them), append the decisions, and report them."""
    from shadowspec.cli.report import DATA_NOTE
    from shadowspec.errors import ConfigError, NoDataError
    from shadowspec.gating import run_gate
    from shadowspec.reports import build_report
    from shadowspec.store import Store

    policies = {name: settings.policy for name, settings in config.endpoints.items()}
    if endpoint is not None and endpoint not in policies:
        known = ", ".join(policies) or "none"
        raise ConfigError(f"{config.path}: no endpoint {endpoint!r} is configured (configured: {known})")
    with Store.open(config.database_url) as store:
        if not store.endpoints():
            raise NoDataError("nothing has been measured yet: run `shadowspec run FILE.jsonl` first")
        wanted = {name: policies[name] for name in ([endpoint] if endpoint else policies)}
        decisions = run_gate(store, wanted, input_ended=input_ended)
        shown = build_report(store, policies, datetime.now(UTC), data_note=DATA_NOTE)
    if endpoint is not None:
        shown = replace(shown, endpoints=tuple(part for part in shown.endpoints if part.name == endpoint))
    return decisions, shown


def gate(
    endpoint: Annotated[str | None, typer.Option("--endpoint", "-e", help="Decide this endpoint alone.")] = None,
    input_continues: Annotated[
        bool,
        typer.Option(
            "--input-continues",
            help="More records of the same sessions will follow: leave the newest sessions open.",
        ),
    ] = False,
    config_path: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Decide ENABLE, DISABLE or HOLD per endpoint and slice from the stored evidence, and keep the decisions."""
    from shadowspec.cli.decisions import decision_document
    from shadowspec.config import find_config, load_config
    from shadowspec.reports import terminal_tables

    config = load_config(find_config(config_path))
    decisions, shown = decide(config, endpoint, input_ended=not input_continues)
    if as_json:
        print_json({"decisions": [decision_document(decision) for decision in decisions]})
        return
    for table in terminal_tables(shown):
        results.print(table)

"""`shadowspec override`: the kill switch, and who has used it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from shadowspec.app.console import notes, print_json, results
from shadowspec.cli.options import ConfigOption, JsonOption

if TYPE_CHECKING:
    from shadowspec.types import OverrideRecord

app = typer.Typer(help="Keep speculation off over the gate's head, and see who did.", no_args_is_help=True)

ReasonOption = Annotated[str, typer.Option("--reason", help="Why; kept for ever.")]
AuthorOption = Annotated[str, typer.Option("--author", help="Who orders it; kept for ever.")]


@app.command("set")
def set_(
    endpoint: Annotated[str, typer.Option("--endpoint", "-e", help="The endpoint, all of its slices and loads.")],
    reason: ReasonOption,
    author: AuthorOption,
    slices: Annotated[
        list[str] | None,
        typer.Option("--slice", help="label=value: only slices that have this label. May be given several times."),
    ] = None,
    load: Annotated[int | None, typer.Option("--load", min=1, help="Only at this concurrency.")] = None,
    verdict: Annotated[
        str, typer.Option("--verdict", help="DISABLE, or HOLD: off too, but no failure in CI by itself.")
    ] = "DISABLE",
    expires_in: Annotated[
        str | None, typer.Option("--expires-in", help="30m, 12h or 7d; without it until it is cleared.")
    ] = None,
    config_path: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Force a verdict on everything that matches, from now on. ENABLE cannot be forced.

    What was decided is not changed, and evidence goes on being collected: cleared, the gate's own word counts again.
    """
    from shadowspec.config import find_config, load_config
    from shadowspec.rollout import orders
    from shadowspec.store import Store
    from shadowspec.text import parse_duration
    from shadowspec.types import Override

    now = datetime.now(UTC)
    config = load_config(find_config(config_path))
    override = Override(
        override_id=0,
        endpoint=endpoint,
        slice_key=orders.ordered_slice(slices or [], "--slice"),
        concurrency=load,
        verdict=orders.ordered_verdict(verdict, "--verdict"),
        reason=orders.ordered_text(reason, "--reason"),
        author=orders.ordered_text(author, "--author"),
        created_at=now,
        expires_at=None if expires_in is None else now + parse_duration(expires_in),
    )
    with Store.open(config.database_url) as store:
        done = orders.set_override(store, override, config.slice_by)
    new_override = done.record.override
    if as_json:
        document = override_document(done.record, now)
        print_json({"override": document, "num_decisions_covered": done.num_decisions_covered})
        return
    until = (
        "until it is cleared"
        if new_override.expires_at is None
        else f"until {new_override.expires_at:%Y-%m-%d %H:%M} UTC"
    )
    results.print(
        f"override {new_override.override_id}: {orders.scope_words(new_override)} is {new_override.verdict} {until}",
        **_PLAIN,
    )
    if not done.num_decisions_covered:
        notes.print("no decision is covered by it yet; it will cover those to come", **_PLAIN)


@app.command()
def clear(
    override_id: Annotated[int, typer.Argument(help="Its number, as `override list` shows it.")],
    reason: ReasonOption,
    author: AuthorOption,
    config_path: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """End an override: the gate's own word counts again."""
    from shadowspec.config import find_config, load_config
    from shadowspec.rollout import orders
    from shadowspec.store import Store
    from shadowspec.types import Clearing

    now = datetime.now(UTC)
    why, who = orders.ordered_text(reason, "--reason"), orders.ordered_text(author, "--author")
    with Store.open(load_config(find_config(config_path)).database_url) as store:
        cleared = orders.clear_override(store, Clearing(override_id, why, who, now))
    if as_json:
        print_json({"override": override_document(cleared, now)})
        return
    results.print(f"override {override_id} is cleared: {orders.scope_words(cleared.override)}", **_PLAIN)


@app.command("list")
def list_(
    endpoint: Annotated[str | None, typer.Option("--endpoint", "-e", help="Only this endpoint's.")] = None,
    all_: Annotated[bool, typer.Option("--all", help="Also those that are cleared or expired.")] = False,
    config_path: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the overrides in force, or the whole history of them."""
    from shadowspec.config import find_config, load_config
    from shadowspec.rollout import orders
    from shadowspec.store import Store

    now = datetime.now(UTC)
    with Store.open(load_config(find_config(config_path)).database_url) as store:
        found = [record for record in store.overrides(endpoint) if all_ or record.is_active(now)]
    if as_json:
        print_json({"overrides": [override_document(record, now) for record in found]})
        return
    if not found:
        results.print("no override was ever set" if all_ else "no override is in force")
        return
    table = Table("id", "covers", "verdict", "set", "by", "reason", "state", box=None)
    for record in found:
        override = record.override
        cells = (
            str(override.override_id),
            orders.scope_words(override),
            override.verdict.value,
            f"{override.created_at:%Y-%m-%d %H:%M}",
            override.author,
        )
        table.add_row(*(escape(cell) for cell in (*cells, override.reason, orders.state_words(record, now))))
    results.print(table)


def override_document(record: OverrideRecord, now: datetime) -> dict[str, Any]:
    """An override with its history, as --json shows it."""
    override, clearing = record.override, record.clearing
    return {
        "override_id": override.override_id,
        "endpoint": override.endpoint,
        "slice": override.slice_labels,
        "load": None if override.concurrency is None else {"concurrency": override.concurrency},
        "verdict": override.verdict.value,
        "reason": override.reason,
        "author": override.author,
        "created_at": override.created_at.isoformat(),
        "expires_at": None if override.expires_at is None else override.expires_at.isoformat(),
        "is_active": record.is_active(now),
        "cleared_at": None if clearing is None else clearing.cleared_at.isoformat(),
        "cleared_by": None if clearing is None else clearing.author,
        "clearing_reason": None if clearing is None else clearing.reason,
    }


_PLAIN: dict[str, Any] = {"markup": False, "highlight": False, "soft_wrap": True}

"""`shadowspec override`: the kill switch, and who has used it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from shadowspec.app.progress_bar import notes
from shadowspec.cli.console import print_json, results
from shadowspec.cli.options import ConfigOption, EndpointOption, JsonOption, LoadOption, OneEndpointOption, SliceOption
from shadowspec.config import find_config, load_config
from shadowspec.rollout import orders
from shadowspec.store import Store
from shadowspec.text import parse_duration
from shadowspec.types import Clearing, Override, OverrideRecord, Verdict
from shadowspec.types.public_documents import PublicDocument, PublicValue, public, shows

app = typer.Typer(no_args_is_help=True)


class ForcedVerdict(StrEnum):
    """The verdicts that can be forced."""

    DISABLE = Verdict.DISABLE
    HOLD = Verdict.HOLD


@shows(Override)
class OverrideDocument(PublicValue, frozen=True, kw_only=True):
    """An override with its history; a load that is null is every load."""

    is_active: bool
    cleared_at: Annotated[datetime | None, "clearing.cleared_at"]
    cleared_by: Annotated[str | None, "clearing.author"]
    clearing_reason: Annotated[str | None, "clearing.reason"]


class OverrideSetDocument(PublicDocument, frozen=True, kw_only=True):
    """The result of `override set --json`."""

    override: OverrideDocument
    num_decisions_covered: int


class OverrideClearDocument(PublicDocument, frozen=True, kw_only=True):
    """The result of `override clear --json`."""

    override: OverrideDocument


class OverrideListDocument(PublicDocument, frozen=True, kw_only=True):
    """The overrides of `override list --json`."""

    overrides: Sequence[OverrideDocument]


ReasonOption = Annotated[str, typer.Option("--reason", metavar="TEXT", help="Why; stored permanently.")]
AuthorOption = Annotated[str, typer.Option("--author", metavar="NAME", help="Who orders it; stored permanently.")]


@app.callback()
def override() -> None:
    """Turn speculation off, overriding the gate, and list who did."""


@app.command("set")
def set_(
    endpoint: OneEndpointOption,
    reason: ReasonOption,
    author: AuthorOption,
    slices: SliceOption = None,
    load: LoadOption = None,
    verdict: Annotated[
        ForcedVerdict,
        typer.Option(
            "--verdict", metavar="<DISABLE|HOLD>", case_sensitive=False, help="HOLD is off too, but does not fail CI."
        ),
    ] = ForcedVerdict.DISABLE,
    expires_in: Annotated[
        str | None,
        typer.Option(
            "--expires-in", metavar="TIME", help="End it after this time, such as 12h; default: when cleared."
        ),
    ] = None,
    allow_unseen: Annotated[
        bool, typer.Option("--allow-unseen", help="Also accept a slice or load that no record has had.")
    ] = False,
    config_path: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Force a verdict on every slice and load that matches, from now on. ENABLE cannot be forced, nor HOLD on
    a DISABLE.

    Decisions stay as they are and evidence is still collected; once cleared, the gate's verdict applies again.
    """
    now = datetime.now(UTC)
    config = load_config(find_config(config_path))
    override = Override(
        override_id=0,
        endpoint=endpoint,
        slice_key=orders.ordered_slice(slices or []),
        concurrency=load,
        verdict=Verdict(verdict.value),
        reason=orders.ordered_text(reason, "--reason"),
        author=orders.ordered_author(author, "--author"),
        created_at=now,
        expires_at=None if expires_in is None else now + parse_duration(expires_in),
    )
    with Store.open(config.database_url) as store:
        done = orders.set_override(store, override, config.slice_by, config.concurrencies, allow_unseen=allow_unseen)
    new_override = done.record.override
    if as_json:
        document = override_document(done.record, now)
        print_json(OverrideSetDocument(override=document, num_decisions_covered=done.num_decisions_covered))
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
        notes.print("it covers no decision yet, only future ones", **_PLAIN)


@app.command()
def clear(
    override_id: Annotated[int, typer.Argument(help="Its number, as `override list` shows it.")],
    reason: ReasonOption,
    author: AuthorOption,
    config_path: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """End an override; the gate's verdict applies again."""
    now = datetime.now(UTC)
    why, who = orders.ordered_text(reason, "--reason"), orders.ordered_author(author, "--author")
    with Store.open(load_config(find_config(config_path)).database_url) as store:
        cleared = orders.clear_override(store, Clearing(override_id, why, who, now))
    if as_json:
        print_json(OverrideClearDocument(override=override_document(cleared, now)))
        return
    results.print(f"override {override_id} is cleared: {orders.scope_words(cleared.override)}", **_PLAIN)


@app.command("list")
def list_(
    endpoint: EndpointOption = None,
    all_: Annotated[bool, typer.Option("--all", help="Also cleared and expired ones.")] = False,
    config_path: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the overrides in force, or all of them."""
    now = datetime.now(UTC)
    config = load_config(find_config(config_path))
    with Store.open(config.database_url) as store:
        records = store.overrides(endpoint)
        if endpoint is not None and not records and endpoint not in (known := {*config.endpoints, *store.endpoints()}):
            raise orders.unknown_endpoint(endpoint, sorted(known))
        records = [record for record in records if all_ or record.is_active(now)]
    if as_json:
        print_json(OverrideListDocument(overrides=[override_document(record, now) for record in records]))
        return
    if not records:
        results.print("no override has been set" if all_ else "no override is in force")
        return
    table = Table("id", "covers", "verdict", "set", "by", "reason", "state", box=None)
    for record in records:
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


def override_document(record: OverrideRecord, now: datetime) -> OverrideDocument:
    """An override with its history, as --json shows it."""
    return public(OverrideDocument, record, record.override, is_active=record.is_active(now))


_PLAIN: dict[str, Any] = {"markup": False, "highlight": False, "soft_wrap": True}

"""`shadowspec db`: migrations, retention and roles."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Annotated

import typer

from shadowspec import store
from shadowspec.app.progress_bar import notes
from shadowspec.cli.console import print_json, results
from shadowspec.cli.options import ConfigOption, JsonOption
from shadowspec.config import find_config, load_config
from shadowspec.errors import ExitCode
from shadowspec.store import Store
from shadowspec.store.admin.retention import Removal
from shadowspec.types import RoleKind
from shadowspec.types.public_documents import PublicDocument, public, shows


class UpgradeDocument(PublicDocument, frozen=True, kw_only=True):
    """The revisions of `db upgrade --json`."""

    before: str | None
    after: str


class RevisionDocument(PublicDocument, frozen=True, kw_only=True):
    """The revisions of `db current --json`: the database's, and the one that this version needs."""

    revision: str | None
    head: str


class SchemaDocument(PublicDocument, frozen=True, kw_only=True):
    """The differences of `db check --json`."""

    differences: Sequence[str]


@shows(Removal)
class RemovalDocument(PublicDocument, frozen=True, kw_only=True):
    """The rows that `db retain --json` removed, or would in a dry run."""

    dry_run: bool


class ConsumerDocument(PublicDocument, frozen=True, kw_only=True):
    """The consumer that `db forget-consumer --json` forgot."""

    consumer: str
    num_partitions: int


class GrantDocument(PublicDocument, frozen=True, kw_only=True):
    """What `db grant --json` did."""

    role: str
    kind: RoleKind
    statements: Sequence[str]


app = typer.Typer(no_args_is_help=True)


def _url(config_path: ConfigOption) -> str:
    return load_config(find_config(config_path)).database_url


@app.callback()
def database() -> None:
    """Migrate the database, check its schema, remove old rows, and grant rights."""


@app.command()
def upgrade(config_path: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Create the database, or migrate it to this version's schema."""
    url = _url(config_path)
    before, after = store.current(url), store.upgrade(url)
    if as_json:
        print_json(UpgradeDocument(before=before, after=after))
        return
    results.print(f"database is at revision {after}" + ("" if before != after else " (it already was)"))


@app.command()
def current(config_path: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Show the database's revision and the one that this version needs."""
    revision, wanted = store.current(_url(config_path)), store.head()
    if as_json:
        print_json(RevisionDocument(revision=revision, head=wanted))
        return
    results.print(f"database: {revision or 'no schema yet'}, this version: {wanted}", highlight=False)


@app.command()
def check(config_path: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Compare the database's tables with this version's; exit code 2 if they differ."""
    differences = store.check(_url(config_path))
    if as_json:
        print_json(SchemaDocument(differences=differences))
    else:
        for difference in differences or ["the database's tables are those of this version"]:
            results.print(difference, highlight=False)
    if differences:
        raise typer.Exit(ExitCode.USAGE)


@app.command()
def retain(
    days: Annotated[int, typer.Option("--days", min=1, help="Keep rows younger than this.")],
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the rows that the command would remove, and remove nothing.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Also remove evidence of undecided hypotheses.")] = False,
    config_path: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Remove records, runs and blocks of old traffic; rollups, record counts and decisions stay."""
    with Store.open(_url(config_path)) as store:
        removal = store.retain(timedelta(days=days), is_dry_run=dry_run, is_forced=force)
    if as_json:
        print_json(public(RemovalDocument, removal, dry_run=dry_run))
        return
    what = f"{removal.num_runs} runs and {removal.num_records} records older than {removal.cut:%Y-%m-%d %H:%M} UTC"
    results.print(f"{'would remove' if dry_run else 'removed'} {what}", highlight=False)
    if removal.num_blocks is not None:
        results.print(f"removed {removal.num_blocks} blocks that had no run left", highlight=False)
    if removal.partitions:
        results.print(f"whole partitions: {', '.join(removal.partitions)}", highlight=False)
    if removal.undecided_endpoints:
        names = ", ".join(removal.undecided_endpoints)
        notes.print(f"evidence of undecided hypotheses is among it: {names}", markup=False, highlight=False)


@app.command("forget-consumer")
def forget_consumer(
    name: Annotated[str, typer.Argument(help="The consumer group.")],
    force: Annotated[bool, typer.Option("--force", help="Also if it was active within the last 10 minutes.")] = False,
    config_path: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Stop a retired consumer from blocking new evidence."""
    with Store.open(_url(config_path)) as store:
        number = store.forget_consumer(name, is_forced=force)
    if as_json:
        print_json(ConsumerDocument(consumer=name, num_partitions=number))
        return
    results.print(f"consumer {name} no longer blocks {number} partitions", markup=False, highlight=False)


@app.command()
def grant(
    role_kind: Annotated[RoleKind, typer.Argument(help="Task of the role.")],
    role_name: Annotated[str, typer.Argument(help="An existing role of the Postgres server.")],
    config_path: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Give a Postgres role the rights of its kind, and no others; run it again after every `db upgrade`."""
    with Store.open(_url(config_path)) as store:
        statements = store.grant(role_kind, role_name)
    if as_json:
        print_json(GrantDocument(role=role_name, kind=role_kind, statements=statements))
        return
    results.print(f"role {role_name} is now a {role_kind}", markup=False, highlight=False)

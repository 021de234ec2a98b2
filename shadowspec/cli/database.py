"""`shadowspec db`: migrations, retention and roles."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

import typer

from shadowspec.app.console import notes, print_json, results
from shadowspec.cli.options import ConfigOption, JsonOption
from shadowspec.errors import ExitCode

app = typer.Typer(
    help="Migrate the database, check its schema, keep it small, and grant rights on it.", no_args_is_help=True
)


def _url(config_path: ConfigOption) -> str:
    from shadowspec.config import find_config, load_config

    return load_config(find_config(config_path)).database_url


@app.command()
def upgrade(config_path: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Bring the database to this version's schema; creates it where there is none."""
    from shadowspec import store

    url = _url(config_path)
    before, after = store.current(url), store.upgrade(url)
    if as_json:
        print_json({"before": before, "after": after})
        return
    results.print(f"database is at revision {after}" + ("" if before != after else " (it already was)"))


@app.command()
def current(config_path: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Show the database's revision and the one that this version needs."""
    from shadowspec import store

    revision, wanted = store.current(_url(config_path)), store.head()
    if as_json:
        print_json({"revision": revision, "head": wanted})
        return
    results.print(f"database: {revision or 'no schema yet'}, this version: {wanted}", highlight=False)


@app.command()
def check(config_path: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Compare the database's tables with the code's; exit 2 if they differ."""
    from shadowspec import store

    differences = store.check(_url(config_path))
    if as_json:
        print_json({"differences": differences})
    else:
        for difference in differences or ["the database's tables are as the code expects them"]:
            results.print(difference, highlight=False)
    if differences:
        raise typer.Exit(ExitCode.USAGE)


@app.command()
def retain(
    days: Annotated[int, typer.Option("--days", min=1, help="Keep what is younger than this.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be removed, and remove nothing.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Also where undecided hypotheses rest on it.")] = False,
    config_path: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Remove records, runs and blocks of old traffic; rollups, funnel and decisions are kept for ever."""
    from shadowspec.store import Store

    with Store.open(_url(config_path)) as store:
        removal = store.retain(timedelta(days=days), is_dry_run=dry_run, is_forced=force)
    if as_json:
        document = {
            "cut": removal.cut.isoformat(),
            "dry_run": dry_run,
            "partitions": list(removal.partitions),
            "num_runs": removal.num_runs,
            "num_records": removal.num_records,
            "num_blocks": removal.num_blocks,
            "undecided_endpoints": list(removal.undecided_endpoints),
        }
        print_json(document)
        return
    what = f"{removal.num_runs} runs and {removal.num_records} records older than {removal.cut:%Y-%m-%d %H:%M} UTC"
    results.print(f"{'would remove' if dry_run else 'removed'} {what}", highlight=False)
    if removal.num_blocks is not None:
        results.print(f"removed {removal.num_blocks} blocks that had no run left", highlight=False)
    if removal.partitions:
        results.print(f"whole partitions: {', '.join(removal.partitions)}", highlight=False)
    if removal.undecided_endpoints:
        names = ", ".join(removal.undecided_endpoints)
        notes.print(f"undecided hypotheses rest on such runs: {names}", markup=False, highlight=False)


@app.command("forget-consumer")
def forget_consumer(
    name: Annotated[str, typer.Argument(help="The consumer group, as the ledger has it.")],
    force: Annotated[bool, typer.Option("--force", help="Also where it moved within the last 10 minutes.")] = False,
    config_path: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Let a consumer that was retired in the midst of its input hold back the evidence no longer."""
    from shadowspec.store import Store

    with Store.open(_url(config_path)) as store:
        number = store.forget_consumer(name, is_forced=force)
    if as_json:
        print_json({"consumer": name, "num_partitions": number})
        return
    results.print(f"consumer {name} held back {number} partitions and does so no longer", markup=False, highlight=False)


@app.command()
def grant(
    role_kind: Annotated[str, typer.Argument(help="writer, gate, reader, operator or scheduler.")],
    role_name: Annotated[str, typer.Argument(help="An existing role of the Postgres server.")],
    config_path: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Give a Postgres role what its kind needs, and no more; run it again after every `db upgrade`."""
    from shadowspec.errors import UsageError
    from shadowspec.store import RoleKind, Store

    if role_kind not in set(RoleKind):
        raise UsageError(f"no kind of role {role_kind!r}; there are {', '.join(RoleKind)}")
    with Store.open(_url(config_path)) as store:
        statements = store.grant(RoleKind(role_kind), role_name)
    if as_json:
        print_json({"role": role_name, "kind": role_kind, "statements": statements})
        return
    results.print(f"role {role_name} is now a {role_kind}", markup=False, highlight=False)

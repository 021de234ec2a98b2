"""`shadowspec db`: migrations."""

from __future__ import annotations

import typer

from shadowspec.cli.console import print_json, results
from shadowspec.cli.options import ConfigOption, JsonOption

app = typer.Typer(help="Migrate the database and check its schema.", no_args_is_help=True)


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
        raise typer.Exit(2)

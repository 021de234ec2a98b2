"""The reference in the documentation is what the commands say of themselves."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import Annotated

import typer

from docs.command_reference import reference
from shadowspec.cli.main import app

CLI_PAGE = Path(__file__).parents[2] / "docs" / "cli.md"


class Form(enum.StrEnum):
    HTML = "html"
    TEXT = "text"


def test_the_reference_is_current() -> None:
    assert CLI_PAGE.read_text(encoding="utf-8") == reference(app), "docs/cli.md is out of date: run `make docs`"


def test_arguments_options_defaults_and_subcommands() -> None:
    small, group = typer.Typer(add_completion=False), typer.Typer(help="Of a group.")

    @small.command()
    def write(
        files: Annotated[list[str], typer.Argument(help="What to write.")],
        topic: Annotated[str, typer.Option("--topic", "-t", help="Where to.")],
        form: Annotated[Form, typer.Option("--format", help="How, this | that.")] = Form.TEXT,
        limit: Annotated[int | None, typer.Option(help="How much.")] = None,
        force: Annotated[bool, typer.Option("--force", help="Even so.")] = False,
        secret: Annotated[str, typer.Option(hidden=True)] = "",
    ) -> None:
        """Write it.

        And say so.
        """

    @group.command("list")
    def list_all(path: Annotated[str, typer.Argument(help="From here.")] = "here") -> None:
        """List it."""

    small.add_typer(group, name="things")
    page = reference(small)
    for expected in (
        "## `shadowspec write [OPTIONS] FILES...`\n\nWrite it.\n\nAnd say so.\n",
        "- `FILES...`: What to write.\n",
        "- `--topic, -t <str>`: Where to. Required.\n",
        "- `--format <html|text>`: How, this | that. Default: `text`.\n",
        "- `--limit <int>`: How much.\n",
        "- `--force`: Even so.\n",
        "## `shadowspec things COMMAND`\n\nOf a group.\n",
        "## `shadowspec things list [PATH]`\n\nList it.\n",
        "- `[PATH]`: From here. Default: `here`.\n",
    ):
        assert expected in page
    assert "secret" not in page

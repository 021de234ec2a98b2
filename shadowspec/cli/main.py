"""The `shadowspec` command: its options, its commands, and how every failure becomes one message and a code."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Final

import typer

from shadowspec.app.console import notes, set_up_logging
from shadowspec.cli import (
    backfill,
    check,
    dashboard,
    database,
    dead_letters,
    demonstrate,
    distill,
    doctor,
    export,
    gate,
    init,
    live,
    override,
    plan,
    produce,
    profile_device,
    profile_server,
    replay,
    report,
    run,
    schedule,
    simulate,
    try_out,
    worker,
)
from shadowspec.errors import ExitCode, ShadowSpecError

app = typer.Typer(
    name="shadowspec",
    help="Shadow-mode analyzer and rollout gate for speculative decoding.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)
# In the order of use.
GROUPS: Mapping[str, Sequence[Callable[..., None]]] = {
    "Start": (demonstrate.demo, try_out.try_out, init.init, doctor.doctor),
    "Measure": (
        run.run, worker.worker, produce.produce, replay.replay, backfill.backfill, distill.distill,
        profile_device.profile_device, profile_server.profile_server,
    ),
    "Decide": (gate.gate, plan.plan, report.report, dashboard.dashboard, simulate.simulate),
    "Promote": (check.check, export.export),
    "Operate": (live.live, schedule.schedule),
}  # fmt: skip
NAMES: Mapping[Callable[..., None], str] = {try_out.try_out: "try"}  # of functions that cannot have their command's
for group, commands in GROUPS.items():
    for command in commands:
        app.command(NAMES.get(command), rich_help_panel=group)(command)
app.add_typer(database.app, name="db", rich_help_panel="Operate")
app.add_typer(dead_letters.app, name="dead-letters", rich_help_panel="Operate")
app.add_typer(override.app, name="override", rich_help_panel="Promote")

GO_ON: Final = frozenset({"run", "backfill", "demo", "try"})  # where they were interrupted


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import PackageNotFoundError, version

        try:
            typer.echo(f"shadowspec {version('shadowspec')}")
        except PackageNotFoundError:
            typer.echo("shadowspec (not installed: running from a source tree)")
        raise typer.Exit


@app.callback()
def _options(
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Log what is being done, to stderr.")] = False,
    _version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    set_up_logging(verbose)


def main() -> None:
    """Run the command line; every failure ends in one message on stderr and an exit code of the contract."""
    try:
        app()
    except ShadowSpecError as error:
        _fail(str(error), error.exit_code)
    except SystemExit as ended:
        if ended.code == ExitCode.INTERRUPTED:  # typer's own answer to Ctrl-C, which says nothing
            goes_on = next((word for word in sys.argv[1:] if not word.startswith("-")), "") in GO_ON
            more = "; what was finished is stored, run the same command again to go on" if goes_on else ""
            notes.print(f"interrupted{more}")
        raise
    except Exception as error:
        if "-v" in sys.argv or "--verbose" in sys.argv or os.environ.get("SHADOWSPEC_DEBUG"):
            traceback.print_exc()
            sys.exit(ExitCode.INTERNAL)
        # The text of an unforeseen error may quote a prompt: its type is all that is shown unasked.
        _fail(
            f"internal error ({type(error).__name__}); this is a fault of shadowspec. "
            "Run again with --verbose before the command for the traceback (it may quote input).",
            ExitCode.INTERNAL,
        )


def _fail(message: str, exit_code: int) -> None:
    notes.print("[bold red]error:[/]", end=" ")
    notes.print(message, markup=False, highlight=False, soft_wrap=True)
    sys.exit(exit_code)

"""The `shadowspec` command: its options, its commands, and how every failure becomes one message and a code.

It does what typer does not: options under their former names, --verbose after the command, and plainer help.
"""

from __future__ import annotations

import functools
import inspect
import os
import re
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Final

import typer
from typer.core import TyperCommand, TyperGroup

from shadowspec.app.console import notes, set_up_logging
from shadowspec.cli import (
    backfill,
    check,
    classify,
    dashboard,
    database,
    dead_letters,
    demonstrate,
    distill,
    doctor,
    evaluate,
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

VERBOSE: Final = ("--verbose", "-v")
# CI scripts may use them, so they are accepted; help shows the new names only.
FORMER_NAMES: Final[Mapping[str, Mapping[str, str]]] = {
    "demo": {"--requests": "--max-requests", "-n": "--max-requests"},
    "plan": {"--traffic": "--rate"},
    "produce": {"--limit": "--max-messages"},
    "dead-letters": {"--limit": "--max-messages"},
}


def arrange(arguments: Sequence[str]) -> list[str]:
    """The arguments as the commands declare them: --verbose before the command, former names replaced."""
    own, end, rest = _split(arguments)
    former = FORMER_NAMES.get(command_word(own), {})
    is_verbose = any(each in VERBOSE for each in own)
    renamed = []
    for each in own:
        if each not in VERBOSE:
            name, equals, value = each.partition("=")
            renamed.append(f"{former.get(name, name)}{equals}{value}")
    return [*([VERBOSE[0]] if is_verbose else []), *renamed, *end, *rest]


def command_word(arguments: Sequence[str]) -> str:
    """The command that these arguments name; "" if none."""
    return next((each for each in arguments if not each.startswith("-")), "")


def _split(arguments: Sequence[str]) -> tuple[list[str], list[str], list[str]]:
    """The arguments before `--`, it, and those after it."""
    place = arguments.index("--") if "--" in arguments else len(arguments)
    return list(arguments[:place]), list(arguments[place : place + 1]), list(arguments[place + 1 :])


def _without_flag_types(parameters: list[Any]) -> list[Any]:
    """The parameters; a flag takes no value, so help names no type of one."""
    for each in parameters:
        if getattr(each, "is_flag", False) and each.metavar is None:
            each.metavar = ""
    return parameters


class Command(TyperCommand):
    """A command whose help wraps its paragraphs; typer keeps the line breaks of the docstring."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        paragraphs = inspect.cleandoc(self.help or "").split("\n\n")
        self.help = "\n\n".join(" ".join(each.split()) for each in paragraphs)

    def get_params(self, ctx: Any) -> list[Any]:
        return _without_flag_types(super().get_params(ctx))


class Group(TyperGroup):
    """A group of commands."""

    def get_params(self, ctx: Any) -> list[Any]:
        return _without_flag_types(super().get_params(ctx))


def use_commands(app: typer.Typer) -> None:
    """Make every command of `app`, and of the groups in it, a `Command`."""
    for info in app.registered_commands:
        info.cls = Command
    for group in app.registered_groups:
        if group.typer_instance is not None:
            group.cls = Group
            use_commands(group.typer_instance)


# What typer raises for a wrong command line, by the one of its errors that it exports.
CommandLineError: Any = next(kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException")

app = typer.Typer(
    name="shadowspec",
    cls=Group,
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
        evaluate.evaluate,
        profile_device.profile_device, profile_server.profile_server,
    ),
    "Decide": (gate.gate, plan.plan, report.report, dashboard.dashboard, simulate.simulate),
    "Promote": (check.check, export.export, classify.classify),
    "Operate": (live.live, schedule.schedule),
}  # fmt: skip
NAMES: Mapping[Callable[..., None], str] = {try_out.try_out: "try"}  # of functions that cannot have their command's
for group, commands in GROUPS.items():
    for command in commands:
        app.command(NAMES.get(command), rich_help_panel=group)(command)
app.add_typer(database.app, name="db", rich_help_panel="Operate")
app.add_typer(dead_letters.app, name="dead-letters", rich_help_panel="Operate")
app.add_typer(override.app, name="override", rich_help_panel="Promote")
use_commands(app)

# What is written otherwise in messages about a wrong command line: as of the configuration.
PLAINER: Final = (
    (r"Value error, ", ""),
    (r"Input should be a valid integer(, .*)?$", "must be an integer"),
    (r"Input should be a valid number(, .*)?$", "must be a number"),
    (r"Input should be", "must be"),
    (r" \(Possible options: ([^,)]+).*\)$", r"; did you mean \1?"),
    (r"\. Did you mean '([^']+)'.*$", r"; did you mean \1?"),
)
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
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Log progress to stderr; also after the command.")
    ] = False,
    _version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    set_up_logging(verbose)


@functools.cache  # to make it takes a tenth of a second, which a process that runs many commands pays once
def _command() -> Callable[..., Any]:
    """The command line that `app` declares."""
    return typer.main.get_command(app)


def main() -> None:
    """Run the command line; every failure ends in one message on stderr and an exit code of the contract."""
    arguments = arrange(sys.argv[1:])
    try:
        code = _command()(arguments, prog_name="shadowspec", standalone_mode=False)
    except ShadowSpecError as error:
        _fail(str(error), error.exit_code)
    except CommandLineError as error:
        if not error.format_message():  # the help was printed in its place
            sys.exit(error.exit_code)
        _fail(_describe(error, arguments), error.exit_code)
    except typer.Abort:
        code = ExitCode.INTERRUPTED
    except Exception as error:
        if "--verbose" in arguments or os.environ.get("SHADOWSPEC_DEBUG"):
            traceback.print_exc()
            sys.exit(ExitCode.INTERNAL)
        # The text of an unforeseen error may quote a prompt: its type is all that is shown unasked.
        _fail(
            f"internal error ({type(error).__name__}). Run the command again with --verbose for the traceback, which "
            "may quote input, and report it.",
            ExitCode.INTERNAL,
        )
    if code == ExitCode.INTERRUPTED:
        more = "; finished work is stored, run the same command again to resume"
        notes.print(f"interrupted{more if command_word(arguments) in GO_ON else ''}", highlight=False)
    sys.exit(code or 0)


def _describe(error: Any, arguments: Sequence[str]) -> str:
    """A wrong command line in one line, and where its help is."""
    message = " ".join(str(error.format_message()).split()).rstrip(".")
    for pattern, plain in PLAINER:
        message = re.sub(pattern, plain, message)
    context = getattr(error, "ctx", None)
    command = context.command_path if context is not None else f"shadowspec {command_word(arguments)}".strip()
    return f"{message[:1].lower()}{message[1:]}{' See' if message.endswith('?') else '; see'} `{command} --help`"


def _fail(message: str, exit_code: int) -> None:
    notes.print("[bold red]error:[/]", end=" ")
    notes.print(message, markup=False, highlight=False, soft_wrap=True)
    sys.exit(exit_code)

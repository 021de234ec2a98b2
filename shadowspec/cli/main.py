"""The `shadowspec` command: its options, its commands, and how every failure becomes one message and a code.

A command's module is imported when the command is named, so that the modules import at their top what they need.
"""

from __future__ import annotations

import errno
import functools
import inspect
import os
import re
import resource
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import Annotated, Any, Final

import typer
from typer.core import TyperCommand, TyperGroup

from shadowspec.app.progress_bar import notes
from shadowspec.cli.console import drop_unread_output, set_up_logging
from shadowspec.errors import ExitCode, ShadowSpecError

VERBOSE: Final = ("--verbose", "-v")
# Every command: its group in the reference, the function that it calls or that holds the help of its commands, and its
# line in the help of all.
COMMANDS: Final = {
    "demo": ("Start", "demonstrate.demo", "Measure bundled traffic and decide, in a few minutes."),
    "try": ("Start", "try_out.try_out", "A first verdict on your model or servers, from a recording."),
    "init": ("Start", "init.init", "Write a starting configuration."),
    "doctor": ("Start", "doctor.doctor", "Check configuration, services, device, models and servers."),
    "run": ("Measure", "run.run", "Measure files of mirrored traffic."),
    "worker": ("Measure", "worker.worker", "Measure mirrored traffic from Kafka, until stopped."),
    "produce": ("Measure", "produce.produce", "Send files of mirrored traffic to a topic."),
    "tail": ("Measure", "tail.tail", "Follow a log and send each line to a topic."),
    "replay": ("Measure", "replay.replay", "Compute acceptance from logged responses, for every depth."),
    "backfill": ("Measure", "backfill.backfill", "Replay many files on a Ray cluster."),
    "export-training": (
        "Measure",
        "export_training.export_training_data",
        "Write conversations to train drafts on.",
    ),
    "evaluate": ("Measure", "evaluate.evaluate", "Score both arms on your task set, and store the scores."),
    "profile-device": ("Measure", "profile_device.profile_device", "Measure the cost of a step on this device."),
    "profile-server": (
        "Measure",
        "profile_server.profile_server",
        "Measure the cost of a step of servers.",
    ),
    "gate": ("Decide", "gate.gate", "Decide ENABLE, DISABLE or HOLD, and say what to do next."),
    "plan": ("Decide", "plan.plan", "Show the evidence, time and cost until a verdict."),
    "report": ("Decide", "report.report", "Write report.html: verdicts and all that they rest on."),
    "dashboard": ("Decide", "dashboard.dashboard", "Serve the dashboard, until stopped."),
    "simulate": ("Decide", "simulate.simulate", "Run the gate in worlds whose truth is known."),
    "check": ("Promote", "check.check", "Answer by exit code whether speculation may be on."),
    "export": ("Promote", "export.export", "Write serving configuration from ENABLE verdicts."),
    "classify": ("Promote", "classify.classify", "Name the slice of requests, for routes by slice."),
    "live": ("Operate", "live.live", "Compare production's counters with the promise."),
    "schedule": ("Operate", "schedule.schedule", "Run gates, reports and exports when they are due."),
    "db": ("Operate", "database.database", "Migrate, check and clean the database."),
    "dead-letters": ("Operate", "dead_letters.dead_letters", "List dead letters, and send them again."),
    "override": ("Promote", "override.override", "Turn speculation off by hand, and list who did."),
}
FIRST: Final = ("demo", "try", "gate", "check", "report")  # in the help of all commands, which fits one screen
OTHERS: Final = "Other commands"
OPTIONS: Final = "Options: --verbose (-v) for details, --version, --install-completion, -h."
GROUPS: Final = frozenset({"db", "dead-letters", "override"})  # of commands; their modules hold a typer app


def arrange(arguments: Sequence[str]) -> list[str]:
    """The arguments with --verbose before the command, where the option is declared."""
    words, end, rest = _split(arguments)
    is_verbose = any(word in VERBOSE for word in words)
    return [*([VERBOSE[0]] if is_verbose else []), *(word for word in words if word not in VERBOSE), *end, *rest]


def command_word(arguments: Sequence[str]) -> str:
    """The command that these arguments name; "" if none."""
    return next((word for word in arguments if not word.startswith("-")), "")


def _split(arguments: Sequence[str]) -> tuple[list[str], list[str], list[str]]:
    """The arguments before `--`, it, and those after it."""
    place = arguments.index("--") if "--" in arguments else len(arguments)
    return list(arguments[:place]), list(arguments[place : place + 1]), list(arguments[place + 1 :])


def _without_flag_types(parameters: list[Any]) -> list[Any]:
    """The parameters; a flag takes no value, so help names no type of one."""
    for parameter in parameters:
        if getattr(parameter, "is_flag", False) and parameter.metavar is None:
            parameter.metavar = ""
    return parameters


class Command(TyperCommand):
    """A command whose help wraps its paragraphs; typer keeps the line breaks of the docstring."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        paragraphs = inspect.cleandoc(self.help or "").split("\n\n")
        self.help = "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)

    def get_params(self, ctx: Any) -> list[Any]:
        return _without_flag_types(super().get_params(ctx))


class Group(TyperGroup):
    """A group of commands."""

    def get_params(self, ctx: Any) -> list[Any]:
        return _without_flag_types(super().get_params(ctx))


class AllCommands(Mapping[str, Any]):
    """The commands by name; the module of a command is imported when it is looked up."""

    def __init__(self) -> None:
        self._loaded: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._loaded:
            self._loaded[name] = _load(name)
        return self._loaded[name]

    def __iter__(self) -> Iterator[str]:
        return iter(COMMANDS)

    def __len__(self) -> int:
        return len(COMMANDS)


class MainGroup(Group):
    """The group of all commands, whose help imports none of them."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands: Any = AllCommands()

    def format_help(self, ctx: Any, formatter: Any) -> None:
        names = (*FIRST, *(name for name in COMMANDS if name not in FIRST))
        lines = [
            Command(name=name, help=COMMANDS[name][2], rich_help_panel="Start here" if name in FIRST else OTHERS)
            for name in names
        ]
        group = Group(
            name=self.name,
            commands=lines,
            help=self.help,
            epilog=OPTIONS,
            rich_markup_mode=self.rich_markup_mode,
            add_help_option=False,
        )
        group.format_help(ctx, formatter)


def _load(name: str) -> Any:
    """
    Raises:
        KeyError: there is no such command.
    """
    panel, place, _ = COMMANDS[name]
    module_name, _, function = place.partition(".")
    module = import_module(f"shadowspec.cli.{module_name}")
    declared = typer.Typer(rich_markup_mode="rich")
    if name in GROUPS:
        for command in module.app.registered_commands:
            command.cls = Command
        declared.add_typer(module.app, name=name, cls=Group, rich_help_panel=panel)
    else:
        declared.command(name, cls=Command, rich_help_panel=panel)(getattr(module, function))
    return typer.main.get_group(declared).commands[name]


# What typer raises for a wrong command line, by the one of its errors that it exports.
CommandLineError: Any = next(kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException")

app = typer.Typer(
    name="shadowspec",
    cls=MainGroup,
    help="Shadow-mode analyzer and rollout gate for speculative decoding.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)
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
        try:
            typer.echo(f"shadowspec {version('shadowspec')}")
        except PackageNotFoundError:
            typer.echo("shadowspec (not installed: running from a source tree)")
        raise typer.Exit


@app.callback()
def _options(
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Show details, and log progress to stderr; also after the command.")
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


def forbid_core_dumps() -> None:
    """Leave no copy of memory on a disk after a crash: it would hold prompts and the secret.  Children inherit it."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def main() -> None:
    """Run the command line; every failure ends in one message on stderr and an exit code of the contract."""
    forbid_core_dumps()
    try:
        code = _run(arrange(sys.argv[1:]))
    except BrokenPipeError:  # of a message
        code = ExitCode.OUTPUT_CLOSED
    except SystemExit as ended:  # typer makes 1 of a closed pipe, which is a verdict here
        code = ExitCode.OUTPUT_CLOSED if ended.code == 1 else ended.code
    if drop_unread_output() and code == ExitCode.DONE:
        code = ExitCode.OUTPUT_CLOSED
    sys.exit(code or 0)


def _run(arguments: Sequence[str]) -> Any:
    """The exit code of a command that ends by itself; a failure exits."""
    try:
        code = _command()(arguments, prog_name="shadowspec", standalone_mode=False)
        sys.stdout.flush()  # a full disk shows here, and not after the end
    except ShadowSpecError as error:
        _fail(str(error), error.exit_code)
    except CommandLineError as error:
        if not error.format_message():  # the help was printed in its place
            sys.exit(error.exit_code)
        _fail(_describe(error, arguments), error.exit_code)
    except typer.Abort:
        code = ExitCode.INTERRUPTED
    except BrokenPipeError:  # of the flush: no internal error
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.errno == errno.ENOSPC and error.filename is None:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for what Python writes at its end
            _fail(
                f"standard output or a temporary file: {error.strerror}; make room, then run it again", ExitCode.USAGE
            )
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
    return code


def _describe(error: Any, arguments: Sequence[str]) -> str:
    """A wrong command line in one line, and where its help is."""
    message = " ".join(str(error.format_message()).split()).rstrip(".")
    for pattern, plain in PLAINER:
        message = re.sub(pattern, plain, message)
    names = str(getattr(getattr(error, "param", None), "metavar", None) or "").strip("<>").split("|")
    if len(names) > 1 and "Choose from" not in message and message.startswith("Missing"):
        message += f". Choose from: {', '.join(names)}"
    context = getattr(error, "ctx", None)
    command = context.command_path if context is not None else f"shadowspec {command_word(arguments)}".strip()
    return f"{message[:1].lower()}{message[1:]}{' See' if message.endswith('?') else '; see'} `{command} --help`"


def _fail(message: str, exit_code: int) -> None:
    notes.print("[bold red]error:[/]", end=" ")
    notes.print(message, markup=False, highlight=False, soft_wrap=True)
    sys.exit(exit_code)

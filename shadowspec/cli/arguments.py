"""What typer does not do: options under their former names, --verbose after the command, and plainer help."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any, Final

import typer
from typer.core import TyperCommand, TyperGroup

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

"""The reference of all commands in Markdown, made from the commands themselves: `python docs/command_reference.py`.

`docs/cli.md` is its output (`make docs`); a test compares the two.
"""

from __future__ import annotations

import enum
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Set
from typing import Any

import typer

from shadowspec.errors import ExitCode

INTRODUCTION = """\
# The command line

Made by `make docs` from the commands themselves. `python -m shadowspec` is the same as `shadowspec`, and every
command has `--help`. Results go to standard output; progress and logs go to standard error. A command with `--json`
prints one document, which has a `schema_version`. Exit codes:

"""


REQUIRED = "Required."
SHARED_BY = 2  # an option of this many commands is described once, above all of them, unless it is required


def reference(app: typer.Typer) -> str:
    """Every command of `app` with its arguments and options."""
    codes = "".join(f"- {code.value}: {code.meaning}\n" for code in ExitCode)
    command = typer.main.get_command(app)
    options = {path: set(found) for path, found in _options(command, "")}
    counts = Counter(option for found in options.values() for option in found)
    shared = {
        (name, text) for (name, text), number in counts.items() if number >= SHARED_BY and not text.endswith(REQUIRED)
    }
    usual = {option: _exceptions(option, options) for option in shared if 2 * counts[option] > len(options)}
    rows = [
        (name, f"{text} Of every command but {usual[name, text]}." if (name, text) in usual else text)
        for name, text in sorted(shared)
    ]
    above = (
        ["Options of several commands; of each, the command's section gives the name:\n", *_list(rows)] if rows else []
    )
    return "\n".join((INTRODUCTION + codes, *above, *_sections(command, "shadowspec", shared, set(usual))))


def _exceptions(option: tuple[str, str], options: Mapping[str, Set[tuple[str, str]]]) -> str:
    """The commands without an option."""
    return ", ".join(f"`{path}`" for path, found in options.items() if option not in found)


def _options(command: Any, path: str) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """Each command below this one that does something, by its words, with names and texts of its options."""
    if command.hidden:
        return
    children: dict[str, Any] = getattr(command, "commands", {})
    for name, child in children.items():
        yield from _options(child, f"{path} {name}".strip())
    if not children:
        context = typer.Context(command)
        yield (
            path,
            [
                (_names(parameter, context), _help(parameter))
                for parameter in command.params
                if parameter.param_type_name == "option" and not getattr(parameter, "hidden", False)
            ],
        )


def _sections(command: Any, path: str, shared: Set[tuple[str, str]], usual: Set[tuple[str, str]]) -> Iterator[str]:
    if command.hidden:
        return
    children: dict[str, Any] = getattr(command, "commands", {})
    shown = [parameter for parameter in command.params if not getattr(parameter, "hidden", False)]
    arguments = [parameter for parameter in shown if parameter.param_type_name == "argument"]
    options = [parameter for parameter in shown if parameter.param_type_name == "option"]
    usage = [path, *(["[OPTIONS]"] if options else []), *map(_placeholder, arguments)]
    yield f"## `{' '.join([*usage, *(['COMMAND'] if children else [])])}`\n"
    yield f"{(command.help or '').strip()}\n"
    if arguments:
        yield from _list([(_placeholder(each), _help(each)) for each in arguments])
    if options:
        context = typer.Context(command)
        described = [(_names(option, context), _help(option)) for option in options]
        yield from _list([option for option in described if option not in shared])
        named = [option for option in described if option in shared and option not in usual]
        if named := [f"`{name.partition(' ')[0].rstrip(',')}`" for name, _ in named]:
            yield f"And {', '.join(named)}.\n"
    groups: dict[str, list[str]] = {}
    for name, child in children.items():
        if panel := getattr(child, "rich_help_panel", None):
            groups.setdefault(panel, []).append(f"`{name}`")
    if groups:
        yield from (f"- {panel}: {', '.join(names)}" for panel, names in groups.items())
        yield ""
    for name, child in children.items():
        yield from _sections(child, f"{path} {name}", shared, usual)


def _list(rows: list[tuple[str, str]]) -> Iterator[str]:
    if not rows:
        return
    yield from (f"- `{name}`: {text}" if text else f"- `{name}`" for name, text in rows)
    yield ""


def _placeholder(argument: Any) -> str:
    name = str(argument.name).upper() + ("..." if argument.nargs == -1 else "")
    return name if argument.required else f"[{name}]"


def _names(option: Any, context: typer.Context) -> str:
    names = ", ".join((*option.opts, *option.secondary_opts))
    return names if option.is_flag else f"{names} {option.metavar or option.display_type(context)}"


def _help(parameter: Any) -> str:
    """The parameter's text, that it is required, and its default, in one line."""
    default = parameter.default
    notes = [str(parameter.help or "").strip()]
    if parameter.required and parameter.param_type_name == "option":
        notes.append(REQUIRED)
    elif default is not None and default is not False and not callable(default):
        notes.append(f"Default: `{default.value if isinstance(default, enum.Enum) else default}`.")
    return " ".join(note for note in notes if note).replace("\n", " ")


if __name__ == "__main__":
    from shadowspec.cli.main import app

    sys.stdout.write(reference(app))

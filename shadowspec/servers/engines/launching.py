"""How a server of an engine is started on this machine: its command, its variables, and the files that it takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from shadowspec.types import SpeculationConfig


@dataclass(frozen=True, slots=True)
class ServerStart:
    """One server that is to be started.  `drafting`: how it speculates; None: it does not."""

    target: str  # folder or file
    model: str  # the name under which it serves the target
    host: str
    port: int
    slots: int  # requests at once
    drafting: SpeculationConfig | None


@dataclass(frozen=True, slots=True)
class Launcher:
    """What starts a server of an engine.  A server is ready once it answers at `/health`."""

    program: tuple[str, ...]  # on PATH
    arguments: Callable[[ServerStart, Sequence[str]], list[str]]  # the whole command line, from the program's words
    module: str | None = None  # that a Python runs in place of the program
    variables: Mapping[str, str] = field(default_factory=dict)
    methods: Mapping[str, str] = field(default_factory=dict)  # its names of proposers, where they differ from ours
    file_type: str | None = None  # end of the name of a model's file; None: a model is a folder
    ngram_sizes: tuple[int, int] = (2, 4)  # of the n-grams that are looked up, from and to


def with_defaults(words: Sequence[str], defaults: Mapping[tuple[str, ...], str]) -> list[str]:
    """The words, and each default option that none of them names; an option is given by all of its spellings."""
    named = {word.partition("=")[0] for word in words}
    left = {options[0]: value for options, value in defaults.items() if not named.intersection(options)}
    return [*words, *(part for name, value in left.items() for part in (name, value))]

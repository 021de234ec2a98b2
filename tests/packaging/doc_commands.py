"""The commands that the documentation shows, as a reader would type them.

A block without a language, or in a shell's, holds commands, and nothing but them and comments.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = (
    *(path for path in sorted((ROOT / "docs").rglob("*.md")) if path.name != "cli.md"),
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
)
SHELLS = ("", "sh", "bash", "shell", "console")
# A command within a pipeline of a CI system, or in a sentence.
EMBEDDED = re.compile(r"(?:- |: |')(shadowspec [^'#]*)")
INLINE = re.compile(r"(?<!`)`(?:\$ )?((?:shadowspec|make) [^`]+)`(?!`)")


@dataclass(frozen=True)
class Command:
    """A command of a page: where it is, and its words without redirections of its output."""

    page: str
    line: int
    words: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.page}:{self.line}: {shlex.join(self.words)}"


def commands(path: Path) -> Iterator[Command]:
    """The commands of a page's blocks, in their order."""
    page = str(path.relative_to(ROOT))
    for start, language, lines in _blocks(path.read_text(encoding="utf-8")):
        if language in SHELLS:
            yield from _of_shell(page, start, lines)
        else:
            for offset, line in enumerate(lines):
                if found := EMBEDDED.search(line):
                    yield Command(page, start + offset, tuple(shlex.split(found[1])))


def mentions(path: Path) -> Iterator[Command]:
    """The commands in a page's sentences, cut at the first part that is not literal, such as `[--load B]`."""
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        for found in INLINE.finditer(line):
            literal = found[1].replace("[", " ").replace("]", " ")
            yield Command(str(path.relative_to(ROOT)), number, tuple(shlex.split(literal)))


def _of_shell(page: str, start: int, lines: Iterable[str]) -> Iterator[Command]:
    joined = ""
    for offset, line in enumerate(lines):
        joined += line.removesuffix("\\")
        if line.endswith("\\"):
            continue
        for words in _split(joined.removeprefix("$ ")):
            yield Command(page, start + offset, words)
        joined = ""


def _blocks(text: str) -> Iterator[tuple[int, str, list[str]]]:
    """The blocks of a page, fenced or indented, with their first lines' numbers and their languages."""
    language: str | None = None
    block: list[str] = []
    start, follows_blank = 0, True
    for number, line in enumerate([*text.splitlines(), ""], 1):
        fence = re.match(r"\s*```(\w*)", line)
        if fence is None and (language is not None or (line.startswith("    ") and (block or follows_blank))):
            start = start if block else number
            block.append(line.strip())
        elif block:
            yield start, language or "", block
            block = []
        if fence is not None:
            language = fence[1] if language is None else None
        follows_blank = not line.strip()


def _split(line: str) -> Iterator[tuple[str, ...]]:
    """The commands of a line: comments and redirections left out, and those around a pipe or `&&` separate."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;<>")
    lexer.whitespace_split = True
    words: list[str] = []
    skips = False
    for word in lexer:
        if set(word) <= set("|&;") and word:
            yield tuple(words)
            words = []
        elif word in ("<", ">", ">>"):
            skips = True
        elif skips:
            skips = False
        elif words or not re.fullmatch(r"[A-Z_]+=.*", word):
            words.append(word)
    if words:
        yield tuple(words)

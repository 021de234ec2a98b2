"""The commands that the documentation shows, as a reader would type them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = (
    *(path for path in sorted((ROOT / "docs").rglob("*.md")) if path.name != "cli.md"),
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
)
SHELLS = ("", "sh", "bash", "shell", "console")
PROGRAM = re.compile(r"(?:\$ )?(?:[A-Z_]+=\S+ )*(\.|\$[A-Z]+|\.venv/bin/python|[a-z][a-z0-9.-]*)(?:$| (?!=))")
PROGRAMS = (
    "shadowspec", "make", "python", "python3", ".venv/bin/python", "pip", "docker", "kubectl", "llama-server", "cmake",
    "ninja", "tar", "cd", "mkdir", "printf", ".", "$EDITOR", "sqlite3",
)  # fmt: skip


@dataclass(frozen=True)
class Command:
    """A command of a page: where it is, and its words without what redirects its output."""

    page: str
    line: int
    words: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.page}:{self.line}: {shlex.join(self.words)}"


def commands(path: Path) -> Iterator[Command]:
    """The commands of a page, in their order."""
    page = str(path.relative_to(ROOT))
    for start, lines in _blocks(path.read_text(encoding="utf-8")):
        if not any(_is_command(line) for line in lines):
            continue
        joined = ""
        for offset, line in enumerate(lines):
            joined += line.removesuffix("\\")
            if line.endswith("\\"):
                continue
            if _is_command(joined):
                for words in _split(joined.removeprefix("$ ")):
                    yield Command(page, start + offset, words)
            joined = ""


def _blocks(text: str) -> Iterator[tuple[int, list[str]]]:
    """The blocks of shell on a page, fenced without another language or indented, with their first lines' numbers."""
    language: str | None = None
    block: list[str] = []
    start, follows_blank = 0, True
    for number, line in enumerate([*text.splitlines(), ""], 1):
        fence = re.match(r"\s*```(\w*)", line)
        inside = (
            language in SHELLS if language is not None else line.startswith("    ") and (bool(block) or follows_blank)
        )
        if fence is None and inside:
            start = start if block else number
            block.append(line if language is not None else line.strip())
        elif block:
            yield start, block
            block = []
        if fence is not None:
            language = fence[1] if language is None else None
        follows_blank = not line.strip()


def _is_command(line: str) -> bool:
    found = PROGRAM.match(line)
    return found is not None and found[1] in PROGRAMS


def _split(line: str) -> Iterator[tuple[str, ...]]:
    """The commands of a line: comments and redirections left out, and what a pipe or `&&` separates apart."""
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

"""Lines of a file that hold no record: named by their place, never by their text."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from shadowspec.cli.console import notes
from shadowspec.tap.sources import STANDARD_INPUT, RawRecord
from shadowspec.words import plural


@dataclass(slots=True)
class _Lines:
    """Those of one reason."""

    first: int
    last: int  # that was sent: of a line that is an array each record may be
    number: int = 1

    def add(self, line: int) -> None:
        self.first = min(self.first, line)  # halves that waited for their other half come late
        self.number += line != self.last
        self.last = line


class Unreadable:
    """Takes a file's dead letters: the first line of each reason is remembered, the others are counted."""

    def __init__(self, path: str) -> None:
        """`path` as messages name it; - is standard input."""
        self._name = "standard input" if path == STANDARD_INPUT else path
        self._noun = "row" if path.endswith(".parquet") else "line"
        self._lines: dict[str, _Lines] = {}  # by reason

    def send(self, raw: RawRecord, stage: str, reason: str) -> None:
        """Take a message; of a file, the offset is the line."""
        line = raw.key.offset
        if reason in self._lines:
            self._lines[reason].add(line)
        else:
            self._lines[reason] = _Lines(line, line)

    def tell(self) -> None:
        """Say on stderr where they are, if there is one."""
        for reason, own in self._lines.items():
            more = f", and {plural(own.number - 1, f'more {self._noun}')}" if own.number > 1 else ""
            where = f"{self._name}, {self._noun} {own.first}{more}"
            notes.print(f"{reason}: {where}", markup=False, highlight=False, soft_wrap=True)


@contextmanager
def unreadable_in(path: str) -> Iterator[Unreadable]:
    """What takes a file's dead letters, and tells them at the end, whether the file was read to its own or not."""
    found = Unreadable(path)
    try:
        yield found
    finally:
        found.tell()

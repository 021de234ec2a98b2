"""Lines of a file that hold no record: named by their place, never by their text."""

from __future__ import annotations

from collections import Counter

from shadowspec.cli.console import notes
from shadowspec.tap.sources import STANDARD_INPUT, RawRecord
from shadowspec.words import plural


class Unreadable:
    """Takes a file's dead letters: the first line of each reason is remembered, the others are counted."""

    def __init__(self, path: str) -> None:
        """`path` as messages name it; - is standard input."""
        self._name = "standard input" if path == STANDARD_INPUT else path
        self._first: dict[str, int] = {}  # the line, by reason
        self._numbers: Counter[str] = Counter()

    def send(self, raw: RawRecord, stage: str, reason: str) -> None:
        """Take a message; of a file, the offset is the line."""
        self._first.setdefault(reason, raw.key.offset)
        self._numbers[reason] += 1

    def tell(self) -> None:
        """Say on stderr where they are, if there is one."""
        for reason, line in self._first.items():
            others = self._numbers[reason] - 1
            more = f", and {plural(others, 'later line')}" if others else ""
            notes.print(f"{reason}: {self._name}, line {line}{more}", markup=False, highlight=False, soft_wrap=True)

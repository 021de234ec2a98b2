"""Arrival times from elsewhere: published traces of services, which hold times and lengths and no text.

| trace | rows | time |
|---|---|---|
| Azure | CSV: `TIMESTAMP`, `ContextTokens`, `GeneratedTokens` | a date |
| BurstGPT | CSV: `Timestamp`, `Request tokens`, `Response tokens`, ... | seconds |
| Mooncake | JSON lines: `timestamp`, `input_length`, `output_length`, `hash_ids` | milliseconds |

Records take the times of the rows in their order, and keep everything else.  Nothing else of a row is used: its lengths
and sessions are of other prompts.  Times count from the first row's, which is the time of a record without one.
"""

from __future__ import annotations

import csv
import math
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from itertools import chain
from typing import Any, Final

from shadowspec.errors import InputError, NoDataError, RecordError
from shadowspec.tap.documents import BYTE_ORDER_MARK, parse_document
from shadowspec.tap.formats import Opened
from shadowspec.tap.records import EARLIEST, EPOCH, parse_time
from shadowspec.tap.sources import STANDARD_INPUT, RawRecord, read_records, require_file
from shadowspec.text import plural, span_text

LONGEST_MS: Final = 1e15  # 30,000 years: a number that no float holds is no time
MAX_SPAN: Final = timedelta(days=366)  # of a trace, and of a recording that repeats one; more is a broken unit
_TRACES: Final = (
    "a trace of Azure (CSV with TIMESTAMP and ContextTokens), BurstGPT (CSV with Timestamp and Request tokens) or "
    "Mooncake (JSON lines with timestamp and input_length)"
)


@dataclass(frozen=True, slots=True)
class LoadTrace:
    """The arrivals of a trace in seconds from the first, ascending; `digest` is the sha256 of its content."""

    path: str
    digest: str
    kind: str
    seconds: Sequence[float] = field(repr=False)

    @property
    def span_s(self) -> float:
        return self.seconds[-1]

    @property
    def period_s(self) -> float:
        """After which the trace begins again: its span, and the mean time between two arrivals."""
        return self.span_s * len(self.seconds) / (len(self.seconds) - 1)

    def offset(self, place: int) -> timedelta:
        """When the arrival of that number comes, counted from 0, from the first one.

        Raises:
            InputError: the trace was repeated for longer than `MAX_SPAN`.
        """
        rounds, row = divmod(place, len(self.seconds))
        seconds = rounds * self.period_s + self.seconds[row]
        if seconds > MAX_SPAN.total_seconds():
            raise InputError(
                f"--arrivals {self.path}: its {len(self.seconds):,} arrivals were repeated for more than "
                f"{MAX_SPAN.days} days; give a trace with more arrivals"
            )
        return timedelta(seconds=seconds)

    def fit(self, num_records: int) -> str:
        """How the trace fits so many records, as a sentence that needs no period."""
        rounds, rest = divmod(num_records, len(self.seconds))
        if rounds == 0:
            return f"the last {plural(len(self.seconds) - rest, 'arrival')} of the trace are not used"
        if num_records == len(self.seconds):
            return "each arrival of the trace is used once"
        times = f"{num_records / len(self.seconds):.1f} times"
        return f"the trace is repeated, because {plural(num_records, 'record')} are {times} its arrivals"

    def consequences(self, num_records: int) -> tuple[str, ...]:
        """What follows for so many records, each as a sentence that needs no period."""
        return (
            f"times are those of {self.path} ({self.kind}, {plural(len(self.seconds), 'arrival')} in "
            f"{span_text(self.span_s)}). So arrivals and concurrency are the trace's, not those of these records",
            self.fit(num_records),
            "hits of prefix caches and pauses within sessions are not production's. Records without session and user "
            "that begin with the same user message count as one session",
        )


class ArrivalTimes:
    """Gives a trace's times to records, one after the other."""

    def __init__(self, trace: LoadTrace) -> None:
        self.trace = trace
        self.num_given = 0

    def next_offset(self) -> timedelta:
        """The next arrival, from the first.

        Raises:
            InputError: as `LoadTrace.offset`.
        """
        self.num_given += 1
        return self.trace.offset(self.num_given - 1)

    def give(self, opened: Opened) -> None:
        """Set a record's time; one without session and user is of those that open alike, as without a time."""
        if (record := opened.record) is None:
            return
        record.timestamp = (EARLIEST + self.next_offset()).isoformat()
        if record.session() is None and record.user_id() is None:
            record.session_id = record.opening()


def read_trace(path: str) -> LoadTrace:
    """The arrivals of a file, in whichever of the known forms it is.

    Raises:
        InputError: it is missing or unreadable, none of the traces, or a row is broken; the message names its line.
        NoDataError: it holds no arrivals.
    """
    if path == STANDARD_INPUT:
        raise InputError("--arrivals -: standard input is for records; give a file")
    require_file(path)
    rows = read_records(path)
    first = next(rows)
    kind, time_of = _recognise(path, first)
    seconds = array("d")
    last = -math.inf
    for row in rows if kind in _COLUMNS else chain([first], rows):
        time_s = time_of(row.value or b"")
        where = f"--arrivals {path}, line {row.key.offset}"
        if time_s is None:
            raise InputError(f"{where}: has no time of a row of {kind}'s trace; fix or remove it")
        if time_s < last:
            raise InputError(f"{where}: is earlier than the row before it; sort the rows by time")
        last = time_s
        seconds.append(time_s)
    if len(seconds) < 2 or seconds[0] == seconds[-1]:
        raise NoDataError(f"--arrivals {path}: holds no two arrivals at different times; give a longer trace")
    start = seconds[0]
    if last - start > MAX_SPAN.total_seconds():
        raise InputError(
            f"--arrivals {path}: spans more than {MAX_SPAN.days} days; give times in {kind}'s unit, or a part of it"
        )
    return LoadTrace(path, first.key.source, kind, array("d", (time_s - start for time_s in seconds)))


def _recognise(path: str, first: RawRecord) -> tuple[str, Callable[[bytes], float | None]]:
    """The kind of a trace by its first line, and what gives a row's time in seconds (None: it has none)."""
    value = first.value or b""
    if _mooncake_time(value) is not None:
        return "Mooncake", _mooncake_time
    names = _cells(value.removeprefix(BYTE_ORDER_MARK))
    for kind, (time, other, parse) in _COLUMNS.items():
        if time in names and other in names:
            return kind, partial(_cell_time, names.index(time), len(names), parse)
    raise InputError(f"--arrivals {path}, line {first.key.offset}: no row or header of a trace; give {_TRACES}")


def _cell_time(place: int, width: int, parse: Callable[[str], float | None], row: bytes) -> float | None:
    cells = _cells(row)
    return parse(cells[place]) if len(cells) == width else None


def _cells(row: bytes) -> list[str]:
    try:
        return next(csv.reader([row.decode()], strict=True), [])
    except (UnicodeDecodeError, csv.Error):
        return []


def _mooncake_time(row: bytes) -> float | None:
    try:
        document: Any = parse_document(row)
    except RecordError:
        return None
    if not isinstance(document, dict) or "input_length" not in document:
        return None
    time_ms = document.get("timestamp")
    if isinstance(time_ms, bool) or not isinstance(time_ms, int | float) or abs(time_ms) > LONGEST_MS:
        return None
    return _seconds(time_ms / 1_000)


def _date(text: str) -> float | None:
    time = parse_time(text)
    return None if time is None else (time - EPOCH).total_seconds()


def _number(text: str) -> float | None:
    try:
        return _seconds(float(text))
    except ValueError:
        return None


def _seconds(value: float) -> float | None:
    return value if math.isfinite(value) and value >= 0.0 else None


# By the kind of trace: the column of times, another column by which it is known, and how a time is written.
_COLUMNS: Final[Mapping[str, tuple[str, str, Callable[[str], float | None]]]] = {
    "Azure": ("TIMESTAMP", "ContextTokens", _date),
    "BurstGPT": ("Timestamp", "Request tokens", _number),
}

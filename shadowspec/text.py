"""Numbers and names as people read them.  An undefined figure is an em dash, with the reason beside it.

Text that comes from traffic (labels, and what quotes them) goes through `plain_text` or `markdown_text` before it is
written anywhere: it can then neither start a line nor link nor mark up.
"""

from __future__ import annotations

import difflib
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final, TextIO, TypeVar

from shadowspec.errors import UsageError
from shadowspec.types import parse_slice_key

Row = TypeVar("Row")

DASH = "\u2014"
MINUS = "\u2212"

LEAST_LIKENESS: Final = 0.65  # of difflib, from which on a known name is suggested
_SPECIAL = re.compile(r"([\\`*_{}\[\]<>()#+!|~$&@])")
_DURATION: Final = re.compile(r"(\d+(?:\.\d+)?)([smhdw])")
_UNIT_SECONDS: Final = {"s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}
_LONGEST_S: Final = 100 * 365 * 86_400  # keeps sums of times within what a calendar holds
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


@contextmanager
def whole_file(path: Path) -> Iterator[TextIO]:
    """A file to write that others see whole or not at all: it takes its name at the end, and not after an error.

    A place that only takes bytes (a device, a pipe, a file in a folder of others) is written to directly.

    Raises:
        OSError: it cannot be written.
    """
    path = path.resolve()
    exists = path.exists()
    if exists and not (path.is_file() and os.access(path.parent, os.W_OK)):
        with path.open("w", encoding="utf-8") as file:
            yield file
        return
    part = path.with_name(f".{path.name}.part")
    try:
        with part.open("w", encoding="utf-8") as file:
            yield file
        if exists:
            shutil.copymode(path, part)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def write_whole(path: Path, text: str) -> None:
    """Write a `whole_file` at once."""
    with whole_file(path) as file:
        file.write(text)


def plain_text(value: str) -> str:
    """One line of text: what would break the line, move the cursor or turn the direction of writing is replaced."""
    return _CONTROL.sub("\ufffd", value)


def markdown_text(value: str) -> str:
    """One line of text in GitHub-flavoured Markdown, with every special character escaped."""
    return _SPECIAL.sub(r"\\\1", " ".join(value.split())).replace("\\<", "&lt;").replace("\\>", "&gt;")


def sentence(text: str) -> str:
    """A text as a sentence: with a capital at its beginning and a full stop at its end."""
    return f"{text[:1].upper()}{text[1:].rstrip('.')}." if text else ""


def slice_title(slice_key: str) -> str:
    """A slice as every text output writes it: `prompt_class=code, sampling_regime=high`; "" is the whole endpoint."""
    labels = parse_slice_key(slice_key).items()
    return ", ".join(f"{name}={value}" for name, value in labels) or "whole endpoint"


def distinct_slices(
    rows: Iterable[Row], slice_key_of: Callable[[Row], str], differs: Callable[[Row], bool] = lambda _: False
) -> list[Row]:
    """One endpoint's rows to show: an only slice is the same evidence as the whole endpoint ("") and left out.

    A row of it that `differs` all the same, as under an override, is shown, and so is a slice without its endpoint.
    """
    rows = list(rows)
    keys = {slice_key_of(row) for row in rows}
    is_only = "" in keys and len(keys) == 2
    return [row for row in rows if not is_only or not slice_key_of(row) or differs(row)]


def suggestion(name: str, known: Iterable[str]) -> str:
    """The end of a message about an unknown name: the known name most like it, if one is."""
    close = difflib.get_close_matches(name, sorted({*known} - {name}), 1, LEAST_LIKENESS)
    return f"; did you mean {close[0]}?" if close else ""


def parse_labels(texts: Iterable[str], option: str = "--slice") -> dict[str, str]:
    """Labels given as LABEL=VALUE, several of them also in one text, with commas between.

    Args:
        option: for messages.

    Raises:
        UsageError: one is not of this form, or a label is given twice.
    """
    labels: dict[str, str] = {}
    for part in (part.strip() for text in texts for part in text.split(",")):
        name, equals, value = part.partition("=")
        if not (name and equals and value):
            raise UsageError(f"{option} {part!r}: expected LABEL=VALUE, such as prompt_class=code")
        if name in labels:
            raise UsageError(f"{option} {part!r}: the label {name!r} is given twice; give it once")
        labels[name] = value
    return labels


def plural(number: int, noun: str) -> str:
    """`1 block`, `1,200 blocks`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def number(value: float | None, digits: int = 2) -> str:
    """A fixed-point number with a true minus sign."""
    return DASH if value is None else f"{value:,.{digits}f}".replace("-", MINUS)


def batch_change(baseline: float | None, speculative: float | None) -> str:
    """How many requests of full length the KV caches of two servers hold at once."""
    if baseline is None or speculative is None:
        return "the servers do not say how many requests they hold"
    return f"batch {baseline:,.1f} becomes {speculative:,.1f} (requests of full length)"


def figure(value: float | None) -> str:
    """A number of unknown kind: whole if it is whole, else four significant digits."""
    if value is None:
        return DASH
    return (f"{value:,.0f}" if value == int(value) else f"{value:,.4g}").replace("-", MINUS)


def percent(value: float | None, digits: int = 1) -> str:
    """A share of 1 as per cent."""
    return DASH if value is None else f"{100 * value:.{digits}f}%".replace("-", MINUS)


def times(value: float | None) -> str:
    """A speedup such as 1.32x."""
    return DASH if value is None else f"{value:.2f}\u00d7"


def format_signed(value: float | None, digits: int = 4) -> str:
    """A number whose sign matters."""
    return DASH if value is None else f"{value:+.{digits}f}".replace("-", MINUS)


def milliseconds(value: float | None) -> str:
    """Three significant digits, from microseconds to seconds."""
    if value is None:
        return DASH
    if value >= 10_000:
        return f"{value / 1000:.1f} s"
    if value >= 1000:
        return f"{value / 1000:.2f} s"
    if value >= 100:
        return f"{value:.0f} ms"
    return f"{value:.1f} ms" if value >= 10 else f"{value:.2f} ms"


def byte_size(value: int) -> str:
    """Binary units."""
    size = float(value)
    for unit in ("B", "KiB", "MiB"):
        if abs(size) < 1024:
            return (f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}").replace("-", MINUS)
        size /= 1024
    return f"{size:.2f} GiB".replace("-", MINUS)


def moment(value: datetime | None) -> str:
    """UTC to the minute."""
    return DASH if value is None else f"{value:%Y-%m-%d %H:%M} UTC"


def age(span: timedelta | None) -> str:
    """The largest fitting unit, rounded down."""
    if span is None:
        return DASH
    seconds = max(0, int(span.total_seconds()))
    for unit, size in (("day", 86_400), ("hour", 3_600), ("minute", 60)):
        if seconds >= size:
            return plural(seconds // size, unit)
    return "under a minute"


def span_text(seconds: float) -> str:
    """A length of time in the largest unit of which it has two."""
    for unit_s, name in ((86_400, "days"), (3_600, "hours"), (60, "minutes")):
        if seconds >= 2 * unit_s:
            return f"{seconds / unit_s:.1f}".removesuffix(".0") + f" {name}"
    return plural(round(seconds), "second")


def parse_duration(text: str) -> timedelta:
    """A length of time such as 90s, 30m, 24h, 7d or 2w.

    Raises:
        UsageError: it is written otherwise, or not above 0.
    """
    match = _DURATION.fullmatch(text.strip())
    seconds = float(match[1]) * _UNIT_SECONDS[match[2]] if match else 0.0
    if not 0.0 < seconds <= _LONGEST_S:
        raise UsageError(f"invalid duration {text!r}: give a number with a unit, such as 90s, 30m, 24h, 7d or 2w")
    return timedelta(seconds=seconds)

"""Taking runs away as CSV or Parquet: read page by page, written as they come, `MAX_ROWS` at most.

A file holds what the page shows: counts, timings, and hashes cut short.  It is made only when somebody asks for it.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import streamlit as st

from shadowspec.store import RunFilter, Store
from shadowspec.store.read.run_pages import COLUMNS

from . import source

MAX_ROWS = 100_000
PAGE_ROWS = 5_000

Row = dict[str, Any]

_TEXTS = (
    "slice_key",
    "failure",
    "finish_reason",
    "contract",
    "counts_source",
    "intervention",
    "source",
    "fingerprint",
    "block_id",
)
_REALS = ("divergence_gap", "z_sum", "z_error", "sampling_rate")


def buttons(wanted: RunFilter) -> None:
    """A button for each kind of file."""
    with st.container(horizontal=True):
        for kind in _KINDS:
            st.download_button(
                kind.title,
                partial(_file, kind, wanted),
                f"runs-{wanted.endpoint}.{kind.suffix}",
                kind.media_type,
                icon=":material/download:",
                on_click="ignore",
                key=f"runs-{kind.suffix}",
                help=f"The newest {MAX_ROWS:,} requests that match.",
            )


def pages(store: Store, wanted: RunFilter, max_rows: int = MAX_ROWS) -> Iterator[list[Row]]:
    """The runs that match, newest first, a page at a time, until there are no more or `max_rows` are read."""
    place, left = None, max_rows
    while left > 0:
        page = store.run_page(wanted, place, limit=min(PAGE_ROWS, left))
        if page.rows:
            yield list(page.rows)
        left -= len(page.rows)
        place = page.next_place
        if place is None:
            return


def as_csv(rows: Iterator[list[Row]]) -> bytes:
    """Comma-separated values, times in ISO 8601, UTC; what a spreadsheet would run as a formula is quoted as text."""
    written = io.StringIO(newline="")
    writer = csv.DictWriter(written, COLUMNS)
    writer.writeheader()
    for page in rows:
        writer.writerows({name: _cell(value) for name, value in row.items()} for row in page)
    return written.getvalue().encode()


def as_parquet(rows: Iterator[list[Row]]) -> bytes:
    """One row group for each page."""
    written = io.BytesIO()
    schema = pa.schema([(name, _type(name)) for name in COLUMNS])
    with pq.ParquetWriter(written, schema, compression="zstd") as writer:
        for page in rows:
            writer.write_table(pa.Table.from_pylist(page, schema=schema))
    return written.getvalue()


@dataclass(frozen=True, slots=True)
class _Kind:
    """A kind of file, and what writes one."""

    title: str
    suffix: str
    media_type: str
    write: Callable[[Iterator[list[Row]]], bytes]


_KINDS = (
    _Kind("CSV", "csv", "text/csv", as_csv),
    _Kind("Parquet", "parquet", "application/vnd.apache.parquet", as_parquet),
)


def _file(kind: _Kind, wanted: RunFilter) -> bytes:
    return kind.write(pages(source.store(), wanted))


def _cell(value: Any) -> Any:
    if hasattr(value, "isoformat"):
        return value.isoformat()
    # A label comes from the traffic, and a spreadsheet runs what begins so.
    return f"'{value}" if isinstance(value, str) and value[:1] in "=+-@\t\r" else value


def _type(name: str) -> pa.DataType:
    if name == "event_time":
        return pa.timestamp("us", tz="UTC")
    if name in _TEXTS:
        return pa.string()
    if name.startswith("is_"):
        return pa.bool_()
    return pa.float64() if name in _REALS or name.endswith("_ms") else pa.int64()

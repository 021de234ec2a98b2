"""The records of one file of logs: JSON lines, or rows of Parquet.

A row of Parquet is a message as the mirror wrote it: a column `value` (or `message`) that holds it whole, as sinks of
Kafka write it, or the columns of a record themselves (`request` among them).  Rows are numbered as lines are, from 1,
under the digest of the file.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

import pyarrow
import pyarrow.parquet

from shadowspec.backfill.places import describe_place, explain_errors, open_file, open_stream
from shadowspec.errors import InputError, NoDataError
from shadowspec.tap.sources import DEFAULT_MAX_RECORD_BYTES, RawRecord, digest_of, read_stream
from shadowspec.types import RecordKey

PARQUET_MAGIC: Final = b"PAR1"
ROWS: Final = 256  # of Parquet that are turned into messages at a time
MESSAGE_COLUMNS: Final = ("value", "message")
RECORD_COLUMN: Final = "request"


def read_log(place: str, *, max_record_bytes: int = DEFAULT_MAX_RECORD_BYTES) -> Iterator[RawRecord]:
    """The records of one file, in their order.

    Raises:
        InputError: it cannot be read, or is neither.
        NoDataError: it holds no record.
    """
    with explain_errors(place), closing(open_stream(place)) as stream:
        if stream.peek(len(PARQUET_MAGIC))[: len(PARQUET_MAGIC)] != PARQUET_MAGIC:  # type: ignore[attr-defined]
            yield from read_stream(stream, describe_place(place), max_record_bytes)
            return
        digest = digest_of(stream)
    yield from _rows(place, digest, max_record_bytes)


def _rows(place: str, digest: str, max_record_bytes: int) -> Iterator[RawRecord]:
    number = 0
    with explain_errors(place), closing(open_file(place)) as file:
        table = pyarrow.parquet.ParquetFile(file)
        column = _message_column(table.schema_arrow, place)
        for batch in table.iter_batches(batch_size=ROWS, columns=None if column is None else [column]):
            for row in batch.to_pylist():
                number += 1
                value = _message(row if column is None else row[column])
                key = RecordKey(source=digest, partition=0, offset=number)
                if value is not None and len(value) > max_record_bytes:
                    yield RawRecord(key, b"", "too_large")
                else:
                    yield RawRecord(key, value)
    if not number:
        raise NoDataError(f"{describe_place(place)}: has no row")


def _message_column(schema: pyarrow.Schema, place: str) -> str | None:
    """The column with whole messages; None: the columns are a record's."""
    for name in MESSAGE_COLUMNS:
        index = schema.get_field_index(name)  # -1: none, or several
        if index >= 0 and _holds_bytes(schema.field(index).type):
            return name
    if schema.get_field_index(RECORD_COLUMN) >= 0:
        return None
    raise InputError(
        f"{describe_place(place)}: has neither a column {' or '.join(MESSAGE_COLUMNS)} of text or bytes with whole "
        f"messages nor a column {RECORD_COLUMN} (its columns: {', '.join(schema.names)})"
    )


def _holds_bytes(kind: pyarrow.DataType) -> bool:
    types = pyarrow.types
    if types.is_dictionary(kind):
        kind = kind.value_type
    is_text = types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind)
    return bool(is_text or types.is_binary(kind) or types.is_large_binary(kind) or types.is_binary_view(kind))


def _message(value: Any) -> bytes | None:
    """A message as bytes: unchanged, or a row written as JSON."""
    if value is None or isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode()
    return json.dumps(_present(value), default=_plain, ensure_ascii=False).encode()


def _present(value: Any) -> Any:
    """Without the fields that are null: a Parquet file has those of all rows in every row."""
    if isinstance(value, dict):
        return {name: _present(field) for name, field in value.items() if field is not None}
    if isinstance(value, list):
        return [_present(element) for element in value]
    return value


def _plain(value: Any) -> Any:
    """The JSON form of values without one."""
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, Decimal):
        return float(value)
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, UUID):
        return str(value)
    raise ValueError(f"no JSON of {type(value).__name__}")

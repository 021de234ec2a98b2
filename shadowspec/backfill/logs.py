"""The records of one file of logs: JSON lines, or rows of Parquet.

A row of Parquet is a message as the mirror wrote it: a column `value` (or `message`) that holds it whole, as sinks of
Kafka write it, with the columns `timestamp` and `headers` of Spark's, or the columns of a record themselves (`request`
or `request_body` among them).  Rows are numbered as lines are, from 1, under the digest of the file.

Parquet's writers have forms that JSON lacks.  A MAP becomes an object, NaN (pandas' missing number) and null no field,
a request in a column of text the same as in `request_body`, and a whole double an integer, but in what the prompt
holds.  The columns of inference tables that are a record's under another name have its names.
"""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Iterator, Mapping
from contextlib import closing
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

import pyarrow
import pyarrow.parquet

from shadowspec.backfill.places import describe_place, explain_errors, open_file, open_stream
from shadowspec.errors import InputError, NoDataError
from shadowspec.tap.records import EPOCH
from shadowspec.tap.sources import DEFAULT_MAX_RECORD_BYTES, PARQUET_MAGIC, RawRecord, digest_of, read_stream
from shadowspec.types import RecordKey

ROWS: Final = 256  # of Parquet that are turned into messages at a time
MESSAGE_COLUMNS: Final = ("value", "message")
RECORD_COLUMNS: Final = ("request", "request_body")
_TEXT_BODIES: Final = {"request": "request_body", "response": "response_body"}
_OBJECTS: Final = ("metadata", "headers")  # objects of a record, which some tables hold as JSON text
# A record's fields as inference tables name them: Databricks', now and before.
_ALIASES: Final[Mapping[str, tuple[str, ...]]] = {
    "timestamp": ("request_time", "timestamp_ms"),
    "request_id": ("client_request_id", "databricks_request_id"),
    "status": ("status_code",),
}
# Parts of a body whose numbers a prompt may show as they are written.
_SHOWN: Final = frozenset(
    {"messages", "tools", "functions", "input", "response_format", "structured_outputs", "guided_json", "text"}
)
_MAX_WHOLE: Final = 2.0**53  # beyond it a double is no exact integer


def read_log(
    place: str, *, max_record_bytes: int = DEFAULT_MAX_RECORD_BYTES, is_mapped: bool = False
) -> Iterator[RawRecord]:
    """The records of one file, in their order.

    Args:
        place: the file's.
        max_record_bytes: a longer record comes without its value ("too_large").
        is_mapped: a map says which columns of Parquet are the parts of a record, so that they keep their names.

    Raises:
        InputError: it cannot be read, or is neither.
        NoDataError: it holds no record.
    """
    with explain_errors(place), closing(open_stream(place)) as stream:
        if stream.peek(len(PARQUET_MAGIC))[: len(PARQUET_MAGIC)] != PARQUET_MAGIC:  # type: ignore[attr-defined]
            yield from read_stream(stream, describe_place(place), max_record_bytes)
            return
        digest = digest_of(stream)
    yield from _rows(place, digest, max_record_bytes, is_mapped=is_mapped)


def _rows(place: str, digest: str, max_record_bytes: int, *, is_mapped: bool) -> Iterator[RawRecord]:
    number = 0
    with explain_errors(place), closing(open_file(place)) as file:
        table = pyarrow.parquet.ParquetFile(file)
        column = _message_column(table.schema_arrow, place, is_mapped=is_mapped)
        columns = None if column is None else [column, *_transport_columns(table.schema_arrow)]
        for batch in table.iter_batches(batch_size=ROWS, columns=columns):
            for row in _dicts(batch):
                number += 1
                value = _record(row, is_mapped=is_mapped) if column is None else _message(row[column])
                at = None if column is None else row.get("timestamp")
                headers = () if column is None else _headers(row.get("headers"))
                key = RecordKey(digest, 0, number, 0 if at is None else _milliseconds(at))
                if value is not None and len(value) > max_record_bytes:
                    yield RawRecord(key, b"", "too_large")
                else:
                    yield RawRecord(key, value, headers=headers)
    if not number:
        raise NoDataError(f"{describe_place(place)}: has no row")


def _dicts(batch: pyarrow.RecordBatch) -> list[dict[str, Any]]:
    """Rows as Python has them: times in microseconds, where pandas writes nanoseconds, and of a MAP's key the last."""
    for index, field in enumerate(batch.schema):
        if pyarrow.types.is_timestamp(field.type) and field.type.unit == "ns":
            kind = pyarrow.timestamp("us", field.type.tz)
            batch = batch.set_column(index, field.with_type(kind), batch.column(index).cast(kind, safe=False))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # it would quote a key that a MAP has twice
        rows: list[dict[str, Any]] = batch.to_pylist(maps_as_pydicts="lossy")
    return rows


def _transport_columns(schema: pyarrow.Schema) -> list[str]:
    """The columns of Spark's Kafka source that say more of a message: its time and its headers."""
    types = pyarrow.types
    is_kind = {"timestamp": types.is_timestamp, "headers": types.is_list}
    places = {name: schema.get_field_index(name) for name in is_kind}
    return [name for name, index in places.items() if index >= 0 and is_kind[name](schema.field(index).type)]


def _milliseconds(at: datetime) -> int:
    at = at.replace(tzinfo=UTC) if at.tzinfo is None else at
    return (at - EPOCH) // timedelta(milliseconds=1)


def _headers(given: Any) -> tuple[tuple[str, bytes | None], ...]:
    pairs = [header for header in given or () if isinstance(header, dict)]
    headers = [(header.get("key"), header.get("value")) for header in pairs]
    return tuple((name, value) for name, value in headers if isinstance(name, str) and isinstance(value, bytes | None))


def _message_column(schema: pyarrow.Schema, place: str, *, is_mapped: bool) -> str | None:
    """The column with whole messages; None: the columns are a record's."""
    for name in MESSAGE_COLUMNS:
        index = schema.get_field_index(name)  # -1: none, or several
        if index >= 0 and _holds_bytes(schema.field(index).type):
            return name
    if is_mapped or any(schema.get_field_index(name) >= 0 for name in RECORD_COLUMNS):
        return None
    raise InputError(
        f"{describe_place(place)}: has no column {', '.join((*MESSAGE_COLUMNS, *RECORD_COLUMNS))} with messages or "
        f"requests (its columns: {', '.join(schema.names)}); say with --map where they are"
    )


def _holds_bytes(kind: pyarrow.DataType) -> bool:
    types = pyarrow.types
    if types.is_dictionary(kind):
        kind = kind.value_type
    is_text = types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind)
    return bool(is_text or types.is_binary(kind) or types.is_large_binary(kind) or types.is_binary_view(kind))


def _message(value: Any) -> bytes | None:
    """A whole message as bytes."""
    return value.encode() if isinstance(value, str) else value


def _record(row: dict[str, Any], *, is_mapped: bool) -> bytes:
    """A row's record as JSON."""
    row = {name: value for name, field in row.items() if (value := _json_form(field)) is not None}
    if is_mapped:
        return json.dumps(row, ensure_ascii=False).encode()
    for name, others in _ALIASES.items():
        known = next((row[other] for other in others if other in row), None)
        if known is not None:
            row.setdefault(name, known)
    if any(isinstance(row.get(name), str) for name in _TEXT_BODIES):
        row = {_TEXT_BODIES.get(name, name): value for name, value in row.items()}
    for name in _OBJECTS:
        if isinstance(row.get(name), str):
            row[name] = _object_in(row[name])
    return json.dumps(row, ensure_ascii=False).encode()


def _object_in(text: str) -> Any:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return value if isinstance(value, dict) else text


def _json_form(value: Any, *, is_shown: bool = False) -> Any:
    """A value as JSON has it, without fields that are null: Parquet has those of all rows in every row.

    Args:
        is_shown: a prompt may show its numbers.
    """
    if isinstance(value, dict):
        forms = {str(name): _json_form(field, is_shown=is_shown or name in _SHOWN) for name, field in value.items()}
        return {name: field for name, field in forms.items() if field is not None}
    if isinstance(value, list):
        return [_json_form(element, is_shown=is_shown) for element in value]
    if isinstance(value, float | Decimal):
        return _number(float(value), is_shown=is_shown)
    return value if value is None or isinstance(value, str | int) else _plain(value)


def _number(value: float, *, is_shown: bool) -> float | str | None:
    if math.isnan(value):
        return None
    if math.isinf(value):
        return str(value)  # refused where it is read
    return int(value) if value.is_integer() and abs(value) < _MAX_WHOLE and not is_shown else value


def _plain(value: Any) -> Any:
    """The JSON form of values without one."""
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, UUID):
        return str(value)
    raise ValueError(f"no JSON of {type(value).__name__}")

"""Rows of one table column by column, and how they are written: Postgres takes them in its binary COPY format."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import BigInteger, Connection, Table, text

from shadowspec.store import bulk
from shadowspec.store.column_types import UtcDateTime

Column = str | int | float | NDArray[Any] | Sequence[datetime]  # one value stands for every row

_HEADER: Final = b"PGCOPY\n\xff\r\n\x00" + struct.pack(">ii", 0, 0)
_TRAILER: Final = struct.pack(">h", -1)
_EPOCH: Final = datetime(2000, 1, 1, tzinfo=UTC)  # Postgres counts microseconds from it
_ROWS_AT_ONCE: Final = 200_000  # 20 MB of the widest rows


@dataclass(frozen=True, slots=True)
class Columns:
    """`number` rows of `table`, by name of column."""

    table: Table
    number: int
    values: Mapping[str, Column]


def write(connection: Connection, columns: Columns) -> None:
    """Add the rows, none of whose keys may be there."""
    if not columns.number:
        return
    if connection.dialect.name == "postgresql":
        _copy(connection, columns)
        return
    expanded = [_expanded(value, columns.number) for value in columns.values.values()]
    bulk.insert_new(connection, columns.table, tuple(columns.values), list(zip(*expanded, strict=True)))


def set_next_number(connection: Connection, table: Table, name: str) -> None:
    """Let the column go on numbering after the numbers that were written."""
    if connection.dialect.name == "postgresql":
        sequence = {"table": table.name, "column": name}
        last = f"SELECT max({name}) FROM {table.name}"  # noqa: S608 - our own names
        connection.execute(text(f"SELECT setval(pg_get_serial_sequence(:table, :column), ({last}))"), sequence)


def _copy(connection: Connection, columns: Columns) -> None:
    driver: Any = connection.connection.driver_connection
    statement = f"COPY {columns.table.name} ({', '.join(columns.values)}) FROM STDIN (FORMAT BINARY)"
    rows = _binary(columns)
    with driver.cursor() as cursor, cursor.copy(statement) as copy:
        copy.write(_HEADER)
        for start in range(0, columns.number, _ROWS_AT_ONCE):
            copy.write(rows[start : start + _ROWS_AT_ONCE].tobytes())
        copy.write(_TRAILER)


def _binary(columns: Columns) -> NDArray[Any]:
    """One structured entry per row: the number of fields, then each one's length and its value."""
    encoded = [_encoded(columns.table, name, value) for name, value in columns.values.items()]
    layout: list[tuple[str, str]] = [("fields", ">i2")]
    for place, value in enumerate(encoded):
        layout += [(f"length{place}", ">i4"), (f"value{place}", value.dtype.str)]
    rows = np.empty(columns.number, dtype=layout)
    rows["fields"] = len(encoded)
    for place, value in enumerate(encoded):
        rows[f"length{place}"] = value.dtype.itemsize
        rows[f"value{place}"] = value
    return rows


def _encoded(table: Table, name: str, value: Column) -> NDArray[Any]:
    kind = table.c[name].type
    if isinstance(value, str):
        return np.array(value.encode())
    if isinstance(kind, UtcDateTime):
        assert not isinstance(value, int | float | np.ndarray), "times come as times"
        return np.array([round((at - _EPOCH).total_seconds() * 1e6) for at in value], dtype=">i8")
    return np.asarray(value, dtype=">i8" if isinstance(kind, BigInteger) else ">f8")


def _expanded(value: Column, number: int) -> Sequence[Any]:
    if isinstance(value, np.ndarray):
        return list(value.tolist())
    return [value] * number if isinstance(value, str | int | float) else value

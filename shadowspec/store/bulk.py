"""Many rows in one statement: inserted if new, added to existing rows, or looked up by their keys.

Postgres: one array per column, unnested by the server; written as array literals here, which is several times faster
than letting the driver adapt each value.  SQLite: the driver's executemany.  Rows are tuples in the order of the names
given.  The caller sorts them by key, so that two writers of the same rows wait for each other instead of deadlocking.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Any

from sqlalchemy import (
    CTE,
    BigInteger,
    Boolean,
    Column,
    ColumnElement,
    Connection,
    Executable,
    Integer,
    RowMapping,
    Table,
    TableValuedAlias,
    Text,
    cast,
    delete,
    func,
    literal,
    literal_column,
    select,
    true,
    tuple_,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.types import TypeEngine

from shadowspec.errors import StoreError
from shadowspec.store.column_types import Real, UtcDateTime, require_number, require_zone
from shadowspec.store.session import encode_json

Row = tuple[Any, ...]


def insert_new(connection: Connection, table: Table, names: Sequence[str], rows: Sequence[Row]) -> list[Row]:
    """Insert the rows whose keys are new; the primary keys of those."""
    if connection.dialect.name == "postgresql":
        rest = f"ON CONFLICT DO NOTHING RETURNING {', '.join(column.name for column in table.primary_key.columns)}"
        return _insert_arrays(connection, table, names, rows, rest)
    if not rows:
        return []
    values = [dict(zip(names, row, strict=True)) for row in rows]
    return [tuple(row) for row in connection.execute(_insert_new(table), values)]


def insert_in_order(connection: Connection, table: Table, names: Sequence[str], rows: Sequence[Row]) -> list[int]:
    """Insert the rows, which the database numbers in this order; their numbers."""
    (number,) = table.primary_key.columns
    if connection.dialect.name == "postgresql":
        rest = f"ORDER BY ordinality RETURNING {number.name}"
        return sorted(row[0] for row in _insert_arrays(connection, table, names, rows, rest, is_ordered=True))
    if not rows:
        return []
    values = [dict(zip(names, row, strict=True)) for row in rows]
    return list(connection.scalars(sqlite.insert(table).returning(number, sort_by_parameter_order=True), values))


def add(
    connection: Connection,
    table: Table,
    names: Sequence[str],
    rows: Sequence[Row],
    key: Sequence[str],
    returning: Sequence[str] = (),
) -> list[Row]:
    """Add the figures of each row to those of the stored row with its key, or insert it; `returning` of each."""
    sums = [name for name in names if name not in key]
    if connection.dialect.name == "postgresql":
        changes = ", ".join(f"{name} = {table.name}.{name} + excluded.{name}" for name in sums)
        rest = f"ON CONFLICT ({', '.join(key)}) DO UPDATE SET {changes}"
        return _insert_arrays(
            connection, table, names, rows, f"{rest} RETURNING {', '.join(returning)}" if returning else rest
        )
    if not rows:
        return []
    values = [dict(zip(names, row, strict=True)) for row in rows]
    result = connection.execute(_add(table, tuple(sums), tuple(key), tuple(returning)), values)
    return [tuple(row) for row in result] if returning else []


@lru_cache
def _insert_new(table: Table) -> Executable:
    """SQLite's statement; kept, since building it takes longer than it runs."""
    return sqlite.insert(table).on_conflict_do_nothing().returning(*table.primary_key.columns)


@lru_cache
def _add(table: Table, sums: tuple[str, ...], key: tuple[str, ...], returning: tuple[str, ...]) -> Executable:
    insert = sqlite.insert(table)
    statement = insert.on_conflict_do_update(
        index_elements=list(key), set_={name: table.c[name] + insert.excluded[name] for name in sums}
    )
    return statement.returning(*(table.c[name] for name in returning)) if returning else statement


def one_of(connection: Connection, columns: Sequence[Column[Any]], rows: Sequence[Row]) -> ColumnElement[bool]:
    """Whether the columns of a stored row are as in one of these rows, of which there may be thousands."""
    if connection.dialect.name != "postgresql":
        return columns[0].in_([value for (value,) in rows]) if len(columns) == 1 else tuple_(*columns).in_(rows)
    return tuple_(*columns).in_(select(*_unnest_rows(columns, rows).c))


def take(
    connection: Connection, table: Table, same: ColumnElement[bool], columns: Sequence[Column[Any]], rows: Sequence[Row]
) -> Sequence[RowMapping]:
    """Delete and return the rows that match `same` and whose columns are as in one of `rows`.

    Each is looked up by its key.  The planner's statistics are wrong for a table that is constantly filled and emptied:
    of one that was empty when they were taken, it would read every row for every key.
    """
    gone = delete(table).returning(*table.c)
    if connection.dialect.name != "postgresql":
        return connection.execute(gone.where(same, tuple_(*columns).in_(rows))).mappings().all()
    wanted = _unnest_rows(columns, rows)
    ctid: ColumnElement[Any] = literal_column(f"{table.name}.ctid")
    of_row = (column == wanted.c[column.name] for column in columns)
    place = select(ctid.label("place")).select_from(table).where(same, *of_row).offset(0).lateral()
    places = select(place.c.place).select_from(wanted.join(place, true())).scalar_subquery()
    connection.exec_driver_sql("SET LOCAL enable_seqscan TO off")
    taken = connection.execute(gone.where(ctid == func.any(func.array(places)))).mappings().all()
    connection.exec_driver_sql("SET LOCAL enable_seqscan TO DEFAULT")
    return taken


def _unnest_rows(columns: Sequence[Column[Any]], rows: Sequence[Row]) -> TableValuedAlias:
    """Rows as the server unnests them."""
    literals = [_array(column.type, values) for column, values in zip(columns, zip(*rows, strict=True), strict=True)]
    arrays = [
        cast(literal(text, Text), postgresql.ARRAY(column.type)) for text, column in zip(literals, columns, strict=True)
    ]
    return func.unnest(*arrays).table_valued(*(column.name for column in columns)).render_derived()


def _insert_arrays(
    connection: Connection,
    table: Table,
    names: Sequence[str],
    rows: Sequence[Row],
    rest: str,
    *,
    is_ordered: bool = False,
) -> list[Row]:
    if not rows:
        return []
    kinds = [table.c[name].type for name in names]
    arrays = ", ".join(f"%s::{_type_name(kind)}[]" for kind in kinds)
    columns = ", ".join(names)
    given = f"WITH ORDINALITY AS given ({columns}, ordinality)" if is_ordered else f"AS given ({columns})"
    statement = f"INSERT INTO {table.name} ({columns}) SELECT {columns} FROM unnest({arrays}) {given} {rest}"  # noqa: S608 - ours
    literals = tuple(_array(kind, values) for kind, values in zip(kinds, zip(*rows, strict=True), strict=True))
    result = connection.exec_driver_sql(statement, literals)
    return [tuple(row) for row in result] if result.returns_rows else []


def _array(kind: TypeEngine[Any], values: Row) -> str:
    """The values of a column as Postgres reads an array of them."""
    encode = _encoder(kind)
    if None not in values:
        return "{" + ",".join(encode(values)) + "}"
    known = iter(encode([value for value in values if value is not None]))
    return "{" + ",".join(["NULL" if value is None else next(known) for value in values]) + "}"


@lru_cache
def _type_name(kind: TypeEngine[Any]) -> str:
    return kind.compile(dialect=postgresql.dialect())  # type: ignore[no-untyped-call]


def _encoder(kind: TypeEngine[Any]) -> Callable[[Sequence[Any]], Iterable[str]]:
    """The function that turns values, none of them None, into elements of an array literal."""
    if isinstance(kind, UtcDateTime):
        return lambda values: [f'"{require_zone(value).isoformat()}"' for value in values]
    if isinstance(kind, Real):
        return lambda values: map(repr, map(require_number, map(float, values)))
    if isinstance(kind, Boolean):
        return lambda values: ["t" if value else "f" for value in values]
    if isinstance(kind, BigInteger | Integer):
        return _integers
    return _texts if isinstance(kind, Text) else _documents


def _texts(values: Sequence[str]) -> Iterable[str]:
    joined = "".join(values)
    if "\\" in joined or '"' in joined:
        values = [value.replace("\\", "\\\\").replace('"', '\\"') for value in values]
    return [f'"{value}"' for value in values]


def _documents(values: Sequence[Any]) -> Iterable[str]:
    return _texts([encode_json(value) if value else _empty(value) for value in values])


def _empty(value: Any) -> str:
    return "[]" if value == [] else encode_json(value)


def _integers(values: Sequence[int]) -> Iterable[str]:
    if values and not (min(values) >= -(2**63) and max(values) < 2**63):
        raise StoreError("an integer beyond 64 bits cannot be stored")
    return map(str, map(int, values))


def distinct_keys(columns: Sequence[Column[Any]], *where: ColumnElement[bool]) -> CTE:
    """The distinct values of these columns, under their names, of the rows that satisfy `where` (Postgres).

    Each is found from the one before it along an index: grouping would read every row of a large table.

    An index must begin with what `where` sets equal, followed by the columns in their order.
    """
    first = select(*columns).where(*where).order_by(*columns).limit(1)
    keys = first.cte("keys", recursive=True)
    is_later = tuple_(*columns) > tuple_(*(keys.c[column.name] for column in columns))
    following = select(*columns).where(*where, is_later).order_by(*columns).limit(1).lateral("following")
    return keys.union_all(select(following).select_from(keys.join(following, true())))

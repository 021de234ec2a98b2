"""Column types and groups of columns that the tables share; names are those of the fields in `shadowspec.types`."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import JSON, BigInteger, Column, DateTime, Dialect, Double, ForeignKey, Integer, Text, TypeDecorator

from shadowspec.errors import StoreError


def require_zone(value: datetime) -> datetime:
    """The instant itself; raises StoreError for a time without a zone."""
    if value.tzinfo is None:
        raise StoreError("a time without a zone cannot be stored")
    return value


def require_number(value: float) -> float:
    """The number itself, infinity included; raises StoreError for NaN."""
    if math.isnan(value):
        raise StoreError("NaN cannot be stored: store an undefined figure as None")
    return value


class UtcDateTime(TypeDecorator[datetime]):
    """An aware instant.  SQLite keeps no zone, so UTC goes in and is restored on the way out."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        return None if value is None else require_zone(value).astimezone(UTC)

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


class Real(TypeDecorator[float]):
    """A double; infinity is stored, NaN is refused: SQLite would turn it into NULL, and undefined is None."""

    impl = Double
    cache_ok = True

    def process_bind_param(self, value: float | None, dialect: Dialect) -> float | None:
        return None if value is None else require_number(value)


AutoKey = BigInteger().with_variant(Integer, "sqlite")  # SQLite numbers rows by itself in INTEGER columns only
Json = JSON(none_as_null=True)

RECORD_KEY = ("source", "source_partition", "source_offset", "timestamp_ms", "source_item")
RUN_KEY = (*RECORD_KEY, "fingerprint")


def record_key() -> list[Column[Any]]:
    """Columns of a record's key."""
    return [
        Column("source", Text, primary_key=True),
        *(Column(name, BigInteger, primary_key=True, autoincrement=False) for name in RECORD_KEY[1:]),
    ]


def ledger_key() -> list[Column[Any]]:
    """Columns that name a partition as one consumer reads it."""
    return [
        Column("consumer", Text, primary_key=True),
        Column("source", Text, primary_key=True),
        Column("source_partition", BigInteger, primary_key=True, autoincrement=False),
    ]


def fingerprint_reference() -> Column[Any]:
    """A config that the database itself requires to be known: for tables of few rows."""
    return Column("fingerprint", Text, ForeignKey("fingerprints.fingerprint"), nullable=False)


def integers(*names: str, nullable: bool = False) -> list[Column[Any]]:
    """Columns of counts."""
    return [Column(name, BigInteger, nullable=nullable) for name in names]


def reals(*names: str, nullable: bool = False) -> list[Column[Any]]:
    """Columns of measured or computed figures."""
    return [Column(name, Real, nullable=nullable) for name in names]

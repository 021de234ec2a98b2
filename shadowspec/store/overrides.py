"""Overrides in the database: set and cleared by appending, never changed."""

from __future__ import annotations

from dataclasses import asdict

from sqlalchemy import ColumnElement, Connection, RowMapping, insert, select

from shadowspec.errors import UsageError
from shadowspec.store.tables import override_clearings, overrides
from shadowspec.types import Clearing, Override, OverrideRecord, Verdict


def add_override(connection: Connection, override: Override) -> int:
    """Append an override, whose own id is ignored; the id that it got."""
    values = {name: value for name, value in asdict(override).items() if name != "override_id"}
    statement = insert(overrides).returning(overrides.c.override_id)
    return int(connection.execute(statement, values | {"verdict": override.verdict.value}).scalar_one())


def clear_override(connection: Connection, clearing: Clearing) -> None:
    """Append the end of an override.

    Raises:
        UsageError: there is no such override, or it was cleared before.
    """
    found = _read(connection, overrides.c.override_id == clearing.override_id)
    if not found:
        raise UsageError(f"there is no override {clearing.override_id}")
    if (before := found[0].clearing) is not None:
        raise UsageError(
            f"override {clearing.override_id} was cleared before, by {before.author} "
            f"at {before.cleared_at:%Y-%m-%d %H:%M} UTC"
        )
    connection.execute(insert(override_clearings), asdict(clearing))


def read_overrides(connection: Connection, endpoint: str | None) -> list[OverrideRecord]:
    """Every override ever set (of one endpoint), oldest first, with what became of it."""
    return _read(connection, *(() if endpoint is None else (overrides.c.endpoint == endpoint,)))


def _read(connection: Connection, *conditions: ColumnElement[bool]) -> list[OverrideRecord]:
    statement = (
        select(
            overrides,
            override_clearings.c.cleared_at,
            override_clearings.c.reason.label("clearing_reason"),
            override_clearings.c.author.label("clearing_author"),
        )
        .outerjoin(override_clearings, override_clearings.c.override_id == overrides.c.override_id)
        .where(*conditions)
        .order_by(overrides.c.override_id)
    )
    return [_value(row) for row in connection.execute(statement).mappings()]


def _value(row: RowMapping) -> OverrideRecord:
    own = {name: row[name] for name in overrides.c.keys()}  # noqa: SIM118 - a table's columns, no dict
    clearing = None
    if row["cleared_at"] is not None:
        clearing = Clearing(row["override_id"], row["clearing_reason"], row["clearing_author"], row["cleared_at"])
    return OverrideRecord(Override(**(own | {"verdict": Verdict(row["verdict"])})), clearing)

"""Cost surfaces in the database: a row per profile; the newest of its kind counts."""

from __future__ import annotations

from dataclasses import asdict, fields
from typing import Final

from sqlalchemy import Connection, func, insert, select

from shadowspec.store.tables import cost_surfaces
from shadowspec.types import CostKey, ProfiledCosts, StepCost

KEY: Final = tuple(field.name for field in fields(CostKey))


def append_costs(connection: Connection, profiled: ProfiledCosts) -> None:
    """Append one profile.  Nothing is ever changed."""
    points = [asdict(point) for point in profiled.points]
    connection.execute(
        insert(cost_surfaces), asdict(profiled.key) | {"profiled_at": profiled.profiled_at, "points": points}
    )


def read_costs(connection: Connection) -> dict[CostKey, ProfiledCosts]:
    """The newest profile of each kind: the one that was stored last."""
    newest = select(func.max(cost_surfaces.c.surface_id)).group_by(*(cost_surfaces.c[name] for name in KEY))
    statement = select(cost_surfaces).where(cost_surfaces.c.surface_id.in_(newest))
    found = {}
    for row in connection.execute(statement.order_by(cost_surfaces.c.surface_id)).mappings():
        key = CostKey(**{name: row[name] for name in KEY})
        found[key] = ProfiledCosts(key, row["profiled_at"], tuple(StepCost(**point) for point in row["points"]))
    return found

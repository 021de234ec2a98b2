"""Rollout stages in the database: a row per change, the newest of an endpoint and load is where it stands."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict

from sqlalchemy import Connection, RowMapping, func, insert, select

from shadowspec.store.tables import rollouts
from shadowspec.types import Rollout, Stage


def append_rollouts(connection: Connection, changed: Iterable[Rollout]) -> None:
    """Append one row per change."""
    for rollout in changed:
        values = asdict(rollout) | {"stage": rollout.stage.value, "depth_caps": dict(rollout.depth_caps)}
        values["alarms"] = list(rollout.alarms)
        connection.execute(insert(rollouts), values)


def read_rollouts(connection: Connection, endpoint: str | None) -> list[Rollout]:
    """Where every endpoint (or one) stands at each load, sorted by both."""
    newest = select(func.max(rollouts.c.rollout_id)).group_by(rollouts.c.endpoint, rollouts.c.concurrency)
    statement = select(rollouts).where(rollouts.c.rollout_id.in_(newest))
    if endpoint is not None:
        statement = statement.where(rollouts.c.endpoint == endpoint)
    found = [_value(row) for row in connection.execute(statement).mappings()]
    return sorted(found, key=lambda rollout: (rollout.endpoint, rollout.concurrency))


def read_rollout_history(connection: Connection, endpoint: str | None) -> list[Rollout]:
    """Every change at every endpoint (or one), oldest first."""
    statement = select(rollouts).order_by(rollouts.c.rollout_id)
    if endpoint is not None:
        statement = statement.where(rollouts.c.endpoint == endpoint)
    return [_value(row) for row in connection.execute(statement).mappings()]


def _value(row: RowMapping) -> Rollout:
    own = {name: value for name, value in row.items() if name != "rollout_id"}
    return Rollout(**(own | {"stage": Stage(row["stage"]), "alarms": tuple(row["alarms"])}))

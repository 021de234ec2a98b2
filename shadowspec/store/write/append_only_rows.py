"""Overrides, rollout stages, cost surfaces and evaluations in the database: a row per change; none is ever changed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import asdict, fields
from typing import Final, TypedDict

from sqlalchemy import ColumnElement, Connection, RowMapping, func, insert, select

from shadowspec.errors import UsageError
from shadowspec.store import bulk
from shadowspec.store.table_definitions import (
    cost_surfaces,
    evaluations,
    override_clearings,
    override_effects,
    overrides,
    rollouts,
)
from shadowspec.types import (
    Clearing,
    CostKey,
    Evaluation,
    Override,
    OverrideEffect,
    OverrideRecord,
    PairedScore,
    ProfiledCosts,
    Rollout,
    Stage,
    StepCost,
    Verdict,
)
from shadowspec.types.codec import from_document, to_document

COST_KEY: Final = tuple(field.name for field in fields(CostKey))
COSTS_VERSION: Final = 1  # of a surface's points
PROFILE_AGAIN: Final = "profile it again: `shadowspec profile-device`, or `profile-server`"


class CostPoints(TypedDict):
    """The document of a cost surface; the rest of it is in columns."""

    points: tuple[StepCost, ...]


def add_override(connection: Connection, override: Override) -> int:
    """Append an override, whose id is ignored; returns the new id."""
    values = {name: value for name, value in asdict(override).items() if name != "override_id"}
    statement = insert(overrides).returning(overrides.c.override_id)
    return int(connection.execute(statement, values | {"verdict": override.verdict.value}).scalar_one())


def clear_override(connection: Connection, clearing: Clearing) -> None:
    """Append the end of an override.

    Raises:
        UsageError: there is no such override, or it was cleared before.
    """
    stored = _read_overrides(connection, overrides.c.override_id == clearing.override_id)
    if not stored:
        raise UsageError(f"there is no override {clearing.override_id}; `shadowspec override list` shows the numbers")
    if (before := stored[0].clearing) is not None:
        raise UsageError(
            f"override {clearing.override_id} was cleared before, by {before.author} "
            f"at {before.cleared_at:%Y-%m-%d %H:%M} UTC"
        )
    connection.execute(insert(override_clearings), asdict(clearing))


def add_effects(connection: Connection, effects: Iterable[OverrideEffect]) -> None:
    """Append what was observed; the first observation of a kind stays."""
    names = tuple(field.name for field in fields(OverrideEffect))
    values = [tuple(getattr(effect, name) for name in names) for effect in effects]
    bulk.insert_new(connection, override_effects, names, values)


def read_overrides(connection: Connection, endpoint: str | None = None) -> list[OverrideRecord]:
    """Every override ever set (of one endpoint), oldest first, with when and by whom it was cleared."""
    return _read_overrides(connection, *(() if endpoint is None else (overrides.c.endpoint == endpoint,)))


def _read_overrides(connection: Connection, *conditions: ColumnElement[bool]) -> list[OverrideRecord]:
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
    effects: dict[int, list[OverrideEffect]] = defaultdict(list)
    of_these = override_effects.c.override_id.in_(select(overrides.c.override_id).where(*conditions))
    observed = select(override_effects).where(of_these).order_by(override_effects.c.observed_at)
    for row in connection.execute(observed).mappings():
        effects[row["override_id"]].append(OverrideEffect(**row))
    return [_override(row, tuple(effects[row["override_id"]])) for row in connection.execute(statement).mappings()]


def _override(row: RowMapping, effects: tuple[OverrideEffect, ...]) -> OverrideRecord:
    entry = {name: row[name] for name in overrides.c.keys()}  # noqa: SIM118 - a table's columns, no dict
    clearing = None
    if row["cleared_at"] is not None:
        clearing = Clearing(row["override_id"], row["clearing_reason"], row["clearing_author"], row["cleared_at"])
    return OverrideRecord(Override(**(entry | {"verdict": Verdict(row["verdict"])})), clearing, effects)


def append_rollouts(connection: Connection, changed: Iterable[Rollout]) -> None:
    """Append one row per change of stage or depth."""
    for rollout in changed:
        values = asdict(rollout) | {"stage": rollout.stage.value, "depth_caps": dict(rollout.depth_caps)}
        values["alarms"] = list(rollout.alarms)
        connection.execute(insert(rollouts), values)


def read_rollouts(connection: Connection, endpoint: str | None = None) -> list[Rollout]:
    """The current row of every endpoint (or one) at each load, sorted by both."""
    newest = select(func.max(rollouts.c.rollout_id)).group_by(rollouts.c.endpoint, rollouts.c.concurrency)
    statement = select(rollouts).where(rollouts.c.rollout_id.in_(newest))
    if endpoint is not None:
        statement = statement.where(rollouts.c.endpoint == endpoint)
    current = [_rollout(row) for row in connection.execute(statement).mappings()]
    return sorted(current, key=lambda rollout: (rollout.endpoint, rollout.concurrency))


def read_rollout_history(connection: Connection, endpoint: str | None = None) -> list[Rollout]:
    """Every change of stage or depth at every endpoint (or one), oldest first."""
    statement = select(rollouts).order_by(rollouts.c.rollout_id)
    if endpoint is not None:
        statement = statement.where(rollouts.c.endpoint == endpoint)
    return [_rollout(row) for row in connection.execute(statement).mappings()]


def _rollout(row: RowMapping) -> Rollout:
    entry = {name: value for name, value in row.items() if name != "rollout_id"}
    return Rollout(**(entry | {"stage": Stage(row["stage"]), "alarms": tuple(row["alarms"])}))


def append_costs(connection: Connection, profiled: ProfiledCosts) -> None:
    """Append the costs that a profile measured."""
    points = to_document(CostPoints(points=profiled.points), COSTS_VERSION)
    connection.execute(
        insert(cost_surfaces), asdict(profiled.key) | {"profiled_at": profiled.profiled_at, "points": points}
    )


def read_costs(connection: Connection) -> dict[CostKey, ProfiledCosts]:
    """The profile that was stored last, of each pair, rule, engine, device and kind of requests.

    Raises:
        InputError: another version stored it.
    """
    newest = select(func.max(cost_surfaces.c.surface_id)).group_by(*(cost_surfaces.c[name] for name in COST_KEY))
    statement = select(cost_surfaces).where(cost_surfaces.c.surface_id.in_(newest))
    costs = {}
    for row in connection.execute(statement.order_by(cost_surfaces.c.surface_id)).mappings():
        key = CostKey(**{name: row[name] for name in COST_KEY})
        stored = from_document(row["points"], CostPoints, COSTS_VERSION, "a stored cost surface", PROFILE_AGAIN)
        costs[key] = ProfiledCosts(key, row["profiled_at"], stored["points"])
    return costs


def append_evaluations(connection: Connection, measured: Iterable[Evaluation]) -> None:
    """Append one row per evaluated task."""
    for evaluation in measured:
        documents = {name: [pair.baseline, pair.speculative] for name, pair in evaluation.documents.items()}
        names = ("endpoint", "fingerprint", "task", "metric", "measured_at")
        values = {name: getattr(evaluation, name) for name in names}
        connection.execute(insert(evaluations), values | {"documents": documents})


def read_evaluations(connection: Connection, endpoint: str) -> list[Evaluation]:
    """Every evaluated task of an endpoint, oldest first."""
    statement = select(evaluations).where(evaluations.c.endpoint == endpoint).order_by(evaluations.c.evaluation_id)
    stored = []
    for row in connection.execute(statement).mappings():
        documents = {name: PairedScore(*pair) for name, pair in row["documents"].items()}
        values = {name: row[name] for name in ("endpoint", "fingerprint", "task", "metric", "measured_at")}
        stored.append(Evaluation(**values, documents=documents))
    return stored

"""Decisions as they stood at a past moment; each within a transaction of the caller's."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import Connection, Select, func, select, true

from shadowspec.store.queries import read_decisions
from shadowspec.store.skipping import distinct_keys
from shadowspec.store.tables import HYPOTHESIS, decisions
from shadowspec.types import Decision

_HYPOTHESIS = [decisions.c[name] for name in HYPOTHESIS]


def read_decisions_at(connection: Connection, moment: datetime) -> list[Decision]:
    """The decision on every hypothesis that was the last one before the moment, sorted by hypothesis."""
    return read_decisions(connection, _ids_at(connection, moment))


def _ids_at(connection: Connection, moment: datetime) -> list[int]:
    if connection.dialect.name == "postgresql":
        return list(connection.scalars(_last_before(moment)))
    own = decisions.c
    order = func.row_number().over(partition_by=_HYPOTHESIS, order_by=(own.decided_at.desc(), own.decision_id.desc()))
    numbered = select(own.decision_id, order.label("number")).where(own.decided_at < moment).subquery()
    return list(connection.scalars(select(numbered.c.decision_id).where(numbered.c.number == 1)))


def _last_before(moment: datetime) -> Select[tuple[int]]:
    """What grows with the gate's looks is never read: of each hypothesis its last decision before the moment alone."""
    own, keys = decisions.c, distinct_keys(_HYPOTHESIS)
    is_same = (own[name] == keys.c[name] for name in HYPOTHESIS)
    of_key = select(own.decision_id).where(*is_same, own.decided_at < moment)
    last = of_key.order_by(own.decided_at.desc(), own.decision_id.desc()).limit(1).lateral("last")
    return select(last.c.decision_id).select_from(keys.join(last, true()))

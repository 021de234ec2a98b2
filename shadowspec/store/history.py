"""Decisions as they stood at a past moment; each within a transaction of the caller's."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import Connection, bindparam, func, select, text

from shadowspec.store.columns import UtcDateTime
from shadowspec.store.queries import read_decisions
from shadowspec.store.tables import decisions
from shadowspec.types import Decision

HYPOTHESIS = ("endpoint", "slice_key", "concurrency", "fingerprint")

# From each hypothesis to the next one along the index, and to its last decision before the moment: what grows with
# the gate's looks is never read.
_SKIPPING = text(
    """
    WITH RECURSIVE hypotheses AS (
        (SELECT endpoint, slice_key, concurrency, fingerprint FROM decisions
         ORDER BY endpoint, slice_key, concurrency, fingerprint LIMIT 1)
        UNION ALL
        SELECT following.* FROM hypotheses AS own CROSS JOIN LATERAL (
            SELECT endpoint, slice_key, concurrency, fingerprint FROM decisions
            WHERE (endpoint, slice_key, concurrency, fingerprint)
                > (own.endpoint, own.slice_key, own.concurrency, own.fingerprint)
            ORDER BY endpoint, slice_key, concurrency, fingerprint LIMIT 1
        ) AS following
    )
    SELECT last.decision_id FROM hypotheses AS own CROSS JOIN LATERAL (
        SELECT decision_id FROM decisions
        WHERE endpoint = own.endpoint AND slice_key = own.slice_key AND concurrency = own.concurrency
            AND fingerprint = own.fingerprint AND decided_at < :moment
        ORDER BY decided_at DESC, decision_id DESC LIMIT 1
    ) AS last
    """
).bindparams(bindparam("moment", type_=UtcDateTime))


def read_decisions_at(connection: Connection, moment: datetime) -> list[Decision]:
    """The decision on every hypothesis that was the last one before the moment, sorted by hypothesis."""
    return read_decisions(connection, _ids_at(connection, moment))


def _ids_at(connection: Connection, moment: datetime) -> list[int]:
    if connection.dialect.name == "postgresql":
        return list(connection.scalars(_SKIPPING, {"moment": moment}))
    own = decisions.c
    order = func.row_number().over(
        partition_by=[own[name] for name in HYPOTHESIS], order_by=(own.decided_at.desc(), own.decision_id.desc())
    )
    numbered = select(own.decision_id, order.label("number")).where(own.decided_at < moment).subquery()
    return list(connection.scalars(select(numbered.c.decision_id).where(numbered.c.number == 1)))

"""Where decisions changed: the rows at which a hypothesis's verdict, or a figure beside it, changed.

The database compares each row with the one before it on the same hypothesis, and returns only the changed ones.  A
query for a period reads the period's rows along the index of times, and the row before each hypothesis's first one
along the index of hypotheses.  Its cost grows with the period, not with all decisions ever made.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Connection, Integer, and_, case, cast, func, or_, select

from shadowspec.store import table_definitions as tables
from shadowspec.types import EvidenceSummary, MixChange, ReasonCode, Supersession, Verdict
from shadowspec.types.decision_documents import read_evidence, read_mix_change, read_supersession

_decisions, _before = tables.decisions.c, tables.decisions.alias("before_it").c
_HYPOTHESIS = tuple(_decisions[name] for name in tables.HYPOTHESIS)
# Reasons that say more than their verdict: an alarm, and a fingerprint that was replaced.
_TELLING = (ReasonCode.DRIFT, ReasonCode.REOPENED, ReasonCode.CHANGED_FINGERPRINT)


@dataclass(frozen=True, slots=True)
class VerdictChange:
    """A decision that is another than the one before it on its hypothesis (None: it was the first)."""

    decision_id: int
    endpoint: str
    slice_key: str
    concurrency: int
    fingerprint: str
    before: Verdict | None
    verdict: Verdict
    reason_code: str
    reason: str
    decided_at: datetime
    evidence: EvidenceSummary
    supersession: Supersession | None


@dataclass(frozen=True, slots=True)
class AdviceChange:
    """A current ENABLE with new advice: `advice` names tests that came down, `has_shifted`
    says that the traffic's mix is another than at ENABLE.
    """

    decision_id: int
    endpoint: str
    slice_key: str
    concurrency: int
    fingerprint: str
    advice: str | None
    has_shifted: bool
    is_new_advice: bool
    is_new_shift: bool
    decided_at: datetime
    mix_change: MixChange | None


def read_verdict_changes(
    connection: Connection,
    endpoint: str | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
    *,
    limit: int,
) -> list[VerdictChange]:
    """The newest decisions from `since` up to, but without, `until` that change their hypothesis; newest first."""
    window: dict[str, Any] = {"partition_by": _HYPOTHESIS, "order_by": _decisions.decision_id}
    names = ("decision_id", "verdict", "reason_code", "decided_at")
    every = select(
        *(_decisions[name] for name in names),
        func.coalesce(func.lag(_decisions.verdict).over(**window), _select_previous(_before.verdict)).label("before"),
        func.coalesce(func.lag(_decisions.reason_code).over(**window), _select_previous(_before.reason_code)).label(
            "code_before"
        ),
    ).where(*_match(endpoint, since))
    subquery = every.subquery()
    is_reported = and_(subquery.c.reason_code.in_(_TELLING), subquery.c.reason_code != subquery.c.code_before)
    where = [or_(subquery.c.before.is_(None), subquery.c.before != subquery.c.verdict, is_reported)]
    where += [] if since is None else [subquery.c.decided_at >= since]
    where += [] if until is None else [subquery.c.decided_at < until]
    newest = (
        select(subquery.c.decision_id, subquery.c.before)
        .where(*where)
        .order_by(subquery.c.decision_id.desc())
        .limit(limit)
    )
    chosen = newest.subquery()
    of_chosen = tables.decisions.join(chosen, chosen.c.decision_id == _decisions.decision_id)
    columns = (*_HYPOTHESIS, *(_decisions[name] for name in (*names, "reason", "document")))
    statement = select(*columns, chosen.c.before).select_from(of_chosen).order_by(_decisions.decision_id.desc())
    return [
        VerdictChange(
            **{name: row[name] for name in (*names, "reason", *tables.HYPOTHESIS) if name != "verdict"},
            before=row["before"] and Verdict(row["before"]),
            verdict=Verdict(row["verdict"]),
            evidence=read_evidence(row["document"]),
            supersession=read_supersession(row["document"]),
        )
        for row in connection.execute(statement).mappings()
    ]


def read_advice_changes(
    connection: Connection,
    endpoint: str | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
    *,
    limit: int,
) -> list[AdviceChange]:
    """The newest `limit` rows at which an ENABLE got advice or a shifted mix beside it; newest first."""
    # Documents are costly to open: once for each of the two figures, and not again for the row after.
    opened = (
        select(_decisions.decision_id, *_HYPOTHESIS, _decisions.decided_at, *_select_advice(_decisions.document))
        .where(_decisions.verdict == Verdict.ENABLE.value, *_match(endpoint, since))
        .cte("opened")
        .prefix_with("MATERIALIZED", dialect="postgresql")
    )
    window: dict[str, Any] = {
        "partition_by": [opened.c[column.name] for column in _HYPOTHESIS],
        "order_by": opened.c.decision_id,
    }
    is_first = func.lag(opened.c.decision_id).over(**window).is_(None)
    advice_before, shift_before = (
        case((is_first, _select_previous(said, opened.c, _before.verdict == Verdict.ENABLE.value)), else_=lagged)
        for said, lagged in zip(
            _select_advice(_before.document),
            (func.lag(opened.c[name]).over(**window) for name in ("advice", "shift")),
            strict=True,
        )
    )
    subquery = select(
        opened.c.decision_id,
        opened.c.decided_at,
        opened.c.advice,
        opened.c.shift,
        advice_before.label("advice_before"),
        func.coalesce(shift_before, 0).label("shift_before"),
    ).subquery()
    is_new_advice = and_(
        subquery.c.advice.is_not(None),
        or_(subquery.c.advice_before.is_(None), subquery.c.advice_before != subquery.c.advice),
    )
    is_new_shift = and_(subquery.c.shift == 1, subquery.c.shift_before == 0)
    where = [or_(is_new_advice, is_new_shift)]
    where += [] if since is None else [subquery.c.decided_at >= since]
    where += [] if until is None else [subquery.c.decided_at < until]
    newest = (
        select(
            subquery.c.decision_id,
            subquery.c.advice,
            subquery.c.shift,
            is_new_advice.label("is_new_advice"),
            is_new_shift.label("is_new_shift"),
        )
        .where(*where)
        .order_by(subquery.c.decision_id.desc())
        .limit(limit)
    )
    chosen = newest.subquery()
    of_chosen = tables.decisions.join(chosen, chosen.c.decision_id == _decisions.decision_id)
    columns = (_decisions.decision_id, *_HYPOTHESIS, _decisions.decided_at, _decisions.document)
    statement = select(*columns, *(chosen.c[name] for name in ("advice", "shift", "is_new_advice", "is_new_shift")))
    rows = connection.execute(statement.select_from(of_chosen).order_by(_decisions.decision_id.desc())).mappings()
    return [
        AdviceChange(
            **{name: row[name] for name in ("decision_id", *tables.HYPOTHESIS)},
            advice=row["advice"],
            has_shifted=bool(row["shift"]),
            is_new_advice=bool(row["is_new_advice"]),
            is_new_shift=bool(row["is_new_shift"]),
            decided_at=row["decided_at"],
            mix_change=read_mix_change(row["document"]),
        )
        for row in rows
    ]


def _match(endpoint: str | None, since: datetime | None) -> list[ColumnElement[bool]]:
    where = [] if endpoint is None else [_decisions.endpoint == endpoint]
    return where if since is None else [*where, _decisions.decided_at >= since]


def _select_advice(document: ColumnElement[Any]) -> tuple[ColumnElement[Any], ColumnElement[Any]]:
    """Advice, and 1 where the mix has shifted."""
    has_shifted = document["composition", "mix_change", "has_shifted"].as_boolean()
    return (
        document["drift", "advice"].as_string().label("advice"),
        func.coalesce(cast(has_shifted, Integer), 0).label("shift"),
    )


def _select_previous(
    value: ColumnElement[Any], source: Any = _decisions, *where: ColumnElement[bool]
) -> ColumnElement[Any]:
    """The newest decision before the row `own` on its hypothesis; evaluated only where it is needed."""
    earlier = select(value).where(*(_before[column.name] == source[column.name] for column in _HYPOTHESIS), *where)
    newest = earlier.where(_before.decision_id < source.decision_id).order_by(_before.decision_id.desc()).limit(1)
    return newest.scalar_subquery()

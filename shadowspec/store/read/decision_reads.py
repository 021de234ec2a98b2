"""Reads of decisions and their tests, each within a transaction that the caller owns.

Order is made in Python, by value: the collations of the two dialects sort text differently.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime
from operator import attrgetter

from sqlalchemy import ColumnElement, Connection, RowMapping, Select, func, select, true

from shadowspec.store import row_values
from shadowspec.store.bulk import distinct_keys
from shadowspec.store.read.row_reads import read_fingerprints
from shadowspec.store.table_definitions import HYPOTHESIS, decisions, test_snapshots
from shadowspec.types import Decision, TestResult, Verdict, decision_documents

_HYPOTHESIS = [decisions.c[name] for name in HYPOTHESIS]


def read_latest_decisions(connection: Connection, endpoint: str | None = None) -> list[Decision]:
    """The last decision on every hypothesis (of one endpoint), sorted by endpoint, slice, load and fingerprint."""
    return read_decisions(connection, _read_latest_ids(connection, endpoint))


def read_decisions(connection: Connection, ids: Sequence[int]) -> list[Decision]:
    """These decisions, sorted by endpoint, slice, load and fingerprint."""
    rows = connection.execute(select(decisions).where(decisions.c.decision_id.in_(ids))).mappings().all()
    values = _read_values(connection, rows, ids)
    return sorted(values, key=attrgetter("endpoint", "slice_key", "concurrency", "fingerprint"))


def read_decisions_on(connection: Connection, decision: Decision) -> list[tuple[int | None, Decision]]:
    """Every decision on the same hypothesis up to this one, oldest first, each with the id of its fold."""
    rows = [decisions.c[name] == getattr(decision, name) for name in HYPOTHESIS]
    return _read_with_folds(connection, *rows, decisions.c.decision_id <= decision.decision_id)


def read_decisions_of(connection: Connection, fold_id: int) -> list[Decision]:
    """Every decision that rests on a fold, in the order in which they were made."""
    return [decision for _, decision in _read_with_folds(connection, decisions.c.fold_id == fold_id)]


def read_decision(connection: Connection, decision_id: int) -> tuple[int | None, Decision] | None:
    """A decision with the id of its fold (None: it is older than folds); None: there is no such decision."""
    return next(iter(_read_with_folds(connection, decisions.c.decision_id == decision_id)), None)


def _read_with_folds(connection: Connection, *where: ColumnElement[bool]) -> list[tuple[int | None, Decision]]:
    """The decisions that match, oldest first, each with the id of its fold."""
    statement = select(decisions).where(*where).order_by(decisions.c.decision_id)
    rows = connection.execute(statement).mappings().all()
    values = _read_values(connection, rows, select(decisions.c.decision_id).where(*where))
    return [(row["fold_id"], decision) for row, decision in zip(rows, values, strict=True)]


def _read_values(
    connection: Connection, rows: Sequence[RowMapping], ids: Select[tuple[int]] | Sequence[int]
) -> list[Decision]:
    """The decisions of these rows, whose ids are `ids`, with their tests."""
    tests = _read_tests(connection, ids)
    configs = read_fingerprints(connection) if rows else {}
    return [
        decision_documents.read_decision(
            {name: row[name] for name in (*row_values.DECISION, "decision_id")}
            | {
                "verdict": Verdict(row["verdict"]),
                "config": configs[row["fingerprint"]].config,
                "tests": tuple(tests[row["decision_id"]]),
            },
            row["document"],
        )
        for row in rows
    ]


def read_verdicts(connection: Connection, endpoint: str) -> dict[tuple[str, int, str], tuple[Verdict, str]]:
    """By slice key, load and fingerprint: the current verdict of the endpoint's hypotheses, with its reason code.

    It reads no column that a writer's role may not read.
    """
    columns = [decisions.c[name] for name in ("slice_key", "concurrency", "fingerprint", "verdict", "reason_code")]
    latest = decisions.c.decision_id.in_(_read_latest_ids(connection, endpoint))
    rows = connection.execute(select(*columns).where(latest))
    return {(row[0], row[1], row[2]): (Verdict(row[3]), row[4]) for row in rows}


def read_decisions_at(connection: Connection, moment: datetime) -> list[Decision]:
    """The decision on every hypothesis that was the last one before the moment, sorted by hypothesis."""
    return read_decisions(connection, _read_ids_at(connection, moment))


def _read_latest_ids(connection: Connection, endpoint: str | None) -> list[int]:
    """The id of the last decision on every hypothesis (of an endpoint)."""
    if endpoint is not None and connection.dialect.name == "postgresql":
        return list(connection.scalars(_select_last(endpoint)))
    latest = select(func.max(decisions.c.decision_id)).group_by(*(decisions.c[name] for name in HYPOTHESIS))
    return list(connection.scalars(latest if endpoint is None else latest.where(decisions.c.endpoint == endpoint)))


def _select_last(endpoint: str) -> Select[tuple[int]]:
    """Reads only one row per hypothesis: grouping would read all, and they grow with the gate's looks."""
    columns = decisions.c
    keys = distinct_keys([columns[name] for name in HYPOTHESIS[1:]], columns.endpoint == endpoint)
    is_same = (columns[name] == keys.c[name] for name in HYPOTHESIS[1:])
    last = select(func.max(columns.decision_id)).where(columns.endpoint == endpoint, *is_same)
    return select(last.scalar_subquery()).select_from(keys)


def _read_tests(
    connection: Connection, decision_ids: Select[tuple[int]] | Sequence[int]
) -> dict[int, list[TestResult]]:
    statement = select(test_snapshots).where(test_snapshots.c.decision_id.in_(decision_ids))
    ordered = statement.order_by(test_snapshots.c.decision_id, test_snapshots.c.position)
    tests: dict[int, list[TestResult]] = defaultdict(list)
    for row in connection.execute(ordered).mappings().all():
        tests[row["decision_id"]].append(row_values.test_value(row))
    return tests


def _read_ids_at(connection: Connection, moment: datetime) -> list[int]:
    if connection.dialect.name == "postgresql":
        return list(connection.scalars(_select_last_before(moment)))
    columns = decisions.c
    order = func.row_number().over(
        partition_by=_HYPOTHESIS, order_by=(columns.decided_at.desc(), columns.decision_id.desc())
    )
    numbered = select(columns.decision_id, order.label("number")).where(columns.decided_at < moment).subquery()
    return list(connection.scalars(select(numbered.c.decision_id).where(numbered.c.number == 1)))


def _select_last_before(moment: datetime) -> Select[tuple[int]]:
    """Of each hypothesis its last decision before the moment; reads no other row: they grow with the gate's looks."""
    columns, keys = decisions.c, distinct_keys(_HYPOTHESIS)
    is_same = (columns[name] == keys.c[name] for name in HYPOTHESIS)
    of_key = select(columns.decision_id).where(*is_same, columns.decided_at < moment)
    last = of_key.order_by(columns.decided_at.desc(), columns.decision_id.desc()).limit(1).lateral("last")
    return select(last.c.decision_id).select_from(keys.join(last, true()))

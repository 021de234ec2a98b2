"""The schedulers' rows: the periods of each job, and the state of each delivery; each within a transaction of the
caller.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Connection, RowMapping, and_, select, update

from shadowspec.store import bulk
from shadowspec.store.table_definitions import report_deliveries, schedule_periods
from shadowspec.types import Delivery, DeliveryState, Period

PERIOD = ("job", "due_at", "since", "until", "gate_outcome")
DELIVERY = (
    "job", "due_at", "receiver", "state", "attempts", "idempotency_key", "message_id", "next_attempt_at", "sent_at",
    "last_error",
)  # fmt: skip
OPEN = (DeliveryState.PENDING.value, DeliveryState.SENDING.value)

_periods, _deliveries = schedule_periods.c, report_deliveries.c


def begin_periods(connection: Connection, periods: Iterable[Period]) -> int:
    """Keep the periods that are new; how many were."""
    values = [tuple(asdict(period)[name] for name in PERIOD) for period in periods]
    return len(bulk.insert_new(connection, schedule_periods, PERIOD, values))


def prepare_period(connection: Connection, period: Period, deliveries: Iterable[Delivery]) -> None:
    """Fix the time that a period's report covers, together with the deliveries that are to be made."""
    condition = and_(_periods.job == period.job, _periods.due_at == period.due_at)
    values = {"until": period.until, "gate_outcome": period.gate_outcome}
    connection.execute(update(schedule_periods).where(condition, _periods.until.is_(None)).values(values))
    rows = [tuple(_row(delivery)[name] for name in DELIVERY) for delivery in deliveries]
    bulk.insert_new(connection, report_deliveries, DELIVERY, rows)


def read_last_period(connection: Connection, job: str) -> Period | None:
    """The job's newest period; None if it was never scheduled."""
    statement = select(schedule_periods).where(_periods.job == job).order_by(_periods.due_at.desc()).limit(1)
    row = connection.execute(statement).mappings().first()
    return None if row is None else Period(**row)


def read_period(connection: Connection, job: str, due_at: datetime) -> Period | None:
    """One period of a job."""
    statement = select(schedule_periods).where(_periods.job == job, _periods.due_at == due_at)
    row = connection.execute(statement).mappings().first()
    return None if row is None else Period(**row)


def read_unprepared_periods(connection: Connection, job: str) -> list[Period]:
    """The job's periods that were started, and whose deliveries are not planned yet; oldest first."""
    statement = select(schedule_periods).where(_periods.job == job, _periods.until.is_(None))
    return [Period(**row) for row in connection.execute(statement.order_by(_periods.due_at)).mappings()]


def read_open_deliveries(connection: Connection, receiver: str, now: datetime) -> list[Delivery]:
    """The deliveries that are due to a receiver by `now`, oldest period first."""
    where = (_deliveries.receiver == receiver, _deliveries.state.in_(OPEN), _deliveries.next_attempt_at <= now)
    statement = select(report_deliveries).where(*where).order_by(_deliveries.due_at, _deliveries.job)
    return [_delivery(row) for row in connection.execute(statement).mappings()]


def read_deliveries(connection: Connection, job: str | None = None, limit: int = 100) -> list[Delivery]:
    """The newest deliveries (of one job), by period and receiver."""
    order = (_deliveries.due_at.desc(), _deliveries.job, _deliveries.receiver)
    statement = select(report_deliveries).order_by(*order).limit(limit)
    if job is not None:
        statement = statement.where(_deliveries.job == job)
    return [_delivery(row) for row in connection.execute(statement).mappings()]


def keep_delivery(connection: Connection, delivery: Delivery) -> None:
    """Keep the state of a delivery as it is now."""
    names = ("state", "attempts", "next_attempt_at", "sent_at", "last_error")
    values = {name: _row(delivery)[name] for name in names}
    connection.execute(update(report_deliveries).where(_same(delivery)).values(values))


def abandon_deliveries(connection: Connection, receivers: Sequence[str], error: str) -> int:
    """Give up open deliveries to receivers that are not among these; the number of such deliveries."""
    where = (_deliveries.state.in_(OPEN), _deliveries.receiver.not_in(receivers))
    values = {"state": DeliveryState.FAILED.value, "last_error": error}
    return connection.execute(update(report_deliveries).where(*where).values(values)).rowcount


def _same(delivery: Delivery) -> ColumnElement[bool]:
    return and_(
        _deliveries.job == delivery.job,
        _deliveries.due_at == delivery.due_at,
        _deliveries.receiver == delivery.receiver,
    )


def _row(delivery: Delivery) -> dict[str, Any]:
    return asdict(delivery) | {"state": delivery.state.value}


def _delivery(row: RowMapping) -> Delivery:
    return Delivery(**{**row, "state": DeliveryState(row["state"])})

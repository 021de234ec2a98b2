"""The reads behind reports of a past time and the scheduler that delivers them."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import Engine

from shadowspec.store import history, schedules, session
from shadowspec.types import Decision, Delivery, Period


class ScheduleReads:
    """What can be asked of one database about past moments and what schedulers have done.  Times come back in UTC."""

    _engine: Engine

    def decisions_at(self, moment: datetime) -> list[Decision]:
        """The decision on every hypothesis that was the last one before the moment, sorted by it."""
        with session.read(self._engine) as connection:
            return history.read_decisions_at(connection, moment)

    def last_period(self, job: str) -> Period | None:
        """The newest period of a scheduled job; None if it was never scheduled."""
        with session.read(self._engine) as connection:
            return schedules.read_last_period(connection, job)

    def period(self, job: str, due_at: datetime) -> Period | None:
        """One period of a scheduled job."""
        with session.read(self._engine) as connection:
            return schedules.read_period(connection, job, due_at)

    def unprepared_periods(self, job: str) -> list[Period]:
        """The job's periods that were begun, and whose deliveries do not stand yet; oldest first."""
        with session.read(self._engine) as connection:
            return schedules.read_unprepared_periods(connection, job)

    def open_deliveries(self, receiver: str, now: datetime) -> list[Delivery]:
        """What is to be sent to a receiver by `now`, oldest period first."""
        with session.read(self._engine) as connection:
            return schedules.read_open_deliveries(connection, receiver, now)

    def deliveries(self, job: str | None = None, limit: int = 100) -> list[Delivery]:
        """The newest deliveries (of one job), newest period first."""
        with session.read(self._engine) as connection:
            return schedules.read_deliveries(connection, job, limit)

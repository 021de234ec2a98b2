"""Monthly partitions of `records` and `runs` on Postgres, created on demand by the record's time (UTC).

Records without a time (from files: 0) lie in a separate partition.  Times without a partition, and rows that arrive
while their month cannot be created, go to the default partition; creating the month moves them there.  A missing
partition therefore delays nothing and loses nothing.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from datetime import UTC, date, datetime, timedelta

from sqlalchemy import Connection, Engine, text

from shadowspec.errors import ServiceUnavailableError
from shadowspec.store import session
from shadowspec.store.table_definitions import PARTITIONED

FIRST_MONTH = date(2020, 1, 1)  # older than any mirror; with the bound below it limits the months that odd times create
AHEAD = timedelta(days=40)  # producers' clocks may be ahead, and a month is made when its first record comes
RETRY_AFTER_S = 30.0  # a month that could not be made (its lock was held) is tried again

log = logging.getLogger(__name__)


def month_of(timestamp_ms: int, now: datetime) -> date | None:
    """The first day of a record's month; None where no partition is made for it."""
    if timestamp_ms <= 0 or timestamp_ms >= (now + AHEAD).timestamp() * 1000:
        return None
    month = datetime.fromtimestamp(timestamp_ms // 1000, UTC).date().replace(day=1)
    return month if FIRST_MONTH <= month <= (now + AHEAD).date() else None


def bounds_ms(month: date) -> tuple[int, int]:
    """The timestamps of a month: from the first, up to but without the second, milliseconds."""
    following = (month + timedelta(days=32)).replace(day=1)
    return _milliseconds(month), _milliseconds(following)


def partition_names(connection: Connection) -> set[str]:
    """Every table that is a partition of another (Postgres)."""
    return set(connection.scalars(text("SELECT relname FROM pg_class WHERE relispartition AND relkind = 'r'")))


class Partitions:
    """Knows which months are there, so that asking costs nothing.  Lives as long as its engine."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._known: set[date] = set()
        self._not_before: dict[date, float] = {}  # monotonic seconds

    def ensure(self, timestamps_ms: Iterable[int]) -> None:
        """Ensure that the months of these times exist; each is created in a separate transaction.

        Raises:
            StoreError: the role may not create one.
            ServiceUnavailableError: the database cannot be reached.
        """
        if self._engine.dialect.name != "postgresql":
            return
        now = datetime.now(UTC)
        months = {month for timestamp_ms in set(timestamps_ms) if (month := month_of(timestamp_ms, now)) is not None}
        for month in sorted(months - self._known):
            if time.monotonic() >= self._not_before.get(month, 0.0):
                self._make(month)

    def _make(self, month: date) -> None:
        try:
            for table in PARTITIONED:
                with session.write(self._engine) as connection:
                    statement = text("SELECT shadowspec_create_partition(:table, :month)")
                    connection.execute(statement, {"table": table.name, "month": month})
        except ServiceUnavailableError as error:
            if not session.is_lock_timeout(error):
                raise
            log.warning("partition of %s could not be made yet: its lock is held", month.isoformat())
            self._not_before[month] = time.monotonic() + RETRY_AFTER_S
            return
        self._known.add(month)


def _milliseconds(day: date) -> int:
    return int(datetime(day.year, day.month, day.day, tzinfo=UTC).timestamp()) * 1000

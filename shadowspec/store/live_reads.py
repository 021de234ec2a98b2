"""The reads of live evidence."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime

from sqlalchemy import Engine

from shadowspec.store import live, live_hours, session
from shadowspec.types import LiveHour, LiveReplica, LiveWindow


class LiveReads:
    """What can be asked of one database about what production engines counted.  Times come back in UTC."""

    _engine: Engine

    def live_replicas(self, endpoint: str) -> dict[str, LiveReplica]:
        """How far the reading of each of the endpoint's replicas has come."""
        with session.read(self._engine) as connection:
            return live.read_replicas(connection, endpoint)

    def live_windows(
        self,
        endpoint: str,
        since: datetime | None = None,
        until: datetime | None = None,
        replicas: Collection[str] | None = None,
        limit: int | None = None,
    ) -> list[LiveWindow]:
        """The endpoint's windows that ended from `since` up to, but without, `until`, in the order of their ends.

        With a `limit` the newest so many, without their latencies.
        """
        with session.read(self._engine) as connection:
            return live.read_windows(connection, endpoint, since, until, replicas, limit)

    def live_hours(self, endpoint: str, since: datetime, until: datetime) -> list[LiveHour]:
        """What the endpoint's windows add up to by replica, series and the hour in which they ended.

        The hours that begin from `since` up to, but without, `until`.
        """
        with session.read(self._engine) as connection:
            return live_hours.read_hours(connection, endpoint, since, until)

"""The reads of live evidence."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime

from sqlalchemy import Engine

from shadowspec.store import live, session
from shadowspec.types import LiveReplica, LiveWindow


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

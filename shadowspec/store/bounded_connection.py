"""Connections to Postgres that never wait forever; only this module loads psycopg."""

from __future__ import annotations

import time
from typing import Any, TypeVar

import psycopg
from psycopg.abc import PQGen
from psycopg.pq import Format, TransactionStatus

T = TypeVar("T")

BINARY = Format.BINARY  # of a cursor's results
WAIT_INTERVAL_S = 0.1  # psycopg's value: how often a wait looks for Ctrl-C


class BoundedConnection(psycopg.Connection[Any]):
    """A Postgres connection that gives up when the server has not answered for `answer_timeout_s`.

    The server's statement time-out ends long statements, and keep-alives notice a lost host.  Neither helps against a
    server process that hangs (a stalled disk, a stopped process): its machine still answers for it.
    """

    answer_timeout_s: float | None = None  # None: no limit, as while connecting (which has another time-out)

    def wait(self, gen: PQGen[T], interval: float = WAIT_INTERVAL_S, timeout: float | None = None) -> T:
        limit = self.answer_timeout_s if timeout is None else timeout
        started = time.monotonic()
        try:
            return super().wait(gen, interval, limit)
        except psycopg.OperationalError as exc:
            is_late = limit is not None and time.monotonic() - started >= limit
            if not is_late or self.pgconn.transaction_status != TransactionStatus.ACTIVE:
                raise
            self.pgconn.finish()  # a late answer would be read as that of the next statement
            raise psycopg.OperationalError(f"the server has not answered for {limit:g} s") from exc

"""Connections to Postgres that never wait forever; only this module loads psycopg."""

from __future__ import annotations

import os
import re
import select
import time
from typing import Any, TypeVar

import psycopg
from psycopg.abc import PQGen
from psycopg.conninfo import make_conninfo
from psycopg.pq import Format, PGconn, PollingStatus, TransactionStatus

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


_ERROR_STATE = re.compile(rb'\tErrorResponse\t.* C "([0-9A-Z]{5})"')  # of libpq's trace
_DIAGNOSIS_S = 5.0  # for which a second login may take
_TRACE_BYTES = 2**20


class LoginRefusedError(psycopg.OperationalError):
    """A server refused a login, with its SQLSTATE."""

    is_login = True

    def __init__(self, message: str, sqlstate: str) -> None:
        super().__init__(message)
        self.sqlstate = sqlstate


def connect_or_say_why(context: Any, *args: Any, **keywords: Any) -> BoundedConnection:
    """Connect with psycopg's context for types; the error of a login that the server refused has the server's SQLSTATE.

    libpq keeps only the text of such an error, which is in the server's language.

    Raises:
        psycopg.OperationalError: there is no server, or it refuses.
    """
    try:
        return BoundedConnection.connect(*args, context=context, **keywords)
    except psycopg.OperationalError as error:
        if error.sqlstate is None and (state := _refusal_state(make_conninfo(*args, **keywords))) is not None:
            raise LoginRefusedError(str(error), state) from error
        raise


def _refusal_state(conninfo: str) -> str | None:
    """The SQLSTATE with which the server refuses a login, from libpq's trace of another one; None where it does not."""
    trace = os.memfd_create("login")  # of this process alone: it holds the login
    try:
        connection = PGconn.connect_start(conninfo.encode())
        deadline = time.monotonic() + _DIAGNOSIS_S
        try:
            connection.trace(trace)
            while (left := deadline - time.monotonic()) > 0:
                status = connection.connect_poll()
                if status not in (PollingStatus.READING, PollingStatus.WRITING):
                    break
                sockets = [connection.socket]
                select.select(*((sockets, [], []) if status == PollingStatus.READING else ([], sockets, [])), left)
            connection.untrace()
        finally:
            connection.finish()
        states = _ERROR_STATE.findall(os.pread(trace, _TRACE_BYTES, 0))
    except (psycopg.Error, OSError):
        return None
    finally:
        os.close(trace)
    return states[-1].decode() if states else None

"""Attempts: how often a request was tried alone, written down before each try.

They are kept outside the process, so that a worker that is started anew does not begin at zero with a
request that kills whatever measures it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol

from shadowspec.errors import ServiceUnavailableError, ShadowSpecError
from shadowspec.types import RecordKey

log = logging.getLogger(__name__)

RETRY_S = 1.0  # between two tries to reach the log


class AttemptLog(Protocol):
    """Where attempts are kept."""

    def record_attempt(self, keys: Sequence[RecordKey]) -> Mapping[RecordKey, int]:
        """Count one more attempt of each; how many each has had, this one included."""

    def clear_attempts(self, keys: Sequence[RecordKey]) -> None:
        """Count from zero again: the request was measured alone and nothing happened."""


class Attempts:
    """Asks the log from a thread of its own: a database that is away must not hold the poll loop."""

    def __init__(self, attempt_log: AttemptLog) -> None:
        self._log = attempt_log
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="attempts")
        self._closing = threading.Event()
        self._asked: dict[RecordKey, Future[int]] = {}

    def number(self, key: RecordKey) -> int | None:
        """The number of the attempt that may now be made; None while it is not written down yet: ask again.

        Raises:
            ShadowSpecError: the log cannot be written to, and waiting does not heal it.
        """
        if key not in self._asked:
            self._asked[key] = self._executor.submit(self._record, key)
        if not self._asked[key].done():
            return None
        return self._asked.pop(key).result()

    def clear(self, key: RecordKey) -> None:
        """Forget the attempts of a request that has done no harm."""
        self._executor.submit(self._clear, key)

    def close(self) -> None:
        """Ask nothing any more."""
        self._closing.set()
        self._executor.shutdown(wait=False, cancel_futures=True)

    def _record(self, key: RecordKey) -> int:
        while True:
            try:
                return self._log.record_attempt([key])[key]
            except ServiceUnavailableError as error:
                if not error.is_retryable or self._closing.is_set():
                    raise
                log.warning("an attempt cannot be written down yet: %s", error)
                self._closing.wait(RETRY_S)

    def _clear(self, key: RecordKey) -> None:
        try:
            self._log.clear_attempts([key])
        except ShadowSpecError as error:
            # The request then has one attempt fewer left, should its block ever fail again.
            log.warning("the attempts of %s are not cleared: %s", key, error)

"""Calls that may wait or fail while a service is away, made on a separate thread and repeated while that may help."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, TypeVar

from shadowspec.errors import ServiceUnavailableError

log = logging.getLogger(__name__)

FIRST_WAIT_S = 0.2
MAX_WAIT_S = 10.0  # a database that comes back is noticed within this

T = TypeVar("T")


class Background:
    """One thread, one call at a time, in the order in which they are asked for."""

    def __init__(self, name: str) -> None:
        self._executor = ThreadPoolExecutor(1, thread_name_prefix=name)
        self.error: ServiceUnavailableError | None = None  # why the last call is being repeated

    def call(self, what: str, function: Callable[[], T]) -> RetriedCall[T]:
        """Begin a call; `what` names it in the log."""
        return RetriedCall(self, what, function)

    def submit(self, function: Callable[[], T]) -> Future[T]:
        return self._executor.submit(function)

    def close(self) -> None:
        """Wait for the call that is being made; the others are dropped."""
        self._executor.shutdown(wait=True, cancel_futures=True)


class RetriedCall(Generic[T]):
    """One call, repeated with growing waits as long as its failure is one that heals."""

    def __init__(self, background: Background, what: str, function: Callable[[], T]) -> None:
        self._background, self._what, self._function = background, what, function
        self._wait_s = FIRST_WAIT_S
        self._retry_at: float | None = None
        self._future = background.submit(function)

    def is_done(self) -> bool:
        """Whether `result` is available; never waits.

        Raises:
            Exception: the call failed permanently.
        """
        if self._retry_at is not None:
            if time.monotonic() < self._retry_at:
                return False
            self._retry_at = None
            self._future = self._background.submit(self._function)
        if not self._future.done():
            return False
        error = self._future.exception()
        if isinstance(error, ServiceUnavailableError) and error.is_retryable:
            if self._background.error is None:
                log.warning("%s: %s; trying again", self._what, error)
            self._background.error = error
            self._retry_at = time.monotonic() + self._wait_s
            self._wait_s = min(MAX_WAIT_S, 2 * self._wait_s)
            return False
        if error is None and self._background.error is not None:
            log.warning("%s: works again", self._what)
            self._background.error = None
        return True

    def result(self) -> T:
        """The call's result; its error, if a retry cannot help."""
        return self._future.result()

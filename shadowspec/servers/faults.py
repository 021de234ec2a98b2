"""What goes wrong at a server.  Neither what was asked nor what was answered is ever part of a message."""

from __future__ import annotations

from shadowspec.errors import ServiceUnavailableError


class ServerError(ServiceUnavailableError):
    """A server gave no usable answer.

    `code` is the failure that a run is stored with; `is_retryable` says that the whole request may be sent anew.
    """

    def __init__(
        self, server: str, code: str, message: str, *, is_retryable: bool = False, retry_after_s: float | None = None
    ) -> None:
        super().__init__(f"{server}: {message}", is_retryable=is_retryable)
        self.code = code
        self.retry_after_s = retry_after_s

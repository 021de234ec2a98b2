"""Why a delivery failed, as a class: what servers say may quote addresses or secrets, and is kept nowhere."""

from __future__ import annotations

import smtplib

from shadowspec.errors import ShadowSpecError


class DeliveryError(ShadowSpecError):
    """A receiver has not taken a report.  `kind` is what the log keeps of it."""

    exit_code = 5

    def __init__(self, kind: str) -> None:
        super().__init__(kind)
        self.kind = kind


def kind_of(error: BaseException) -> str:
    """The class of an error, with a server's code where it has one."""
    if isinstance(error, DeliveryError):
        return error.kind
    name = type(error).__name__
    if isinstance(error, smtplib.SMTPResponseException):
        return f"{name} {error.smtp_code}"
    if isinstance(error, OSError) and error.errno is not None:
        return f"{name} {error.errno}"
    return name

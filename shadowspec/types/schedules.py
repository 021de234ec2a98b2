"""A scheduler's periods, and the result of each report's delivery."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum


class DeliveryState(StrEnum):
    """How far one report to one receiver has come."""

    PENDING = "pending"  # not sent yet, or to be tried again
    SENDING = "sending"  # started; after a crash it is unknown whether it arrived
    SENT = "sent"
    FAILED = "failed"  # given up


@dataclass(frozen=True, slots=True)
class Period:
    """One time at which a job was due, and the period of its report.

    The report covers `since` up to, but without, `until`, which is None while the job's gate has not run.  A job's
    first row only records when it was first scheduled: its `since` is its `until`.  `gate_outcome` is "done", or the
    class of the error; None where the job runs no gate or a later period of it did.
    """

    job: str
    due_at: datetime
    since: datetime
    until: datetime | None = None
    gate_outcome: str | None = None


@dataclass(frozen=True, slots=True)
class Delivery:
    """A report to one receiver; contents, addresses and the text of errors are in no part of it.

    `idempotency_key` and `message_id` stay the same however often it is sent; `last_error` is a class, such as
    "SMTPAuthenticationError 535".
    """

    job: str
    due_at: datetime
    receiver: str
    idempotency_key: str
    message_id: str | None
    next_attempt_at: datetime
    state: DeliveryState = DeliveryState.PENDING
    attempts: int = 0
    sent_at: datetime | None = None
    last_error: str | None = None

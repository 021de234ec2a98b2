"""What a scheduler has had to do, and what became of each report that it had to deliver."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum


class DeliveryState(StrEnum):
    """How far one report to one receiver has come."""

    PENDING = "pending"  # not sent yet, or to be tried again
    SENDING = "sending"  # begun: if nobody is at it any more, nobody knows whether it arrived
    SENT = "sent"
    FAILED = "failed"  # given up


@dataclass(frozen=True, slots=True)
class Period:
    """One time at which a job was due, and the time of which its report speaks.

    The report speaks of `since` up to, but without, `until`, which is None while the job's gate has not run.  A
    job's first row only says from when on it is scheduled: its `since` is its `until`.  `gate_outcome` is
    "done", or the class of what failed; None where the job runs no gate or a later period of it did.
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

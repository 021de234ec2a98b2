"""Sends what one receiver is to get: kept as begun, sent, kept as sent, in that order.

Whoever dies between sending and keeping leaves a delivery that is begun: the next leader sends it again, with the
same key and Message-ID, because nobody can know whether it arrived.  A receiver that fails waits, longer each time.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime

from shadowspec.errors import ConfigError, ServiceUnavailableError
from shadowspec.scheduler.errors import kind_of
from shadowspec.scheduler.folder import send_to_folder
from shadowspec.scheduler.letters import Letter
from shadowspec.scheduler.mail import send_mail
from shadowspec.scheduler.settings import EmailSettings, FolderSettings, ReceiverSettings, RetrySettings
from shadowspec.scheduler.shelf import ReportShelf
from shadowspec.scheduler.webhook import send_to_webhook
from shadowspec.store import Store
from shadowspec.types import Delivery, DeliveryState

KEEP_ATTEMPTS, KEEP_WAIT_S = 10, 1.0  # to write down that something was sent, before it is left to be sent again

_log = logging.getLogger(__name__)


class Deliverer:
    """One receiver's postman.  `may_send` is asked before every step; when it says no, nothing more is begun."""

    def __init__(
        self,
        store: Store,
        receiver: ReceiverSettings,
        shelf: ReportShelf,
        retry: RetrySettings,
        timeout_s: float,
        may_send: Callable[[], bool],
    ) -> None:
        self._store, self._receiver, self._shelf = store, receiver, shelf
        self._retry, self._timeout_s, self._may_send = retry, timeout_s, may_send

    def run(self) -> None:
        """Send everything that is due now, oldest first, each once.

        Raises:
            ServiceUnavailableError, StoreError: the database is gone or refuses.
        """
        for delivery in self._store.open_deliveries(self._receiver.name, datetime.now(UTC)):
            if not self._may_send():
                return
            self._attempt(delivery)

    def _attempt(self, delivery: Delivery) -> None:
        if delivery.attempts >= self._retry.max_attempts:  # each ended with its process
            self._keep(replace(delivery, state=DeliveryState.FAILED, last_error=delivery.last_error or "Interrupted"))
            return
        begun = replace(delivery, state=DeliveryState.SENDING, attempts=delivery.attempts + 1)
        self._store.keep_delivery(begun)
        try:
            letter = Letter(begun, self._shelf.report(delivery.job, delivery.due_at))
            if not self._may_send():
                return
            note = self._send(letter)
        except ServiceUnavailableError:  # the database: nothing was sent yet
            raise
        except Exception as error:
            if isinstance(error, ConfigError):  # these are our own words, which quote no secret
                _log.warning("%s", error)
            self._keep(self._failed(begun, kind_of(error)))
            return
        sent = replace(begun, state=DeliveryState.SENT, sent_at=datetime.now(UTC), last_error=note)
        self._keep(sent)
        _log.info("job %s: report of %s delivered to %s", sent.job, sent.due_at.isoformat(), sent.receiver)

    def _send(self, letter: Letter) -> str | None:
        """Send it; a remark for the log where it arrived in part."""
        own = self._receiver
        if isinstance(own, FolderSettings):
            send_to_folder(own, letter)
        elif isinstance(own, EmailSettings):
            refused = send_mail(own, letter, self._timeout_s)
            return f"{refused} of {len(own.to)} addresses refused" if refused else None
        else:
            send_to_webhook(own, letter, self._timeout_s)
        return None

    def _failed(self, begun: Delivery, kind: str) -> Delivery:
        is_last = begun.attempts >= self._retry.max_attempts
        state = DeliveryState.FAILED if is_last else DeliveryState.PENDING
        wait = self._retry.wait_after(begun.attempts)
        _log.warning(
            "job %s: report of %s not delivered to %s (%s), attempt %d; %s",
            begun.job,
            begun.due_at.isoformat(),
            begun.receiver,
            kind,
            begun.attempts,
            "given up" if is_last else f"again in {wait.total_seconds():.0f} s",
        )
        return replace(begun, state=state, last_error=kind, next_attempt_at=datetime.now(UTC) + wait)

    def _keep(self, delivery: Delivery) -> None:
        """Write it down; a database that is away for a moment must not make us send again."""
        for attempt in range(KEEP_ATTEMPTS):
            try:
                self._store.keep_delivery(delivery)
                return
            except ServiceUnavailableError:
                if attempt == KEEP_ATTEMPTS - 1:
                    raise
                time.sleep(KEEP_WAIT_S)

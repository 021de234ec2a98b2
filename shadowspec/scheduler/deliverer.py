"""Makes one receiver's or target's deliveries: stored as started, sent, stored as sent, in that order.

A crash between sending and storing leaves a delivery only started: the next leader sends it again, with the same key
and Message-ID, because whether it arrived cannot be known.  A receiver that fails waits, longer each time.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from datetime import UTC, datetime

from shadowspec.errors import ConfigError, ServiceUnavailableError, StoreError
from shadowspec.reports.period.period_build import PeriodSettings, build_period_report
from shadowspec.reports.period.period_model import PeriodReport
from shadowspec.scheduler.job_settings import EmailSettings, FolderSettings, ReceiverSettings, RetrySettings
from shadowspec.scheduler.receivers import ReportMessage, error_kind, send_mail, send_to_folder, send_to_webhook
from shadowspec.scheduler.target_settings import KeptTarget
from shadowspec.scheduler.targets import Renderer, TargetError, keep
from shadowspec.store import Store
from shadowspec.types import Delivery, DeliveryState

KEEP_ATTEMPTS, KEEP_WAIT_S = 10, 1.0  # to write down that something was sent, before it is left to be sent again

NUM_CACHED_REPORTS = 8

_log = logging.getLogger(__name__)


class ReportCache:
    """The newest few reports.  For several threads; one builds while the others wait for it."""

    def __init__(self, store: Store, settings: PeriodSettings, events: Mapping[str, Collection[str]]) -> None:
        """
        Args:
            events: by job, the events that its reports list; all changes for a job without any.
        """
        self._store, self._settings, self._events = store, settings, events
        self._reports: OrderedDict[tuple[str, datetime], PeriodReport] = OrderedDict()
        self._lock = threading.Lock()

    def report(self, job: str, due_at: datetime) -> PeriodReport:
        """The report of a prepared period.

        Raises:
            StoreError: there is no such period.
        """
        with self._lock:
            if (job, due_at) not in self._reports:
                self._reports[job, due_at] = self._build(job, due_at)
                while len(self._reports) > NUM_CACHED_REPORTS:
                    self._reports.popitem(last=False)
            return self._reports[job, due_at]

    def _build(self, job: str, due_at: datetime) -> PeriodReport:
        period = self._store.period(job, due_at)
        if period is None or period.until is None:
            raise StoreError(f"job {job}: the period due at {due_at:%Y-%m-%d %H:%M:%S} UTC is not prepared")
        now = datetime.now(UTC)
        return build_period_report(
            self._store,
            self._settings,
            period.since,
            period.until,
            now,
            gate_outcome=period.gate_outcome,
            events=self._events.get(job, ()),
        )


Send = Callable[[], str | None]  # a remark for the log where something arrived in part
Prepare = Callable[[Delivery], Send]


class Deliverer:
    """Delivers to one place.  `may_send` is checked before every step; after a no it begins nothing more."""

    def __init__(
        self, store: Store, place: str, prepare: Prepare, retry: RetrySettings, may_send: Callable[[], bool]
    ) -> None:
        """
        Args:
            prepare: what sends a delivery, made before it is asked whether it may.
        """
        self._store, self._place, self._prepare = store, place, prepare
        self._retry, self._may_send = retry, may_send

    def run(self) -> None:
        """Send everything that is due now, oldest first, each once.

        Raises:
            ServiceUnavailableError, StoreError: the database is gone or refuses.
        """
        for delivery in self._store.open_deliveries(self._place, datetime.now(UTC)):
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
            send = self._prepare(begun)
            if not self._may_send():
                return
            note = send()
        except ServiceUnavailableError:  # the database: nothing was sent yet
            raise
        except Exception as error:
            if isinstance(error, ConfigError | TargetError):  # our message, which quotes no secret
                _log.warning("%s", error)
            self._keep(self._fail(begun, error_kind(error)))
            return
        sent = replace(begun, state=DeliveryState.SENT, sent_at=datetime.now(UTC), last_error=note)
        self._keep(sent)
        _log.info("job %s: delivery of %s made to %s", sent.job, sent.due_at.isoformat(), sent.receiver)

    def _fail(self, begun: Delivery, kind: str) -> Delivery:
        is_last = begun.attempts >= self._retry.max_attempts
        state = DeliveryState.FAILED if is_last else DeliveryState.PENDING
        wait = self._retry.wait_after(begun.attempts)
        _log.warning(
            "job %s: delivery of %s to %s failed (%s), attempt %d; %s",
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


def report_sender(receiver: ReceiverSettings, reports: ReportCache, timeout_s: float) -> Prepare:
    """Sends the report of a delivery's period."""

    def prepare(delivery: Delivery) -> Send:
        message = ReportMessage(delivery, reports.report(delivery.job, delivery.due_at))

        def send() -> str | None:
            if isinstance(receiver, FolderSettings):
                send_to_folder(receiver, message)
            elif isinstance(receiver, EmailSettings):
                refused = send_mail(receiver, message, timeout_s)
                return f"{refused} of {len(receiver.to)} addresses refused" if refused else None
            else:
                send_to_webhook(receiver, message, timeout_s)
            return None

        return send

    return prepare


def export_keeper(target: KeptTarget, render: Renderer, timeout_s: float) -> Prepare:
    """Keeps the export of now, whenever the delivery was asked for."""

    def prepare(_: Delivery) -> Send:
        export = render()

        def send() -> None:
            if keep(target, export, timeout_s):
                reasons = "; ".join(export.reasons) or "nothing is decided"
                _log.info("export %s has changed: %s", target.name, reasons)

        return send

    return prepare

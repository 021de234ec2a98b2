"""Reports as they are asked for: built when the first receiver wants one, kept while others may."""

from __future__ import annotations

import threading
from collections import OrderedDict
from datetime import UTC, datetime

from shadowspec.errors import StoreError
from shadowspec.reports.period.build import PeriodSettings, build_period_report
from shadowspec.reports.period.model import PeriodReport
from shadowspec.store import Store

NUM_KEPT = 8


class ReportShelf:
    """The newest few reports.  For several threads; one builds while the others wait for it."""

    def __init__(self, store: Store, settings: PeriodSettings) -> None:
        self._store, self._settings = store, settings
        self._kept: OrderedDict[tuple[str, datetime], PeriodReport] = OrderedDict()
        self._lock = threading.Lock()

    def report(self, job: str, due_at: datetime) -> PeriodReport:
        """The report of a prepared period.

        Raises:
            StoreError: there is no such period.
        """
        with self._lock:
            if (job, due_at) not in self._kept:
                self._kept[job, due_at] = self._build(job, due_at)
                while len(self._kept) > NUM_KEPT:
                    self._kept.popitem(last=False)
            return self._kept[job, due_at]

    def _build(self, job: str, due_at: datetime) -> PeriodReport:
        period = self._store.period(job, due_at)
        if period is None or period.until is None:
            raise StoreError(f"job {job}: the period due at {due_at:%Y-%m-%d %H:%M:%S} UTC is not prepared")
        now = datetime.now(UTC)
        outcome = period.gate_outcome
        return build_period_report(self._store, self._settings, period.since, period.until, now, gate_outcome=outcome)

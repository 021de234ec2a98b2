"""One scheduler leads, the others wait; each term begins with only configuration and database.

While it leads, every job and every receiver is scheduled in APScheduler: jobs wake at the times of their cron
expressions, and at intervals for work that an error left undone; receivers every few seconds.  A missed wake-up costs
nothing, because the database holds the open work.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, TypeVar

from apscheduler.executors.pool import ThreadPoolExecutor as PoolExecutor
from apscheduler.schedulers.background import BackgroundScheduler
from apscheduler.triggers.base import BaseTrigger
from apscheduler.triggers.interval import IntervalTrigger

from shadowspec.errors import ServiceUnavailableError, ShadowSpecError
from shadowspec.reports.period.period_build import PeriodSettings
from shadowspec.rollout.endpoint_run import GatePolicies
from shadowspec.scheduler.cron import Cron
from shadowspec.scheduler.deliverer import Deliverer, ReportCache, export_keeper, report_sender
from shadowspec.scheduler.job_settings import JobSettings, LiveSettings, ScheduleSettings
from shadowspec.scheduler.jobs import ExportWatch, LiveRun, prepare_due_periods, report_events, run_live
from shadowspec.scheduler.targets import Renderer
from shadowspec.store import Store
from shadowspec.store.locks import Leadership

LEADERSHIP = "schedule"
FOLLOW_S = 1.0  # between two attempts to lead
HEARTBEAT_S = 1.0  # between two questions whether it still leads
TRUST_S = 10.0  # for which an answer is believed: much less than a server takes to give a silent leader up
EVENTS_S = 5.0  # between two looks for events to report
CONFIRM_S = 5.0  # between two readings of engines, while an override's effect is not seen
CHANGES_S = 1.0  # between two looks for changes to export
POLL_S = 2.0  # between two checks for a receiver's deliveries
UNDONE_S = 30.0  # between two looks for periods that were left undone

_log = logging.getLogger(__name__)


class LeaderTerm:
    """One time of leading.  It ends once; code that still runs for it then sends nothing more."""

    def __init__(self, exports: Mapping[str, ExportWatch]) -> None:
        self.exports = exports  # by the names of their jobs
        self._is_over = threading.Event()
        self._confirmed_at = time.monotonic()

    def confirm(self) -> None:
        """Leadership was just seen to be held."""
        self._confirmed_at = time.monotonic()

    def end(self) -> None:
        self._is_over.set()

    def is_on(self) -> bool:
        """Whether it was seen to be held a moment ago.  A process that was stopped finds that it was long ago."""
        return not self._is_over.is_set() and time.monotonic() - self._confirmed_at < TRUST_S


Result = TypeVar("Result")


class JobTrigger(BaseTrigger):  # type: ignore[misc]
    """When a job runs: when it is due, and at intervals for work that an error left undone."""

    def __init__(self, cron: Cron) -> None:
        self._cron = cron

    def get_next_fire_time(self, previous: datetime | None, now: datetime) -> datetime:
        after = now if previous is None else max(previous, now)
        undone = after + timedelta(seconds=UNDONE_S)
        return min(self._cron.next_after(after) or undone, undone)


class Scheduler:
    """One process's scheduler over one store.  `run` returns when `stopped` is set."""

    def __init__(
        self,
        store: Store,
        settings: ScheduleSettings,
        crons: dict[str, Cron],
        policies: GatePolicies,
        reports: PeriodSettings,
        live: Mapping[str, LiveSettings],
        renderers: Mapping[str, Renderer],
    ) -> None:
        """
        Args:
            renderers: what makes the export of each target that jobs write.
        """
        self._store, self._settings, self._crons = store, settings, crons
        self._policies, self._reports, self._live, self._renderers = policies, reports, live, renderers
        self.unread: list[str] = []

    def run(self, stopped: threading.Event) -> None:
        """Lead whenever no other scheduler does.

        Raises:
            ServiceUnavailableError: the database refuses permanently.
        """
        lead = self._store.leadership(LEADERSHIP)
        try:
            while not stopped.is_set():
                if self._acquire(lead):
                    self._lead(lead, stopped)
                    lead.release()
                else:
                    stopped.wait(FOLLOW_S)
        finally:
            lead.release()

    def run_once(self) -> bool:
        """Do the due work and return; False if another one leads.  `unread` then says which live evidence failed."""
        lead = self._store.leadership(LEADERSHIP)
        if not lead.try_acquire():
            return False
        self.unread = []
        try:
            term = self._begin_term()
            for endpoint in self._live:  # first: the reports show what it finds
                term.confirm()
                name = f"live evidence of {endpoint}"
                run = _guard(partial(self._read_live, endpoint, term), name)()
                if run is None:
                    self.unread.append(f"{name}: it failed, as logged")
                else:
                    self.unread += [f"{name}: {failure.message}" for failure in run.failed]
            # Events of these gates too, and what they decide.
            for job in sorted(self._settings.jobs.values(), key=lambda job: bool(job.on) or job.exports):
                term.confirm()
                self._prepare_due(job, term)
            deliverers = self._deliverers(lambda: True)
            with ThreadPoolExecutor(max(len(deliverers), 1)) as pool:
                for done in [pool.submit(deliverer.run) for deliverer in deliverers.values()]:
                    done.result()
        finally:
            lead.release()
        return True

    def _acquire(self, lead: Leadership) -> bool:
        try:
            return lead.try_acquire()
        except ServiceUnavailableError as error:
            if not error.is_retryable:
                raise
            _log.warning("%s", error)
            return False

    def _lead(self, lead: Leadership, stopped: threading.Event) -> None:
        settings = self._settings
        counts = len(settings.jobs), len(settings.receivers), len(self._live)
        _log.info("leading: %d jobs, %d receivers, %d endpoints read live", *counts)
        term = self._begin_term()
        with self._working(term):
            while not stopped.wait(HEARTBEAT_S):
                if not lead.is_held():
                    _log.warning("leadership was lost; waiting as a standby")
                    break
                term.confirm()
            term.end()

    def _begin_term(self) -> LeaderTerm:
        exporting = [job for job in self._settings.jobs.values() if job.exports]
        return LeaderTerm({job.name: ExportWatch(job, self._crons[job.name]) for job in exporting})

    @contextmanager
    def _working(self, term: LeaderTerm) -> Iterator[None]:
        """Everything scheduled, only from configuration and database; on exit it waits for deliveries in progress."""
        names = [*self._settings.receivers, *self._settings.kept]
        size = len(self._settings.jobs) + len(names) + len(self._live) + 1
        scheduler = BackgroundScheduler(
            executors={"default": PoolExecutor(size)},
            job_defaults={"coalesce": True, "max_instances": 1, "misfire_grace_time": None},
            timezone=UTC,
        )
        for name, deliverer in self._deliverers(term.is_on).items():
            self._add(scheduler, f"delivery to {name}", deliverer.run, IntervalTrigger(seconds=POLL_S, timezone=UTC))

        def wake(job: JobSettings) -> None:
            while self._prepare_due(job, term):
                for name in job.places:
                    scheduler.modify_job(f"delivery to {name}", next_run_time=datetime.now(UTC))

        for job in self._settings.jobs.values():
            self._add(scheduler, f"job {job.name}", partial(wake, job), self._trigger(job))

        def read(endpoint: str, name: str) -> None:
            run = self._read_live(endpoint, term)
            if run is not None and run.is_waiting:
                soon = datetime.now(UTC) + timedelta(seconds=min(CONFIRM_S, run.settings.interval_s))
                scheduler.modify_job(name, next_run_time=soon)

        for endpoint, settings in self._live.items():
            trigger = IntervalTrigger(seconds=settings.interval_s, timezone=UTC)
            name = f"live evidence of {endpoint}"
            self._add(scheduler, name, partial(read, endpoint, name), trigger)
        abandon = partial(self._store.abandon_deliveries, names, "NotConfigured")
        scheduler.add_job(_guard(abandon, "receivers"), next_run_time=datetime.now(UTC))
        scheduler.start()
        try:
            yield
        finally:
            scheduler.shutdown(wait=True)

    def _add(self, scheduler: Any, name: str, call: Callable[[], object], trigger: BaseTrigger) -> None:
        """Schedule a call at the trigger's times, and at once: a term begins with work left undone."""
        scheduler.add_job(_guard(call, name), trigger, id=name, next_run_time=datetime.now(UTC))

    def _trigger(self, job: JobSettings) -> BaseTrigger:
        if job.on or job.exports:
            return IntervalTrigger(seconds=EVENTS_S if job.on else CHANGES_S, timezone=UTC)
        return JobTrigger(self._crons[job.name])

    def _deliverers(self, may_send: Callable[[], bool]) -> dict[str, Deliverer]:
        events = {job.name: job.on for job in self._settings.jobs.values()}
        reports = ReportCache(self._store, self._reports, events)
        settings = self._settings
        senders = {
            name: report_sender(receiver, reports, settings.timeout_s) for name, receiver in settings.receivers.items()
        } | {
            name: export_keeper(target, self._renderers[name], settings.timeout_s)
            for name, target in settings.kept.items()
        }
        return {name: Deliverer(self._store, name, send, settings.retry, may_send) for name, send in senders.items()}

    def _read_live(self, endpoint: str, term: LeaderTerm) -> LiveRun | None:
        """Read an endpoint's engines; None where the term is over."""
        if not term.is_on():
            return None
        return run_live(self._store, endpoint, self._policies.gate[endpoint], self._live[endpoint])

    def _prepare_due(self, job: JobSettings, term: LeaderTerm) -> int:
        if not term.is_on():
            return 0
        if job.exports:
            return term.exports[job.name].prepare(self._store, self._settings)
        if job.on:
            return report_events(self._store, job, self._settings, self._policies)
        return prepare_due_periods(self._store, job, self._crons[job.name], self._settings, self._policies)


def _guard(call: Callable[[], Result], name: str) -> Callable[[], Result | None]:
    """A function for APScheduler: an error ends only this run, and is logged without text that it may quote."""

    def run() -> Result | None:
        try:
            return call()
        except ShadowSpecError as error:
            _log.warning("%s: %s", name, error)
        except Exception as error:
            _log.error("%s: internal error (%s)", name, type(error).__name__)
        return None

    return run

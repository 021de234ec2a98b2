"""Runs one job: a report's, an export's, or the reading of an endpoint's production engines for the live guard.

Of a report's job due periods are stored first, then the gate runs, then the deliveries are stored.

1. Every period that has become due is stored.  2. For the newest of those that are not prepared the gate runs, if the
job has one; it also decides for the earlier ones.  3. In one transaction the end of the report's time is fixed and its
deliveries are stored.  After a crash at any point it resumes at the same step.

The database and the cron expression determine which periods are due, never a timer: the next leader finds the same
ones.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from shadowspec.errors import ServiceUnavailableError, ShadowSpecError
from shadowspec.gate.policy import GatePolicy
from shadowspec.live.override_effects import observe_overrides
from shadowspec.live.promise import UNWATCHED, unwatched_because
from shadowspec.live.scrape import scrape_all
from shadowspec.live.watch import Taken, Watched, alarm_words, take_scrapes, watch
from shadowspec.reports.period.period_changes import events_within
from shadowspec.reports.period.period_model import GATE_DONE
from shadowspec.rollout.endpoint_run import GatePolicies, run_endpoints
from shadowspec.scheduler.cron import Cron
from shadowspec.scheduler.job_settings import EmailSettings, JobSettings, LiveSettings, ScheduleSettings
from shadowspec.store import Store
from shadowspec.types import Delivery, FailedScrape, LiveScrape, OverrideEffect, Period, Pool

SETTLE_S = 30.0  # that a report waits for a gate run which is on
COMMIT_S = 1.0  # within which an order is committed after its time was taken
LONGEST_LOOK = timedelta(days=1)

_log = logging.getLogger(__name__)


def prepare_due_periods(
    store: Store, job: JobSettings, cron: Cron, settings: ScheduleSettings, policies: GatePolicies
) -> int:
    """Prepare every period of the job that is due; how many were.

    Raises:
        ServiceUnavailableError, StoreError: the database is gone or refuses; a later run does the rest.
    """
    now = datetime.now(UTC)
    assert not job.on, "a job with events has no times"

    # 1. The due periods.
    last = store.last_period(job.name)
    if last is None:
        store.begin_periods([first_period(job.name, cron, now)])
        return 0
    open_periods = store.unprepared_periods(job.name)
    if not open_periods:
        store.begin_periods(due_periods(cron, last, now, settings.catch_up))
        open_periods = store.unprepared_periods(job.name)

    # 2, 3. Each in turn, the newest with the gate.
    since: datetime | None = None
    for period in open_periods:
        outcome, until = None, period.due_at
        if period is open_periods[-1] and "gate" in job.does:
            outcome = run_measured_gates(store, policies)
            until = datetime.now(UTC)
        elif "report" in job.does:
            settle(store, policies.gate, SETTLE_S)
        run_period = replace(period, until=max(until, since or period.since), gate_outcome=outcome)
        store.prepare_period(run_period, [_delivery(run_period, name, settings) for name in job.places])
        since = run_period.until
        _log.info("job %s: the period due at %s is prepared", job.name, period.due_at.isoformat())
    return len(open_periods)


def report_events(store: Store, job: JobSettings, settings: ScheduleSettings, policies: GatePolicies) -> int:
    """Prepare one period with every event since the last one, if there are any; the number of prepared periods.

    While a gate runs nothing is prepared: decisions of before now may still come.  A day without events is a period
    without deliveries, so that no look reads more than a day.

    Raises:
        ServiceUnavailableError, StoreError: the database is gone or refuses; a later look does the rest.
    """
    until = datetime.now(UTC) - timedelta(seconds=COMMIT_S)
    last = store.last_period(job.name)
    if last is None:
        store.begin_periods([Period(job.name, until, since=until, until=until)])
        return 0
    open_periods = store.unprepared_periods(job.name)
    if not open_periods:
        since = last.until or last.due_at
        if since >= until or not settle(store, policies.gate, 0.0):
            return 0
        if not events_within(store, since, until, job.on):
            if until - since > LONGEST_LOOK:
                store.begin_periods([Period(job.name, until, since=since, until=until)])
            return 0
        store.begin_periods([Period(job.name, until, since)])
        open_periods = store.unprepared_periods(job.name)
    for period in open_periods:
        run_period = replace(period, until=period.due_at)
        store.prepare_period(run_period, [_delivery(run_period, name, settings) for name in job.places])
        _log.info("job %s: events up to %s are prepared", job.name, period.due_at.isoformat())
    return len(open_periods)


@dataclass
class ExportWatch:
    """When a job that exports is due: at first, at its times, and as soon as something has changed that it exports.

    A delivery has the state of the moment at which it is made, so that a crash at any point costs nothing: the next
    leader begins with a delivery.
    """

    job: JobSettings
    cron: Cron
    seen: tuple[int | None, ...] | None = None

    def prepare(self, store: Store, settings: ScheduleSettings) -> int:
        """Prepare a delivery to every target, if it is due; how many periods were prepared.

        Raises:
            ServiceUnavailableError, StoreError: the database is gone or refuses; a later look does the rest.
        """
        now, pulse = datetime.now(UTC), store.pulse()
        state = pulse.decision_id, pulse.override_id, pulse.num_clearings, pulse.rollout_id
        last = store.last_period(self.job.name)
        next_at = None if last is None else self.cron.next_after(last.due_at)
        if self.seen == state and (next_at is None or next_at > now):
            return 0
        period = Period(self.job.name, now, since=now)
        store.begin_periods([period])
        deliveries = [_delivery(period, name, settings) for name in self.job.targets]
        store.prepare_period(replace(period, until=now), deliveries)
        self.seen = state
        return 1


def first_period(job: str, cron: Cron, now: datetime) -> Period:
    """The row that says from when on a job is scheduled; nothing is to be done for it."""
    due_at = cron.last_until(now)
    return Period(job, due_at, since=due_at, until=due_at)


def due_periods(cron: Cron, last: Period, now: datetime, catch_up: int) -> list[Period]:
    """The periods that have become due after the `last` one up to `now`, oldest first; at most `catch_up` of them.

    Each begins where the one before it ends, so that no change goes unreported.  The first also covers the time before
    it, back to where the last report ended.
    """
    periods = []
    since = last.until or last.due_at
    for due_at in cron.due_within(last.due_at, now, at_most=catch_up):
        periods.append(Period(last.job, due_at, since))
        since = max(since, due_at)  # a gate run that took longer than a period has also covered the next one's time
    return periods


def _delivery(period: Period, receiver: str, settings: ScheduleSettings) -> Delivery:
    email_settings = settings.receivers.get(receiver)
    key = uuid.uuid4().hex  # kept before anything is sent, and so the same for every repeat
    domain = email_settings.sender.partition("@")[2] if isinstance(email_settings, EmailSettings) else None
    return Delivery(
        job=period.job,
        due_at=period.due_at,
        receiver=receiver,
        idempotency_key=key,
        message_id=None if domain is None else f"<{key}@{domain}>",
        next_attempt_at=datetime.now(UTC),
    )


def run_measured_gates(store: Store, policies: GatePolicies) -> str:
    """Run the gate of every configured endpoint that was measured: "done", or the class of the error.

    Raises:
        ServiceUnavailableError: the database is gone; the next leader runs it again.
    """
    measured = set(store.endpoints())
    measured_policies = {endpoint: policy for endpoint, policy in policies.gate.items() if endpoint in measured}
    _, errors = run_endpoints(store, replace(policies, gate=measured_policies))
    for endpoint, error in errors.items():
        _log.warning("gate of endpoint %s failed: %s", endpoint, error)
    return "; ".join(f"{endpoint}: {type(error).__name__}" for endpoint, error in errors.items()) or GATE_DONE


def settle(store: Store, endpoints: Mapping[str, GatePolicy], timeout_s: float) -> bool:
    """Wait for the end of running gate runs: their decisions belong to the time before now.  Whether all have ended."""
    is_settled = True
    for endpoint in endpoints:
        try:
            with store.endpoint_lock(endpoint, timeout_s):
                _log.debug("endpoint %s: no gate run is on", endpoint)
        except ServiceUnavailableError:
            raise
        except ShadowSpecError as error:
            is_settled = False
            _log.log(logging.WARNING if timeout_s else logging.DEBUG, "a gate run continues: %s", error)
    return is_settled


@dataclass(frozen=True, slots=True)
class LiveRun:
    """The result of one reading: each replica's scrape, and the guard's state after all of them so far."""

    endpoint: str
    settings: LiveSettings
    taken: tuple[Taken, ...]
    watched: Watched
    effects: tuple[OverrideEffect, ...]  # of overrides, newly observed
    is_waiting: bool  # for production to show the effect of an override

    @property
    def failed(self) -> list[FailedScrape]:
        """The replicas without usable counters."""
        return [taking.scraped for taking in self.taken if isinstance(taking.scraped, FailedScrape)]

    @property
    def unwatched(self) -> dict[str, str]:
        """The replicas whose counters do not show whether the promise of ENABLE holds, and why."""
        promise, guard = self.watched.promise, self.settings.guard
        return {
            taking.replica.replica: why
            for taking in self.taken
            if promise is not None and taking.pool is Pool.SPECULATIVE and isinstance(taking.scraped, LiveScrape)
            if (why := unwatched_because(taking.scraped.counts, guard, promise)) is not None
        }


def run_live(store: Store, endpoint: str, policy: GatePolicy, settings: LiveSettings) -> LiveRun:
    """Read an endpoint's production engines once, store their counts, and run the live guard.

    A replica that fails keeps no other from being read.

    Raises:
        ConfigError: the key's variable is not set, or `ca_file` cannot be read.
        ServiceUnavailableError, StoreError: the database is gone or refuses.
    """
    taken = take_scrapes(store, endpoint, scrape_all(settings.source), settings.source.plain_replicas)
    for taking in taken:
        if isinstance(taking.scraped, FailedScrape):
            level = logging.WARNING if taking.replica.num_failed == 1 else logging.DEBUG  # logged once per failure
            _log.log(level, "live evidence of endpoint %s: %s", endpoint, taking.scraped.message)
    watched = watch(store, endpoint, settings.source.replicas, policy, settings.guard, datetime.now(UTC))
    if watched.ordered is not None:
        _log.warning("endpoint %s: override %d: %s", endpoint, watched.ordered, alarm_words(watched))
    effects, is_waiting = observe_overrides(store, endpoint, settings.source.all_replicas, settings.guard)
    for effect in effects:
        _log.log(logging.INFO if effect.is_off else logging.WARNING, "endpoint %s: %s", endpoint, effect.reason)
    run = LiveRun(endpoint, settings, tuple(taken), watched, tuple(effects), is_waiting)
    begun = {taking.replica.replica for taking in taken if taking.window is None}
    for replica, why in run.unwatched.items():
        level = logging.WARNING if replica in begun else logging.DEBUG  # logged once, where counting begins
        _log.log(level, "endpoint %s: %s: %s: %s", endpoint, replica, UNWATCHED, why)
    return run

"""`shadowspec schedule`: run gates and send reports when they are due, and see what was sent."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from shadowspec.app.progress_bar import notes
from shadowspec.cli.console import print_json, results
from shadowspec.cli.options import ConfigOption, JsonOption
from shadowspec.cli.report import period_settings
from shadowspec.config import Config, find_config, load_config
from shadowspec.errors import ConfigError, ServiceUnavailableError, UsageError
from shadowspec.rollout.endpoint_run import GatePolicies
from shadowspec.scheduler.cron import Cron, crons_of
from shadowspec.scheduler.leader import Scheduler
from shadowspec.scheduler.receivers import require_secret
from shadowspec.scheduler.verdict_metrics import VerdictMetrics, serving
from shadowspec.store import Store
from shadowspec.types import Delivery
from shadowspec.types.public_documents import PublicDocument, PublicValue, public

NUM_LISTED = 50


class ScheduledJob(PublicValue, frozen=True, kw_only=True):
    """A job, and when it was due and will be."""

    job: str
    cron: str | None
    on: Sequence[str]
    time_zone: str
    does: Sequence[str]
    receivers: Sequence[str]
    last_due_at: datetime | None
    next_due_at: datetime | None


class LiveJob(PublicValue, frozen=True, kw_only=True):
    """The reading of an endpoint's replicas."""

    endpoint: str
    interval_s: float
    replicas: Sequence[str]


class DeliveriesDocument(PublicDocument, frozen=True, kw_only=True):
    """The deliveries of `schedule --once --json` that were not made."""

    deliveries: Sequence[Delivery]


class ScheduleDocument(PublicDocument, frozen=True, kw_only=True):
    """The jobs of `schedule --list --json`, and the newest deliveries."""

    jobs: Sequence[ScheduledJob]
    live: Sequence[LiveJob]
    deliveries: Sequence[Delivery]


def schedule(
    once: Annotated[
        bool, typer.Option("--once", help="Run the jobs that are due now, then exit; for use from cron.")
    ] = False,
    list_: Annotated[
        bool, typer.Option("--list", help="Show jobs, their next due times, and the newest deliveries.")
    ] = False,
    config_path: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Run gates and send reports when they are due, by the section schedule of the configuration.

    It also reads production's engines, where an endpoint names them (live). Several schedulers elect one leader. Jobs
    missed while none ran are run late.
    """
    if once and list_:
        raise UsageError("--once and --list exclude each other; give one")
    config = load_config(find_config(config_path))
    crons = crons_of(config.path, config.schedule.jobs)
    if not config.schedule.jobs and not config.live_jobs() and config.schedule.metrics_address is None:
        raise ConfigError(f"{config.path}: schedule.jobs: is missing; add a job (docs/schedule.md)")
    if list_:
        with Store.open(config.database_url) as store:
            _list(config, crons, store, as_json=as_json)
        return
    _require_receivers(config)
    stopped = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopped.set())
    logging.getLogger("apscheduler").setLevel(logging.ERROR)  # that a waking came while the last one was at work
    with Store.open(config.database_url) as store:
        scheduler = _scheduler(config, crons, store)
        if not once:
            names = [f"{job.name} ({job.when})" for job in config.schedule.jobs.values()]
            live = config.live_jobs().items()
            names += [f"live evidence of {name} (every {settings.interval_s:g} s)" for name, settings in live]
            address = config.schedule.metrics_address
            names += [] if address is None else [f"metrics on http://{address}/metrics"]
            notes.print(f"scheduled: {', '.join(names)}", markup=False, highlight=False)
            policies = {name: endpoint.policy for name, endpoint in config.endpoints.items()}
            with serving(VerdictMetrics(store, policies), address):
                scheduler.run(stopped)
            return
        if not scheduler.run_once():
            notes.print("another scheduler leads and runs the due jobs")
        waiting = [delivery for delivery in store.deliveries(limit=1_000) if delivery.state in ("pending", "sending")]
    _print_deliveries(waiting, as_json=as_json)
    if waiting:
        raise ServiceUnavailableError(f"{len(waiting)} deliveries failed; the next run tries them again")


def _scheduler(config: Config, crons: dict[str, Cron], store: Store) -> Any:
    policies = GatePolicies(
        {name: endpoint.policy for name, endpoint in config.endpoints.items()},
        {name: endpoint.rollout for name, endpoint in config.endpoints.items()},
    )
    return Scheduler(store, config.schedule, crons, policies, period_settings(config), config.live_jobs())


def _require_receivers(config: Config) -> None:
    """Report missing secrets at the start, before a job needs them."""
    wanted = {name for job in config.schedule.jobs.values() for name in job.receivers}
    for receiver in config.schedule.receivers.values():
        if receiver.name not in wanted:
            continue
        try:
            require_secret(receiver)
        except ConfigError as error:
            raise ConfigError(f"{config.path}: schedule.receivers.{receiver.name}: {error}") from error


def _list(config: Config, crons: dict[str, Cron], store: Store, *, as_json: bool) -> None:
    now = datetime.now(UTC)
    jobs = []
    for job in config.schedule.jobs.values():
        newest = store.last_period(job.name)
        due = crons[job.name].next_after(now) if job.cron else None
        jobs.append((job, None if newest is None else newest.due_at, due))
    deliveries = store.deliveries(limit=NUM_LISTED)
    if as_json:
        print_json(
            ScheduleDocument(
                jobs=[
                    public(
                        ScheduledJob, job,
                        job=job.name, time_zone=job.zone.key, does=job.actions, last_due_at=last, next_due_at=due,
                    )
                    for job, last, due in jobs
                ],
                live=[
                    public(LiveJob, settings, settings.source, endpoint=name)
                    for name, settings in config.live_jobs().items()
                ],
                deliveries=deliveries,
            )
        )  # fmt: skip
        return
    table = Table("job", "when", "does", "receivers", "last due", "next due (UTC)", title="jobs", box=None)
    for job, last, due in jobs:
        cells = (
            job.name,
            f"{job.cron} {job.zone.key}" if job.cron else job.when,
            ", ".join(job.actions),
            ", ".join(job.receivers),
        )
        table.add_row(*map(escape, (*cells, _moment(last), _moment(due))))
    results.print(table)
    for name, settings in config.live_jobs().items():
        words = f"live evidence of {name}: every {settings.interval_s:g} s from {', '.join(settings.source.replicas)}"
        results.print(words, markup=False, highlight=False, soft_wrap=True)
    _print_deliveries(deliveries, as_json=False)


def _print_deliveries(deliveries: list[Delivery], *, as_json: bool) -> None:
    if as_json:
        print_json(DeliveriesDocument(deliveries=deliveries))
        return
    if not deliveries:
        return
    table = Table(
        "due (UTC)", "job", "receiver", "state", "attempts", "sent", "last error", title="deliveries", box=None
    )
    for delivery in deliveries:
        cells = (
            _moment(delivery.due_at),
            delivery.job,
            delivery.receiver,
            delivery.state.value,
            str(delivery.attempts),
        )
        table.add_row(*map(escape, (*cells, _moment(delivery.sent_at), delivery.last_error or "")))
    results.print(table)


def _moment(value: datetime | None) -> str:
    return "" if value is None else f"{value:%Y-%m-%d %H:%M:%S}"

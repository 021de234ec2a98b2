"""`shadowspec schedule`: run gates and send reports when they are due, and see what was sent."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from shadowspec.app.progress_bar import notes
from shadowspec.app.scheduled_jobs import (
    DeliveriesDocument,
    ScheduleDocument,
    configured_scheduler,
    export_renderers,
    list_schedule,
    waiting_deliveries,
)
from shadowspec.cli.console import print_json, results
from shadowspec.cli.options import ConfigOption, JsonOption
from shadowspec.config import find_config, load_config
from shadowspec.errors import ConfigError, ServiceUnavailableError, UsageError
from shadowspec.scheduler.cron import crons_of
from shadowspec.scheduler.http_pages import serving
from shadowspec.scheduler.job_settings import JobSettings
from shadowspec.scheduler.verdict_metrics import VerdictMetrics
from shadowspec.store import Store
from shadowspec.types import Delivery


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
    """Run gates, send reports and keep exports up to date, by the section schedule of the configuration.

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
            listed = list_schedule(config, crons, store)
        if as_json:
            print_json(listed)
        else:
            _list(listed, config.schedule.jobs)
        return
    stopped = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopped.set())
    logging.getLogger("apscheduler").setLevel(logging.ERROR)  # that a waking came while the last one was at work
    with Store.open(config.database_url) as store:
        scheduler = configured_scheduler(config, crons, store)
        if not once:
            names = [f"{job.name} ({job.when})" for job in config.schedule.jobs.values()]
            live = config.live_jobs().items()
            names += [f"live evidence of {name} (every {settings.interval_s:g} s)" for name, settings in live]
            address = config.schedule.metrics_address
            names += [] if address is None else [f"metrics on http://{address}/metrics"]
            notes.print(f"scheduled: {', '.join(names)}", markup=False, highlight=False)
            pages = export_renderers(config, config.schedule.pages.values(), store)
            with serving(VerdictMetrics(store, config.terms), pages, address):
                scheduler.run(stopped)
            return
        if not scheduler.run_once():
            notes.print("another scheduler leads and runs the due jobs")
        waiting = waiting_deliveries(store)
    if as_json:
        print_json(DeliveriesDocument(deliveries=waiting))
    else:
        _print_deliveries(waiting)
    undone = [f"{len(waiting)} deliveries failed; the next run tries them again"] if waiting else []
    if undone := [*scheduler.unread, *undone]:
        raise ServiceUnavailableError("; ".join(undone))


def _list(listed: ScheduleDocument, jobs: Mapping[str, JobSettings]) -> None:
    table = Table("job", "when", "does", "receivers, targets", "last due", "next due (UTC)", title="jobs", box=None)
    for job in listed.jobs:
        cells = (
            job.job,
            f"{job.cron} {job.time_zone}" if job.cron else jobs[job.job].when,
            ", ".join(job.does),
            ", ".join((*job.receivers, *job.targets)),
        )
        table.add_row(*map(escape, (*cells, _moment(job.last_due_at), _moment(job.next_due_at))))
    results.print(table)
    for live in listed.live:
        words = f"live evidence of {live.endpoint}: every {live.interval_s:g} s from {', '.join(live.replicas)}"
        results.print(words, markup=False, highlight=False, soft_wrap=True)
    _print_deliveries(listed.deliveries)


def _print_deliveries(deliveries: Sequence[Delivery]) -> None:
    if not deliveries:
        return
    table = Table(
        "due (UTC)", "job", "receiver, target", "state", "attempts", "sent", "last error", title="deliveries", box=None
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

"""What `shadowspec schedule` runs and lists: jobs, the reading of production's replicas, and deliveries."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Annotated

from shadowspec.app.exports import WantedExport, export_decisions, require_exportable
from shadowspec.app.written_reports import period_settings
from shadowspec.config import Config
from shadowspec.errors import ConfigError, UsageError
from shadowspec.rollout.endpoint_run import GatePolicies
from shadowspec.rollout.served_decision import describe, describe_orders
from shadowspec.scheduler.cron import Cron
from shadowspec.scheduler.leader import Scheduler
from shadowspec.scheduler.receivers import require_secret
from shadowspec.scheduler.target_settings import FileTarget, TargetSettings
from shadowspec.scheduler.targets import Renderer, StateExport
from shadowspec.store import Store
from shadowspec.types import Delivery
from shadowspec.types.public_documents import PublicDocument, PublicValue, public

NUM_LISTED = 50


class ScheduledJob(PublicValue, frozen=True, kw_only=True):
    """A job, and when it was due and will be."""

    job: Annotated[str, "name"]
    cron: str | None
    on: Sequence[str]
    time_zone: Annotated[str, "zone.key"]
    does: Annotated[Sequence[str], "actions"]
    receivers: Sequence[str]
    targets: Sequence[str]
    last_due_at: datetime | None
    next_due_at: datetime | None


class LiveJob(PublicValue, frozen=True, kw_only=True):
    """The reading of an endpoint's replicas."""

    endpoint: str
    interval_s: float
    replicas: Annotated[Sequence[str], "source.replicas"]


class DeliveriesDocument(PublicDocument, frozen=True, kw_only=True):
    """The deliveries of `schedule --once --json` that were not made."""

    deliveries: Sequence[Delivery]


class ScheduleDocument(PublicDocument, frozen=True, kw_only=True):
    """The jobs of `schedule --list --json`, and the newest deliveries."""

    jobs: Sequence[ScheduledJob]
    live: Sequence[LiveJob]
    deliveries: Sequence[Delivery]


def list_schedule(config: Config, crons: Mapping[str, Cron], store: Store) -> ScheduleDocument:
    """The configured jobs and replicas, and the newest deliveries."""
    now, jobs = datetime.now(UTC), []
    for job in config.schedule.jobs.values():
        newest = store.last_period(job.name)
        due = crons[job.name].next_after(now) if job.cron else None
        jobs.append(public(ScheduledJob, job, last_due_at=newest and newest.due_at, next_due_at=due))
    return ScheduleDocument(
        jobs=jobs,
        live=[public(LiveJob, settings, endpoint=name) for name, settings in config.live_jobs().items()],
        deliveries=store.deliveries(limit=NUM_LISTED),
    )


def configured_scheduler(config: Config, crons: Mapping[str, Cron], store: Store) -> Scheduler:
    """The scheduler of the configured jobs.

    Raises:
        ConfigError: the secret of a receiver is missing, before a job needs it.
    """
    wanted = {name for job in config.schedule.jobs.values() for name in job.receivers}
    for receiver in config.schedule.receivers.values():
        try:
            if receiver.name in wanted:
                require_secret(receiver)
        except ConfigError as error:
            raise ConfigError(f"{config.path}: schedule.receivers.{receiver.name}: {error}") from error
    policies = GatePolicies(
        {name: endpoint.policy for name, endpoint in config.endpoints.items()},
        {name: endpoint.rollout for name, endpoint in config.endpoints.items()},
    )
    renderers = export_renderers(config, config.schedule.kept.values(), store)
    reports, live = period_settings(config), config.live_jobs()
    return Scheduler(store, config.schedule, dict(crons), policies, reports, live, renderers)


def export_renderers(config: Config, targets: Iterable[TargetSettings], store: Store) -> dict[str, Renderer]:
    """What makes each target's export.

    Raises:
        ConfigError: as `wanted_export`.
    """
    return {target.name: partial(_export, config, wanted_export(config, target), store) for target in targets}


def wanted_export(config: Config, target: TargetSettings) -> WantedExport:
    """What a target gets.

    Raises:
        ConfigError: it names an endpoint that is not configured, or none where it must, or pools are missing.
    """
    what = target.what
    wanted = WantedExport(
        form=what.format,
        endpoint=what.endpoint,
        max_age=timedelta(seconds=what.max_age_s),
        gateway=what.gateway,
        otherwise=what.otherwise,
        is_routed=what.routed,
        accepts_other_engine=what.accept_other_engine,
        out=target.path if isinstance(target, FileTarget) else None,
        is_unattended=True,
    )
    try:
        require_exportable(config, wanted)
    except UsageError as error:
        raise ConfigError(f"{config.path}: schedule.targets.{target.name}: {error}") from error
    return wanted


def _export(config: Config, wanted: WantedExport, store: Store) -> StateExport:
    document, served = export_decisions(config, wanted, store)
    return StateExport(document.text, document.beside, (*describe(served.decisions), *describe_orders(served.orders)))


def waiting_deliveries(store: Store) -> list[Delivery]:
    """Those that were not made yet."""
    return [delivery for delivery in store.deliveries(limit=1_000) if delivery.state in ("pending", "sending")]

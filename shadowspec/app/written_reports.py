"""The report of everything stored, or of what changed within a span of time, in the form that was asked for."""

from __future__ import annotations

from datetime import UTC, datetime
from enum import StrEnum

from shadowspec.app.rehearsals import rehearsed
from shadowspec.config import Config
from shadowspec.errors import UsageError
from shadowspec.reports.period.period_build import PeriodSettings, build_period_report
from shadowspec.reports.period.period_content import RENDERERS
from shadowspec.reports.period.period_model import NAMED, last_whole, moment_of
from shadowspec.reports.report import Report, build_report, render_html, render_json, render_markdown
from shadowspec.simulate.policies import simulated_rates
from shadowspec.store import Store

DATA_NOTE = "Mirrored traffic, measured in shadow: no response reached a client."


class ReportFormat(StrEnum):
    """The formats of a report."""

    HTML = "html"
    MD = "md"
    JSON = "json"


def whole_report(config: Config, store: Store) -> Report:
    """The gating report of everything stored; a trial that is not read to its end is rehearsed."""
    policies = {name: settings.policy for name, settings in config.endpoints.items()}
    loads = {name: [load.concurrency for load in endpoint.rule.loads] for name, endpoint in config.endpoints.items()}
    note, price = data_disclaimer(config), config.dashboard.price_per_gpu_hour
    with rehearsed(config, store, config.endpoints) as decided:
        return build_report(decided, policies, datetime.now(UTC), data_note=note, loads=loads, price_per_hour=price)


def written_report(report: Report, form: ReportFormat) -> str:
    """The report in this form."""
    return {ReportFormat.HTML: render_html, ReportFormat.MD: render_markdown, ReportFormat.JSON: render_json}[form](
        report
    )


def changes_report(
    config: Config, store: Store, form: ReportFormat, since: datetime, until: datetime, gate_outcome: str | None
) -> str:
    """The report on a span of time; `gate_outcome` is of the gate run before it."""
    settings, now = period_settings(config), datetime.now(UTC)
    built = build_period_report(store, settings, since, until, now, gate_outcome=gate_outcome)
    return RENDERERS[form.value](built)


def data_disclaimer(config: Config) -> str:
    """The configuration's note on its data, else the one for every mirror."""
    return config.dashboard.data_note or DATA_NOTE


def period_settings(config: Config) -> PeriodSettings:
    """Policies, sampling rates and simulated error rates, by endpoint."""
    policies = {name: endpoint.policy for name, endpoint in config.endpoints.items()}
    return PeriodSettings(
        policies=policies,
        sample_rates={name: endpoint.rule.sample_rate for name, endpoint in config.endpoints.items()},
        simulated=simulated_rates(policies),
        data_note=data_disclaimer(config),
        dashboard_url=config.dashboard.public_url,
    )


def span_of(
    config: Config, store: Store, since: str | None, until: str | None, period: str | None
) -> tuple[datetime, datetime, str | None] | None:
    """The span that the options name, with the outcome of the gate run before it; None without options.

    Raises:
        UsageError: they contradict each other, or cannot be read.
    """
    now, zone = datetime.now(UTC), config.schedule.zone
    if period is None:
        if since is None and until is None:
            return None
        if since is None:
            raise UsageError("--until needs --since; give both")
        start = moment_of(since, zone, "--since")
        end = now if until is None else moment_of(until, zone, "--until")
        if not start < end <= now:
            raise UsageError("--since must be before --until, and --until must not be in the future")
        return start, end, None
    if since is not None or until is not None:
        raise UsageError("--period excludes --since and --until; give one or the other")
    if period in NAMED:
        return *last_whole(period, now, zone), None
    jobs = list(config.schedule.jobs)
    if period not in jobs:
        raise UsageError(f"--period {period}: is not known; give {', '.join([*NAMED, *jobs])}")
    last = store.last_period(period)
    if last is None or last.until is None or last.since >= last.until:
        raise UsageError(f"job {period} has sent no report yet; it does so when it is due")
    return last.since, last.until, last.gate_outcome

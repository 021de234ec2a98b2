"""The settings and the span of reports on a span of time."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shadowspec.config import Config
    from shadowspec.reports.period.period_build import PeriodSettings
    from shadowspec.store import Store

DATA_NOTE = "Mirrored traffic, measured in shadow: no response reached a client."


def data_disclaimer(config: Config) -> str:
    """The configuration's note on its data, else the one for every mirror."""
    return config.dashboard.data_note or DATA_NOTE


def period_settings(config: Config) -> PeriodSettings:
    """Policies, sampling rates and simulated error rates, by endpoint."""
    from shadowspec.reports.period.period_build import PeriodSettings
    from shadowspec.simulate.policies import simulated_rates

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
    from shadowspec.errors import UsageError
    from shadowspec.reports.period.period_model import NAMED, last_whole, moment_of

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
    found = store.last_period(period)
    if found is None or found.until is None or found.since >= found.until:
        raise UsageError(f"job {period} has sent no report yet; it does so when it is due")
    return found.since, found.until, found.gate_outcome

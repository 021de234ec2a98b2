"""What reports on a span of time need of the configuration, and which span is meant."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shadowspec.config import Config
    from shadowspec.reports.period.period_build import PeriodSettings
    from shadowspec.store import Store

DATA_NOTE = "Mirrored traffic, measured in shadow: nothing was returned to anyone."


def data_disclaimer(config: Config) -> str:
    """What the configuration says that its data is and is not; else what holds of every mirror."""
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
    )


def span_of(
    config: Config, store: Store, since: str | None, until: str | None, period: str | None
) -> tuple[datetime, datetime, str | None] | None:
    """The span that the options name, with what became of the gate run before it; None if they name none.

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
            raise UsageError("--until needs --since")
        start = moment_of(since, zone, "--since")
        end = now if until is None else moment_of(until, zone, "--until")
        if not start < end <= now:
            raise UsageError("--since must be before --until, and --until not in the future")
        return start, end, None
    if since is not None or until is not None:
        raise UsageError("--period names the whole span: it goes without --since and --until")
    if period in NAMED:
        return *last_whole(period, now, zone), None
    jobs = list(config.schedule.jobs)
    if period not in jobs:
        raise UsageError(f"--period must be {', '.join([*NAMED, *jobs])}, not {period!r}")
    found = store.last_period(period)
    if found is None or found.until is None or found.since >= found.until:
        raise UsageError(f"job {period} has reported on nothing yet")
    return found.since, found.until, found.gate_outcome

"""The settings of `shadowspec dashboard`, out of the file's section."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta

from shadowspec.config.access import AccessSettings, access_settings
from shadowspec.config.sections import DashboardSection


@dataclass(frozen=True, slots=True)
class DashboardSettings:
    """How the dashboard is served and what it says of its data.

    `price_per_gpu_hour` is in `currency` and is None where the operator has not said; no cost is then shown.
    """

    host: str = "127.0.0.1"
    port: int = 8501
    title: str = "ShadowSpec"
    refresh: timedelta = timedelta(seconds=30)  # how often an open page looks for news
    stale_after: timedelta = timedelta(days=1)  # since the newest measured event; older evidence is said to be stale
    price_per_gpu_hour: float | None = None
    currency: str = "USD"
    data_note: str | None = None  # what the data is and is not, said on every page and report
    access: AccessSettings = field(default_factory=AccessSettings)


def dashboard_settings(section: DashboardSection, environment: Mapping[str, str]) -> DashboardSettings:
    """The section's keys as the values that the dashboard takes."""
    return DashboardSettings(
        host=section.host,
        port=section.port,
        title=section.title,
        refresh=timedelta(seconds=section.refresh_s),
        stale_after=timedelta(seconds=section.stale_after_s),
        price_per_gpu_hour=section.price_per_gpu_hour,
        currency=section.currency,
        data_note=section.data_note,
        access=access_settings(section, environment),
    )

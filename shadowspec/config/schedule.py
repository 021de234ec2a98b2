"""From the [schedule] section to the settings of the scheduler; no secret is read here."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from shadowspec.config.schedule_sections import JobSection, ReceiverSection, ScheduleSection
from shadowspec.errors import ConfigError
from shadowspec.scheduler.settings import (
    EmailSettings,
    FolderSettings,
    JobSettings,
    ReceiverSettings,
    RetrySettings,
    ScheduleSettings,
    Secret,
    WebhookSettings,
)

PORTS: Final = {"tls": 465, "starttls": 587, "none": 25}


def schedule_settings(path: Path, section: ScheduleSection) -> ScheduleSettings:
    """The schedule; cron expressions are read when something is scheduled (`require_crons`).

    Raises:
        ConfigError: a time zone is unknown; the message names file and key.
    """
    zone = _zone(path, "schedule.time_zone", section.time_zone)
    return ScheduleSettings(
        zone=zone,
        catch_up=section.catch_up,
        timeout_s=section.timeout_s,
        retry=RetrySettings(
            section.max_attempts,
            timedelta(seconds=section.retry_first_s),
            timedelta(seconds=max(section.retry_first_s, section.retry_longest_s)),
        ),
        jobs=tuple(_job(path, name, own, zone) for name, own in section.jobs.items()),
        receivers=tuple(_receiver(name, own) for name, own in section.receivers.items()),
    )


def _job(path: Path, name: str, section: JobSection, zone: ZoneInfo) -> JobSettings:
    key = f"schedule.jobs.{name}.time_zone"
    return JobSettings(
        name=name,
        cron=section.cron,
        zone=zone if section.time_zone is None else _zone(path, key, section.time_zone),
        does=tuple(each for each in ("gate", "report") if each in section.does),
        receivers=tuple(section.receivers),
    )


def _receiver(name: str, own: ReceiverSection) -> ReceiverSettings:
    if own.kind == "folder":
        assert own.folder is not None, "the section was checked"
        return FolderSettings(name, Path(own.folder), tuple(own.formats or ("html",)))
    if own.kind == "webhook":
        return WebhookSettings(name, _secret(own.url_variable, own.url_file))
    assert own.host is not None, "the section was checked"
    assert own.sender is not None, "the section was checked"
    assert own.to is not None, "the section was checked"
    security = own.security or "starttls"
    return EmailSettings(
        name=name,
        host=own.host,
        port=own.port or PORTS[security],
        security=security,
        sender=own.sender,
        to=tuple(own.to),
        username=own.username,
        password=None if own.username is None else _secret(own.password_variable, own.password_file),
        ca_file=None if own.ca_file is None else Path(own.ca_file),
    )


def _secret(variable: str | None, file: str | None) -> Secret:
    return Secret(variable, None if file is None else Path(file))


def _zone(path: Path, key: str, name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise ConfigError(f"{path}: {key}: there is no time zone {name!r}") from error

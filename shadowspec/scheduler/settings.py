"""What a scheduler is told: its jobs and receivers.  Secrets stay where they are until something is sent."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

from shadowspec.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Secret:
    """Where a secret is found: in a variable of the environment, or in a file."""

    variable: str | None = None
    file: Path | None = None

    def read(self, environment: Mapping[str, str] | None = None) -> str:
        """The secret, read anew each time, so that a new one counts without a restart.

        Raises:
            ConfigError: it is not there; the message names the place, never what is in it.
        """
        if self.variable is not None:
            value = (os.environ if environment is None else environment).get(self.variable, "").strip()
            if not value:
                raise ConfigError(f"the variable {self.variable} is not set")
            return value
        assert self.file is not None, "a secret has a place"
        try:
            value = self.file.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{self.file}: cannot be read ({type(error).__name__})") from error
        if not value:
            raise ConfigError(f"{self.file}: is empty")
        return value


@dataclass(frozen=True, slots=True)
class FolderSettings:
    """A folder in which each report becomes a file per format."""

    name: str
    folder: Path
    formats: tuple[str, ...] = ("html",)


@dataclass(frozen=True, slots=True)
class EmailSettings:
    """A mail server and who gets mail from it."""

    name: str
    host: str
    port: int
    security: str  # "tls" from the first byte, "starttls", "none"
    sender: str
    to: tuple[str, ...]
    username: str | None = None
    password: Secret | None = None
    ca_file: Path | None = None


@dataclass(frozen=True, slots=True)
class WebhookSettings:
    """A URL as apprise reads them: Slack, Teams, generic JSON and some hundred more; the URL is the secret."""

    name: str
    url: Secret


ReceiverSettings = FolderSettings | EmailSettings | WebhookSettings


@dataclass(frozen=True, slots=True)
class JobSettings:
    """One job: when it is due, and what it does then."""

    name: str
    cron: str
    zone: ZoneInfo
    does: tuple[str, ...]  # of "gate" and "report", in that order
    receivers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RetrySettings:
    """How often a delivery is tried, and how long between: the first wait doubled each time, up to the longest."""

    max_attempts: int = 12
    first: timedelta = timedelta(seconds=30)
    longest: timedelta = timedelta(hours=1)

    def wait_after(self, attempts: int) -> timedelta:
        """How long to wait after so many attempts."""
        return min(self.first * 2.0 ** min(attempts - 1, 20), self.longest)


@dataclass(frozen=True, slots=True)
class ScheduleSettings:
    """The whole schedule.  `catch_up` is the number of missed periods of a job that get a report each."""

    zone: ZoneInfo = field(default_factory=lambda: ZoneInfo("UTC"))
    catch_up: int = 7
    timeout_s: float = 30.0  # that a receiver may take to answer
    retry: RetrySettings = field(default_factory=RetrySettings)
    jobs: tuple[JobSettings, ...] = ()
    receivers: tuple[ReceiverSettings, ...] = ()

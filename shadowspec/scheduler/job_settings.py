"""A scheduler's jobs and receivers.  Secrets stay in their places until something is sent."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Final, Literal
from zoneinfo import ZoneInfo

from pydantic import Field

from shadowspec.errors import ConfigError
from shadowspec.live.live_source import LiveSource
from shadowspec.scheduler.target_settings import HttpTarget, KeptTarget, TargetSettings
from shadowspec.types.settings import (
    GuardPolicy,
    Name,
    PathText,
    Port,
    Positive,
    Seconds,
    SocketAddress,
    Text,
    require_distinct,
)

PORTS: Final = {"tls": 465, "starttls": 587, "none": 25}
ACTIONS: Final = ("gate", "report", "export")  # in the order in which a job does them

Address = Annotated[str, Field(pattern=r"^[^\s@<>,;:\"]+@[^\s@<>,;:\"]+$")]
RECEIVERS: Final = ("folder", "email", "webhook")  # kinds
ReceiverName = Annotated[str, Field(alias="(name)")]


def _utc() -> ZoneInfo:
    return ZoneInfo("UTC")


@dataclass(frozen=True, slots=True)
class Secret:
    """Where a secret is found: in a variable of the environment, or in a file."""

    variable: str | None = None
    file: Path | None = None

    def read(self, environment: Mapping[str, str] | None = None) -> str:
        """The secret, read each time, so that a new one counts without a restart.

        Raises:
            ConfigError: the secret is missing; the message names its place, never its content.
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

    name: ReceiverName
    folder: PathText
    formats: Annotated[tuple[Literal["html", "md", "json"], ...], Field(min_length=1)] = ("html",)
    kind: Literal["folder"] = "folder"


@dataclass(frozen=True, slots=True)
class EmailSettings:
    """A mail server and who gets mail from it.

    Raises:
        ValueError: the parts do not fit together.
    """

    name: ReceiverName
    host: Text
    sender: Address
    to: Annotated[tuple[Address, ...], Field(min_length=1)]
    port: Port | None = None  # None: the port of `security`
    security: Literal["tls", "starttls", "none"] = "starttls"  # "tls": from the first byte
    username: Text | None = None
    password_variable: Text | None = None
    password_file: Annotated[PathText | None, Field(description="file with the password, read for every mail")] = None
    ca_file: PathText | None = None
    kind: Literal["email"] = "email"

    def __post_init__(self) -> None:
        if self.password_variable is not None and self.password_file is not None:
            raise ValueError("password_variable, password_file: only one of them")
        if (self.username is None) != (self.password is None):
            raise ValueError("username: needs password_variable or password_file, and they need it")
        if self.password is not None and self.security == "none":
            raise ValueError("security: a password is not sent over a connection that is not encrypted")

    @property
    def server(self) -> tuple[str, int]:
        """Host and port."""
        return self.host, self.port or PORTS[self.security]

    @property
    def password(self) -> Secret | None:
        is_named = self.password_variable is not None or self.password_file is not None
        return Secret(self.password_variable, self.password_file) if is_named else None


@dataclass(frozen=True, slots=True)
class WebhookSettings:
    """A URL as apprise reads them: Slack, Teams, generic JSON and some hundred more; the URL is the secret.

    Raises:
        ValueError: it is named twice, or not at all.
    """

    name: ReceiverName
    url_variable: Annotated[Text | None, Field(description="environment variable with the URL")] = None
    url_file: PathText | None = None
    kind: Literal["webhook"] = "webhook"

    def __post_init__(self) -> None:
        if (self.url_variable is None) == (self.url_file is None):
            raise ValueError("url_variable, url_file: one of them must name where the URL is: it is a secret")

    @property
    def url(self) -> Secret:
        return Secret(self.url_variable, self.url_file)


ReceiverSettings = Annotated[FolderSettings | EmailSettings | WebhookSettings, Field(discriminator="kind")]


@dataclass(frozen=True, slots=True)
class JobSettings:
    """One job: when it is due, and its actions.

    A job has either a time (`cron`) or events (`on`), which it reports as soon as one of them has happened.  A job that
    exports is due as well as soon as a decision, an override or a rollout has changed.

    Raises:
        ValueError: the parts do not fit together.
    """

    name: Annotated[str, Field(alias="(name)")]
    cron: Text | None = None
    on: tuple[Literal["alarm", "reversion", "verdict", "confirmed"], ...] = ()
    zone: Annotated[ZoneInfo, Field(alias="time_zone")] = field(default_factory=_utc)  # in the file: the schedule's
    does: Annotated[tuple[Literal["gate", "report", "export"], ...], Field(min_length=1)] = ("report",)
    receivers: tuple[Name, ...] = ()
    targets: tuple[Name, ...] = ()

    def __post_init__(self) -> None:
        require_distinct(does=self.does, receivers=self.receivers, on=self.on, targets=self.targets)
        if (self.cron is None) != bool(self.on):
            raise ValueError("cron: give either cron, the times of the job, or on, the events that it reports at once")
        if self.on and self.does != ("report",):
            raise ValueError("does: a job with events only reports; add another job for the rest")
        if self.exports and len(self.does) > 1:
            raise ValueError("does: a job that exports does only that: a gate would hold an alarm up; add another job")
        if self.exports != bool(self.targets):
            raise ValueError("targets: a job that exports needs some, and one that does not takes none")
        if ("report" in self.does) != bool(self.receivers):
            raise ValueError("receivers: a job that reports needs some, and one that does not takes none")

    @property
    def exports(self) -> bool:
        return "export" in self.does

    @property
    def places(self) -> tuple[str, ...]:
        """The names of its receivers, or of its targets."""
        return self.receivers or self.targets

    @property
    def when(self) -> str:
        """Its times or its events."""
        return self.cron or f"on {', '.join(self.on)}"

    @property
    def actions(self) -> tuple[str, ...]:
        """Its actions, in that order."""
        return tuple(action for action in ACTIONS if action in self.does)


@dataclass(frozen=True, slots=True)
class RetrySettings:
    """How often a delivery is tried, and how long between: the first wait doubled each time, up to the longest."""

    max_attempts: Positive = 12
    retry_first_s: Seconds = 30.0
    retry_longest_s: Seconds = 3_600.0

    def wait_after(self, attempts: int) -> timedelta:
        """How long to wait after this number of attempts."""
        longest = max(self.retry_first_s, self.retry_longest_s)
        return timedelta(seconds=min(self.retry_first_s * 2.0 ** min(attempts - 1, 20), longest))


@dataclass(frozen=True, slots=True)
class LiveSettings:
    """[endpoints.NAME.live]: which production engines are read, how often, and how the guard listens to them."""

    source: Annotated[LiveSource, Field(alias="(source)")]
    guard: Annotated[GuardPolicy, Field(alias="(guard)")] = field(default_factory=GuardPolicy)
    interval_s: Annotated[float, Field(ge=1)] = 60.0


@dataclass(frozen=True, slots=True)
class ScheduleSettings:
    """The whole schedule, by the names of jobs, receivers and targets.

    Cron expressions are read when something is scheduled.
    `catch_up` is the number of missed periods of a job that get a report each.

    Raises:
        ValueError: a job's receiver or target does not exist, or is of another kind.
    """

    zone: Annotated[ZoneInfo, Field(alias="time_zone")] = field(default_factory=_utc)
    catch_up: Positive = 7
    timeout_s: Seconds = 30.0  # that a receiver may take to answer
    metrics_address: SocketAddress | None = None  # of /metrics with the verdicts; None: not served
    retry: Annotated[RetrySettings, Field(alias="(retry)")] = RetrySettings()
    jobs: Mapping[Name, JobSettings] = field(default_factory=dict)
    receivers: Mapping[Name, ReceiverSettings] = field(default_factory=dict)
    targets: Mapping[Name, TargetSettings] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, job in self.jobs.items():
            for key, places in (("receivers", self.receivers), ("targets", self.targets)):
                if unknown := [place for place in getattr(job, key) if place not in places]:
                    known = ", ".join(places) or "none"
                    raise ValueError(f"jobs.{name}.{key}: there is no {key[:-1]} {unknown[0]!r} (there are: {known})")
            if served := [target for target in job.targets if isinstance(self.targets[target], HttpTarget)]:
                raise ValueError(f"jobs.{name}.targets: {served[0]} is served at any time; remove it from the job")
        if both := sorted(self.receivers.keys() & self.targets.keys()):
            raise ValueError(f"targets.{both[0]}: a receiver has this name; choose another one")
        if self.metrics_address is None and self.pages:
            raise ValueError(f"targets.{next(iter(self.pages))}: needs metrics_address, at which it is served")

    @property
    def pages(self) -> dict[str, HttpTarget]:
        """The targets that are served."""
        return {name: target for name, target in self.targets.items() if isinstance(target, HttpTarget)}

    @property
    def kept(self) -> dict[str, KeptTarget]:
        """The targets that jobs write."""
        return {name: target for name, target in self.targets.items() if not isinstance(target, HttpTarget)}

"""The [schedule] section of the configuration file: jobs, and who gets their reports."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from shadowspec.config.base import Name, Positive, Section, Text

Port = Annotated[int, Field(ge=1, le=65_535)]
Address = Annotated[str, Field(pattern=r"^[^\s@<>,;:\"]+@[^\s@<>,;:\"]+$")]


class JobSection(Section):
    """[schedule.jobs.NAME]"""

    cron: Text
    time_zone: Text | None = None
    does: Annotated[list[Literal["gate", "report"]], Field(min_length=1)] = ["report"]
    receivers: list[Name] = []

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        for what, names in (("does", self.does), ("receivers", self.receivers)):
            if len(set(names)) != len(names):
                raise ValueError(f"{what}: the same one stands there twice")
        if ("report" in self.does) != bool(self.receivers):
            raise ValueError("receivers: a job that reports needs some, and one that does not takes none")
        return self


class ReceiverSection(Section):
    """[schedule.receivers.NAME]: the keys of every kind; which of them belong together is checked here."""

    kind: Literal["folder", "email", "webhook"]
    # folder
    folder: Text | None = None
    formats: Annotated[list[Literal["html", "md", "json"]], Field(min_length=1)] | None = None
    # email
    host: Text | None = None
    port: Port | None = None
    security: Literal["tls", "starttls", "none"] | None = None
    username: Text | None = None
    password_variable: Text | None = None
    password_file: Text | None = None
    ca_file: Text | None = None
    sender: Address | None = None
    to: Annotated[list[Address], Field(min_length=1)] | None = None
    # webhook
    url_variable: Text | None = None
    url_file: Text | None = None

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        own = _KEYS[self.kind]
        for name in sorted(self.model_fields_set - {"kind"}):
            if name not in own:
                raise ValueError(f"{name}: is no key of a receiver of kind {self.kind!r}")
        for name in _NEEDED[self.kind]:
            if getattr(self, name) is None:
                raise ValueError(f"{name}: is missing")
        if self.kind == "webhook" and (self.url_variable is None) == (self.url_file is None):
            raise ValueError("url_variable, url_file: one of them must name where the URL is: it is a secret")
        if self.password_variable is not None and self.password_file is not None:
            raise ValueError("password_variable, password_file: only one of them")
        has_password = self.password_variable is not None or self.password_file is not None
        if (self.username is not None) != has_password:
            raise ValueError("username: needs password_variable or password_file, and they need it")
        if has_password and self.security == "none":
            raise ValueError("security: a password is not sent over a connection that is not encrypted")
        return self


class ScheduleSection(Section):
    """[schedule]"""

    time_zone: Text = "UTC"
    catch_up: Positive = 7
    max_attempts: Positive = 12
    retry_first_s: Annotated[float, Field(gt=0)] = 30.0
    retry_longest_s: Annotated[float, Field(gt=0)] = 3_600.0
    timeout_s: Annotated[float, Field(gt=0)] = 30.0
    jobs: dict[Name, JobSection] = {}
    receivers: dict[Name, ReceiverSection] = {}

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        for name, job in self.jobs.items():
            if unknown := [each for each in job.receivers if each not in self.receivers]:
                known = ", ".join(self.receivers) or "none"
                raise ValueError(f"jobs.{name}.receivers: there is no receiver {unknown[0]!r} (there are: {known})")
        return self


_KEYS = {
    "folder": {"folder", "formats"},
    "email": {
        "host", "port", "security", "username", "password_variable", "password_file", "ca_file", "sender", "to",
    },
    "webhook": {"url_variable", "url_file"},
}  # fmt: skip
_NEEDED = {"folder": ("folder",), "email": ("host", "sender", "to"), "webhook": ()}

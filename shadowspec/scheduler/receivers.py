"""Receivers of reports: folders, mail servers and webhooks; the content for each, and the checks before sending.

A server's error message may quote addresses or secrets: only the class of the error is stored.

A folder gets a file per format, replaced whole when repeated.  A mail server gets one message, plain text and HTML, for
every address.  A webhook goes through apprise (Slack, Teams, generic JSON and others): a chat gets a few lines, whose
last names the report, and a receiver that takes HTTP headers gets the idempotency key as `Idempotency-Key`.  A
webhook's URL is a secret: apprise's messages about it go into no log.
"""

from __future__ import annotations

import logging
import os
import re
import smtplib
import socket
import ssl
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from email.message import EmailMessage
from email.policy import SMTP
from email.utils import format_datetime
from types import ModuleType
from typing import Any

from shadowspec.errors import ConfigError, ExitCode, ServiceUnavailableError, ShadowSpecError
from shadowspec.reports.period.period_content import (
    RENDERERS,
    render_period_html,
    render_period_markdown,
    render_period_summary,
)
from shadowspec.reports.period.period_model import PeriodReport
from shadowspec.scheduler.job_settings import EmailSettings, FolderSettings, ReceiverSettings, WebhookSettings
from shadowspec.scheduler.targets import TargetError
from shadowspec.text import write_whole
from shadowspec.types import Delivery
from shadowspec.types.extras import missing_extra

IDEMPOTENCY_HEADER = "Idempotency-Key"

_STATUS = re.compile(r"\berror=(\d{3})\b")


@dataclass(frozen=True, slots=True)
class ReportMessage:
    """One report on its way to one receiver."""

    delivery: Delivery
    report: PeriodReport

    @property
    def subject(self) -> str:
        """One line; the report names its endpoints."""
        return f"ShadowSpec {self.delivery.job}: {self.report.summary}"

    @property
    def file_stem(self) -> str:
        """The same for every repeat, and in the order of time."""
        return f"{self.delivery.job}-{self.delivery.due_at:%Y%m%dT%H%M%SZ}"


class DeliveryError(ShadowSpecError):
    """A receiver has not taken a report.  The log has only `kind`."""

    exit_code = ExitCode.UNAVAILABLE

    def __init__(self, kind: str) -> None:
        super().__init__(kind)
        self.kind = kind


def error_kind(error: BaseException) -> str:
    """The class of an error, with a server's code where it has one."""
    if isinstance(error, DeliveryError | TargetError):
        return error.kind
    name = type(error).__name__
    if isinstance(error, smtplib.SMTPResponseException):
        return f"{name} {error.smtp_code}"
    if isinstance(error, OSError) and error.errno is not None:
        return f"{name} {error.errno}"
    return name


def send_to_folder(settings: FolderSettings, message: ReportMessage) -> None:
    """Write the report's files.

    Raises:
        OSError: the folder cannot be made or written to.
    """
    settings.folder.mkdir(parents=True, exist_ok=True)
    for form in settings.formats:
        write_whole(settings.folder / f"{message.file_stem}.{form}", RENDERERS[form](message.report))


def build_email(settings: EmailSettings, message: ReportMessage) -> EmailMessage:
    """The e-mail; its Message-ID is the delivery's, however often it is sent."""
    email = EmailMessage(policy=SMTP)
    email["Subject"] = message.subject
    email["From"] = settings.sender
    email["To"] = ", ".join(settings.to)
    email["Date"] = format_datetime(datetime.now(UTC))
    email["Message-ID"] = message.delivery.message_id
    email["Auto-Submitted"] = "auto-generated"
    email["X-ShadowSpec-Report"] = message.report.report_id
    email.set_content(render_period_markdown(message.report))
    email.add_alternative(render_period_html(message.report), subtype="html")
    return email


def send_mail(settings: EmailSettings, message: ReportMessage, timeout_s: float) -> int:
    """Hand the e-mail to the server; the number of addresses that it refused, when it took some.

    Raises:
        SMTPException, OSError: the server took nothing.
        ConfigError: the password is not where it should be.
    """
    email = build_email(settings, message)
    context = ssl.create_default_context(cafile=None if settings.ca_file is None else str(settings.ca_file))
    name = socket.gethostname()  # the default asks the name service, which may take its time
    if settings.security == "tls":
        server: smtplib.SMTP = smtplib.SMTP_SSL(
            *settings.server, local_hostname=name, timeout=timeout_s, context=context
        )
    else:
        server = smtplib.SMTP(*settings.server, local_hostname=name, timeout=timeout_s)
    try:
        if settings.security == "starttls":
            server.starttls(context=context)
        if settings.username is not None and settings.password is not None:
            server.login(settings.username, settings.password.read())
        refused = server.send_message(email)
        with suppress(smtplib.SMTPException, OSError):  # it has taken the message: errors on QUIT are irrelevant
            server.quit()
    finally:
        server.close()
    return len(refused)


def send_to_webhook(settings: WebhookSettings, message: ReportMessage, timeout_s: float) -> None:
    """Post the summary.

    Raises:
        ConfigError: the URL is not there, or cannot be used.
        DeliveryError: it was not taken.
    """
    apprise = _load_apprise()
    plugin = _plugin(settings)
    plugin.redirects = False  # a redirected POST becomes a GET, which a login page answers with 200
    plugin.socket_connect_timeout = plugin.socket_read_timeout = timeout_s
    headers = getattr(plugin, "headers", None)
    if isinstance(headers, dict):
        headers[IDEMPOTENCY_HEADER] = message.delivery.idempotency_key
    service = apprise.Apprise()
    service.add(plugin)
    logged: list[str] = []
    result = service.notify(
        body=render_period_summary(message.report),
        title=message.subject,
        body_format=apprise.NotifyFormat.MARKDOWN,
        log_callback=lambda entry, _service: logged.append(entry.message),
        log_level=logging.WARNING,
    )
    if not result:
        status = next((match[1] for line in logged if (match := _STATUS.search(line))), None)
        raise DeliveryError("WebhookError" if status is None else f"WebhookError {status}")


def _load_apprise() -> ModuleType:
    """
    Raises:
        ConfigError: the extra is not installed.
    """
    try:
        import apprise
    except ImportError:
        raise missing_extra("a webhook", "schedule") from None
    return apprise


def _plugin(settings: WebhookSettings) -> Any:
    apprise = _load_apprise()
    _keep_urls_out_of_logs()
    url = settings.url.read()
    try:
        plugin = apprise.Apprise.instantiate(url)
    except Exception as error:
        raise ConfigError(f"receiver {settings.name}: apprise refuses its URL ({type(error).__name__})") from None
    if not isinstance(plugin, apprise.NotifyBase):
        raise ConfigError(f"receiver {settings.name}: apprise does not know its URL")
    return plugin


def _keep_urls_out_of_logs() -> None:
    """Keep lines that quote URLs out of our logs: apprise's, and those of the HTTP library below it."""
    for name in ("apprise", "urllib3", "requests"):
        logger = logging.getLogger(name)
        logger.propagate = False
        logger.setLevel(logging.WARNING)  # the level of logs here
        if not logger.handlers:
            logger.addHandler(logging.NullHandler())


def require_secret(receiver: ReceiverSettings) -> None:
    """Check that the receiver's secret, if it has one, is there and can be used.

    Raises:
        ConfigError: it is not; the message does not quote it.
    """
    if isinstance(receiver, WebhookSettings):
        _plugin(receiver)
    elif isinstance(receiver, EmailSettings) and receiver.password is not None:
        receiver.password.read()


def require_place(receiver: ReceiverSettings) -> None:
    """Check that the folder can be written to, or that the mail server's name is known; nothing is sent or made.

    A webhook's host is not looked up: its URL may hold a token in that place.

    Raises:
        ConfigError: the folder, or the file of certificates, cannot be used.
        ServiceUnavailableError: the name cannot be resolved.
    """
    if isinstance(receiver, FolderSettings):
        _require_writable(receiver)
    elif isinstance(receiver, EmailSettings):
        if receiver.ca_file is not None and not os.access(receiver.ca_file, os.R_OK):
            raise ConfigError(f"ca_file {receiver.ca_file}: cannot be read")
        try:
            socket.getaddrinfo(*receiver.server, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            raise ServiceUnavailableError(f"host {receiver.host}: no address is known of it") from error


def _require_writable(folder_settings: FolderSettings) -> None:
    """It is made when the first report is written: until then the nearest folder above it counts."""
    folder = folder_settings.folder.absolute()
    nearest = next(path for path in (folder, *folder.parents) if path.exists())
    if not nearest.is_dir():
        raise ConfigError(f"folder {folder_settings.folder}: {nearest} is not a folder")
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise ConfigError(f"folder {folder_settings.folder}: {nearest} cannot be written to")

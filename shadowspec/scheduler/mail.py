"""Delivery by e-mail: one message, plain text and HTML, to every address of the receiver."""

from __future__ import annotations

import smtplib
import socket
import ssl
from contextlib import suppress
from datetime import UTC, datetime
from email.message import EmailMessage
from email.policy import SMTP
from email.utils import format_datetime

from shadowspec.reports.period.html import render_period_html
from shadowspec.reports.period.markdown import render_period_markdown
from shadowspec.scheduler.letters import Letter
from shadowspec.scheduler.settings import EmailSettings


def message_of(settings: EmailSettings, letter: Letter) -> EmailMessage:
    """The message; its Message-ID is the delivery's, however often it is sent."""
    message = EmailMessage(policy=SMTP)
    message["Subject"] = letter.subject
    message["From"] = settings.sender
    message["To"] = ", ".join(settings.to)
    message["Date"] = format_datetime(datetime.now(UTC))
    message["Message-ID"] = letter.delivery.message_id
    message["Auto-Submitted"] = "auto-generated"
    message["X-ShadowSpec-Report"] = letter.report.report_id
    message.set_content(render_period_markdown(letter.report))
    message.add_alternative(render_period_html(letter.report), subtype="html")
    return message


def send_mail(settings: EmailSettings, letter: Letter, timeout_s: float) -> int:
    """Hand the message to the server; the number of addresses that it refused, when it took some.

    Raises:
        SMTPException, OSError: the server took nothing.
        ConfigError: the password is not where it should be.
    """
    message = message_of(settings, letter)
    context = ssl.create_default_context(cafile=None if settings.ca_file is None else str(settings.ca_file))
    name = socket.gethostname()  # the default asks the name service, which may take its time
    if settings.security == "tls":
        server: smtplib.SMTP = smtplib.SMTP_SSL(
            settings.host, settings.port, local_hostname=name, timeout=timeout_s, context=context
        )
    else:
        server = smtplib.SMTP(settings.host, settings.port, local_hostname=name, timeout=timeout_s)
    try:
        if settings.security == "starttls":
            server.starttls(context=context)
        if settings.username is not None and settings.password is not None:
            server.login(settings.username, settings.password.read())
        refused = server.send_message(message)
        with suppress(smtplib.SMTPException, OSError):  # it has taken the message: how it says good-bye is all one
            server.quit()
    finally:
        server.close()
    return len(refused)

"""Delivery by webhook, through apprise: Slack, Teams, generic JSON and whatever else it knows.

A chat gets a few lines, whose last names the report.  A receiver that takes HTTP headers gets the idempotency key as
`Idempotency-Key`.  The URL is a secret: what apprise says of it is heard, but goes into no log.
"""

from __future__ import annotations

import logging
import re
from typing import Any

from shadowspec.errors import ConfigError
from shadowspec.reports.period.markdown import render_period_summary
from shadowspec.scheduler.errors import DeliveryError
from shadowspec.scheduler.letters import Letter
from shadowspec.scheduler.settings import WebhookSettings

IDEMPOTENCY_HEADER = "Idempotency-Key"

_STATUS = re.compile(r"\berror=(\d{3})\b")


def require_webhook(settings: WebhookSettings) -> None:
    """Check that the URL is there and is one that apprise knows.

    Raises:
        ConfigError: it is not; the message does not quote it.
    """
    _plugin(settings)


def send_to_webhook(settings: WebhookSettings, letter: Letter, timeout_s: float) -> None:
    """Post the summary.

    Raises:
        ConfigError: the URL is not there, or cannot be used.
        DeliveryError: it was not taken.
    """
    import apprise

    plugin = _plugin(settings)
    plugin.socket_connect_timeout = plugin.socket_read_timeout = timeout_s
    headers = getattr(plugin, "headers", None)
    if isinstance(headers, dict):
        headers[IDEMPOTENCY_HEADER] = letter.delivery.idempotency_key
    service = apprise.Apprise()
    service.add(plugin)
    heard: list[str] = []
    result = service.notify(
        body=render_period_summary(letter.report),
        title=letter.subject,
        body_format=apprise.NotifyFormat.MARKDOWN,
        log_callback=lambda entry, _service: heard.append(entry.message),
        log_level=logging.WARNING,
    )
    if not result:
        status = next((found[1] for line in heard if (found := _STATUS.search(line))), None)
        raise DeliveryError("WebhookError" if status is None else f"WebhookError {status}")


def _plugin(settings: WebhookSettings) -> Any:
    import apprise

    _silence()
    url = settings.url.read()
    try:
        plugin = apprise.Apprise.instantiate(url)
    except Exception as error:
        raise ConfigError(f"receiver {settings.name}: apprise refuses its URL ({type(error).__name__})") from None
    if not isinstance(plugin, apprise.NotifyBase):
        raise ConfigError(f"receiver {settings.name}: its URL is none that apprise knows")
    return plugin


def _silence() -> None:
    """Keep what quotes URLs out of our logs: apprise's own lines, and those of the HTTP library below it."""
    for name in ("apprise", "urllib3", "requests"):
        logger = logging.getLogger(name)
        logger.propagate = False
        logger.setLevel(logging.WARNING)  # which is what is heard here
        if not logger.handlers:
            logger.addHandler(logging.NullHandler())

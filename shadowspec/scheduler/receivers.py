"""What can be known of a receiver before anything is sent to it."""

from __future__ import annotations

import os
import socket

from shadowspec.errors import ConfigError, ServiceUnavailableError
from shadowspec.scheduler.settings import EmailSettings, FolderSettings, ReceiverSettings, WebhookSettings
from shadowspec.scheduler.webhook import require_webhook


def require_secret(own: ReceiverSettings) -> None:
    """Check that the receiver's secret, if it has one, is there and can be used.

    Raises:
        ConfigError: it is not; the message does not quote it.
    """
    if isinstance(own, WebhookSettings):
        require_webhook(own)
    elif isinstance(own, EmailSettings) and own.password is not None:
        own.password.read()


def require_place(own: ReceiverSettings) -> None:
    """Check that the folder can be written to, or that the mail server's name is known; nothing is sent or made.

    Where a webhook leads is not looked up: what stands in its URL may be a token and no host.

    Raises:
        ConfigError: the folder, or the file of certificates, cannot be used.
        ServiceUnavailableError: the name cannot be resolved.
    """
    if isinstance(own, FolderSettings):
        _require_writable(own)
    elif isinstance(own, EmailSettings):
        if own.ca_file is not None and not os.access(own.ca_file, os.R_OK):
            raise ConfigError(f"ca_file {own.ca_file}: cannot be read")
        try:
            socket.getaddrinfo(own.host, own.port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            raise ServiceUnavailableError(f"host {own.host}: no address is known of it") from error


def _require_writable(own: FolderSettings) -> None:
    """It is made when the first report is written: until then the nearest folder above it counts."""
    folder = own.folder.absolute()
    nearest = next(each for each in (folder, *folder.parents) if each.exists())
    if not nearest.is_dir():
        raise ConfigError(f"folder {own.folder}: {nearest} is no folder")
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise ConfigError(f"folder {own.folder}: {nearest} cannot be written to")

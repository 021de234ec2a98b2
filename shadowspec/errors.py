"""One tree of errors.  Messages name what and where, never prompt text; each error carries its exit code."""

from __future__ import annotations


class ShadowSpecError(Exception):
    """Base of every error that a user may see; `exit_code` is the contract of the command line."""

    exit_code = 2


class UsageError(ShadowSpecError):
    """The command line or the configuration is wrong."""


class ConfigError(UsageError):
    """The configuration file is wrong; the message names the file and the key."""


class InputError(ShadowSpecError):
    """Something given as input cannot be read or used; the message names it and says where."""


class ModelError(InputError):
    """A model, tokenizer or pair cannot be used; the message says why."""


class RecordError(ShadowSpecError):
    """One record cannot be used.  `counter` is the funnel counter that it ends in; `reason` is a short code."""

    def __init__(self, counter: str, reason: str, message: str = "") -> None:
        super().__init__(message or reason)
        self.counter = counter
        self.reason = reason


class NoDataError(ShadowSpecError):
    """There is no data, or none that can be used."""

    exit_code = 4


class StoreError(ShadowSpecError):
    """The database cannot be used as it stands (its revision, its permissions)."""


class ServiceUnavailableError(ShadowSpecError):
    """A service (database, broker) cannot be reached."""

    exit_code = 5

"""One tree of errors.  Messages name what and where, never prompt text; each error carries its exit code."""

from __future__ import annotations

from enum import IntEnum
from typing import Self


class ExitCode(IntEnum):
    """How a command ends; `meaning` is its line in the documentation."""

    meaning: str

    def __new__(cls, value: int, meaning: str = "") -> Self:
        member = int.__new__(cls, value)
        member._value_ = value
        member.meaning = meaning
        return member

    DONE = 0, "Done. Of `check`: ENABLE."
    DISABLE = 1, "Only of `check`: DISABLE."
    USAGE = 2, "The command line, the configuration or an input is wrong."
    HOLD = 3, "Only of `check`: HOLD."
    NO_DATA = 4, "There is no data, or none that can be used."
    UNAVAILABLE = 5, "A service cannot be reached, or lacks something that the command needs."
    INTERNAL = 70, "An internal error of ShadowSpec."
    INTERRUPTED = 130, "Interrupted. Finished work is stored."
    OUTPUT_CLOSED = 141, "The reader of the output has closed it, as in `| head`. `check` keeps its verdict's code."


class ShadowSpecError(Exception):
    """Base of every error that a user may see; `exit_code` is the contract of the command line."""

    exit_code: int = ExitCode.USAGE


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

    def without_traceback(self) -> RecordError:
        """Itself as a value, without the way that it came: those frames hold the record, and now this error too.

        Such a circle would keep each refused record until garbage is next looked for.
        """
        self.__traceback__ = self.__cause__ = self.__context__ = None
        return self


class NoDataError(ShadowSpecError):
    """There is no data, or none that can be used."""

    exit_code = ExitCode.NO_DATA


class StoreError(ShadowSpecError):
    """The database cannot be used in its state (its revision, its permissions)."""


class FencedError(StoreError):
    """Another worker has moved a partition on: what was to be written of it is its new owner's to write."""

    def __init__(self, message: str, *, source: str, partition: int) -> None:
        super().__init__(message)
        self.source = source
        self.partition = partition


class ServiceUnavailableError(ShadowSpecError):
    """A service (database, broker) cannot be reached, or cannot serve now.

    `is_retryable` says whether waiting may heal it (a restart, a full disk, a cut connection); wrong
    credentials, an unknown database or an untrusted certificate need an operator.
    """

    exit_code = ExitCode.UNAVAILABLE

    def __init__(self, message: str, *, is_retryable: bool = True) -> None:
        super().__init__(message)
        self.is_retryable = is_retryable


class DeadLetterError(ServiceUnavailableError):
    """One of our topics takes no message: it is gone, may not be written, or refuses one.

    A writer stops rather than drop a message.
    """

    def __init__(self, message: str) -> None:
        super().__init__(message, is_retryable=False)

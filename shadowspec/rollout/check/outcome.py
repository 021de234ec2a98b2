"""How a check ends, and its exit code.  It imports nothing heavy: the command line reads its options from it."""

from __future__ import annotations

from enum import StrEnum

from shadowspec.errors import ExitCode


class Outcome(StrEnum):
    """A verdict, or that no usable one exists."""

    ENABLE = "ENABLE"
    DISABLE = "DISABLE"
    HOLD = "HOLD"
    UNUSABLE = "UNUSABLE"
    REPLACE = "REPLACE"  # shown in place of ENABLE and DISABLE where the question is of a second deployment
    KEEP = "KEEP"


class OnHold(StrEnum):
    """The effect of HOLD on the exit code."""

    FAIL = "fail"
    PASS = "pass"  # noqa: S105 - not a password
    WARN = "warn"


def exit_code(outcome: Outcome, on_hold: OnHold) -> ExitCode:
    """The exit code of the command line's contract."""
    if outcome is Outcome.HOLD:
        return ExitCode.HOLD if on_hold is OnHold.FAIL else ExitCode.DONE
    return {
        Outcome.ENABLE: ExitCode.DONE,
        Outcome.DISABLE: ExitCode.DISABLE,
        Outcome.UNUSABLE: ExitCode.NO_DATA,
    }[outcome]

"""How a check ends, and its exit code.  Nothing is imported here: the command line reads its options from it."""

from __future__ import annotations

from enum import StrEnum


class Outcome(StrEnum):
    """A verdict, or that there is none that could be used."""

    ENABLE = "ENABLE"
    DISABLE = "DISABLE"
    HOLD = "HOLD"
    UNUSABLE = "UNUSABLE"


class OnHold(StrEnum):
    """What HOLD does to the exit code."""

    FAIL = "fail"
    PASS = "pass"  # noqa: S105 - not a password
    WARN = "warn"


def exit_code(outcome: Outcome, on_hold: OnHold) -> int:
    """The exit code of the command line's contract."""
    if outcome is Outcome.HOLD:
        return 3 if on_hold is OnHold.FAIL else 0
    return {Outcome.ENABLE: 0, Outcome.DISABLE: 1, Outcome.UNUSABLE: 4}[outcome]

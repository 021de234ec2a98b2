"""How soon somebody should look at a decision, and what that asks of them.

In: decisions.
Out: an order of rows, and a severity by which they are found.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from shadowspec.gate.verdict.current_verdict import AT_ONCE_CODES
from shadowspec.gate.verdict.lifecycle import ALARM_CODES, WAITING_CODES
from shadowspec.types import Decision, ReasonCode, Verdict

UNJUDGED: Final = 6  # the urgency of an endpoint without a decision
_WAITING: Final = WAITING_CODES | {ReasonCode.SMALL_SLICE, ReasonCode.DEPENDENT, ReasonCode.CHANGED_FINGERPRINT}


class Severity(StrEnum):
    """What a row asks of its owner, the most urgent first."""

    ACT_NOW = "act now"  # an alarm, an override, a fault
    TO_DO = "to do"  # somebody must do something before it changes
    WAITING = "waiting"  # traffic alone will change it
    DECIDED = "decided"


def urgency_of(decision: Decision) -> int:
    """The smaller, the sooner somebody should look."""
    code = decision.reason_code
    if decision.override is not None or code in ALARM_CODES:
        return 0
    if code in AT_ONCE_CODES or code == ReasonCode.MUST_NOT_REPLACE:
        return 1
    if decision.verdict is Verdict.ENABLE or code == ReasonCode.MAY_REPLACE:
        return 3
    if decision.verdict is Verdict.DISABLE:
        return 4
    return 5 if code in _WAITING else 2


_SEVERITIES: Final = {
    0: Severity.ACT_NOW,
    1: Severity.ACT_NOW,
    2: Severity.TO_DO,
    3: Severity.DECIDED,
    4: Severity.DECIDED,
    5: Severity.WAITING,
}


def severity_of(decision: Decision) -> Severity:
    """What a decision asks for by itself."""
    return _SEVERITIES[urgency_of(decision)]

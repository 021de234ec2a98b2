"""What stands of a decision where another engine serves than the one that measured.

Latency is a property of the engine: neither a gain nor a slowdown of one is a verdict on another, so that both are HOLD
there.  What weights and rule make of outputs, and the memory that a draft takes, carries over: these DISABLE.  The gate
decides so, and keeps it; whatever acts on decisions asks once more, for the engine may have been named since.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from shadowspec.gate.policy import GatePolicy
from shadowspec.types import Decision, Verdict

OTHER_ENGINE: Final = "other_engine"
CARRIED_CODES: Final = frozenset(
    {"parity_fault", "memory_over_budget", "parity_biased"}
)  # of DISABLE: they read no clock


def stands(verdict: Verdict, reason_code: str, other_engine: str | None) -> bool:
    """Whether an ENABLE or DISABLE is one of what serves; `other_engine` is as of the policy."""
    is_carried = verdict is Verdict.DISABLE and reason_code in CARRIED_CODES
    return verdict is not Verdict.HOLD and (other_engine is None or is_carried)


def for_what_serves(decisions: Iterable[Decision], policy: GatePolicy) -> list[Decision]:
    """The decisions, those that rest on another engine's latency held; their figures stay what they are."""
    found = []
    for decision in decisions:
        other = policy.other_engine(decision.engine)
        if other is None or decision.verdict is Verdict.HOLD or stands(decision.verdict, decision.reason_code, other):
            found.append(decision)
        else:
            held = replace(decision, verdict=Verdict.HOLD, reason_code=OTHER_ENGINE, reason=other, clusters_needed=None)
            found.append(held)
    return found

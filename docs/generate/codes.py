"""Reason codes and funnel counters, from their enumerations."""

from __future__ import annotations

from docs.generate.markdown import code, listing
from shadowspec.gate.verdict.reasons import GATE_AGAIN, REASONS, ReasonText
from shadowspec.types import FunnelCounter, Verdict


def hold() -> str:
    """Every reason of a HOLD."""
    return _reasons(is_hold=True)


def other_verdicts() -> str:
    """Every reason that only ENABLE and DISABLE have."""
    return _reasons(is_hold=False)


def funnel() -> str:
    """Every counter in which a record may end."""
    return listing((code(counter), "", counter.meaning) for counter in FunnelCounter)


def _reasons(*, is_hold: bool) -> str:
    return listing(
        (code(each), "" if is_hold else ", ".join(each.verdicts), f"{text.meaning} **{_remedy(text)}**")
        for each, text in REASONS.items()
        if (Verdict.HOLD in each.verdicts) is is_hold
    )


def _remedy(reason: ReasonText) -> str:
    """The next step without what is the next one of them all, and the note."""
    step = reason.step.removesuffix(f", {GATE_AGAIN}")
    return " ".join(filter(None, (f"{step[0].upper()}{step[1:]}.", reason.note)))

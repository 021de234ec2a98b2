"""Reason codes and funnel counters, from their enumerations."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from docs.generate.markdown import code, listing
from shadowspec.gate.verdict.reasons import GATE_AGAIN, REASONS, ReasonText
from shadowspec.types import FunnelCounter, ReasonCode, Verdict

# By the kind of remedy.
HOLD_GROUPS: Mapping[str, Collection[ReasonCode]] = {
    "Too little evidence: wait, or send more traffic": (
        ReasonCode.TOO_FEW_CLUSTERS,
        ReasonCode.TOO_FEW_UNITS,
        ReasonCode.MIN_SPAN,
        ReasonCode.CHANGED_FINGERPRINT,
        ReasonCode.DEPENDENT,
    ),
    "A test failed: change the candidate or the policy": (
        ReasonCode.LOW_ACCEPTANCE,
        ReasonCode.COSTLIER,
        ReasonCode.NEAR_TIES,
        ReasonCode.GUARDRAIL,
        ReasonCode.MIX_BOUND,
        ReasonCode.CARRY_OVER,
        ReasonCode.POLICY_CHANGED,
    ),
    "The data cannot be judged: repair their source": (
        ReasonCode.MISSING_DATA,
        ReasonCode.LATE_DATA,
        ReasonCode.STALE_DATA,
        ReasonCode.PROMPT_MISMATCH,
        ReasonCode.CACHE_MISMATCH,
        ReasonCode.CHANGED_RATE,
        ReasonCode.UNTIMED,
        ReasonCode.UNKNOWN_PARITY,
    ),
    "More traffic does not help: change the candidate, the configuration or the policy": (
        ReasonCode.FUTILE,
        ReasonCode.UNDECIDABLE,
        ReasonCode.NO_LEVEL_LEFT,
        ReasonCode.UNPROVABLE,
        ReasonCode.UNKNOWN_MEMORY,
        ReasonCode.OTHER_ENGINE,
    ),
    "Decided by something else": (
        ReasonCode.DRIFT,
        ReasonCode.OVERRIDE,
        ReasonCode.SMALL_SLICE,
        ReasonCode.MAY_REPLACE,
        ReasonCode.MUST_NOT_REPLACE,
    ),
}


def hold() -> str:
    """Every reason of a HOLD, by the kind of remedy."""
    return "\n".join(f"### {title}\n\n{_reasons(codes, is_hold=True)}" for title, codes in HOLD_GROUPS.items())


def other_verdicts() -> str:
    """Every reason that only ENABLE and DISABLE have."""
    return _reasons((code for code in REASONS if Verdict.HOLD not in code.verdicts), is_hold=False)


def funnel() -> str:
    """Every counter in which a record may end."""
    return listing((code(counter), "", counter.meaning) for counter in FunnelCounter)


def _reasons(codes: Iterable[ReasonCode], *, is_hold: bool) -> str:
    texts = ((each, REASONS[each]) for each in codes)
    return listing(
        (code(each), "" if is_hold else ", ".join(each.verdicts), f"{text.meaning} **{_remedy(text)}**")
        for each, text in texts
    )


def _remedy(reason: ReasonText) -> str:
    """The next step without what is the next one of them all, and the note."""
    step = reason.step.removesuffix(f", {GATE_AGAIN}")
    return " ".join(filter(None, (f"{step[0].upper()}{step[1:]}.", reason.note)))

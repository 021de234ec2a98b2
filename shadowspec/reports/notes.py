"""What stands under a decision's reason, in sentences: an override, its run, the drift since ENABLE, the mix."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from shadowspec.gate.endpoint import forbidding_slices, traffic_share
from shadowspec.gate.overrides import REASON_CODE as OVERRIDE
from shadowspec.gate.overrides import order_words
from shadowspec.gate.restarts import DRIFT
from shadowspec.types import Decision, Override, Verdict
from shadowspec.words import moment, percent, plural, slice_title, times

# Details that the report adds: 0 where the configuration left the load; the slices that keep an endpoint off.
IS_LOAD_CONFIGURED = "is_load_configured"
FORBIDDEN_BY = "forbidden_by"


@dataclass(frozen=True, slots=True)
class DetectorLine:
    """One statistic that is watched after ENABLE: it speaks up at `limit_log10` and above."""

    title: str
    log10: float | None  # None: nothing was folded yet
    limit_log10: float | None  # None: the decision does not keep it, only whether it was reached
    num_units: int | None

    @property
    def text(self) -> str:
        """The statistic beside its limit."""
        units = "" if self.num_units is None else f" after {plural(self.num_units, 'unit')}"
        limit = "" if self.limit_log10 is None else f", speaks up at 10^{self.limit_log10:.2f}"
        return f"{'0' if self.log10 is None else f'10^{self.log10:.2f}'}{limit}{units}"


def decision_notes(decision: Decision) -> list[str]:
    """The sentences that a reader needs beside the reason; none where there is nothing to add."""
    details = decision.details
    notes = [
        *override_notes(decision),
        *_forbidden(decision),
        *_load(decision),
        *_run(decision),
        *_drift(decision),
    ]
    if decision.verdict is Verdict.ENABLE and details.get("is_named") == 0:
        notes.append("Another config has a better lower bound of speedup here and is the one named.")
    if details.get("is_shown_under_parent") and decision.reason_code != OVERRIDE:
        verdict = details.get("covering_verdict")
        notes.append(f"It has no level of its own, so the verdict on the whole endpoint, {verdict}, covers it.")
    lower, upper = details.get("mix_speedup_lower"), details.get("mix_speedup_upper")
    known = details.get("mix_speedup_known_share")
    if isinstance(lower, float) and isinstance(upper, float) and isinstance(known, float) and known > 0.0:
        notes.append(
            f"Under the current traffic the slices' own bounds give a speedup of [{times(lower)}, {times(upper)}]; "
            f"{percent(known)} of the traffic has such a bound."
        )
    return [*notes, *_changes(decision)]


def with_forbidding(decisions: Sequence[Decision]) -> list[Decision]:
    """The effective decisions; an ENABLE of a whole endpoint names the slices that keep it from being acted on."""
    return [_with_forbidding(decision, decisions) for decision in decisions]


def alerts(decision: Decision) -> list[str]:
    """Those of the sentences that nobody should have to look for: overrides, slices that forbid, alarms, shifts."""
    found = [*override_notes(decision), *_forbidden(decision)]
    sounded = [line for line in detector_lines(decision) if _has_reached(line)]
    if decision.reason_code == DRIFT:
        statistics = "".join(f" {line.title}: {line.text}." for line in sounded)
        found.append(f"Drift alarm: what was proven no longer holds.{statistics}")
    if decision.verdict is Verdict.ENABLE and decision.details.get("drift_advice"):
        found.append(_advice(decision))
    if decision.details.get("mix_has_shifted"):
        found += _changes(decision)
    return found


def order_note(order: Override, written: Callable[[datetime | None], str] = moment) -> str:
    """An override: what it covers, who ordered it, why, and until when; `written` is how times are."""
    load = "every load" if order.concurrency is None else f"load {order.concurrency}"
    covered = f"{order.verdict} on {slice_title(order.slice_key)}, {load}"
    words = order_words(order)
    return f"{words[0].upper()}{words[1:]}. {covered}, {_in_force(order.created_at, order.expires_at, written)}."


def override_notes(decision: Decision) -> list[str]:
    """Since and until when an override holds, and what was measured; none where the decision is the gate's own."""
    details = decision.details
    if decision.reason_code != OVERRIDE:
        return []
    times = _in_force(_moment(details.get("verdict_since")), _moment(details.get("override_expires_at")))
    measured = f"Measured verdict: {details.get('overridden_verdict')} ({details.get('overridden_reason')})."
    return [f"The override is {times}.", measured]


def detector_lines(decision: Decision) -> list[DetectorLine]:
    """The statistics of drift and of the prompt mix; none where nothing is watched."""
    details = decision.details
    limit = _number(details.get("drift_threshold_log10"))
    lines = []
    for name in ("speedup", "acceptance"):
        units = details.get(f"drift_{name}_units")
        if isinstance(units, int):
            log10 = _number(details.get(f"drift_{name}_log10"))
            lines.append(DetectorLine(f"Drift of {name}", log10, limit, units))
    if (evidence := _number(details.get("mix_log10_evidence"))) is not None:
        lines.append(DetectorLine("Shift of the prompt mix", evidence, None, None))
    return lines


def _with_forbidding(decision: Decision, decisions: Sequence[Decision]) -> Decision:
    if decision.slice_key or decision.verdict is not Verdict.ENABLE:
        return decision
    found = [
        f"{slice_title(own.slice_key)} ({percent(traffic_share(own))} of the traffic)"
        for own in forbidding_slices(decision, decisions)
    ]
    return replace(decision, details={**decision.details, FORBIDDEN_BY: "; ".join(found) or None})


def _forbidden(decision: Decision) -> list[str]:
    found = decision.details.get(FORBIDDEN_BY)
    return [f"DISABLE stands for {found}: `check` does not pass the endpoint as a whole."] if found else []


def _load(decision: Decision) -> list[str]:
    if decision.details.get(IS_LOAD_CONFIGURED) != 0:
        return []
    return [
        f"Load {decision.concurrency} is no longer configured: nothing is measured there, "
        "and this is what was last decided."
    ]


def _run(decision: Decision) -> list[str]:
    details = decision.details
    if details.get("superseded_by"):
        return []
    number, level = details.get("num_restarts"), details.get("level")
    if not isinstance(number, int) or not number or not isinstance(level, float):
        return []
    return [f"Run {number + 1} of its tests, on evidence of its own, at level {level:.2g}."]


def _drift(decision: Decision) -> list[str]:
    details = decision.details
    if decision.verdict is not Verdict.ENABLE:
        return []
    notes = []
    blocks = details.get("drift_speedup_units")
    if isinstance(blocks, int) and blocks:
        notes.append(f"Watched for drift over {plural(blocks, 'block')} since ENABLE, without an alarm.")
    if details.get("drift_advice"):
        notes.append(_advice(decision))
    return notes


def _advice(decision: Decision) -> str:
    return f"Advice: {decision.details['drift_advice']} has come down from where it stood at ENABLE."


def _changes(decision: Decision) -> list[str]:
    """How the endpoint's rates have moved since ENABLE, and what of it is the traffic's doing."""
    changes = {what: decision.details.get(f"change_of_{what.lower()}") for what in ("Speedup", "Acceptance")}
    return [f"{what} since ENABLE: {change}." for what, change in changes.items() if change]


def _has_reached(line: DetectorLine) -> bool:
    return line.log10 is not None and line.limit_log10 is not None and line.log10 >= line.limit_log10


def _in_force(
    since: datetime | None, until: datetime | None, written: Callable[[datetime | None], str] = moment
) -> str:
    return f"in force since {written(since)}, until {'it is cleared' if until is None else written(until)}"


def _moment(value: object) -> datetime | None:
    return datetime.fromisoformat(value) if isinstance(value, str) else None


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) else None

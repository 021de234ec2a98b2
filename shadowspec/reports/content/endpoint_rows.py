"""The first screen's rows of decisions: each with what to do next, those that need attention first.

In: current decisions, the answers of `check`.
Out: rows of the first screen.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from shadowspec.gate.verdict.hold_reasons import still_needed
from shadowspec.gate.verdict.reasons import without_scope, without_sending
from shadowspec.reports.content.next_steps import RECORD_MORE, best_decision, keep_off, next_action
from shadowspec.reports.content.notes import TRIAL_NOTE
from shadowspec.reports.content.screen_rows import NOTHING, ScreenRow, row_of
from shadowspec.reports.content.urgency import UNJUDGED, urgency_of
from shadowspec.rollout.check.answer import Answer
from shadowspec.rollout.check.outcome import Outcome
from shadowspec.text import sentence, span_text
from shadowspec.types import Decision, Override, ReasonCode, Verdict

NOT_JUDGED: Final = "NOT JUDGED"
NO_DATA: Final = "NO DATA"
# Words for a second deployment, and for a load at which a schedule drafts nothing.  The stored verdict is HOLD, so that
# nothing takes it for speculation.
_UPGRADES: Final[Mapping[str, tuple[str, str, Verdict]]] = {
    ReasonCode.MAY_REPLACE: (Outcome.REPLACE, "NO SLOWER", Verdict.ENABLE),
    ReasonCode.MUST_NOT_REPLACE: (Outcome.KEEP, "SLOWER", Verdict.DISABLE),
}


def endpoint_rows(
    decisions: Sequence[Decision],
    *,
    answers: Mapping[str, Answer] | None = None,
    spans_s: Mapping[str, float] | None = None,
    actions: Mapping[tuple[str, str, int], str] | None = None,
    unjudged: Sequence[ScreenRow] = (),
) -> tuple[ScreenRow, ...]:
    """Rows of current decisions, with overrides laid over them.

    Of several endpoints each has the row of its best candidate; an only endpoint has a row for each candidate and load.

    Args:
        answers: of `check` on whole endpoints, by endpoint; without one an ENABLE says what to ask.
        spans_s: seconds of traffic that ENABLE needs, by endpoint; where it is not known, it is left out.
        actions: what to do in place of the decision's, by endpoint, candidate and load.
        unjudged: rows of endpoints without a decision.
    """
    by_endpoint: dict[str, list[Decision]] = {}
    for decision in decisions:
        by_endpoint.setdefault(decision.endpoint, []).append(decision)
    rows = []
    is_one = len(by_endpoint) + len(unjudged) == 1
    for endpoint, of_endpoint in by_endpoint.items():
        wholes = [decision for decision in of_endpoint if not decision.slice_key] or of_endpoint
        best = best_decision(wholes) or wholes[0]
        shown = wholes if is_one else [best]
        for decision in shown:
            place = endpoint, decision.config.name, decision.concurrency
            row = decision_row(
                decision,
                (answers or {}).get(endpoint) if decision is best else None,
                (spans_s or {}).get(endpoint),
                name=_candidate(decision, wholes) if is_one and len(wholes) > 1 else endpoint,
            )
            if actions is not None and place in actions:
                row = replace(row, action=actions[place], step=actions[place])
            others = [] if is_one else [other for other in wholes if other is not decision]
            slices = [other for other in of_endpoint if other.slice_key and _belongs(other, decision)]
            rows.append(replace(row, action=" ".join((row.action, *_differing(decision, others, slices)))))
    return tuple(sorted((*rows, *unjudged), key=lambda row: (row.urgency, row.name)))


def unjudged_row(endpoint: str, action: str, order: Override | None = None, *, verdict: str = NOT_JUDGED) -> ScreenRow:
    """The row of an endpoint without a decision; an `order` over all of it is its verdict."""
    if order is None:
        return ScreenRow(endpoint, endpoint, verdict, "undecided", *NOTHING, "", action, action, UNJUDGED)
    ordered, step = f"{order.verdict} (override)", sentence(keep_off(order.override_id))
    return ScreenRow(endpoint, endpoint, ordered, order.verdict.lower(), *NOTHING, "", action, step, 0)


def decision_row(
    decision: Decision, answer: Answer | None = None, span_s: float | None = None, *, name: str
) -> ScreenRow:
    """The row of one decision; `span_s` is the time that ENABLE needs, where it is known."""
    word, tone = decision.verdict.value, decision.verdict
    if decision.override is None and decision.reason_code in _UPGRADES:
        of_deployment, of_no_drafts, tone = _UPGRADES[decision.reason_code]
        word = of_deployment if decision.config.is_deployment else of_no_drafts
    marks = " (override)" * (decision.override is not None) + " (trial)" * decision.recording_only
    return row_of(
        decision,
        name,
        f"{word}{marks}",
        tone=tone.lower(),
        action=action_text(decision, answer),
        step=sentence(next_action(decision, answer)),
        urgency=urgency_of(decision),
        span_s=span_s,
    )


def action_text(decision: Decision, answer: Answer | None = None) -> str:
    """What to do after a decision, in sentences; of a HOLD or a DISABLE with the cause."""
    if decision.verdict is Verdict.ENABLE and decision.override is None:
        return sentence(next_action(decision, answer))
    if decision.recording_only and next_action(decision) == RECORD_MORE:
        return f"{without_sending(without_scope(decision.reason))} {sentence(RECORD_MORE)}"
    needed = still_needed(decision)
    time = "" if needed is None or needed.seconds is None else f" That takes {span_text(needed.seconds)} at this rate."
    return f"{sentence(without_scope(decision.reason))}{time}"


def basis_notes(decisions: Collection[Decision]) -> list[str]:
    """What all of the decisions rest on: the engine, where it is one, and the policy of a trial."""
    bases = {(decision.engine, decision.verdict_engine_text) for decision in decisions}
    engines = [f"Latency was measured on {engine}; the verdicts are for {serving}." for engine, serving in bases]
    trial = [TRIAL_NOTE] if any(decision.recording_only for decision in decisions) else []
    return [*(engines if len(engines) == 1 else []), *trial]


def _candidate(decision: Decision, wholes: Sequence[Decision]) -> str:
    """A candidate with its load, each where the others have another."""
    names = {other.config.name for other in wholes}
    loads = {other.concurrency for other in wholes}
    load = [f"load {decision.concurrency}"] if len(loads) > 1 else []
    return ", ".join((*([decision.config.name] if len(names) > 1 else []), *load)) or decision.endpoint


def _belongs(slice_decision: Decision, whole: Decision) -> bool:
    place = slice_decision.concurrency, slice_decision.fingerprint
    return place == (whole.concurrency, whole.fingerprint)


def _differing(shown: Decision, others: Iterable[Decision], slices: Collection[Decision]) -> list[str]:
    """Verdicts that differ from the one that is shown: nobody should take it for all of them."""
    said = []
    of_slices = slices if len(slices) > 1 else ()  # an only slice is the same evidence
    for subject, decisions in (("its other candidates and loads", others), ("its slices", of_slices)):
        counted = Counter(other.verdict.value for other in decisions if other.verdict is not shown.verdict)
        if counted:
            verdicts = ", ".join(f"{number_of} {verdict}" for verdict, number_of in sorted(counted.items()))
            said.append(f"Other verdicts among {subject}: {verdicts}.")
    return said

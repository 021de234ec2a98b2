"""The rows of the first screen: one an endpoint, with what needs attention first and what to do next.

In: current decisions, the answers of `check`.
Out: rows of texts, for the terminal and for a report.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from shadowspec.gate.policy import DAY_S
from shadowspec.gate.verdict.current_verdict import AT_ONCE_CODES
from shadowspec.gate.verdict.figure_texts import limit_text
from shadowspec.gate.verdict.hold_reasons import still_needed
from shadowspec.gate.verdict.lifecycle import ALARM_CODES, WAITING_CODES
from shadowspec.gate.verdict.reasons import without_scope, without_sending
from shadowspec.reports.content.content_blocks import Cell, Column, Table, table
from shadowspec.reports.content.next_steps import RECORD_MORE, best_decision, keep_off, next_action
from shadowspec.reports.content.notes import TRIAL_NOTE
from shadowspec.rollout.check.answer import WORST_FIRST, Answer, Finding, Role
from shadowspec.rollout.check.outcome import Outcome
from shadowspec.rollout.check.plain_text import finding_title, headline, verdict_engine_words
from shadowspec.text import DASH, number, percent, plain_text, plural, sentence, span_text
from shadowspec.types import Decision, Override, ReasonCode, TestResult, Verdict

COLUMNS: Final = ("Speedup", "Accepted", "Slowed")
TESTS: Final = ("speedup", "acceptance", "tail")  # with a column each
NOT_JUDGED: Final = "NOT JUDGED"
NO_DATA: Final = "NO DATA"
_WAITING: Final = WAITING_CODES | {ReasonCode.SMALL_SLICE, ReasonCode.DEPENDENT, ReasonCode.CHANGED_FINGERPRINT}


@dataclass(frozen=True, slots=True)
class ScreenRow:
    """One row: an endpoint, or a candidate of the only endpoint, with its `name` on the screen.

    `figures` are those of speedup, acceptance and slowed requests, `limits` on which side of which limit each must be
    ("": not known).  `evidence` is what there is of what is needed.  `action` says why and what to do, `step` only what
    to do.  Rows with the smallest `urgency` come first.
    """

    endpoint: str
    name: str
    verdict: str
    tone: str
    figures: tuple[str, ...]
    limits: tuple[str, ...]
    evidence: str
    action: str
    step: str
    urgency: int
    tests: tuple[TestResult | None, ...] = ()


@dataclass(frozen=True, slots=True)
class FirstScreen:
    """What a command answers first: rows, a headline above them and lines below."""

    rows: tuple[ScreenRow, ...]
    headline: str = ""
    notes: tuple[str, ...] = ()
    more: str = ""  # where the rest is
    of_rows: str = "endpoint"  # what a row is of, for the number of rows that are left out

    @property
    def limits(self) -> tuple[str, ...]:
        """The limits of the columns where all rows have the same, else ""."""
        columns = [{row.limits[place] for row in self.rows if row.limits[place]} for place in range(len(TESTS))]
        return tuple(column.pop() if len(column) == 1 else "" for column in columns)


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


_NOTHING: Final = ((DASH, DASH, DASH), ("", "", ""))


def unjudged_row(endpoint: str, action: str, order: Override | None = None, *, verdict: str = NOT_JUDGED) -> ScreenRow:
    """The row of an endpoint without a decision; an `order` over all of it is its verdict."""
    if order is None:
        return ScreenRow(endpoint, endpoint, verdict, "undecided", *_NOTHING, "", action, action, 6)
    ordered, step = f"{order.verdict} (override)", sentence(keep_off(order.override_id))
    return ScreenRow(endpoint, endpoint, ordered, order.verdict.lower(), *_NOTHING, "", action, step, 0)


def check_screen(answer: Answer) -> FirstScreen:
    """The answer of `check`: the endpoint or the slices that are asked about, and whatever keeps it from ENABLE."""
    shown = [finding for finding in answer.findings if finding.role is Role.REQUIRED or finding.is_blocking]
    rows = [_finding_row(answer, finding) for finding in shown]
    config = "" if answer.config_name is None else f"{answer.config_name}, for {verdict_engine_words(answer)}"
    others = [f"{name} {outcome}" for name, outcome in answer.others]
    notes = (
        *([f"Candidate: {config}."] if config else []),
        *([f"Other candidates: {', '.join(others)}."] if others else []),
        *map(sentence, map(plain_text, answer.remarks)),
    )
    more = "More: --verbose shows every slice with its decisions, --json all figures." if rows else ""
    return FirstScreen(tuple(sorted(rows, key=lambda row: row.urgency)), headline(answer), notes, more, "slice")


def _finding_row(answer: Answer, finding: Finding) -> ScreenRow:
    outcome = answer.shown(finding.outcome)
    is_on = finding.outcome is Outcome.ENABLE
    name = plain_text(answer.question.endpoint)
    if not is_on:
        action = sentence(plain_text(without_scope(finding.reason)))
    elif answer.question.is_upgrade:
        action = "Change over to the second deployment."
    else:
        action = f"`shadowspec export --endpoint {name}` writes the configuration that switches it on."
    decision = next(iter(finding.decisions), None)
    title = finding_title(finding) if finding.slice_key or finding.override_id is not None else name
    urgency = 9 if is_on else WORST_FIRST.index(finding.outcome)
    if decision is None:
        return ScreenRow(name, title, outcome, _TONES[finding.outcome], *_NOTHING, "", action, action, urgency)
    row = decision_row(decision, name=title, verdict=outcome)
    bounds = finding.speedup  # over the loads
    speedup = DASH if bounds is None else _interval(bounds.estimate, bounds.lower, bounds.upper)
    return replace(
        row,
        tone=_TONES[finding.outcome],
        figures=(speedup, *row.figures[1:]),
        action=action,
        step=action,
        urgency=urgency,
    )


_TONES: Final = {
    Outcome.ENABLE: "enable",
    Outcome.DISABLE: "disable",
    Outcome.HOLD: "hold",
    Outcome.UNUSABLE: "undecided",
}


def decision_row(
    decision: Decision,
    answer: Answer | None = None,
    span_s: float | None = None,
    *,
    name: str,
    verdict: str | None = None,
) -> ScreenRow:
    """The row of one decision; `verdict` is shown in place of its own."""
    tests = tuple(decision.find_test(test_name) for test_name in TESTS)
    marks = " (override)" * (decision.override is not None) + " (trial)" * decision.recording_only
    return ScreenRow(
        endpoint=decision.endpoint,
        name=name,
        verdict=verdict or f"{decision.verdict}{marks}",
        tone=decision.verdict.lower(),
        figures=(_times(tests[0]), _share(tests[1]), _share(tests[2])),
        limits=tuple("" if test is None or not test.is_required else limit_text(test) for test in tests),
        evidence=evidence_text(decision, span_s),
        action=action_text(decision, answer),
        step=sentence(next_action(decision, answer)),
        urgency=_urgency(decision),
        tests=tests,
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


def evidence_text(decision: Decision, span_s: float | None) -> str:
    """The evidence that there is, of that which is needed."""
    if decision.reason_code == ReasonCode.TOO_FEW_CLUSTERS and decision.clusters_needed:
        closed = decision.evidence.counts.num_closed_clusters
        return f"{closed:,} of {plural(closed + decision.clusters_needed, 'session')}"
    if decision.clusters_needed:
        wanted = decision.num_clusters + decision.clusters_needed
        return f"{decision.num_clusters:,} of ~{plural(wanted, 'session')}"
    if decision.reason_code == ReasonCode.MIN_SPAN and span_s:
        days = math.ceil(span_s / DAY_S)
        if decision.evidence.num_days < days:
            return f"{decision.evidence.num_days} of {plural(days, 'day')}"
        return f"{span_text(decision.evidence.span_s)} of {span_text(span_s)}"
    return plural(decision.num_clusters, "session")


def screen_table(rows: Sequence[ScreenRow], anchors: Mapping[str, str]) -> Table:
    """The rows as a table of a report; `anchors` are those of the endpoints' parts below it."""
    limits = FirstScreen(tuple(rows)).limits
    heads = [f"{name}\n{limit}" if limit else name for name, limit in zip(COLUMNS, limits, strict=True)]
    terms = ("speedup", "acceptance", "tail")
    columns = (
        Column("Endpoint"),
        Column("Verdict", term="verdict", is_whole=True),
        *(Column(head, term=term, is_whole=True) for head, term in zip(heads, terms, strict=True)),
        Column("Evidence", term="units", is_whole=True),
        Column("Why"),
    )
    cells = [
        (
            Cell(row.name, link=f"#{anchors[row.endpoint]}" if row.endpoint in anchors else "", is_strong=True),
            Cell(row.verdict, tone=row.tone),
            *map(_figure_cell, row.figures),
            Cell(row.evidence),
            Cell(row.action),
        )
        for row in rows
    ]
    return table("Verdicts", columns, cells, look="board")


def _figure_cell(text: str) -> Cell:
    """The estimate, with its bounds below it."""
    estimate, _, bounds = text.partition(" [")
    return Cell(estimate, (f"[{bounds}",) if bounds else ())


def basis_notes(decisions: Collection[Decision]) -> list[str]:
    """What all of the decisions rest on: the engine, where it is one, and the policy of a trial."""
    bases = {(decision.engine, decision.verdict_engine_text) for decision in decisions}
    engines = [f"Latency was measured on {engine}; the verdicts are for {serving}." for engine, serving in bases]
    trial = [TRIAL_NOTE] if any(decision.recording_only for decision in decisions) else []
    return [*(engines if len(engines) == 1 else []), *trial]


def count_verdicts(rows: Collection[ScreenRow]) -> str:
    """How many rows have which verdict, such as `30 HOLD, 4 ENABLE`."""
    counted = Counter(row.verdict for row in rows)
    return ", ".join(f"{number_of} {verdict}" for verdict, number_of in counted.most_common())


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


def _urgency(decision: Decision) -> int:
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


def _times(test: TestResult | None) -> str:
    if test is None or test.estimate is None:
        return DASH
    return _interval(test.estimate, test.lower, test.upper)


def _interval(estimate: float | None, lower: float | None, upper: float | None) -> str:
    known = DASH if estimate is None else f"{number(estimate)}\u00d7"
    return f"{known} [{number(lower)}, {number(upper)}]"


def _share(test: TestResult | None) -> str:
    if test is None or test.estimate is None:
        return DASH
    return f"{_percent(test.estimate)} [{_percent(test.lower)}, {_percent(test.upper)}]"


def _percent(value: float | None) -> str:
    """Short: without a decimal where none matters."""
    is_round = value is None or value == 0.0 or abs(value) >= 0.0995
    return percent(value, 0 if is_round else 1)

"""The first screen's values: a row an endpoint with figures and what to do next, and the screen of `check`.

In: decisions, the answer of `check`.
Out: rows of texts, for the terminal and for a report.  `check` imports nothing heavy, and neither does this.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from shadowspec.gate.policy import DAY_S
from shadowspec.gate.verdict.figure_texts import CLIPPED, CLIPPED_NOTE, is_clipped, limit_text
from shadowspec.gate.verdict.reasons import without_scope
from shadowspec.reports.content.content_blocks import Cell, Column, Table, table
from shadowspec.rollout.check.answer import WORST_FIRST, Answer, Finding, Role
from shadowspec.rollout.check.outcome import Outcome
from shadowspec.rollout.check.plain_text import finding_title, headline, verdict_engine_words
from shadowspec.text import DASH, number, percent, plain_text, plural, sentence, span_text
from shadowspec.types import Decision, ReasonCode, TestResult

COLUMNS: Final = ("Speedup", "Accepted", "Slowed")
STAR: Final = "*"  # behind a mean of clipped requests
TESTS: Final = ("speedup", "acceptance", "tail")  # with a column each


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

    @property
    def all_notes(self) -> tuple[str, ...]:
        """The lines below the rows, with what a word in a row means."""
        has_star = any(is_clipped(test) for row in self.rows for test in row.tests)
        return (*self.notes, *([f"{STAR} {CLIPPED_NOTE}"] if has_star else []))


NOTHING: Final = ((DASH, DASH, DASH), ("", "", ""))


def check_screen(answer: Answer) -> FirstScreen:
    """The answer of `check`: the endpoint or the slices that are asked about, and whatever keeps it from ENABLE."""
    shown = [finding for finding in answer.findings if finding.role is Role.REQUIRED or finding.is_blocking]
    rows = [_finding_row(answer, finding) for finding in shown]
    config = "" if answer.config_name is None else f"{answer.config_name}, for {verdict_engine_words(answer)}"
    others = [f"{name} {outcome}" for name, outcome in answer.others]
    notes = (
        *filter(None, [_coverage(answer)]),
        *([f"Candidate: {config}."] if config else []),
        *([f"Other candidates: {', '.join(others)}."] if others else []),
        *map(sentence, map(plain_text, answer.remarks)),
    )
    more = "More: --verbose shows every slice with its decisions, --json all figures." if rows else ""
    return FirstScreen(tuple(sorted(rows, key=lambda row: row.urgency)), headline(answer), notes, more, "slice")


def _coverage(answer: Answer) -> str:
    """Which part of production's loads an ENABLE is for; "" where it is for all of them."""
    question = answer.question
    if answer.outcome is not Outcome.ENABLE or question.is_upgrade:
        return ""
    if question.concurrency is not None:
        return f"ENABLE is for load {question.concurrency} only."
    return "" if answer.loads is None or question.slice_labels else answer.loads.gap


def _finding_row(answer: Answer, finding: Finding) -> ScreenRow:
    outcome = answer.shown(finding.outcome)
    is_on = finding.outcome is Outcome.ENABLE
    name = plain_text(answer.question.endpoint)
    if not is_on:
        action = sentence(plain_text(without_scope(finding.reason)))
    elif answer.outcome is not Outcome.ENABLE:
        action = ""  # something else keeps it off
    elif answer.question.is_upgrade:
        action = "Change over to the second deployment."
    else:
        action = f"`shadowspec export --endpoint {name}` writes the configuration that switches it on."
    decision = next(iter(finding.decisions), None)
    title = finding_title(finding) if finding.slice_key or finding.override_id is not None else name
    urgency = 9 if is_on else WORST_FIRST.index(finding.outcome)
    tone = _TONES[finding.outcome]
    if decision is None:
        return ScreenRow(name, title, outcome, tone, *NOTHING, "", action, action, urgency)
    row = row_of(decision, title, outcome, tone=tone, action=action, step=action, urgency=urgency)
    bounds = finding.speedup  # over the loads
    tested = decision.find_test("speedup")
    speedup = DASH if bounds is None else _marked(tested, _interval(bounds.estimate, bounds.lower, bounds.upper))
    return replace(row, figures=(speedup, *row.figures[1:]))


def row_of(
    decision: Decision,
    name: str,
    verdict: str,
    *,
    tone: str,
    action: str,
    step: str,
    urgency: int,
    span_s: float | None = None,
) -> ScreenRow:
    """The row with a decision's figures; `span_s` is the time that ENABLE needs, where it is known."""
    tests = tuple(decision.find_test(test_name) for test_name in TESTS)
    limits = tuple("" if test is None or not test.is_required else limit_text(test) for test in tests)
    figures = _times(tests[0]), _share(tests[1]), _share(tests[2])
    evidence = evidence_text(decision, span_s)
    return ScreenRow(decision.endpoint, name, verdict, tone, figures, limits, evidence, action, step, urgency, tests)


_TONES: Final = {
    Outcome.ENABLE: "enable",
    Outcome.DISABLE: "disable",
    Outcome.HOLD: "hold",
    Outcome.UNUSABLE: "undecided",
}


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
    """The estimate, with its bounds below it; a report has room for the word that the star stands for."""
    estimate, _, bounds = text.partition(" [")
    word = CLIPPED if estimate.endswith(STAR) else ""
    return Cell(estimate.removesuffix(STAR), (f"[{bounds}{word}",) if bounds else ())


def count_verdicts(rows: Collection[ScreenRow]) -> str:
    """How many rows have which verdict, such as `30 HOLD, 4 ENABLE`."""
    counted = Counter(row.verdict for row in rows)
    return ", ".join(f"{number_of} {verdict}" for verdict, number_of in counted.most_common())


def _times(test: TestResult | None) -> str:
    if test is None or test.estimate is None:
        return DASH
    return _marked(test, _interval(test.estimate, test.lower, test.upper))


def _marked(test: TestResult | None, interval: str) -> str:
    """With a star behind the estimate that CLIPPED_NOTE explains: a word would take the room of names."""
    return interval.replace(" [", f"{STAR} [", 1) if is_clipped(test) else interval


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

"""A decision explained to an operator: each test's evidence beside what was needed, the level, and what comes next.

The terminal, the evidence page and the board show these lines.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from shadowspec.gate.policy import DAY_S, GatePolicy
from shadowspec.gate.run.run_units import Crossing, Crossings
from shadowspec.gate.verdict.current_verdict import AT_ONCE_CODES, DISABLE_CODES
from shadowspec.gate.verdict.figure_texts import OUTCOME, bounds_text, shown_as, threshold_text, title_of
from shadowspec.gate.verdict.hold_reasons import slowest_of, span_needed, still_needed
from shadowspec.gate.verdict.lifecycle import ALARM_CODES
from shadowspec.gate.verdict.reasons import REASONS
from shadowspec.gate.verdict.required_tests import max_autocorrelation, more_units, waits_for_independence
from shadowspec.gate.verdict.trial_levels import FIRST_RUN
from shadowspec.reports.content.content_blocks import Block, Lines, Note, Section
from shadowspec.reports.content.definitions import test_notes
from shadowspec.reports.content.notes import DetectorLine, decision_notes, detector_lines
from shadowspec.reports.content.tables import narrow_tests_table
from shadowspec.text import moment, number, percent, plural, sentence, slice_title, span_text
from shadowspec.types import Decision, ReasonCode, TestResult, Trial, Verdict

# What each test judges, in plain words; a `{}` takes the figure of its definition.
QUESTION: Final = {
    "speedup": "how many times as fast a request ends",
    "total_time": "how many times as fast all requests together end",
    "acceptance": "the share of drafts that the model accepts",
    "tail": "the share of requests that became slower by more than {tail_margin}",
    "parity_near_ties": "the share of greedy outputs that differ by rounding",
    "parity_faults": "greedy outputs that differ by more than rounding",
    "stream_faults": "chats whose stream speculation breaks",
    "stream": "change of the share of whole chat streams",
    "parity_sampled": "how far sampled outputs are from the model's distribution",
    "memory": "the memory that speculation takes beyond the baseline's",
    "ttft": "how many times as fast the first token comes",
    "tpot": "how many times as fast further tokens come",
    "cost": "cost per output token over its limit",
    "structured_validity": "change of the share of valid structured outputs",
    "score": "change of the score",
    "task_score": "change of the task sets' score",
    "p95": "end-to-end time that 5% of requests exceed, over the baseline's",
    "p99": "end-to-end time that 1% of requests exceed, over the baseline's",
}
UNKNOWN_CROSSING: Final = "crossed at a unit whose rows are no longer stored"


@dataclass(frozen=True, slots=True)
class ExplainedLine:
    """One line: its subject, and the text."""

    lead: str
    text: str


def explained(
    decision: Decision, policy: GatePolicy | None = None, crossings: Crossings | None = None
) -> list[ExplainedLine]:
    """The lines of a decision.

    Args:
        policy: in force at the decision; None: not known, so that its span is left out.
        crossings: by test; None: nobody asked, so that nothing is said of when a test crossed.
    """
    lines = [_test(test, crossings) for test in decision.tests if test.is_required]
    lines.append(ExplainedLine("Level", _level(decision)))
    if (independence := _independence(decision)) is not None:
        lines.append(ExplainedLine("Independence", independence))
    lines.append(ExplainedLine("Traffic", _traffic(decision, policy)))
    if (others := _also_disabling(decision)) is not None:
        lines.append(ExplainedLine("Also", others))
    lines.append(ExplainedLine("Next", _next(decision, policy)))
    return lines


def explanation(
    decision: Decision, policy: GatePolicy | None, crossings: Crossings | None, *, has_all_figures: bool
) -> Section:
    """The lines as a section, under the verdict and its reason; with all figures in tables below them."""
    where = slice_title(decision.slice_key)
    name = "" if decision.decision_id is None else f"decision {decision.decision_id}: "
    title = f"{name}{decision.endpoint}, {where}, {decision.config.name}, load {decision.concurrency}"
    blocks: list[Block] = [
        Note(sentence(decision.reason), f"{decision.verdict}:", "reason"),
        *(Note(line.text, f"{line.lead}:", "reason") for line in explained(decision, policy, crossings)),
    ]
    if has_all_figures:
        blocks.append(narrow_tests_table(decision.tests))
        blocks.append(Lines(tuple(map(_figures, decision.tests))))
        watched = [f"{line.title}: {line.text}" for line in detector_lines(decision)]
        blocks.append(Lines((*decision_notes(decision), *watched)))
    return Section(title, tuple(blocks))


def _test(test: TestResult, crossings: Crossings | None) -> ExplainedLine:
    """Question, estimate with bounds and limit, evidence and what it needs, and the unit that crossed."""
    shown, limit = shown_as(test.name), threshold_text(test)
    bounds = "" if (found := bounds_text(test)) == "\u2014" else f" {found}"
    parts = [f"{_question(test)}: {shown(test.estimate)}{bounds}, limit {limit}", _evidence(test)]
    if crossings is not None and test.outcome != "open" and test.betting is not None:
        parts.append(_crossed(test, crossings.get(test.name)))
    return ExplainedLine(f"{title_of(test)}, {OUTCOME.get(test.outcome, test.outcome)}", "; ".join(filter(None, parts)))


def _figures(test: TestResult) -> str:
    """The figures that the table on one screen has no room for."""
    least = f"at least {plural(test.min_units, test.unit)} to pass at level {_rate(test.alpha)}"
    return f"{title_of(test)}: {'; '.join((least, *test_notes(test)))}"


def _question(test: TestResult) -> str:
    margin = test.figures.get("tail_margin")
    words = QUESTION.get(test.name, "")
    return words.format(tail_margin=percent(margin if isinstance(margin, float) else None, 0))


def _evidence(test: TestResult) -> str:
    betting = test.betting
    if betting is not None and test.outcome == "fail":
        return f"evidence {_power(betting.log10_capital_fail)}, needed {_needed(betting.fail_alpha)}"
    if betting is not None:
        return f"evidence {_power(betting.log10_capital_pass)}, needed {_needed(test.alpha)}"
    if test.name == "memory":
        return f"largest of {plural(test.num_units, test.unit)}"
    return f"{plural(test.num_units, test.unit)}, needed {test.min_units:,}"


def _power(log10: float) -> str:
    return f"10^{number(round(log10, 1) + 0.0, 1)}"  # without a minus before 0


def _needed(level: float) -> str:
    return _power(-math.log10(level))


def _crossed(test: TestResult, crossing: Crossing | None) -> str:
    if crossing is None:
        return UNKNOWN_CROSSING
    return f"crossed at {test.unit} {crossing.unit:,} of {test.num_units:,}, {moment(crossing.at)}"


def _level(decision: Decision) -> str:
    """The level with the factors that it is made of, and at which level a bound disables."""
    speedup = decision.find_test("speedup")
    fails = None if speedup is None or speedup.betting is None else speedup.betting.fail_alpha
    shown = None if speedup is None else speedup.alpha
    if decision.run is not None and decision.run.level is not None:
        words = _made_of(decision.run, decision.run.level)
    elif decision.reason_code in (ReasonCode.TOO_FEW_CLUSTERS, ReasonCode.SMALL_SLICE):
        words = "none before testing starts"
    else:
        words = "none is left, so that it is never enabled"
    if shown is None or fails is None:
        return words
    return (
        f"{words}; bounds are shown at {_rate(shown)}, and the opposite bound disables at {_rate(fails)} (a "
        "quarter, as four bounds may)"
    )


def _made_of(run: Trial, level: float) -> str:
    graph, num_restarts, alpha = run.graph, run.num_restarts - run.num_before, _rate(run.graph.alpha)
    if run.reuse:
        part, of = _rate(run.share), "a slice in the place of one that left the traffic"
    elif run.in_slot:
        part, of = f"{alpha} x 1/2 x 1/{graph.num_slots}", f"a slice, of {graph.num_slots} places"
    else:
        half = " x 1/2" if graph.num_slots else ""
        part, of = (
            f"{alpha}{half} x 1/{graph.num_endpoints}",
            f"the whole endpoint, of {graph.num_endpoints} (loads x candidates)",
        )
    if num_restarts:
        reserve = 1.0 - FIRST_RUN - (graph.reused if run.in_slot else 0.0)
        return f"{_rate(level)} = {reserve:.2g} x {part} x 6/(pi {num_restarts})^2: restart {num_restarts} of {of}"
    passed_on = level - FIRST_RUN * run.share
    more = f" + {_rate(passed_on)} that enabled hypotheses passed on" if passed_on > 1e-9 else ""
    return f"{_rate(level)} = {FIRST_RUN:g} x {part}{more}: first run of {of}; 0 restarts so far"


def _rate(value: float) -> str:
    return f"{100.0 * value:.3g}%"


def _independence(decision: Decision) -> str | None:
    """The checks of each required series beside their limits; None where nothing has units."""
    parts = []
    for test in decision.tests:
        if not test.is_required or test.dependence is None or test.dependence.r1 is None or not test.num_units:
            continue
        limit = max_autocorrelation(test.num_units)
        if limit <= 0.0:
            parts.append(f"{title_of(test)} {plural(test.num_units, test.unit)}, too few to judge")
            continue
        words = f"{title_of(test)} r1 {number(test.dependence.r1)}, limit {number(limit)}"
        if (agreement := test.dependence.batch_agreement) is not None:
            words += f", batches {_times_required(agreement)} the required agreement, limit 1"
        if test.state is not None and test.state.merged_units > 1:
            words += f", {test.state.merged_units} units merged"
        parts.append(words)
    return "; ".join(parts) or None


def _times_required(agreement: float) -> str:
    return "more than 100 times" if agreement > 100.0 else f"{number(agreement, 1)} times"


def _traffic(decision: Decision, policy: GatePolicy | None) -> str:
    """Days and span seen and needed, and what they hold."""
    evidence = decision.evidence
    seen = f"{plural(evidence.num_days, 'day')} over {span_text(evidence.span_s)}"
    counted = f"{plural(decision.num_clusters, 'session')} in {plural(decision.num_blocks, 'block')}"
    if policy is None:
        return f"{counted}, {seen}"
    if policy.recording_only or not policy.min_span_s:
        return f"{counted}, {seen}; this policy needs no span"
    wanted = math.ceil(policy.min_span_s / DAY_S)
    return f"{counted}, {seen}; needed {plural(wanted, 'day')} over {span_text(policy.min_span_s)}"


def _also_disabling(decision: Decision) -> str | None:
    """Tests that would disable alone too; None where there is none."""
    failing = [test for test in decision.tests if test.outcome == "fail" and test.name in DISABLE_CODES]
    others = [title_of(test) for test in failing if DISABLE_CODES[test.name] != decision.reason_code]
    if decision.verdict is not Verdict.DISABLE or not others:
        return None
    return f"{' and '.join(others)} would disable it by itself"


def _next(decision: Decision, policy: GatePolicy | None) -> str:
    """What would change the verdict next."""
    if decision.verdict is Verdict.ENABLE:
        return _ends_enable(decision)
    if decision.verdict is Verdict.DISABLE:
        return _ends_disable(decision)
    if decision.reason_code == ReasonCode.FUTILE:
        return _step_of(decision)  # no span is worth waiting for
    wanted = []
    if (needed := still_needed(decision)) is not None:
        wanted.append(f"{needed.text}{_slowest(decision)}")
    elif waits_for_independence(decision):
        wanted += _independent_after(decision)
    if policy is not None and not policy.recording_only and (longer := span_needed(decision.evidence, policy)):
        wanted.append(longer)
    if not wanted:
        wanted.append(_step_of(decision))
    return "; ".join(wanted)


def _slowest(decision: Decision) -> str:
    """The open test that takes longest, in its own units."""
    undecided = [test for test in decision.tests if test.is_required and test.outcome == "open"]
    slowest = slowest_of(undecided) if undecided else None
    if slowest is None or slowest.units_needed is None or decision.reason_code != ReasonCode.TOO_FEW_UNITS:
        return ""
    return f"; {title_of(slowest)} needs {plural(slowest.units_needed, f'more {slowest.unit}')}"


def _independent_after(decision: Decision) -> Iterator[str]:
    for test in decision.tests:
        if test.outcome != "open" and test.dependence is not None and (more := more_units(test)):
            yield f"{title_of(test)} counts, or merges its units, after about {plural(more, f'more {test.unit}')}"


def _step_of(decision: Decision) -> str:
    try:
        return REASONS[ReasonCode(decision.reason_code)].step
    except ValueError:  # of another version
        return decision.reason


def _ends_enable(decision: Decision) -> str:
    parts = []
    speedup = decision.find_test("speedup")
    if speedup is not None and speedup.lower is not None:
        parts.append(f"a limit of the speedup above {shown_as('speedup')(speedup.lower)} holds it")
    nearest = _nearest(decision)
    parts.append(
        "an alarm of a detector ends it"
        if nearest is None
        else f"an alarm ends it; nearest is {nearest.title}, {nearest.text}"
    )
    return "; ".join(parts)


def _ends_disable(decision: Decision) -> str:
    if decision.reason_code in AT_ONCE_CODES:
        return "only another fingerprint ends it: another model, draft, template or engine"
    if decision.reason_code in ALARM_CODES:
        needed = still_needed(decision)
        return "the next run decides" if needed is None else f"the next run decides: {needed.text}"
    nearest = _nearest(decision)
    how = "" if nearest is None else f": {nearest.title}, {nearest.text}"
    return f"another fingerprint, or new evidence that refutes it, begins a run{how}"


def _nearest(decision: Decision) -> DetectorLine | None:
    lines = [line for line in detector_lines(decision) if line.limit_log10 is not None]
    return max(lines, key=lambda line: -math.inf if line.log10 is None else line.log10, default=None)

"""Verdicts with their figures and reasons: one line a hypothesis, in a report, a period report or a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from operator import attrgetter

from shadowspec.gate.verdict.figure_texts import acceptance_title, interval_text
from shadowspec.gate.verdict.hold_reasons import still_needed
from shadowspec.reports.content.chart_values import IntervalPicture
from shadowspec.reports.content.charts import interval, speedup_range, verdict_tone
from shadowspec.reports.content.content_blocks import Block, Cell, Column, Lines, Note, Section, Table, table
from shadowspec.reports.content.definitions import VERDICT_MEANING, displaced_text, find_test, total_time_text
from shadowspec.reports.content.notes import (
    TRIAL_NOTE,
    alerts,
    detector_lines,
    order_note,
    override_notes,
    with_forbidding,
)
from shadowspec.reports.content.tables import narrow_tests_table
from shadowspec.reports.figures.taxonomy import Suspicion
from shadowspec.text import DASH, distinct_slices, percent, plural, sentence, slice_title, times
from shadowspec.types import Decision, Override, TestResult, Verdict


@dataclass(frozen=True, slots=True)
class VerdictLine:
    """What is shown of one hypothesis; verdict and reason are those in force."""

    endpoint: str
    slice_key: str
    config_name: str
    concurrency: int
    verdict: Verdict | None
    reason: str
    decision: Decision | None
    num_blocks: int
    num_requests: int
    engine: str
    is_overridden: bool = False
    suspicions: tuple[Suspicion, ...] = ()
    anchor: str = ""
    notes: tuple[str, ...] = field(default=())  # under the name

    @property
    def place(self) -> str:
        """Config and load."""
        return f"{self.config_name}, load {self.concurrency}"

    def test(self, name: str) -> TestResult | None:
        """The decision's test of that name, or None."""
        return find_test(self.decision, name)


def line_of(decision: Decision) -> VerdictLine:
    """The line of a current decision."""
    return VerdictLine(
        decision.endpoint,
        decision.slice_key,
        decision.config.name,
        decision.concurrency,
        decision.verdict,
        decision.reason,
        decision,
        decision.num_blocks,
        decision.evidence.num_requests,
        decision.engine,
        decision.override is not None,
    )


def verdict_cell(verdict: Verdict | None, *, is_overridden: bool = False, is_trial: bool = False) -> Cell:
    """The verdict's word, marked where an operator ordered it or a trial policy gave it."""
    if verdict is None:
        return Cell("NOT JUDGED", tone="undecided", hover="measured, but not judged yet")
    hover = "an operator has ordered it" if is_overridden else VERDICT_MEANING[verdict]
    marks = " (override)" * is_overridden + " (trial)" * is_trial
    return Cell(f"{verdict.value}{marks}", tone=verdict_tone(verdict), hover=hover)


def speedup_cell(
    speedup: TestResult | None, total_time: TestResult | None, axis: tuple[float, float] | None = None
) -> Cell:
    """The geometric mean with its bounds, and the ratio of total times, which belongs beside it."""
    if speedup is None:
        return Cell(DASH, hover="no test of speedup yet")
    total = total_time_text(total_time)
    picture: IntervalPicture | None = None if axis is None else interval(speedup, *axis, is_log=True)
    return Cell(interval_text(speedup, times), () if total == DASH else (f"total times {total}",), picture=picture)


def acceptance_cell(acceptance: TestResult | None, *, with_picture: bool = False) -> Cell:
    """The share accepted with its bounds."""
    if acceptance is None:
        return Cell(DASH, hover="no test of acceptance yet")
    picture = interval(acceptance, 0.0, 1.0, is_log=False) if with_picture else None
    return Cell(interval_text(acceptance, percent), picture=picture)


def figure_columns(acceptances: Iterable[TestResult | None]) -> tuple[Column, ...]:
    """The heads over the cells of speedup, acceptance and evidence."""
    return (
        Column("Speedup [bounds],\ngeometric mean", term="speedup", is_whole=True),
        Column(f"{acceptance_title(acceptances)}\n[bounds]", term="acceptance", is_whole=True),
        Column("Evidence", term="units", is_whole=True),
    )


def verdicts_table(
    lines: Sequence[VerdictLine], extra: Iterable[tuple[Cell, ...]] = (), *, is_whole_report: bool = True
) -> Table:
    """One row a hypothesis.

    Args:
        extra: rows of endpoints without any.
        is_whole_report: with endpoints, reasons and small pictures; else one endpoint's, whose reasons stand below.
    """
    axis = speedup_range([line.test("speedup") for line in lines])
    heads = Column("Endpoint, slice" if is_whole_report else "Slice"), Column("Verdict", is_whole=True)
    columns = (*heads, *figure_columns(line.test("acceptance") for line in lines))
    several = has_several(lines)
    rows = []
    for line in lines:
        decision = line.decision
        if is_whole_report:
            where = Cell(
                slice_title(line.slice_key) if line.slice_key else line.endpoint,
                () if line.slice_key else (line.place, *line.notes),
                link=line.anchor and f"#{line.anchor}",
                is_part=bool(line.slice_key),
            )
        else:
            where = Cell(name_of(line, is_one_of_several=several), is_strong=not line.slice_key)
        is_trial = decision is not None and decision.recording_only and not is_whole_report
        needed = None if decision is None else still_needed(decision)
        counted = plural(line.num_requests, "request") if decision is None else plural(decision.num_clusters, "session")
        rows.append(
            (
                where,
                verdict_cell(line.verdict, is_overridden=line.is_overridden and is_whole_report, is_trial=is_trial),
                speedup_cell(line.test("speedup"), line.test("total_time"), axis if is_whole_report else None),
                acceptance_cell(line.test("acceptance"), with_picture=is_whole_report),
                Cell(
                    plural(line.num_blocks, "block"),
                    (counted, *([needed.text] if needed is not None else [])) if is_whole_report else (),
                ),
                *([Cell(line.reason, _override_notes(line))] if is_whole_report else []),
            )
        )
    why = (Column("Why"),) if is_whole_report else ()
    return table(
        "Verdicts",
        (*columns, *why),
        [*rows, *extra],
        look="board" if is_whole_report else "dense",
        empty="Nothing has been measured yet, so there is no verdict.",
    )


def _override_notes(line: VerdictLine) -> tuple[str, ...]:
    return () if line.decision is None else tuple(override_notes(line.decision))


def endpoint_verdicts(endpoint: str, lines: Sequence[VerdictLine], orders: Sequence[Override] = ()) -> Section:
    """An endpoint's verdicts for a terminal; the reasons, which are sentences, are under them, with the alarms."""
    several = has_several(lines)
    blocks: list[Block] = [verdicts_table(lines, is_whole_report=False)]
    blocks += [Note(order_note(order), look="note") for order in orders]
    for line in lines:
        name = name_of(line, is_one_of_several=several)
        blocks.append(Note(sentence(line.reason), f"{name}:", "reason"))
        blocks += [Note(alert, look="note") for alert in (alerts(line.decision) if line.decision else ())]
        blocks += [
            Note(f"suspected: {suspicion.kind}: {'; '.join(suspicion.figures)}") for suspicion in line.suspicions
        ]
    if any(line.decision and line.decision.recording_only for line in lines):
        blocks.append(Note(TRIAL_NOTE))
    return Section(endpoint, (*blocks, Lines((*_levels(lines, several), *_engines(lines, several)))))


def decisions_content(decisions: Sequence[Decision]) -> list[Section]:
    """The verdicts of each endpoint, only of these decisions: a gate run prints them."""
    by_endpoint = _by_endpoint(with_forbidding(decisions))
    return [endpoint_verdicts(name, list(map(line_of, of_endpoint))) for name, of_endpoint in by_endpoint.items()]


def tests_content(decisions: Sequence[Decision]) -> list[Section]:
    """Every test of each endpoint, and what is watched since ENABLE: what a verdict rests on."""
    sections = []
    for endpoint, of_endpoint in _by_endpoint(decisions).items():
        several = has_several(list(map(line_of, of_endpoint)))
        for decision in of_endpoint:
            watched = tuple(f"{line.title}: {line.text}" for line in detector_lines(decision))
            title = f"{endpoint}, {name_of(line_of(decision), is_one_of_several=several)}: tests"
            memory = find_test(decision, "memory")
            displaced = None if memory is None else displaced_text(memory)
            below = (*watched, *([f"memory: {displaced}"] if displaced is not None else []))
            sections.append(Section(title, (narrow_tests_table(decision.tests), Lines(below))))
    return sections


def _by_endpoint(decisions: Sequence[Decision]) -> dict[str, list[Decision]]:
    """An order on an only slice is shown, though its evidence is the whole endpoint's."""
    by_endpoint: dict[str, list[Decision]] = {decision.endpoint: [] for decision in decisions}
    for decision in sorted(decisions, key=_order):
        by_endpoint[decision.endpoint].append(decision)
    return {
        endpoint: distinct_slices(of_endpoint, attrgetter("slice_key"), lambda decision: decision.override is not None)
        for endpoint, of_endpoint in by_endpoint.items()
    }


def _order(decision: Decision) -> tuple[str, int, bool, float, str]:
    """Config, load, the endpoint before its slices, busy slices before small ones."""
    busy = -decision.evidence.num_requests
    return decision.config.name, decision.concurrency, decision.slice_key != "", busy, decision.slice_key


def has_several(lines: Sequence[VerdictLine]) -> bool:
    """Whether lines are of several configs or loads, so that each names its own."""
    return len({(line.config_name, line.concurrency) for line in lines}) > 1


def name_of(line: VerdictLine, *, is_one_of_several: bool) -> str:
    """The slice, with config and load where these differ."""
    return slice_title(line.slice_key) + (f" ({line.place})" if is_one_of_several else "")


def _levels(lines: Sequence[VerdictLine], is_one_of_several: bool) -> list[str]:
    """At which error level the bounds are, and of which lines where it is not one level for all."""
    names: dict[str, list[str]] = {}
    for line in lines:
        if (speedup := line.test("speedup")) is not None:
            name = name_of(line, is_one_of_several=is_one_of_several)
            names.setdefault(percent(speedup.alpha, 2), []).append(name)
    return [
        f"[bounds] at error level {level} a side, all looks together"
        + (f" ({'; '.join(of)})" if len(names) > 1 else "")
        for level, of in names.items()
    ]


def _engines(lines: Sequence[VerdictLine], is_one_of_several: bool) -> list[str]:
    """On what latency was measured and what the verdicts are for, of which lines where it is not one for all."""
    lines_by_basis: dict[tuple[str, str | None], dict[str, None]] = {}
    for line in lines:
        basis = line.engine, None if line.decision is None else line.decision.verdict_engine_text
        lines_by_basis.setdefault(basis, {})[line.place] = None
    named = is_one_of_several and len(lines_by_basis) > 1
    return [
        f"latency measured on {engine}"
        + (f" ({'; '.join(of)})" if named else "")
        + ("" if verdict_engine is None else f"; verdicts are for {verdict_engine}")
        for (engine, verdict_engine), of in lines_by_basis.items()
    ]

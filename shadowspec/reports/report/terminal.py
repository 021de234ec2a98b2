"""The report's first page for a terminal: a table of verdicts per endpoint, and the funnel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter

from rich import box
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from shadowspec.reports.definitions import (
    acceptance_title,
    bounds_text,
    displaced_text,
    find_test,
    interval_text,
    shown_as,
    threshold_text,
    title_of,
    total_time_text,
)
from shadowspec.reports.notes import TRIAL_NOTE, alerts, detector_lines, order_note, with_forbidding
from shadowspec.reports.report.report_model import EndpointReport, Report
from shadowspec.reports.shared_values import UNMATCHED, Funnel
from shadowspec.reports.taxonomy import Suspicion
from shadowspec.text import DASH, distinct_slices, percent, plural, slice_title, times
from shadowspec.types import Decision, FunnelCounter, Override, Verdict

STYLE = {Verdict.ENABLE: "bold green", Verdict.DISABLE: "bold red", Verdict.HOLD: "yellow"}


def terminal_tables(report: Report) -> list[RenderableType]:
    """Renderables in reading order.  Every text is literal: names from traffic are never read as markup."""
    judged = [endpoint for endpoint in report.endpoints if endpoint.hypotheses]
    tables: list[RenderableType] = [_endpoint(endpoint) for endpoint in judged]
    if not judged:
        tables.append(Text("Nothing has been measured yet, so there is no verdict."))
    tables.append(_funnel(report))
    return tables


def verdict_tables(decisions: Sequence[Decision]) -> list[RenderableType]:
    """One table per endpoint, only of these decisions: a gate run prints them."""
    by_endpoint = _by_endpoint(with_forbidding(decisions))
    return [_verdicts(name, [_line_of(each) for each in decisions]) for name, decisions in by_endpoint.items()]


def tables_of_tests(decisions: Sequence[Decision]) -> list[RenderableType]:
    """One table per endpoint of every test and of what is watched since ENABLE: what a verdict rests on."""
    return [_tests(name, decisions) for name, decisions in _by_endpoint(decisions).items()]


def _by_endpoint(decisions: Sequence[Decision]) -> dict[str, list[Decision]]:
    """An order on an only slice is shown, though its evidence is the whole endpoint's."""
    found: dict[str, list[Decision]] = {}
    for decision in sorted(decisions, key=_order):
        found.setdefault(decision.endpoint, []).append(decision)
    return {
        decision.endpoint: distinct_slices(
            found[decision.endpoint], attrgetter("slice_key"), lambda each: each.override is not None
        )
        for decision in decisions
    }


@dataclass(frozen=True, slots=True)
class _Line:
    """What a table shows of one hypothesis; the verdict and the reason are those in force."""

    slice_key: str
    config_name: str
    concurrency: int
    verdict: Verdict | None
    reason_code: str
    reason: str
    decision: Decision | None
    num_blocks: int
    engine: str
    suspicions: tuple[Suspicion, ...] = ()


def _line_of(decision: Decision) -> _Line:
    place = decision.slice_key, decision.config.name, decision.concurrency
    why = decision.reason_code, decision.reason
    return _Line(*place, decision.verdict, *why, decision, decision.num_blocks, decision.engine)


def _order(decision: Decision) -> tuple[str, int, bool, float, str]:
    """Config, load, the endpoint before its slices, busy slices before small ones."""
    busy = -decision.evidence.num_requests
    return decision.config.name, decision.concurrency, decision.slice_key != "", busy, decision.slice_key


def _endpoint(endpoint: EndpointReport) -> RenderableType:
    lines = [
        _Line(
            h.slice_key,
            h.config_name,
            h.concurrency,
            h.verdict,
            h.decision.reason_code if h.decision else "",
            h.reason,
            h.decision,
            h.decision.num_blocks if h.decision else h.num_blocks,
            h.engine,
            h.failures.suspicions,
        )
        for h in endpoint.shown
    ]
    loads = [] if endpoint.loads is None else endpoint.loads.lines()
    return Group(
        _verdicts(endpoint.name, lines, endpoint.overrides),
        *(Padding(Text(f"loads: {line}", "dim"), (0, 0, 0, 1)) for line in loads),
    )


def _verdicts(endpoint: str, lines: Sequence[_Line], orders: Sequence[Override] = ()) -> RenderableType:
    """A table that fits 80 columns; the reasons, which are sentences, are under it, with the alarms."""
    table = _table(Text(endpoint, style="bold"))
    accepted = acceptance_title([find_test(line.decision, "acceptance") for line in lines]).lower()
    for name in ("slice", "verdict", "speedup [bounds]\ngeometric mean", f"{accepted}\n[bounds]", "blocks"):
        table.add_column(Text(name), no_wrap=name != "slice")
    reasons: list[RenderableType] = [Padding(Text(order_note(order), "bold"), (0, 0, 0, 1)) for order in orders]
    several = _has_several(lines)
    for line in lines:
        name = _name(line.slice_key, line.config_name, line.concurrency, several)
        speedup, acceptance = find_test(line.decision, "speedup"), find_test(line.decision, "acceptance")
        total_time = total_time_text(find_test(line.decision, "total_time"))
        total = "" if total_time == DASH else f"\ntotal times {total_time}"
        table.add_row(
            Text(name, style="" if line.slice_key else "bold"),
            _verdict(line.verdict, is_trial=line.decision is not None and line.decision.recording_only),
            Text(f"{interval_text(speedup, times)}{total}" if speedup else DASH),
            Text(interval_text(acceptance, percent) if acceptance else DASH),
            Text(f"{line.num_blocks:,}"),
        )
        code = f"{line.reason_code}: " if line.reason_code else ""
        reasons.append(Padding(Text.assemble((f"{name}: {code}", "dim"), line.reason), (0, 0, 0, 1)))
        for alert in alerts(line.decision) if line.decision else ():
            reasons.append(Padding(Text(alert, "bold"), (0, 0, 0, 3)))
        for each in line.suspicions:
            reasons.append(Padding(Text(f"suspected: {each.kind}: {'; '.join(each.figures)}", "dim"), (0, 0, 0, 3)))
    trial = [TRIAL_NOTE] if any(line.decision and line.decision.recording_only for line in lines) else []
    below = [*trial, *_levels(lines, several), *_engines(lines, several)]
    return Group(table, *reasons, *(Padding(Text(words, "dim"), (0, 0, 0, 1)) for words in below), Text(""))


def _levels(lines: Sequence[_Line], is_one_of_several: bool) -> list[str]:
    """At which error level the bounds are, and of which lines where it is not one level for all."""
    names: dict[str, list[str]] = {}
    for line in lines:
        if (speedup := find_test(line.decision, "speedup")) is not None:
            name = _name(line.slice_key, line.config_name, line.concurrency, is_one_of_several)
            names.setdefault(percent(speedup.alpha, 2), []).append(name)
    return [
        f"[bounds] at error level {level} a side, all looks together"
        + (f" ({'; '.join(of)})" if len(names) > 1 else "")
        for level, of in names.items()
    ]


def _engines(lines: Sequence[_Line], is_one_of_several: bool) -> list[str]:
    """On what latency was measured and what the verdicts are for, of which lines where it is not one for all."""
    lines_by_basis: dict[tuple[str, str | None], dict[str, None]] = {}
    for line in lines:
        basis = line.engine, None if line.decision is None else line.decision.verdict_engine_text
        lines_by_basis.setdefault(basis, {})[f"{line.config_name}, load {line.concurrency}"] = None
    named = is_one_of_several and len(lines_by_basis) > 1
    return [
        f"latency measured on {engine}"
        + (f" ({'; '.join(of)})" if named else "")
        + ("" if verdict_engine is None else f"; verdicts are for {verdict_engine}")
        for (engine, verdict_engine), of in lines_by_basis.items()
    ]


def _tests(endpoint: str, decisions: Sequence[Decision]) -> RenderableType:
    table = _table(Text(f"{endpoint}, tests", style="bold"))
    for heading in ("slice", "test", "outcome", "estimate [bounds]", "threshold", "n", "still needed"):
        table.add_column(heading)
    several = _has_several([_line_of(each) for each in decisions])
    below: list[Text] = []
    for decision in decisions:
        name = _name(decision.slice_key, decision.config.name, decision.concurrency, several)
        for place, test in enumerate(decision.tests):
            bounds = f"{shown_as(test.name)(test.estimate)} {bounds_text(test)}"
            needed = DASH if test.units_needed is None else f"about {plural(test.units_needed, test.unit)}"
            cells = (title_of(test), test.outcome, bounds, threshold_text(test))
            numbers = (plural(test.num_units, test.unit), needed)
            table.add_row(*(Text(cell) for cell in ("" if place else name, *cells, *numbers)))
        for line in detector_lines(decision):
            table.add_row("", Text(line.title), Text(line.text))
        table.add_section()
        memory = find_test(decision, "memory")
        if memory is not None and (displaced := displaced_text(memory)) is not None:
            below.append(Text(f"{name}, memory: {displaced}"))
    return Group(table, *below)


def _has_several(lines: Sequence[_Line]) -> bool:
    return len({(line.config_name, line.concurrency) for line in lines}) > 1


def _name(slice_key: str, config_name: str, concurrency: int, is_one_of_several: bool) -> str:
    return slice_title(slice_key) + (f" ({config_name}, load {concurrency})" if is_one_of_several else "")


def _verdict(verdict: Verdict | None, *, is_trial: bool) -> Text:
    if verdict is None:
        return Text("not judged", style="dim")
    return Text(f"{verdict.value}{' (trial)' if is_trial else ''}", style=STYLE[verdict])


def _funnel(report: Report) -> Table:
    table = _table(Text("Where the records ended", style="bold"))
    table.add_column("endpoint")
    table.add_column("read", justify="right")
    shown = [row.counter for row in report.total_funnel.rows if row.num_records]  # the others are 0 everywhere
    for counter in shown:
        table.add_column(counter.value.replace("_", " "), justify="right")
    for funnel in report.funnels:
        if funnel.num_records:
            _funnel_row(table, UNMATCHED if funnel.endpoint is None else funnel.endpoint, funnel, shown)
    table.add_section()
    _funnel_row(table, "all", report.total_funnel, shown)
    return table


def _funnel_row(table: Table, name: str, funnel: Funnel, shown: list[FunnelCounter]) -> None:
    numbers = {row.counter: row.num_records for row in funnel.rows}
    table.add_row(Text(name), f"{funnel.num_records:,}", *(f"{numbers[counter]:,}" for counter in shown))


def _table(title: Text) -> Table:
    return Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, header_style="dim", pad_edge=False)

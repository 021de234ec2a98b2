"""The gating report as content: verdicts, what they rest on at every endpoint, predictions, and where records ended."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from shadowspec.reports.content import charts, tables
from shadowspec.reports.content.content_blocks import (
    Block,
    Cell,
    ContentDocument,
    Facts,
    Figure,
    Heading,
    Lines,
    Note,
    Section,
)
from shadowspec.reports.content.definitions import AUDIT_NOTE, DEFINITIONS, REPLAY_NOTE
from shadowspec.reports.content.endpoint_rows import NO_DATA, NOT_JUDGED, basis_notes, endpoint_rows, unjudged_row
from shadowspec.reports.content.next_steps import MEASURED_ONLY, NOT_MEASURED
from shadowspec.reports.content.notes import order_note
from shadowspec.reports.content.screen_rows import FirstScreen, ScreenRow, count_verdicts, screen_table
from shadowspec.reports.content.verdict_lines import VerdictLine, endpoint_verdicts, verdicts_table
from shadowspec.reports.figures.frontiers import frontier_lines
from shadowspec.reports.figures.funnel import Funnel
from shadowspec.reports.figures.predictions import cost_note, prediction_summary
from shadowspec.reports.report.hypothesis_content import hypothesis_content
from shadowspec.reports.report.report_model import EndpointReport, Report, ReportedHypothesis
from shadowspec.text import age, figure, moment, plural, sentence, slice_title
from shadowspec.types import FunnelCounter

FOREST_NOTE: Final = "dot: estimate; bar: anytime-valid bounds; dashed: the limit; the verdict needs every test"
MAX_ROWS: Final = 10  # of the first screen; the others fold
FOOTER: Final = (
    "Bounds in brackets are anytime-valid. Acceptance figures are pooled: counts are added up over requests, then one "
    "ratio is formed. Mean acceptance length includes the bonus or recovered token. End-to-end time is prefill plus "
    "decode: the wait of a client. No prompt text is stored or shown: figures come from counts, timings and keyed "
    "hashes."
)

Anchored = tuple[EndpointReport, str, list[tuple[ReportedHypothesis, str]]]  # with anchors of it and of its hypotheses


def report_content(report: Report) -> ContentDocument:
    """The whole report, with the definitions of its terms."""
    anchored: list[Anchored] = [
        (endpoint, f"endpoint-{index}", [(h, f"hypothesis-{index}-{place}") for place, h in enumerate(endpoint.shown)])
        for index, endpoint in enumerate(report.endpoints)
    ]
    newest, rows = report.newest_evidence, report_screen(report).rows
    engines = dict.fromkeys((config.engine, config.device, config.dtype) for config in report.configs)
    one_engine = " Latency speaks of the engine named above and of no other." if engines else ""
    return ContentDocument(
        report.title,
        (
            moment(report.generated_at),
            f"Evidence age: {age(report.generated_at - newest) if newest else 'nothing decided yet'}",
            *(f"measured by {engine} on {device}, {dtype}" for engine, device, dtype in engines),
            _counted(report),
        ),
        (
            Note(f"{report.data_note}{one_engine}", "Data.", "note"),
            *_first_screen(report, rows, anchored),
            *_parts(rows, anchored),
            *_predictions(report),
            *_funnel(report),
            Section("Speculation configs", (tables.configs_table(report.configs),), "configs", is_folding=True),
            *_policies(report),
        ),
        FOOTER,
        tuple((key, name, sentence) for key, (name, sentence) in DEFINITIONS.items()),
    )


def report_screen(report: Report, *, notes: tuple[str, ...] = (), more: str = "") -> FirstScreen:
    """What the report answers first: every endpoint, those without a decision too."""
    decisions = [h.decision for endpoint in report.endpoints for h in endpoint.shown if h.decision is not None]
    judged = {decision.endpoint for decision in decisions}
    funnels = {funnel.endpoint: funnel for funnel in report.funnels}
    unjudged = [_unjudged(each, funnels[each.name]) for each in report.endpoints if each.name not in judged]
    spans = {endpoint.name: endpoint.policy.get("min_span_s") for endpoint in report.endpoints}
    return FirstScreen(
        endpoint_rows(
            decisions,
            spans_s={name: float(span_s) for name, span_s in spans.items() if isinstance(span_s, int | float)},
            unjudged=unjudged,
        ),
        notes=(*basis_notes(decisions), *notes),
        more=more,
    )


def terminal_content(report: Report) -> list[Block]:
    """The report's first page: the verdicts of each endpoint with their reasons, and where records ended."""
    judged = [endpoint for endpoint in report.endpoints if endpoint.hypotheses]
    nothing = Note("Nothing has been measured yet, so there is no verdict.", look="reason")
    blocks: list[Block] = [] if judged else [nothing]
    for endpoint in judged:
        section = endpoint_verdicts(endpoint.name, [line_of_hypothesis(h) for h in endpoint.shown], endpoint.overrides)
        loads = () if endpoint.loads is None else tuple(f"loads: {line}" for line in endpoint.loads.lines())
        blocks.append(Section(section.title, (*section.blocks, Lines(loads))))
    counted = tables.funnel_summary(report.funnels, report.total_funnel)
    return [*blocks, Section(counted.name, (counted,))]


def line_of_hypothesis(h: ReportedHypothesis, anchor: str = "", notes: tuple[str, ...] = ()) -> VerdictLine:
    """Its line in the table of verdicts."""
    return VerdictLine(
        h.endpoint,
        h.slice_key,
        h.config_name,
        h.concurrency,
        h.verdict,
        h.reason,
        h.decision,
        h.decision.num_blocks if h.decision else h.num_blocks,
        h.num_requests,
        h.engine,
        h.override is not None,
        h.failures.suspicions,
        anchor,
        notes,
    )


def _counted(report: Report) -> str:
    measured = next(row.num_records for row in report.total_funnel.rows if row.counter is FunnelCounter.MEASURED)
    return f"{plural(report.total_funnel.num_records, 'record')} read, {measured:,} measured through both arms"


def _first_screen(report: Report, rows: Sequence[ScreenRow], anchored: Iterable[Anchored]) -> Iterator[Block]:
    """A row an endpoint and one picture; of many endpoints those that need attention, and the others folded."""
    if not report.endpoints:
        read = report.total_funnel.num_records
        where = (
            f"{plural(read, 'record')} read, whose endpoint could not be determined; the funnel shows where they ended."
            if read
            else "No record has been read."
        )
        yield Note(f"Nothing has been measured yet, so there is no verdict. {where}", look="reason")
        return
    anchors = {endpoint.name: anchor for endpoint, anchor, _ in anchored if _has_section(endpoint)}
    shown, hidden = rows[:MAX_ROWS], rows[MAX_ROWS:]
    yield Section("Verdicts", (screen_table(shown, anchors), *_forest(shown)), "board", "verdict")
    if hidden:
        title = f"{plural(len(hidden), 'more endpoint')}: {count_verdicts(hidden)}"
        yield Section(title, (screen_table(hidden, anchors), *_forest(hidden)), "more-endpoints", is_folding=True)


def _unjudged(endpoint: EndpointReport, funnel: Funnel) -> ScreenRow:
    """The row of an endpoint without a decision: where its records ended, and the orders over it."""
    order = next((order for order in endpoint.overrides if not order.slice_key), None)
    told = sentence(MEASURED_ONLY if endpoint.hypotheses else NOT_MEASURED)
    if not endpoint.hypotheses:
        told = f"{_why_empty(funnel)} {told}"
    action = " ".join((*map(order_note, endpoint.overrides), told))
    return unjudged_row(endpoint.name, action, order, verdict=NOT_JUDGED if endpoint.hypotheses else NO_DATA)


def _why_empty(funnel: Funnel) -> str:
    if not funnel.num_records:
        return "No record of this endpoint has been read yet."
    return f"{plural(funnel.num_records, 'record')} read, none measured yet; the funnel says where they ended."


def _forest(rows: Sequence[ScreenRow]) -> Iterator[Block]:
    """The speedups with their bounds, of the rows that have any."""
    speedups = [(row, test) for row in rows if (test := row.tests[:1] and row.tests[0]) and test.estimate is not None]
    if speedups:
        drawn = [
            charts.ForestRow(row.name + "\u200b" * place, row.name, test, row.verdict)
            for place, (row, test) in enumerate(speedups)
        ]
        axis = charts.speedup_range([test for _, test in speedups])
        yield Figure(charts.forest(drawn, axis), "Speedup, with bounds", FOREST_NOTE, "bounds")


def _has_section(endpoint: EndpointReport) -> bool:
    """Whether anything is known of an endpoint besides its line in the table of verdicts."""
    known = endpoint.hypotheses, endpoint.replays, endpoint.audits, endpoint.production_cache
    return any(known)


def _parts(rows: Sequence[ScreenRow], anchored: Iterable[Anchored]) -> Iterator[Section]:
    """The endpoints' parts; of many endpoints in one fold, so that the page stays short."""
    parts = tuple(_endpoints(rows, anchored))
    if len(rows) > MAX_ROWS and len(parts) > 1:
        yield Section(f"{plural(len(parts), 'endpoint')} in detail", parts, "each-endpoint", is_folding=True)
    else:
        yield from parts


def _endpoints(rows: Sequence[ScreenRow], anchored: Iterable[Anchored]) -> Iterator[Section]:
    """A part for each endpoint of which anything is known, in the order of the rows."""
    first = {row.endpoint: row for row in reversed(rows)}
    order = {name: place for place, name in enumerate(dict.fromkeys(row.endpoint for row in rows))}
    for endpoint, anchor, hypotheses in sorted(anchored, key=lambda parts: order[parts[0].name]):
        if _has_section(endpoint):
            row = first[endpoint.name]
            section = _endpoint(endpoint, anchor, hypotheses)
            yield replace(section, verdict=Cell(row.verdict, tone=row.tone))


def _endpoint(endpoint: EndpointReport, anchor: str, hypotheses: list[tuple[ReportedHypothesis, str]]) -> Section:
    blocks: list[Block] = [Note(order_note(order), look="note") for order in endpoint.overrides]
    if endpoint.production_cache is not None:
        blocks.append(Note(endpoint.production_cache.text))
    if endpoint.loads is not None:
        blocks.append(Lines(tuple(endpoint.loads.lines())))
    if len(hypotheses) > 1:
        blocks.append(verdicts_table([line_of_hypothesis(h, of) for h, of in hypotheses]))
    blocks += [hypothesis_content(h, of) for h, of in hypotheses]
    if endpoint.audits:
        audits = tables.audits_table((endpoint.name, row) for row in endpoint.audits)
        blocks += [Heading("Audit of the engine"), Note(AUDIT_NOTE), audits]
    if endpoint.replays:
        blocks += [Heading("Replay beside the engine"), Note(REPLAY_NOTE), tables.replays_table(endpoint.replays)]
    facts = (
        f"traffic of {moment(endpoint.first_event)} to {moment(endpoint.last_event)}",
        f"measured {moment(endpoint.first_measured)} to {moment(endpoint.last_measured)}",
    )
    return Section(endpoint.name, tuple(blocks), anchor, facts=facts, is_folding=True)


def _predictions(report: Report) -> Iterator[Section]:
    """What the cost model predicts, where it predicts anything."""
    if not any(prediction.speedup is not None for endpoint in report.endpoints for prediction in endpoint.predictions):
        return
    note = "They show which load and which K are worth measuring; the engine that each speaks of is named beside it."
    blocks: list[Block] = [Note(note, "Predictions: no verdict rests on them.", "note")]
    for endpoint in report.endpoints:
        if not endpoint.predictions:
            continue
        blocks += [
            Heading(endpoint.name),
            Note(prediction_summary(endpoint.predictions)),
            tables.predictions_table(endpoint.predictions, endpoint.price_per_hour),
            Note(cost_note(endpoint.price_per_hour)),
        ]
        if endpoint.frontiers:
            blocks.append(Heading(f"Frontier of {endpoint.name}", "frontier"))
        for frontier in endpoint.frontiers:
            how = f"predicted speedup (\u00d7) by load, on {frontier.engine}"
            lines = tuple(frontier_lines(frontier))
            blocks.append(Figure(charts.gains(frontier), slice_title(frontier.slice_key), how, lines=lines))
    yield Section("Predicted by the cost model", tuple(blocks), "predicted", "predicted", is_folding=True)


def _funnel(report: Report) -> Iterator[Section]:
    blocks: list[Block] = [tables.funnel_table(report.funnels, report.total_funnel)]
    reasons = tables.reasons_table(report.funnels)
    if reasons.rows:
        blocks += [Heading("Reasons"), reasons]
    prompts = tables.prompts_table(report.prompts)
    if prompts.rows:
        blocks += [Heading("Prompts"), prompts]
    caches = tables.caches_table(report.caches)
    if caches.rows:
        blocks += [Heading("Prefix caches"), caches]
    yield Section("Funnel: where the records ended", tuple(blocks), "funnel", "funnel", is_folding=True)


def _policies(report: Report) -> Iterator[Section]:
    """The gate's policies; endpoints that share one, together."""
    shared: dict[tuple[tuple[str, float | int | str | None], ...], list[str]] = defaultdict(list)
    for endpoint in report.endpoints:
        if endpoint.policy:
            shared[tuple(endpoint.policy.items())].append(endpoint.name)
    folded = tuple(
        Section(", ".join(names), (_policy(dict(policy)),), is_folding=True) for policy, names in shared.items()
    )
    if folded:
        yield Section("Gate policy", folded, "policy", is_folding=True)


def _policy(policy: Mapping[str, float | int | str | None]) -> Facts:
    pairs = (
        (name.replace("_", " "), value if isinstance(value, str) else figure(value), "")
        for name, value in policy.items()
    )
    return Facts("", tuple(pairs))

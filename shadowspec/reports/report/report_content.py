"""The gating report as content: verdicts, what they rest on at every endpoint, predictions, and where records ended."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from typing import Final

from shadowspec.reports.content import charts, tables
from shadowspec.reports.content.content_blocks import (
    Block,
    Cell,
    ContentDocument,
    Facts,
    Figure,
    Heading,
    HeadNumbers,
    Lines,
    Note,
    Section,
    Table,
)
from shadowspec.reports.content.definitions import AUDIT_NOTE, DEFINITIONS, REPLAY_NOTE
from shadowspec.reports.content.notes import order_note
from shadowspec.reports.content.verdict_lines import VerdictLine, endpoint_verdicts, verdicts_table
from shadowspec.reports.figures.frontiers import frontier_lines
from shadowspec.reports.figures.funnel import Funnel
from shadowspec.reports.figures.predictions import cost_note, prediction_summary
from shadowspec.reports.report.hypothesis_content import hypothesis_content
from shadowspec.reports.report.report_model import EndpointReport, Report, ReportedHypothesis
from shadowspec.text import DASH, age, figure, moment, plural, slice_title
from shadowspec.types import FunnelCounter, Verdict

FOREST_NOTE: Final = (
    "Dot: estimate. Bar: anytime-valid bounds, within the range that the policy clips to. Dashed: the threshold that "
    "has to be passed. A bar wholly above or below its threshold is coloured; the word on the right is the verdict, "
    "which needs every test."
)
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
    newest = report.newest_evidence
    engines = dict.fromkeys((config.engine, config.device, config.dtype) for config in report.configs)
    one_engine = " Latency speaks of the engine named above and of no other." if engines else ""
    return ContentDocument(
        report.title,
        (
            moment(report.generated_at),
            f"Evidence age: {age(report.generated_at - newest) if newest else 'nothing decided yet'}",
            *(f"measured by {engine} on {device}, {dtype}" for engine, device, dtype in engines),
        ),
        (
            Note(f"{report.data_note}{one_engine}", "Data.", "note"),
            _tally(report),
            Section("Verdicts", (_verdicts(report, anchored),), "board", "verdict"),
            *_forest(report),
            *(_endpoint(*parts) for parts in anchored if _has_section(parts[0])),
            *_predictions(report),
            *_funnel(report),
            Section("Speculation configs", (tables.configs_table(report.configs),), "configs"),
            *_policies(report),
        ),
        FOOTER,
        tuple((key, name, sentence) for key, (name, sentence) in DEFINITIONS.items()),
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


def _tally(report: Report) -> HeadNumbers:
    verdicts = Counter(h.verdict for h in report.hypotheses if h.verdict)
    measured = next(row.num_records for row in report.total_funnel.rows if row.counter is FunnelCounter.MEASURED)
    return HeadNumbers(
        "Verdicts and evidence in numbers",
        (
            *((str(verdicts[verdict]), verdict.value, charts.verdict_tone(verdict)) for verdict in Verdict),
            (f"{report.total_funnel.num_records:,}", "records read", ""),
            (f"{measured:,}", "measured through both arms", ""),
            (f"{len(report.endpoints):,}", f"endpoint{'' if len(report.endpoints) == 1 else 's'}", ""),
        ),
    )


def _verdicts(report: Report, anchored: list[Anchored]) -> Table | Note:
    funnels = {funnel.endpoint: funnel for funnel in report.funnels}
    lines, extra = [], []
    for endpoint, _, hypotheses in anchored:
        loads = endpoint.loads
        notes = (loads.words,) if loads is not None and loads.schedule_limit else ()
        lines += [line_of_hypothesis(h, anchor, notes) for h, anchor in hypotheses]
        if not hypotheses:
            why = Cell(_why_empty(funnels[endpoint.name]), tuple(map(order_note, endpoint.overrides)))
            no_data = Cell("NO DATA", tone="undecided")
            extra.append((Cell(endpoint.name), no_data, Cell(DASH), Cell(DASH), Cell(DASH), why))
    if report.endpoints:
        return verdicts_table(lines, extra)
    read = report.total_funnel.num_records
    where = (
        f"{plural(read, 'record')} read, whose endpoint could not be determined; the funnel shows where they ended."
        if read
        else "No record has been read."
    )
    return Note(f"Nothing has been measured yet, so there is no verdict. {where}", look="reason")


def _why_empty(funnel: Funnel) -> str:
    if not funnel.num_records:
        return "No record of this endpoint has been read yet."
    return f"{plural(funnel.num_records, 'record')} read, none measured yet; the funnel says where they ended."


def _forest(report: Report) -> Iterator[Section]:
    figures = []
    axis = charts.speedup_range([h.speedup for h in report.hypotheses])
    for title, name, of_axis in (("Speedup", "speedup", axis), ("Acceptance", "acceptance", None)):
        rows = [
            charts.ForestRow(
                _row_label(h, place),
                f"{h.endpoint}, {slice_title(h.slice_key)}, {h.config_name}, load {h.concurrency}",
                test,
                h.verdict.value if h.verdict else "undecided",
            )
            for place, h in enumerate(report.hypotheses)
            if (test := h.test(name)) is not None and test.estimate is not None
        ]
        if rows:
            figures.append(Figure(charts.forest(rows, of_axis), title))
    if figures:
        title = "Speedup and acceptance, with bounds"
        yield Section(title, (*figures, Note(FOREST_NOTE)), "forest", "bounds")


def _row_label(h: ReportedHypothesis, place: int) -> str:
    """The endpoint, or the slice below it; `place` makes it the only one of its name."""
    name = f"\u2003{slice_title(h.slice_key)}" if h.slice_key else h.endpoint
    return name + "\u200b" * place


def _has_section(endpoint: EndpointReport) -> bool:
    """Whether anything is known of an endpoint besides its line in the table of verdicts."""
    known = endpoint.hypotheses, endpoint.replays, endpoint.audits, endpoint.production_cache
    return any(known)


def _endpoint(endpoint: EndpointReport, anchor: str, hypotheses: list[tuple[ReportedHypothesis, str]]) -> Section:
    blocks: list[Block] = [Note(order_note(order), look="note") for order in endpoint.overrides]
    if endpoint.production_cache is not None:
        blocks.append(Note(endpoint.production_cache.text))
    if endpoint.loads is not None:
        blocks.append(Lines(tuple(endpoint.loads.lines())))
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
    return Section(endpoint.name, tuple(blocks), anchor, facts=facts)


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
    yield Section("Predicted by the cost model", tuple(blocks), "predicted", "predicted")


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
    yield Section("Funnel", tuple(blocks), "funnel", "funnel")


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
        yield Section("Gate policy", folded, "policy")


def _policy(policy: Mapping[str, float | int | str | None]) -> Facts:
    pairs = (
        (name.replace("_", " "), value if isinstance(value, str) else figure(value), "")
        for name, value in policy.items()
    )
    return Facts("", tuple(pairs))

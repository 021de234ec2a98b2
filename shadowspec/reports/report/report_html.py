"""The report as one self-contained HTML file: no network, no script that it needs, every value escaped."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from markupsafe import Markup

from shadowspec import text as words
from shadowspec.gate.verdict.hold_reasons import still_needed
from shadowspec.reports import definitions
from shadowspec.reports.by_turn import TURN_HEAD
from shadowspec.reports.frontiers import frontier_lines
from shadowspec.reports.notes import decision_notes, detector_lines, order_note, override_notes
from shadowspec.reports.predictions import PREDICTION_HEAD, cost_note, prediction_cells, prediction_summary
from shadowspec.reports.report import charts
from shadowspec.reports.report.report_model import Distribution, EndpointReport, Hypothesis, Latency, Report
from shadowspec.reports.shared_values import UNMATCHED, Funnel
from shadowspec.servers.engines.rules import rule_texts
from shadowspec.types import FunnelCounter, Verdict

if TYPE_CHECKING:
    from jinja2 import Environment

OUTCOME_MARK = {"pass": "\u2713", "fail": "\u2717", "open": "\u25cb"}
MEASURE_TERM = {
    "end_to_end_ms": "end-to-end",
    "ttft_ms": "ttft",
    "tpot_ms": "tpot",
    "longest_gap_ms": "longest-gap",
    "queue_ms": "queue",
}
ARM_KEY = Markup('<span class="key k-base"></span>baseline <span class="key k-spec"></span>speculative')
PREDICTED_TERMS = {  # of the columns that have a definition
    "Tokens per step": "mean-length",
    "Pays from": "pays-from",
    "Predicted": "predicted",
    "Measured": "total-times",
    "Passes saved": "passes-saved",
}
POSITION_KEY = Markup(
    '<span class="key k-spec"></span><a class="term" href="#def-marginal" title="{marginal}">marginal</a> '
    '<span class="key k-soft"></span><a class="term" href="#def-conditional" title="{conditional}">conditional</a>'
).format(marginal=definitions.DEFINITIONS["marginal"][1], conditional=definitions.DEFINITIONS["conditional"][1])


@dataclass(frozen=True, slots=True)
class _Entry:
    """An endpoint with an anchor for itself and for each of its hypotheses."""

    endpoint: EndpointReport
    anchor: str
    panels: tuple[tuple[Hypothesis, str], ...]
    why_empty: str


def render_html(report: Report) -> str:
    """The whole page.  Safe to open anywhere: it loads nothing and holds no prompt text."""
    verdicts = Counter(h.verdict for h in report.hypotheses if h.verdict)
    engines = {(config.engine, config.device, config.dtype): None for config in report.configs}
    return (
        _environment()
        .get_template("report.html.j2")
        .render(
            report=report,
            entries=_entries(report),
            tally=[(verdict, verdicts[verdict]) for verdict in Verdict],
            engines=list(engines),
            num_measured=_num(report.total_funnel, FunnelCounter.MEASURED),
            drawn=[h for h in report.hypotheses if _has_estimate(h)],
            speedup_axis=charts.speedup_range([h.speedup for h in report.hypotheses]),
            policies=_policies(report),
            has_costs=any(
                prediction.speedup is not None for endpoint in report.endpoints for prediction in endpoint.predictions
            ),
        )
    )


@cache
def _environment() -> Environment:
    """Made once: it keeps the compiled templates."""
    return template_environment(_vocabulary())


def template_environment(vocabulary: Mapping[str, object]) -> Environment:
    """The folder of the reports' templates; they may use these things besides the report's values."""
    from jinja2 import Environment, PackageLoader, StrictUndefined  # `gate` prints tables of this package without it

    environment = Environment(
        loader=PackageLoader("shadowspec.reports"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals.update(vocabulary)
    return environment


def _vocabulary() -> dict[str, object]:
    """Everything that the templates may use besides the report's values."""
    return {
        **{f.__name__: f for f in (words.times, words.percent, words.milliseconds, words.number, words.format_signed)},
        **{
            f.__name__: f
            for f in (words.byte_size, words.batch_change, words.moment, words.age, words.figure, words.plural)
        },
        **{
            f.__name__: f
            for f in (
                words.slice_title,
                definitions.title_of_test,
                definitions.shown_as,
                definitions.test_notes,
                rule_texts,
                still_needed,
            )
        },
        **{f.__name__: f for f in (definitions.bounds_text, definitions.threshold_text, definitions.title_of)},
        **{f.__name__: f for f in (definitions.acceptance_title, definitions.total_time_text)},
        **{f.__name__: f for f in (decision_notes, detector_lines, order_note, override_notes)},
        **{f.__name__: f for f in (charts.forest, charts.sequence, charts.speedup_histogram, charts.latency_ecdf)},
        **{f.__name__: f for f in (charts.acceptance_positions, charts.acceptance_histogram, charts.gains_by_load)},
        **{f.__name__: f for f in (prediction_summary, prediction_cells, cost_note, frontier_lines)},
        "strip": charts.interval_strip,
        "by_measure": _by_measure,
        "funnel_bar": lambda funnel: charts.funnel_bar([(row.counter, row.num_records) for row in funnel.rows]),
        "definitions": definitions.DEFINITIONS,
        "verdict_meaning": definitions.VERDICT_MEANING,
        "counter_meaning": definitions.COUNTER_MEANING,
        "measure_title": definitions.MEASURE_TITLE,
        "measure_term": MEASURE_TERM,
        "outcome_mark": OUTCOME_MARK,
        "arm_note": ARM_KEY,
        "audit_note": definitions.AUDIT_NOTE,
        "replay_note": definitions.REPLAY_NOTE,
        "predicted_head": [(name, PREDICTED_TERMS.get(name)) for name in PREDICTION_HEAD],
        "unmatched": UNMATCHED,
        "turn_head": TURN_HEAD,
        "per_position_note": POSITION_KEY,
    }


def _by_measure(latency: Latency) -> list[tuple[str, list[Distribution]]]:
    """Each measure with its baseline and its speculative distribution."""
    arms: dict[str, list[Distribution]] = defaultdict(list)
    for distribution in latency.distributions:
        arms[distribution.measure].append(distribution)
    return list(arms.items())


def _entries(report: Report) -> list[_Entry]:
    funnels = {funnel.endpoint: funnel for funnel in report.funnels}
    return [
        _Entry(
            endpoint=endpoint,
            anchor=f"endpoint-{index}",
            panels=tuple((h, f"hypothesis-{index}-{place}") for place, h in enumerate(endpoint.shown)),
            why_empty=_why_empty(funnels[endpoint.name]),
        )
        for index, endpoint in enumerate(report.endpoints)
    ]


def _why_empty(funnel: Funnel) -> str:
    if not funnel.num_records:
        return "No record of this endpoint has been read yet."
    return f"{words.plural(funnel.num_records, 'record')} read, none measured yet; the funnel says where they ended."


def _has_estimate(hypothesis: Hypothesis) -> bool:
    intervals = (hypothesis.speedup, hypothesis.acceptance_interval)
    return any(interval is not None and interval.estimate is not None for interval in intervals)


def _num(funnel: Funnel, counter: FunnelCounter) -> int:
    return next(row.num_records for row in funnel.rows if row.counter is counter)


def _policies(report: Report) -> list[tuple[list[str], Mapping[str, float | int | str | None]]]:
    """Endpoints that share a policy, together."""
    shared: dict[tuple[tuple[str, float | int | str | None], ...], list[str]] = defaultdict(list)
    for endpoint in report.endpoints:
        if endpoint.policy:
            shared[tuple(endpoint.policy.items())].append(endpoint.name)
    return [(names, dict(policy)) for policy, names in shared.items()]

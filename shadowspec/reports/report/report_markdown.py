"""The report as Markdown, for pull requests and chat: verdicts first, then the tests, then the funnel."""

from __future__ import annotations

from shadowspec.reports.by_turn import TURN_HEAD
from shadowspec.reports.definitions import (
    AUDIT_NOTE,
    REPLAY_NOTE,
    acceptance_title,
    bounds_text,
    interval_text,
    shown_as,
    threshold_text,
    title_of,
    total_time_text,
)
from shadowspec.reports.frontiers import frontier_lines
from shadowspec.reports.notes import decision_notes, detector_lines, order_note, override_notes
from shadowspec.reports.predictions import PREDICTION_HEAD, cost_note, prediction_cells, prediction_summary
from shadowspec.reports.rendering import markdown_table
from shadowspec.reports.report.report_model import EndpointReport, Hypothesis, Report
from shadowspec.reports.shared_values import UNMATCHED
from shadowspec.reports.tally import ContextRow
from shadowspec.servers.engines.rules import rule_texts
from shadowspec.text import (
    DASH,
    age,
    batch_change,
    byte_size,
    figure,
    format_signed,
    milliseconds,
    moment,
    number,
    percent,
    plural,
    slice_title,
    times,
)
from shadowspec.text import markdown_text as _text
from shadowspec.types import Arm, SpeculationConfig


def render_markdown(report: Report) -> str:
    """GitHub-flavoured Markdown; text from traffic is escaped, so that it can neither link nor mark up."""
    newest = age(report.generated_at - report.newest_evidence) if report.newest_evidence else "nothing decided yet"
    parts = [
        f"# {_text(report.title)}",
        f"{moment(report.generated_at)}. Evidence age: {newest}.",
        f"> {_text(report.data_note)}",
        "## Verdicts",
        _verdicts(report),
        *(part for endpoint in report.endpoints for part in _endpoint(endpoint)),
        *_predictions(report),
        "## Funnel",
        _funnel(report),
        "## Speculation configs",
        _configs(report),
        "Bounds in brackets are anytime-valid. Acceptance figures are pooled: counts are added up over requests, then "
        "one ratio is formed. Mean acceptance length includes the bonus or recovered token. End-to-end time is prefill "
        "plus decode: the wait of a client.",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _verdicts(report: Report) -> str:
    if not report.hypotheses:
        return "Nothing has been measured yet, so there is no verdict."
    accepted = acceptance_title(h.acceptance_interval for h in report.hypotheses)
    return markdown_table(
        [
            "Endpoint",
            "Slice",
            "Config, load",
            "Verdict",
            "Speedup, geometric mean",
            "Total times",
            accepted,
            "Evidence",
            "Why",
        ],
        (
            [
                _text(h.endpoint),
                _text(slice_title(h.slice_key)),
                _text(f"{h.config_name}, {h.concurrency}"),
                f"**{h.verdict.value}**{' (override)' if h.override else ''}" if h.verdict else "not judged",
                _text(interval_text(h.speedup, times)) if h.speedup else DASH,
                total_time_text(h.test("total_time")),
                _text(interval_text(h.acceptance_interval, percent)) if h.acceptance_interval else DASH,
                plural(h.decision.num_blocks if h.decision else h.num_blocks, "block"),
                _text(" ".join([h.reason, *(override_notes(h.decision) if h.decision else [])])),
            ]
            for h in report.hypotheses
        ),
    )


def _endpoint(endpoint: EndpointReport) -> list[str]:
    is_shown = endpoint.hypotheses or endpoint.overrides or endpoint.replays or endpoint.audits
    parts = [f"## {_text(endpoint.name)}"] if is_shown else []
    if endpoint.overrides:
        parts.append("\n".join(f"- {_text(order_note(order))}" for order in endpoint.overrides))
    if endpoint.production_cache is not None:
        parts.append(endpoint.production_cache.text)
    if endpoint.loads is not None:
        parts.append("\n".join(f"- {_text(line)}" for line in endpoint.loads.lines()))
    parts += [_audits(endpoint), _replays(endpoint)]
    for h in endpoint.shown:
        parts.append(f"### {_text(slice_title(h.slice_key))} ({_text(h.config_name)}, load {h.concurrency})")
        parts += [_tests(h), _facts(h), _latency(h), _by_turn(h), _failures(h), _by_context(h)]
    return parts


def _audits(endpoint: EndpointReport) -> str:
    if not endpoint.audits:
        return ""
    return f"#### Audit of the engine\n\n{AUDIT_NOTE}\n\n" + markdown_table(
        ["Slice", "Config", "Audit", "Difference", "Capital, alarm at", "Outputs", "Refused"],
        (
            [
                _text(slice_title(row.slice_key)),
                _text(row.config_name),
                f"**{row.words}**" if row.state.has_alarmed else row.words,
                format_signed(row.state.difference),
                row.capital_text,
                f"{row.state.num_units:,}",
                f"{row.state.num_refused:,}",
            ]
            for row in endpoint.audits
        ),
    )


def _replays(endpoint: EndpointReport) -> str:
    if not endpoint.replays:
        return ""
    return f"#### Replay beside the engine\n\n{REPLAY_NOTE}\n\n" + markdown_table(
        ["Slice", "Config, rule", "K", "Requests", "Length, replay", "Length, loop", "First"],
        (
            [
                _text(slice_title(row.slice_key)),
                _text(f"{row.config_name}, {row.verify_rule}"),
                str(row.num_speculative_tokens),
                f"{row.num_requests:,}",
                number(row.mean_acceptance_length),
                number(row.loop_mean_acceptance_length),
                percent(row.first_position_acceptance_rate),
            ]
            for row in endpoint.replays
        ),
    )


def _tests(h: Hypothesis) -> str:
    if h.decision is None or not h.decision.tests:
        return "No test has been run yet."
    watched = [f"{line.title}: {line.text}." for line in detector_lines(h.decision)]
    notes = "".join(f"- {_text(note)}\n" for note in (*decision_notes(h.decision), *watched))
    return (notes + "\n" if notes else "") + markdown_table(
        ["Test", "Outcome", "Estimate", "Bounds", "Threshold", "Level", "n", "Smallest n", "Still needed"],
        (
            [
                _text(title_of(t)),
                t.outcome,
                shown_as(t.name)(t.estimate),
                _text(bounds_text(t)),
                threshold_text(t),
                figure(t.alpha),
                plural(t.num_units, t.unit),
                f"{t.min_units:,}",
                DASH if t.units_needed is None else f"about {plural(t.units_needed, t.unit)}",
            ]
            for t in h.decision.tests
        ),
    )


def _facts(h: Hypothesis) -> str:
    facts = [
        f"{plural(h.num_requests, 'request')} in {plural(h.num_blocks, 'block')}, {h.num_failed} failed",
        f"latency measured on {_text(h.engine)}",
    ]
    if h.decision is not None:
        facts.append(f"the verdict is for {_text(h.decision.verdict_engine_text)}")
    if h.acceptance:
        a = h.acceptance
        facts += [
            f"mean acceptance length {number(a.mean_acceptance_length)} (pooled; mean of requests "
            f"{number(a.mean_of_requests_acceptance_length)}), over the steps that drafted",
            f"tokens per target pass {number(a.tokens_per_target_pass)} (pooled; prefill and plain steps counted in)",
            f"first-position acceptance {percent(a.first_position_acceptance_rate)} (pooled), draft acceptance rate "
            f"{percent(a.draft_acceptance_rate)} (pooled)",
            f"marginal per position (pooled): {', '.join(map(percent, a.marginal_acceptance_rates))}",
            f"conditional per position (pooled): {', '.join(map(percent, a.conditional_acceptance_rates))}",
            f"target passes saved: {a.target_passes_saved:,}; repetition loops {percent(h.repetition_loop_share)}",
        ]
    if h.parity and h.parity.num_greedy:
        p = h.parity
        known = (
            "near-tie limit unknown" if p.num_faults is None else f"{p.num_near_ties} near-ties, {p.num_faults} faults"
        )
        facts.append(f"greedy parity: {p.num_diverged} of {p.num_greedy} diverged ({known})")
    if h.parity and h.parity.num_sampled:
        facts.append(
            f"sampled parity: z {format_signed(h.parity.z)}, baseline's z {format_signed(h.parity.baseline_z)}"
        )
    if h.memory:
        m = h.memory
        facts.append(
            f"peak memory {byte_size(m.baseline_peak_bytes)} baseline, {byte_size(m.speculative_peak_bytes)} "
            f"speculative; {m.displaced_kv_tokens:,} KV tokens displaced"
            + (f", the cache of {number(m.displaced_requests)} requests" if m.displaced_requests is not None else "")
        )
    if h.kv_cache:
        k = h.kv_cache
        facts.append(
            f"KV cache {k.baseline_tokens:,} tokens baseline, {k.speculative_tokens:,} speculative: "
            f"{k.displaced_tokens:,} displaced ({percent(k.displaced_share)}); "
            + batch_change(k.baseline_requests, k.speculative_requests)
        )
    return "\n".join(f"- {fact}" for fact in facts)


def _failures(h: Hypothesis) -> str:
    """What was counted, where anything was; suspicions first."""
    failures = h.failures
    lines = [f"- suspected: {each.kind}: {_text('; '.join(each.figures))}" for each in failures.suspicions]
    if failures.intervened.num_intervened:
        lines.append(
            f"- first-position acceptance {percent(failures.intervened.with_them)}; without the "
            f"{plural(failures.intervened.num_intervened, 'request')} whose production output a layer behind the model "
            f"changed {percent(failures.intervened.without_them)}"
        )
    lines += [f"- {note}" for note in failures.notes]
    rows = [
        [_text(row.title), f"{row.count:,}", f"{row.of:,}", percent(row.share)] for row in failures.rows if row.count
    ]
    shown = markdown_table(["Failure", "Requests", "Of", "Share"], rows) if rows else "No failure was counted."
    return "\n".join([*lines, "", shown]).strip() if h.num_requests else ""


def _latency(h: Hypothesis) -> str:
    if h.latency is None:
        return ""
    by_measure = {(d.measure, d.arm): d for d in h.latency.distributions}
    measures = dict.fromkeys(d.measure for d in h.latency.distributions)
    rows = []
    for measure in measures:
        for arm in Arm:
            d = by_measure[measure, arm]
            cells = [milliseconds(q.value) if q.value is not None else f"{DASH} (n < {q.needs})" for q in d.quantiles]
            rows.append([_LATENCY_NAME[measure], arm.value, *cells, f"{d.num_requests:,}"])
    return markdown_table(["Latency", "Arm", "p50", "p95", "p99", "Requests"], rows)


def _by_turn(h: Hypothesis) -> str:
    return markdown_table(TURN_HEAD, (row.cells for row in h.by_turn)) if h.by_turn else ""


def _by_context(h: Hypothesis) -> str:
    if len(h.by_context) < 2:
        return ""
    return markdown_table(
        ["Prompt tokens", "Requests", "Tokens per step", "1st position", "Ratio of total times", "Cache per request"],
        (
            [
                row.name.replace("<", "below "),
                f"{row.num_requests:,}",
                number(row.mean_acceptance_length),
                percent(row.first_position_acceptance_rate),
                times(row.ratio_of_total_times),
                _caches(row),
            ]
            for row in h.by_context
        ),
    )


def _caches(row: ContextRow) -> str:
    if row.baseline_cache_bytes is None or row.speculative_cache_bytes is None:
        return DASH
    baseline, speculative = (byte_size(int(value)) for value in (row.baseline_cache_bytes, row.speculative_cache_bytes))
    return f"{baseline} baseline, {speculative} speculative"


def _predictions(report: Report) -> list[str]:
    """What the cost model predicts, where it predicts anything."""
    if not any(prediction.speedup is not None for endpoint in report.endpoints for prediction in endpoint.predictions):
        return []
    parts = ["## Predicted by the cost model", "No verdict rests on it. It shows which measurements are worth making."]
    for endpoint in report.endpoints:
        if not endpoint.predictions:
            continue
        parts += [f"### {_text(endpoint.name)}", _text(prediction_summary(endpoint.predictions))]
        rows = (
            [_text(part) for part in prediction_cells(prediction, endpoint.price_per_hour)]
            for prediction in endpoint.predictions
        )
        parts += [markdown_table(PREDICTION_HEAD, rows), _text(cost_note(endpoint.price_per_hour))]
        for frontier in endpoint.frontiers:
            lines = "\n".join(f"- {_text(line)}" for line in frontier_lines(frontier))
            parts.append(f"Frontier, {_text(slice_title(frontier.slice_key))}, on {_text(frontier.engine)}:\n\n{lines}")
    return parts


def _funnel(report: Report) -> str:
    if not report.total_funnel.num_records:
        return "No record has been read."
    counters = [row.title for row in report.total_funnel.rows]
    named = [(f.endpoint or UNMATCHED, f) for f in report.funnels if f.num_records]
    rows = [
        [_text(name), f"{f.num_records:,}", *(f"{row.num_records:,}" for row in f.rows)]
        for name, f in [*named, ("all", report.total_funnel)]
    ]
    reasons = [
        f"- {_text(name)}: {row.title}: " + ", ".join(f"{_text(reason)} {count:,}" for reason, count in row.reasons)
        for name, f in named
        for row in f.rows
        if row.reasons
    ]
    return "\n".join([markdown_table(["Endpoint", "read", *counters], rows), "", *reasons]).rstrip()


def _drafting(config: SpeculationConfig) -> str:
    """The proposer with its rules; of a server that drafts by another method, the method with its settings."""
    if config.is_served_method:
        return f"{config.proposer} {config.speculative_config}"
    return ", ".join([config.proposer, *rule_texts(config)])


def _configs(report: Report) -> str:
    if not report.configs:
        return "No speculation config has been measured yet."
    return markdown_table(
        ["Config", "Proposer", "K", "Verify rule", "Engine", "Device", "dtype", "Fingerprint"],
        (
            [
                _text(c.config.name),
                _text(_drafting(c.config)),
                str(c.config.num_speculative_tokens),
                _text(c.config.verify_rule.value),
                _text(c.engine),
                _text(c.device),
                _text(c.dtype),
                _text(c.fingerprint[:16]),
            ]
            for c in report.configs
        ),
    )


_LATENCY_NAME = {
    "end_to_end_ms": "End to end",
    "ttft_ms": "TTFT",
    "tpot_ms": "TPOT",
    "longest_gap_ms": "Longest gap",
    "queue_ms": "Queue (a part of TTFT)",
}

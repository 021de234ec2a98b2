"""One hypothesis as a section: its tests, how they came about, and everything that was measured for it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from shadowspec.gate.verdict.figure_texts import title_of_test
from shadowspec.reports.content import charts, tables
from shadowspec.reports.content.chart_values import Chart
from shadowspec.reports.content.content_blocks import Block, Cell, Facts, Figure, Heading, Note, Section
from shadowspec.reports.content.definitions import DEFINITIONS
from shadowspec.reports.content.notes import decision_notes, detector_lines, order_note
from shadowspec.reports.content.verdict_lines import verdict_cell
from shadowspec.reports.figures.failure_rows import Failures
from shadowspec.reports.report.report_model import (
    Acceptance,
    Distribution,
    KvCacheFigures,
    Latency,
    MemoryFigures,
    ParityFigures,
    ReportedHypothesis,
)
from shadowspec.text import (
    batch_change,
    byte_size,
    figure,
    format_signed,
    number,
    percent,
    plural,
    slice_title,
    times,
)

MEASURES: Final = {  # title and definition of each measure of latency
    "end_to_end_ms": ("End to end", "end-to-end"),
    "ttft_ms": ("TTFT", "ttft"),
    "tpot_ms": ("TPOT", "tpot"),
    "longest_gap_ms": ("Longest gap", "longest-gap"),
    "queue_ms": ("Queue (a part of TTFT)", "queue"),
}
DRAWN: Final = ("end_to_end_ms", "ttft_ms", "tpot_ms")

Pair = tuple[str, str, str]


def hypothesis_content(h: ReportedHypothesis, anchor: str) -> Section:
    """The section that a row of the verdicts leads to."""
    blocks: list[Block] = list(_decision(h))
    if h.num_requests:
        blocks += _measured(h)
    else:
        blocks.append(Note("No request has been measured for this hypothesis yet."))
    return Section(
        slice_title(h.slice_key).capitalize() if not h.slice_key else slice_title(h.slice_key),
        tuple(blocks),
        anchor,
        verdict=verdict_cell(h.verdict, is_overridden=h.override is not None),
        facts=tuple(_facts(h)),
        is_folding=True,
        is_open=not h.slice_key,
    )


def _facts(h: ReportedHypothesis) -> Iterator[str]:
    yield f"{h.config_name}, load {h.concurrency}"
    short = f" ({h.num_short_blocks} short)" if h.num_short_blocks else ""
    yield f"{plural(h.num_requests, 'request')} in {plural(h.num_blocks, 'block')}{short}"
    if h.num_failed:
        yield f"{h.num_failed} failed"
    yield f"latency measured on {h.engine}"
    if h.decision is not None:
        yield f"the verdict is for {h.decision.verdict_engine_text}"


def _decision(h: ReportedHypothesis) -> Iterator[Block]:
    if h.decision is None:
        if h.override is not None:
            yield Note(order_note(h.override), look="reason")
        yield Note("The gate has not judged this yet; the figures below are the measurements so far.", look="reason")
        return
    yield Note(h.reason, look="reason")
    for note in decision_notes(h.decision):
        yield Note(note)
    for line in detector_lines(h.decision):
        yield Note(f"{line.title}: {line.text}.")
    yield tables.tests_table(h.decision.tests)


def _measured(h: ReportedHypothesis) -> Iterator[Block]:
    yield from _figures(h)
    if h.latency is not None:
        yield Heading(
            f"Latency of both arms over {plural(h.latency.num_requests, 'request')}, exact quantiles", "quantile"
        )
        yield tables.latency_table(map(_latency_row, h.latency.distributions))
    if h.by_turn:
        yield Heading("Prefix cache, turn by turn" if len(h.by_turn) > 1 else "Prefix cache", "prefix-cache")
        yield tables.turns_table(h.by_turn)
    if h.by_part:
        yield Heading("Reasoning and answer", "by-part")
        yield tables.parts_table(h.by_part)
    if h.streams is not None:
        yield Note(h.streams.text)
    yield from failures_content(h.failures)
    if h.acceptance is not None:
        yield _acceptance_facts(h, h.acceptance)
    if h.latency is not None:
        yield _time_facts(h, h.latency)
    if h.parity is not None:
        yield Facts("Parity with the target", tuple(_parity_facts(h.parity)))
    if h.memory is not None:
        yield _memory_facts(h.memory)
    if h.kv_cache is not None:
        yield _kv_cache_facts(h.kv_cache)
    if len(h.by_context) > 1:
        yield Heading("By length of the prompt", "by-context")
        yield tables.contexts_table(h.by_context)


def _figures(h: ReportedHypothesis) -> Iterator[Figure]:
    for name, points in h.sequences.items():
        test = h.test(name)
        if test is not None and len(points) > 1 and any(point.estimate is not None for point in points):
            chart = charts.path(name, points, test.threshold, unit=test.unit)
            yield Figure(chart, title_of_test(name), "bounds at every look", "sequence")
    if h.latency is not None:
        threshold = None if h.speedup is None else h.speedup.threshold
        if (histogram := charts.speedups(h.latency.speedup_histogram, threshold)) is not None:
            yield Figure(histogram, "Speedup per request", "a ratio for each", "request-speedup")
    if h.acceptance is not None:
        rates = h.acceptance.marginal_acceptance_rates, h.acceptance.conditional_acceptance_rates
        yield Figure(charts.positions(*rates), "Per position", "marginal and conditional", "marginal")
        yield Figure(
            charts.steps(h.acceptance.histogram_shares), "Accepted per step", "pooled share of steps", "pooled"
        )
    for measure in DRAWN if h.latency is not None else ():
        assert h.latency is not None, "it is drawn only where it is known"
        chart_of_measure = _latency_chart(measure, h.latency.distributions)
        if chart_of_measure is not None:
            title, term = MEASURES[measure]
            yield Figure(chart_of_measure, title, "both arms", term)


def _latency_chart(measure: str, distributions: Iterable[Distribution]) -> Chart | None:
    curves = [
        charts.LatencyCurve(d.arm, d.ecdf, tuple((q.probability, q.value) for q in d.quantiles), d.num_requests)
        for d in distributions
        if d.measure == measure
    ]
    return charts.latency(MEASURES[measure][0], curves)


def _latency_row(d: Distribution) -> tables.LatencyRow:
    quantiles = tuple(tables.quantile_cell(q.value, q.needs, d.num_requests) for q in d.quantiles)
    title, term = MEASURES[d.measure]
    return tables.LatencyRow(Cell(title, hover=DEFINITIONS[term][1]), d.arm, quantiles, d.num_requests)


def failures_content(failures: Failures) -> Iterator[Block]:
    """What went wrong with single requests, and which kind of failure that looks like; suspicions first."""
    yield Heading("Failures", "failures")
    for suspicion in failures.suspicions:
        yield Note(f"suspected: {suspicion.kind}: {'; '.join(suspicion.figures)}.", look="reason")
    for note in failures.notes:
        yield Note(note)
    yield tables.failures_table(failures.rows)
    intervened = failures.intervened
    if intervened.num_intervened:
        yield Note(
            f"First-position acceptance, pooled: {percent(intervened.with_them)}; without the "
            f"{plural(intervened.num_intervened, 'request')} whose production output a layer behind the model changed: "
            f"{percent(intervened.without_them)}."
        )


def _acceptance_facts(h: ReportedHypothesis, a: Acceptance) -> Facts:
    weighted = ", weighted by 1 / sampling rate" if a.is_weighted else ""
    counts = a.counts
    steps = f"{counts.num_drafts:,}, {counts.num_plain_steps:,}, {counts.num_cut_steps:,}"
    return Facts(
        f"Acceptance, pooled over {plural(a.num_requests, 'request')}{weighted}",
        (
            ("Mean acceptance length", number(a.mean_acceptance_length), "mean-length"),
            ("Tokens per target pass", number(a.tokens_per_target_pass), "tokens-per-pass"),
            ("mean acceptance length, mean of requests", number(a.mean_of_requests_acceptance_length), ""),
            ("First-position acceptance rate", percent(a.first_position_acceptance_rate), "first-position"),
            ("Draft acceptance rate", percent(a.draft_acceptance_rate), "draft-rate"),
            ("Steps: drafted, plain, cut", steps, ""),
            ("Tokens: drafted, accepted", f"{counts.num_draft_tokens:,}, {counts.num_accepted_tokens:,}", ""),
            ("Output tokens", f"{counts.num_output_tokens:,}", ""),
            ("Target passes saved", f"{a.target_passes_saved:,}", "passes-saved"),
            ("Repetition loops", f"{percent(h.repetition_loop_share)} ({h.num_repetition_loops})", "loops"),
        ),
    )


def _time_facts(h: ReportedHypothesis, latency: Latency) -> Facts:
    pairs: list[Pair] = [
        ("Ratio of total times, without the test's cap", times(latency.ratio_of_total_times), "total-times")
    ]
    for q in latency.speedup_quantiles:
        value = times(q.value) if q.value is not None else f"\u2014 n < {q.needs}"
        pairs.append((f"Speedup per request, p{round(100 * q.probability)}", value, "request-speedup"))
    for part in ("draft", "verify"):
        pairs.append((f"Decode time, pooled: {part}", percent(getattr(latency, f"{part}_share")), ""))
    pairs.append(("Decode time, pooled: rest", percent(latency.other_share), ""))
    if latency.baseline_concurrency is not None:
        both = f"{number(latency.baseline_concurrency)}, {number(latency.speculative_concurrency)}"
        pairs.append((f"In progress at load {h.concurrency}: baseline, speculative", both, "realised-concurrency"))
    return Facts("Time", tuple(pairs))


def _parity_facts(p: ParityFigures) -> Iterator[Pair]:
    if p.num_greedy:
        yield "Greedy requests compared", f"{p.num_greedy:,}", ""
        yield "First divergences", str(p.num_diverged), "divergence"
        if p.num_near_ties is None:
            yield "Near-ties, faults", "\u2014 no near-tie limit known", ""
        else:
            ties = f"{p.num_near_ties}, {p.num_faults}, {p.num_unknown_gaps}"
            yield "Near-ties, faults, gap unknown", ties, ""
        yield "Baseline differs from itself too", str(p.num_rerun_differs), ""
        yield "Largest top-2 gap (limit)", f"{figure(p.largest_gap)} ({figure(p.near_tie_logit)})", ""
    if p.num_sampled:
        yield "Sampled, teacher-forced z", format_signed(p.z), "z"
        yield "Baseline's z (noise floor)", format_signed(p.baseline_z), ""
        yield "Tokens scored, requests", f"{p.z_tokens:,}, {p.num_sampled:,}", ""


def _memory_facts(m: MemoryFigures) -> Facts:
    requests: list[Pair] = (
        []
        if m.displaced_requests is None
        else [("Displaced requests", number(m.displaced_requests), "displaced_requests")]
    )
    per_token = f"{byte_size(m.kv_bytes_per_token)}, {byte_size(m.draft_kv_bytes_per_token)}"
    peaks = f"{byte_size(m.baseline_peak_bytes)}, {byte_size(m.speculative_peak_bytes)}"
    return Facts(
        f"Memory, largest over {plural(m.num_blocks, 'block')}",
        (
            ("Peak: baseline, speculative", peaks, ""),
            ("Extra of speculation", byte_size(m.extra_peak_bytes), ""),
            ("KV tokens", f"{m.displaced_kv_tokens:,} displaced", "displaced"),
            *requests,
            ("Draft weights", byte_size(m.draft_weight_bytes), ""),
            ("KV per token: target, draft", per_token, ""),
        ),
    )


def _kv_cache_facts(k: KvCacheFigures) -> Facts:
    return Facts(
        f"KV cache of the servers, worst of {plural(k.num_blocks, 'block')}",
        (
            ("Tokens: baseline, speculative", f"{k.baseline_tokens:,}, {k.speculative_tokens:,}", ""),
            ("KV tokens", f"{k.displaced_tokens:,} displaced ({percent(k.displaced_share)})", "displaced"),
            ("Displaced requests", batch_change(k.baseline_requests, k.speculative_requests), "displaced_requests"),
        ),
    )

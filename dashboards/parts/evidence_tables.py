"""The tables of the evidence page as HTML; everything is escaped here."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from shadowspec.reports.definitions import bounds_text, shown_as, test_notes, threshold_text, title_of
from shadowspec.reports.failure_rows import FailureRow
from shadowspec.reports.pages.evidence_page import MEASURES, PROBABILITIES, BinnedDistribution, TimeParts
from shadowspec.reports.replay_rows import AuditRow, ReplayRow
from shadowspec.store.histograms import MAX_RELATIVE_ERROR
from shadowspec.text import DASH, format_signed, milliseconds, number, percent, plural, slice_title
from shadowspec.types import TestResult

from .formats import definition

OUTCOME = {"pass": ("\u2713", "pass"), "open": ("\u25cb", "open"), "fail": ("\u2715", "fail")}
Heads = Sequence[tuple[str, str]]  # of columns, each with its meaning


def tests_table(tests: Sequence[TestResult]) -> str:
    """Each test with estimate, bounds, threshold, units, and what it still wants."""
    rows = "".join(_test(test) for test in tests)
    heads = (
        ("Test", "The test, and below it the figures that help to weigh it."),
        (
            "Outcome",
            "pass: the figure is proven to be on the right side of its limit; fail: it is proven to be on the wrong "
            "side.",
        ),
        ("Estimate", "Of the units measured so far."),
        ("Bounds", "Anytime-valid: they hold at every look, however often the gate looks."),
        ("Threshold", "The limit that the bound must pass."),
        ("Units", "Blocks, clusters (sessions) or requests; never tokens."),
        ("Smallest n", "The fewest units at which the test could pass."),
        ("Still needed", "Units until the test may pass: an estimate."),
        ("Level", "Largest probability of a false pass, over all looks together."),
    )
    return table(heads, rows, "Tests of the hypothesis")


def _test(test: TestResult) -> str:
    shown = shown_as(test.name)
    mark, word = OUTCOME.get(test.outcome, ("", test.outcome))
    notes = test_notes(test)
    note = f"<small>{escape('; '.join(notes))}</small>" if notes else ""
    needed = DASH if test.units_needed is None else f"{test.units_needed:,}"
    cells = (
        f'<th scope="row">{escape(title_of(test))}{note}</th>',
        f'<td data-label="Outcome" class="ss-out-{test.outcome}">{mark} {word}</td>',
        f'<td data-label="Estimate">{shown(test.estimate)}</td>',
        f'<td data-label="Bounds">{bounds_text(test)}</td>',
        f'<td data-label="Threshold">{threshold_text(test)}</td>',
        f'<td data-label="Units">{plural(test.num_units, test.unit)}</td>',
        f'<td data-label="Smallest n">{test.min_units:,}</td>',
        f'<td data-label="Still needed">{needed}</td>',
        f'<td data-label="Level">{test.alpha:.3g}</td>',
    )
    return f"<tr>{''.join(cells)}</tr>"


def latency_table(found: Sequence[BinnedDistribution], parts: Sequence[TimeParts]) -> str:
    """Quantiles of both arms, and the queue, a part of TTFT, beside them."""
    resolution = f"Known to within a bin: \u00b1{percent(MAX_RELATIVE_ERROR)}."
    heads = (
        ("Measure", "End to end is prefill and decode of the arm; TTFT is its prefill; TPOT is decode "
         f"per output token after the first. {definition('longest-gap')}"),
        ("Arm", "Both arms ran the same requests."),
        *((f"p{100 * share:g}", f"Smallest latency that {percent(share, 0)} of requests do not exceed. {resolution}")
          for share in PROBABILITIES),
        ("Requests", "Timed in this window."),
    )  # fmt: skip
    rows = ""
    for binned in found:
        known = dict(binned.quantiles)
        cells = "".join(
            f'<td data-label="p{100 * share:g}">{milliseconds(known[share].estimate) if share in known else DASH}</td>'
            for share in PROBABILITIES
        )
        rows += (
            f'<tr><th scope="row">{MEASURES[binned.measure]}</th><td data-label="Arm">{binned.arm.value}</td>{cells}'
            f'<td data-label="Requests">{binned.num_runs:,}</td></tr>'
        )
    for part in parts:
        rows += (
            f'<tr><th scope="row">Queue, mean <small>a part of TTFT: in a server, and failed attempts</small></th>'
            f'<td data-label="Arm">{part.arm.value}</td><td data-label="mean" colspan="{len(PROBABILITIES)}">'
            f'{milliseconds(part.queue_ms)}</td><td data-label="Requests">{DASH}</td></tr>'
        )
    for part in parts:
        if part.concurrency is not None:
            rows += (
                f'<tr><th scope="row"><span title="{escape(definition("realised-concurrency"))}">Requests in progress, '
                f'mean</span></th><td data-label="Arm">{part.arm.value}</td>'
                f'<td data-label="mean" colspan="{len(PROBABILITIES)}">{part.concurrency:.2f}</td>'
                f'<td data-label="Requests">{DASH}</td></tr>'
            )
    for part in parts:
        if part.cached_share is not None:
            rows += (
                f'<tr><th scope="row"><span title="{escape(definition("prefix-cache"))}">Prompt tokens cached</span>'
                f'</th><td data-label="Arm">{part.arm.value}</td><td data-label="share" colspan="{len(PROBABILITIES)}">'
                f'{percent(part.cached_share)}</td><td data-label="Requests">{DASH}</td></tr>'
            )
    return table(heads, rows, "Latency of both arms")


def failures_table(rows: Sequence[FailureRow]) -> str:
    """Each failure with its count, what it is a share of, and what it means."""
    heads = (
        ("Failure", "A property of a measured request."),
        ("Requests", "Requests that have it."),
        ("Of", "Requests for which it is defined."),
        ("Share", "The first count over the second; plain, not weighted."),
    )
    cells = "".join(
        _row(
            heads,
            f"{escape(row.title)}<small>{escape(row.definition)}</small>",
            f"{row.count:,}",
            f"{row.of:,}",
            percent(row.share),
        )
        for row in rows
    )
    return table(heads, cells, "Failures of measured requests")


def replays_table(rows: Sequence[ReplayRow]) -> str:
    """Replay's mean acceptance length at each K, and what the loop counted."""
    heads = (
        ("K", "Number of speculative tokens."),
        ("Verify rule", "The rule by which the target accepts a proposed token."),
        ("Requests, replay", "Logged responses that were replayed."),
        ("Length, replay", "Expected mean acceptance length, from logged responses, pooled. No test uses it."),
        ("Length, engine", "Mean acceptance length that the engine counted in the same time, pooled."),
        ("First position", "First-position acceptance rate by replay, pooled."),
    )
    cells = "".join(
        _row(
            heads,
            f"K = {row.num_speculative_tokens}",  # a phone shows no heads
            escape(row.verify_rule.replace("_", " ")),
            f"{row.num_requests:,}",
            number(row.mean_acceptance_length),
            number(row.loop_mean_acceptance_length),
            percent(row.first_position_acceptance_rate),
        )
        for row in rows
    )
    return table(heads, cells, "Replay beside the engine")


def audits_table(rows: Sequence[tuple[str, AuditRow]]) -> str:
    """Audits, each with its endpoint."""
    heads = (
        ("Endpoint", "The endpoint of the outputs."),
        ("Slice", "The whole endpoint contains every slice's outputs."),
        ("Config", "The config whose outputs were replayed."),
        (
            "Audit",
            "An alarm means that engine or replay is wrong. It sets an override HOLD until an operator clears it.",
        ),
        (
            "Difference",
            "Share of tokens that the engine accepted beyond replay's expectation: zero if both are right.",
        ),
        ("Capital, alarm at", "Highest capital of the bets against zero, and the capital at which the alarm fires."),
        ("Outputs", "Audited so far."),
        ("Refused", "Outputs that the target cannot have produced; the parity tests judge them."),
    )
    cells = "".join(
        _row(
            heads,
            escape(endpoint),
            escape(slice_title(row.slice_key)),
            escape(row.config_name),
            _alarm(row.words, is_alarm=row.state.has_alarmed),
            format_signed(row.state.difference),
            escape(row.capital_text),
            f"{row.state.num_units:,}",
            f"{row.state.num_refused:,}",
        )
        for endpoint, row in rows
    )
    return table(heads, cells, "Audits of the engine")


def _alarm(text: str, *, is_alarm: bool) -> str:
    return f'<span class="ss-out-fail">{OUTCOME["fail"][0]} {escape(text)}</span>' if is_alarm else escape(text)


def _row(heads: Heads, first: str, *others: str) -> str:
    """Cells that are HTML already; each but the first is labelled with its head, which a phone does not show."""
    cells = "".join(f'<td data-label="{name}">{cell}</td>' for (name, _), cell in zip(heads[1:], others, strict=True))
    return f'<tr><th scope="row">{first}</th>{cells}</tr>'


def table(heads: Heads, rows: str, caption: str) -> str:
    """Heads, each with its meaning, over rows that are HTML already."""
    cells = "".join(f'<th scope="col" title="{escape(meaning)}">{name}</th>' for name, meaning in heads)
    return (
        f'<table class="ss-board ss-plain"><caption>{caption}</caption><thead><tr>{cells}</tr></thead>'
        f"<tbody>{rows}</tbody></table>"
    )

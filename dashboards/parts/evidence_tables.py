"""The tables of the evidence page as HTML; everything is escaped here."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from shadowspec.reports.failures import FailureRow
from shadowspec.reports.hypothesis import MEASURES, PROBABILITIES, Distribution, TimeParts
from shadowspec.reports.words import bounds_text, shown_as, test_notes, threshold_text, title_of_test
from shadowspec.store.histograms import MAX_RELATIVE_ERROR
from shadowspec.types import TestResult
from shadowspec.words import DASH, milliseconds, percent, plural

from .words import definition

OUTCOME = {"pass": ("\u2713", "pass"), "open": ("\u25cb", "open"), "fail": ("\u2715", "fail")}


def tests_table(tests: Sequence[TestResult]) -> str:
    """Each test with estimate, bounds, threshold, units, and what it still wants."""
    rows = "".join(_test(test) for test in tests)
    heads = (
        ("Test", "What is tested; hover for what stands beside it."),
        ("Outcome", "pass: its null is rejected at its level at this look; fail: the opposite bound has crossed."),
        ("Estimate", "Of the units so far."),
        ("Bounds", "Anytime-valid: they hold at every look at once."),
        ("Threshold", "What the bound must clear."),
        ("Units", "Blocks, clusters (sessions) or requests; never tokens."),
        ("Smallest n", "The fewest units at which the test could pass."),
        ("Still needed", "An estimate."),
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
        f'<th scope="row">{escape(title_of_test(test.name))}{note}</th>',
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


def latency_table(found: Sequence[Distribution], parts: Sequence[TimeParts]) -> str:
    """Quantiles of both arms, and the shadow's own queue beside them."""
    resolution = f"Known to within a bin: \u00b1{percent(MAX_RELATIVE_ERROR)}."
    heads = (
        ("Measure", "End to end is prefill and decode of the arm, without queue; TTFT is its prefill; TPOT is decode "
         f"per output token after the first. {definition('longest-gap')}"),
        ("Arm", "Both arms ran the same requests."),
        *((f"p{100 * share:g}", f"Smallest latency that {percent(share, 0)} of requests do not exceed. {resolution}")
          for share in PROBABILITIES),
        ("Requests", "Timed in this window."),
    )  # fmt: skip
    rows = ""
    for own in found:
        known = dict(own.quantiles)
        cells = "".join(
            f'<td data-label="p{100 * share:g}">{milliseconds(known[share].estimate) if share in known else DASH}</td>'
            for share in PROBABILITIES
        )
        rows += (
            f'<tr><th scope="row">{MEASURES[own.measure]}</th><td data-label="Arm">{own.arm.value}</td>{cells}'
            f'<td data-label="Requests">{own.num_runs:,}</td></tr>'
        )
    for part in parts:
        rows += (
            f'<tr><th scope="row">Queue, mean <small>of the shadow itself: apart and never judged</small></th>'
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
    return table(heads, rows, "Latency of both arms")


def failures_table(rows: Sequence[FailureRow]) -> str:
    """Each failure with its count, what it is a share of, and what it means."""
    cells = "".join(
        f'<tr><th scope="row">{escape(row.title)}<small>{escape(row.definition)}</small></th>'
        f'<td data-label="Requests">{row.count:,}</td><td data-label="Of">{row.of:,}</td>'
        f'<td data-label="Share">{percent(row.share)}</td></tr>'
        for row in rows
    )
    heads = (
        ("Failure", "What was found of a measured request."),
        ("Requests", "That have it."),
        ("Of", "For which it is defined."),
        ("Share", "Requests over those for which it is defined; plain, not weighted."),
    )
    return table(heads, cells, "Failures of measured requests")


def table(heads: Sequence[tuple[str, str]], rows: str, caption: str) -> str:
    """Heads, each with its meaning, over rows that are HTML already."""
    cells = "".join(f'<th scope="col" title="{escape(meaning)}">{name}</th>' for name, meaning in heads)
    return (
        f'<table class="ss-board ss-plain"><caption>{caption}</caption><thead><tr>{cells}</tr></thead>'
        f"<tbody>{rows}</tbody></table>"
    )

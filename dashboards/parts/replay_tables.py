"""Replay beside the loop, and the audits of the two, as HTML tables; everything is escaped here."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from shadowspec.reports.replays import AuditRow, ReplayRow
from shadowspec.words import number, percent, signed, slice_title

from .evidence_tables import table

FAIL = "\u2715"


def replays_table(rows: Sequence[ReplayRow]) -> str:
    """Replay's mean acceptance length at each K, and what the loop counted."""
    heads = (
        ("K", "Number of speculative tokens."),
        ("Verify rule", "How a sampled request's drafted token is accepted."),
        ("Requests, replay", "Logged responses that were replayed."),
        ("Length, replay", "Mean acceptance length expected given the logged responses, pooled. In no test."),
        ("Length, loop", "Mean acceptance length that the loop counted in the same time, pooled."),
        ("First position", "First-position acceptance rate by replay, pooled."),
        (
            "Replay less loop",
            "Difference of the two lengths; bounds for every look, until old rows are left out.",
        ),
        ("Comparison", "Beyond 5% of the loop's length: production answers otherwise than the shadow's target."),
    )
    return table(heads, "".join(map(_replay, rows)), "Replay beside the loop")


def _replay(row: ReplayRow) -> str:
    cells = (
        f'<th scope="row">K = {row.num_speculative_tokens}</th>',  # a phone shows no heads
        f'<td data-label="Verify rule">{escape(row.verify_rule.replace("_", " "))}</td>',
        f'<td data-label="Requests, replay">{row.num_requests:,}</td>',
        f'<td data-label="Length, replay">{number(row.mean_acceptance_length)}</td>',
        f'<td data-label="Length, loop">{number(row.loop_mean_acceptance_length)}</td>',
        f'<td data-label="First position">{percent(row.first_position_acceptance_rate)}</td>',
        f'<td data-label="Replay less loop">{escape(row.difference_text)}</td>',
        f'<td data-label="Comparison">{_marked(row.state, is_alarm=row.is_mismatch)}</td>',
    )
    return f"<tr>{''.join(cells)}</tr>"


def audits_table(rows: Sequence[tuple[str, AuditRow]]) -> str:
    """Audits, each with its endpoint."""
    heads = (
        ("Endpoint", "Where the outputs are of."),
        ("Slice", "The whole endpoint takes in every slice's outputs."),
        ("Config", "Whose outputs were replayed."),
        ("Audit", "An alarm says that loop or replay is wrong; it sets an override HOLD, and is not taken back."),
        (
            "Difference",
            "Share of the tokens that the loop accepted beyond what replay expects: zero if both are right.",
        ),
        ("Capital, alarm at", "Of the bets against zero, at its highest."),
        ("Outputs", "Audited so far."),
        ("Refused", "Outputs that replay takes for none of the target's; parity judges these."),
    )
    return table(heads, "".join(_audit(*row) for row in rows), "Audits of the loop")


def _audit(endpoint: str, row: AuditRow) -> str:
    state = row.state
    cells = (
        f'<th scope="row">{escape(endpoint)}</th>',
        f'<td data-label="Slice">{escape(slice_title(row.slice_key))}</td>',
        f'<td data-label="Config">{escape(row.config_name)}</td>',
        f'<td data-label="Audit">{_marked(row.words, is_alarm=state.has_alarmed)}</td>',
        f'<td data-label="Difference">{signed(state.difference)}</td>',
        f'<td data-label="Capital, alarm at">{escape(row.capital_text)}</td>',
        f'<td data-label="Outputs">{state.num_units:,}</td>',
        f'<td data-label="Refused">{state.num_refused:,}</td>',
    )
    return f"<tr>{''.join(cells)}</tr>"


def _marked(text: str, *, is_alarm: bool) -> str:
    return f'<span class="ss-out-fail">{FAIL} {escape(text)}</span>' if is_alarm else escape(text)

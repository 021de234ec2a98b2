"""The first part of the evidence page: why the verdict, what to do next, and one picture of every required test."""

from __future__ import annotations

from shadowspec.gate.policy import GatePolicy
from shadowspec.gate.run.run_units import Crossings
from shadowspec.reports.content.explanation import explained
from shadowspec.reports.pages.board import BoardRow
from shadowspec.reports.pages.why_verdict import LimitLine, limit_lines, why
from shadowspec.text import slice_title
from shadowspec.types import Decision

from . import formats

OUTCOME = {"pass": ("\u2713", "passes"), "open": ("\u25cb", "open"), "fail": ("\u2715", "fails")}
NOT_DECIDED = "The gate has not decided on it yet"
NOT_MEASURED = "No request of it was measured yet"


def html(row: BoardRow, *, is_stale: bool) -> str:
    """Title, sentence, next step, and the picture, if the gate has tested anything."""
    since = "" if row.since is None else f"<span>since {formats.time_html(row.since)}</span>"
    stale = '<span class="ss-flag">stale</span>' if is_stale else ""
    name = f"{formats.text(row.endpoint)} <span>{formats.text(slice_title(row.slice_key))}</span>"
    decision = row.current.decision
    sentence = why(decision) if decision is not None else NOT_DECIDED if row.fingerprint else NOT_MEASURED
    return (
        f'<div class="ss-title"><h1>{name}</h1>{formats.verdict_html(row.verdict)}{since}{stale}</div>'
        f'<p class="ss-because"><b>Why:</b> {formats.sentence_html(sentence)}</p>'
        f"{next_html(row)}{picture(limit_lines(decision) if decision is not None else [])}"
    )


def next_html(row: BoardRow) -> str:
    """What to do now, and the evidence that is still needed."""
    needed = row.still_needed
    more = "" if needed is None else f" <span>Still needed: {formats.text(needed.text)}.</span>"
    return f'<p class="ss-next-step"><b>Next:</b> {formats.sentence_html(row.next_action)}{more}</p>'


def explained_html(decision: Decision, policy: GatePolicy | None, crossings: Crossings | None = None) -> str:
    """The lines of `shadowspec gate --explain`, folded."""
    lines = "".join(
        f"<li><b>{formats.text(line.lead)}:</b> {formats.text(line.text)}</li>"
        for line in explained(decision, policy, crossings)
    )
    return f'<details class="ss-explained"><summary>Explained</summary><ul class="ss-notes">{lines}</ul></details>'


def picture(lines: list[LimitLine]) -> str:
    """Every required test on one axis, its limit in the middle; the text beside each line says the same."""
    if not lines:
        return ""
    rows = "".join(_line(line) for line in lines)
    head = (
        '<div class="ss-limit-head" aria-hidden="true"><span>required test</span>'
        "<span>\u2190 worse<i>limit</i>better \u2192</span><span>estimate [bounds]</span><span>limit</span></div>"
    )
    label = "Required tests with their bounds and limits"
    return f'<figure class="ss-limits" aria-label="{label}">{head}<ul>{rows}</ul></figure>'


def _line(line: LimitLine) -> str:
    mark, word = OUTCOME.get(line.outcome, ("", line.outcome))
    return (
        f'<li class="ss-limit-{line.outcome}"><span class="ss-limit-name"><b>{mark} {formats.text(line.title)}</b> '
        f"{word}</span>{_axis(line)}<span>{line.figures}</span>"
        f'<span><span class="ss-only-heard">limit </span>{formats.text(line.limit)}</span></li>'
    )


def _axis(line: LimitLine) -> str:
    """Drawn with boxes: Streamlit removes SVG from HTML."""
    drawn = ""
    if line.estimate is not None:
        left, right, middle = (50 * (1.0 + value) for value in (line.worst, line.best, line.estimate))
        drawn = (
            f'<i class="ss-range" style="left:{left:.1f}%;width:{max(right - left, 0.0):.1f}%"></i>'
            f'<i class="ss-mean" style="left:{middle:.1f}%"></i>'
        )
    return f'<span class="ss-limit-axis" aria-hidden="true">{drawn}</span>'

"""The board as one HTML table: a body per endpoint, whose further rows a button shows.  Everything is escaped here."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from html import escape

from shadowspec.gate.policy import GatePolicy
from shadowspec.gate.verdict.figure_texts import memory_figure
from shadowspec.reports.content import charts
from shadowspec.reports.content.definitions import test_notes
from shadowspec.reports.pages.board import BoardEndpoint, BoardRow
from shadowspec.reports.pages.board_values import TrendDay
from shadowspec.reports.render.svg import Scale, element, picture_svg, svg
from shadowspec.text import DASH, age, percent, plural, slice_title, times
from shadowspec.types import Arm, TestResult, Verdict

from . import formats
from .board_columns import COLUMNS, BoardColumn
from .formats import ahead, local, moment_title, short_local, text
from .links import address
from .why_section import explained_html, next_html

TREND_WIDTH, TREND_HEIGHT = 96, 26

Format = Callable[[float | None], str]

SEPARATOR = " \u00b7 "
PARITY_WORD = {"pass": ("\u2713", "equal"), "open": ("\u25cb", "open"), "fail": ("\u2715", "differs"), None: ("", DASH)}


@dataclass(frozen=True, slots=True)
class TableContext:
    """What the cells need beside the row."""

    now: datetime
    stale_after: timedelta
    currency: str
    speedup_range: tuple[float, float]
    policies: Mapping[str, GatePolicy] = field(default_factory=dict)  # by configured endpoint


def table_html(endpoints: Sequence[BoardEndpoint], context: TableContext, sort: str) -> str:
    """The whole table; rows below an endpoint's first are hidden until its button is pressed."""
    heads = "".join(_heading(column, sort) for column in COLUMNS)
    bodies = "".join(_body(index, endpoint, context) for index, endpoint in enumerate(endpoints))
    caption = "Rollout board: one row per endpoint; press the arrow to see its loads, configs and slices"
    return f'<table class="ss-board"><caption>{caption}</caption><thead><tr>{heads}</tr></thead>{bodies}</table>'


def _heading(column: BoardColumn, sort: str) -> str:
    title = escape(column.meaning)
    if column.sort is None:
        return f'<th scope="col" title="{title}">{column.title}</th>'
    order = ' aria-sort="other"' if column.sort == sort else ""
    mark = " \u25be" if column.sort == sort else ""
    return (
        f'<th scope="col"{order}><button type="button" class="ss-sort" data-sort="{column.sort}" '
        f'title="{title} Press to sort by it.">{column.title}{mark}</button></th>'
    )


def _body(index: int, endpoint: BoardEndpoint, context: TableContext) -> str:
    first = _row(endpoint.head, context, _toggle(endpoint, f"ss-of-{index}"), is_head=True)
    why = f'<tr class="ss-child ss-why" hidden=""><td colspan="{len(COLUMNS)}">{_why(endpoint, context)}</td></tr>'
    rest = "".join(_row(row, context, _child_name(row, endpoint.head), is_head=False) for row in endpoint.rows)
    order = f'<tr class="ss-next"><td colspan="{len(COLUMNS)}">{next_html(endpoint.head)}</td></tr>'
    return f'<tbody id="ss-of-{index}" data-endpoint="{escape(endpoint.name)}">{first}{order}{why}{rest}</tbody>'


def _toggle(endpoint: BoardEndpoint, target: str) -> str:
    head, number = endpoint.head, len(endpoint.rows)
    words_ = f"{plural(number, 'more row')} of {endpoint.name}"
    button = (
        f'<button type="button" class="ss-toggle" aria-expanded="false" aria-controls="{target}" '
        f'aria-label="Show {escape(words_)}">\u25b8</button>'
    )
    inner = f"{_link(head, endpoint.name)}<small>{_config(head)}</small>{_loads(endpoint)}{_alert_mark(head)}"
    return f'<div class="ss-name">{button}<div>{inner}</div></div>'


def _loads(endpoint: BoardEndpoint) -> str:
    """What is on at which loads; what production's demand makes of it is a hover away."""
    if endpoint.loads is None:
        return ""
    return f'<small title="{text(" ".join(endpoint.loads.lines()))}">{text(endpoint.loads.words)}</small>'


def _child_name(row: BoardRow, head: BoardRow) -> str:
    title = slice_title(row.slice_key)
    small = [f"{percent(row.traffic_share, 0)} of traffic"] if row.slice_key and row.traffic_share is not None else []
    if row.concurrency != head.concurrency or not row.slice_key:
        small.append(f"load {row.concurrency}")
    if row.fingerprint != head.fingerprint and row.config is not None:
        small.append(text(row.config.name))
    inner = f"{_link(row, title)}<small>{SEPARATOR.join(small)}</small>{_alert_mark(row)}"
    return f'<div class="ss-name ss-slice"><div>{inner}</div></div>'


def _config(row: BoardRow) -> str:
    """The config and load; on what their latency was measured, where it was judged, is a hover away."""
    parts = [] if row.config is None else [row.config.name]
    parts += [row.config.title] if row.config is not None and row.config.is_served_method else []
    said = text(SEPARATOR.join([*parts, f"load {row.concurrency}"]))
    measured = row.current.measured
    if measured is None:
        return said
    basis = text(f"latency measured on {measured.engine}; the verdict is for {measured.verdict_engine_text}")
    return f'<span title="{basis}">{said}</span>'


def _link(row: BoardRow, name: str) -> str:
    """To the evidence page; the script follows it without loading the page again."""
    shown = text(name).replace("=", "=<wbr/>")  # a slice's label breaks before its value
    return f'<a class="ss-go" href="{escape(evidence_address(row))}">{shown}</a>'


def evidence_address(row: BoardRow) -> str:
    """The evidence page of a row."""
    return address(
        "evidence", endpoint=row.endpoint, slice=row.slice_key, load=row.concurrency, config=row.fingerprint[:12]
    )


def _alert_mark(row: BoardRow) -> str:
    if not row.alerts:
        return ""
    return (
        f'<span class="ss-alert" title="{text(" ".join(row.alerts))}">\u26a0 {plural(len(row.alerts), "note")}</span>'
    )


def _why(endpoint: BoardEndpoint, context: TableContext) -> str:
    row, loads = endpoint.head, [] if endpoint.loads is None else endpoint.loads.lines()
    notes = "".join(f"<br/>{text(note)}" for note in (*row.alerts, *loads))
    decision = row.current.decision
    lines = "" if decision is None else explained_html(decision, context.policies.get(endpoint.name))
    return f"<b>{formats.mark_verdict(row.verdict)}</b>: {text(row.reason)}{notes}{lines}"


def _row(row: BoardRow, context: TableContext, name: str, *, is_head: bool) -> str:
    low, high = context.speedup_range
    cells = (
        f'<th scope="row" class="ss-cell-name">{name}</th>',
        _cell("Verdict", _verdict(row)),
        _cell("Speedup", _interval(row.speedup, times, low, high, is_log=True) + _total_times(row), "ss-wide"),
        _cell("Accepted", _interval(row.acceptance, _whole_percent, 0.0, 1.0, is_log=False), "ss-wide"),
        _cell("Slowed", _tail(row.tail)),
        _cell("Parity", _parity(row)),
        _cell("Memory", _memory(row)),
        _cell("Saved", _saving(row, context.currency)),
        _cell("Evidence", _evidence(row, context)),
        _cell("Still needed", _needed_text(row)),
        _cell("Trend", _trend(row.trend), "ss-trend"),
    )
    attributes = 'class="ss-head"' if is_head else 'class="ss-child" hidden=""'
    return f"<tr {attributes}>{''.join(cells)}</tr>"


def _cell(label: str, html: str, classes: str = "") -> str:
    return f'<td data-label="{label}" class="{classes}">{html}</td>'


def _verdict(row: BoardRow) -> str:
    parts = [formats.verdict_html(row.verdict, row.reason)]
    if row.since is not None:
        parts.append(f'<small title="{moment_title(row.since)}">since {short_local(row.since)}</small>')
    if (measured := row.current.measured) is not None:
        parts.append(f'<small title="{text(measured.verdict_engine_text)}">for {text(measured.verdict_engine)}</small>')
    if row.current.override is not None:
        parts.append('<small class="ss-flag">override</small>')
    if row.stage is not None and row.verdict is Verdict.ENABLE:
        depths = row.stage.depth_caps.values()
        served = "no proven depth" if depths and not any(depths) else f"{percent(row.stage.share, 0)} served"
        parts.append(f"<small>{escape(row.stage.stage.value)}, {served}</small>")
    return "".join(parts)


def _whole_percent(value: float | None) -> str:
    return percent(value, 0)


def _interval(interval: TestResult | None, shown: Format, low: float, high: float, *, is_log: bool) -> str:
    if interval is None or interval.estimate is None:
        return DASH
    bounds = f"{shown(interval.lower)} to {shown(interval.upper)}"
    hover = (
        f"{shown(interval.estimate)}, bounds {bounds}, threshold {shown(interval.threshold)}, "
        f"{plural(interval.num_units, interval.unit)}"
    )
    short = f"{_bare(shown(interval.lower))}\u2013{_bare(shown(interval.upper))}"
    picture = charts.interval(interval, low, high, is_log=is_log)
    drawn = "" if picture is None else picture_svg(picture)
    return f'<span title="{escape(hover)}"><b>{shown(interval.estimate)}</b> <small>{short}</small></span>{drawn}'


def _trend(trend: Sequence[TrendDay]) -> str:
    """Speedup by day as a line from the first day that is known, and a line at 1; nothing where only one day is."""
    known = [(index, day.speedup) for index, day in enumerate(trend) if day.speedup is not None]
    if len(known) < 2:
        return ""
    values = [value for _, value in known]
    x = Scale(known[0][0], len(trend) - 1, 3, TREND_WIDTH - 3)
    y = Scale(min(0.9, *values), max(1.1, *values), TREND_HEIGHT - 3, 3)
    points = " ".join(f"{x(index):.1f},{y(value):.1f}" for index, value in known)
    last_index, last = known[-1]
    ends = [f"{trend[index].day} {times(value)}" for index, value in (known[0], known[-1])]
    return svg(
        TREND_WIDTH,
        TREND_HEIGHT,
        f"Speedup by day: {' to '.join(ends)}",
        element("line", x1=0, x2=TREND_WIDTH, y1=y(1.0), y2=y(1.0), class_="ss-axis"),
        element("polyline", points=points, class_="ss-line"),
        element("circle", cx=x(last_index), cy=y(last), r=2.5, class_="ss-dot"),
        class_="ss-spark",
    )


def _total_times(row: BoardRow) -> str:
    if row.total_time is None or row.total_time.estimate is None:
        return ""
    return f'<small title="Ratio of total times: what the fleet pays.">total {times(row.total_time.estimate)}</small>'


def _bare(text: str) -> str:
    """Without its unit, which the estimate shows."""
    return text.rstrip("%\u00d7")


def _tail(interval: TestResult | None) -> str:
    if interval is None or interval.estimate is None:
        return DASH
    hover = (
        f"{percent(interval.estimate)}, at most {percent(interval.upper)}; the limit is {percent(interval.threshold)}"
    )
    below = f"<small>\u2264 {percent(interval.upper, 0)}</small>"
    return f'<span title="{hover}"><b>{percent(interval.estimate, 0)}</b>{below}</span>'


def _parity(row: BoardRow) -> str:
    mark, word = PARITY_WORD[row.parity_outcome]
    hover = "; ".join(f"{test.name.replace('_', ' ')}: {test.outcome}" for test in row.parity)
    return f'<span class="ss-parity-{row.parity_outcome}" title="{escape(hover)}">{mark} {word}</span>'


def _memory(row: BoardRow) -> str:
    test = row.memory
    if test is None or test.estimate is None:
        return DASH
    word = "over budget" if test.outcome == "fail" else "within budget" if test.outcome == "pass" else "open"
    limit = "; ".join([f"{word}, which is {memory_figure(test.threshold)}", *test_notes(test)])
    flag = '<small class="ss-flag">over</small>' if test.outcome == "fail" else ""
    return f'<span title="{escape(limit)}">+{memory_figure(test.estimate)}</span>{flag}'


def _saving(row: BoardRow, currency: str) -> str:
    saving = row.saving
    if saving is None:
        return DASH
    detail = (
        f"{saving.time.ms_per_token(Arm.BASELINE):.2f} ms of the device per output token without speculation, "
        f"{saving.time.ms_per_token(Arm.SPECULATIVE):.2f} ms with it"
    )
    amount = saving.per_million_tokens
    below = "" if amount is None else f"<small>{money(amount, currency)} / M tok</small>"
    return f'<span title="{detail}"><b>{percent(saving.share, 0)}</b>{below}</span>'


def money(value: float, currency: str) -> str:
    """An amount; a negative one with a minus sign."""
    return f"{value:,.2f} {currency}".replace("-", "\u2212")


def _evidence(row: BoardRow, context: TableContext) -> str:
    sessions = plural(row.num_clusters, "session")
    if row.evidence_at is None:
        return f"<span>{sessions}</span>"
    span = context.now - row.evidence_at
    old = f'<small title="{moment_title(row.evidence_at)}">{coarse_age(span)} old</small>'
    stale = '<small class="ss-flag">stale</small>' if row.is_stale(context.stale_after, context.now) else ""
    return f"<span>{sessions}</span>{old}{stale}"


def coarse_age(span: timedelta) -> str:
    """An age in hours or days: a value in minutes would redraw the table every minute."""
    return "under 1 h" if span < timedelta(hours=1) else age(span).replace(" hours", " h").replace(" hour", " h")


def _needed_text(row: BoardRow) -> str:
    if row.clusters_needed is None:
        return DASH
    day = (
        ""
        if row.expected_at is None
        else f'<small title="{local(row.expected_at)}">by {ahead(row.expected_at)}</small>'
    )
    return f"<span>{plural(row.clusters_needed, 'session')}</span>{day}"


def speedup_range(rows: Iterable[BoardRow]) -> tuple[float, float]:
    """One axis for all speedups: it holds every bound, within a quarter and four times."""
    known = [
        bound
        for row in rows
        if row.speedup is not None
        for bound in (row.speedup.lower, row.speedup.upper, row.speedup.estimate)
        if bound is not None and bound > 0.0
    ]
    return max(0.25, min([0.7, *known])), min(4.0, max([1.6, *known]))

"""The evidence behind a verdict: why, its tests over time, the slices, acceptance, latency of both arms, and parity."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import streamlit as st

from shadowspec.gate.run.run_units import Crossings
from shadowspec.gate.verdict.figure_texts import acceptance_title, title_of_test
from shadowspec.reports.content import charts as content
from shadowspec.reports.content.chart_values import Chart
from shadowspec.reports.content.definitions import total_time_text
from shadowspec.reports.content.notes import decision_notes
from shadowspec.reports.pages.board import Board, BoardRow
from shadowspec.reports.pages.evidence_page import PATH_TESTS, TestPath
from shadowspec.store import Pulse
from shadowspec.text import DASH, moment, percent, plural, slice_title, times
from shadowspec.types import Verdict

from ..parts import (
    charts,
    evidence_sections,
    formats,
    links,
    source,
    states,
    why_section,
)
from ..parts.board_table import PARITY_WORD, speedup_range

WINDOWS = {"7 days": timedelta(days=7), "28 days": timedelta(days=28), "all": None}
DEFAULT_WINDOW = "7 days"
MAX_UNIT_RECORDS = 20_000  # of the endpoint, all of which are read to draw a path after every unit
DEVICE_TIME = (
    "Per output token compared with the baseline, over the last 7 days of traffic. A request at load b uses 1/b of the "
    "device."
)


def page() -> None:
    """The evidence of one hypothesis, which the address names."""
    pulse = source.pulse()
    board = source.board(pulse)
    if not board.rows:
        states.empty(
            "No evidence yet",
            "Measure a file of mirrored traffic or start the worker, then run the gate. This page then shows why each "
            "endpoint has its verdict.",
            commands=("shadowspec run traffic.jsonl   # or: shadowspec worker", "shadowspec gate"),
        )
        return
    row = _chosen(board)
    pair = row.endpoint, row.slice_key, row.concurrency, row.fingerprint
    asked = st.session_state.get("measured") or links.query_value("measured") or DEFAULT_WINDOW
    source.read_ahead(pulse, *pair, WINDOWS.get(asked, WINDOWS[DEFAULT_WINDOW]))
    _why(pulse, row)
    if not row.fingerprint:
        states.empty(
            "No evidence yet",
            f"No request of {formats.markdown(row.endpoint)} ran in both arms. Tests, acceptance and latency appear "
            "here after the first measured requests.",
            commands=("shadowspec run FILE   # or: shadowspec worker", "shadowspec gate"),
        )
        return
    _figures(row)
    _sequences(pulse, row)
    _forest(board, row)
    window = _window()
    figures = source.rollup_figures(pulse, *pair, window)
    evidence_sections.acceptance(figures)
    evidence_sections.replays(row)
    evidence_sections.latency(figures, row)
    evidence_sections.failures(source.failures(pulse, *pair, window))
    evidence_sections.contexts(row, window)
    evidence_sections.tests(row)


def _chosen(board: Board) -> BoardRow:
    """Four selections that narrow each other down; the address follows them, and they follow the address."""
    names = [endpoint.name for endpoint in board.endpoints]
    asked = {name: links.query_value(name) for name in ("endpoint", "slice", "load", "config")}
    with st.container(horizontal=True, vertical_alignment="bottom", gap="small"):
        endpoint = _select("Endpoint", names, asked["endpoint"], "endpoint")
        board_endpoint = next(board_endpoint for board_endpoint in board.endpoints if board_endpoint.name == endpoint)
        slices = list(
            dict.fromkeys(row.slice_key for row in sorted(board_endpoint.all_rows, key=lambda row: row.slice_key != ""))
        )
        slice_key = _select("Slice", slices, asked["slice"] or "", "slice", slice_title)
        rows = [row for row in board_endpoint.all_rows if row.slice_key == slice_key]
        loads = sorted({row.concurrency for row in rows})
        asked_load = asked["load"] or str(board_endpoint.head.concurrency)
        load = _select("Load", [str(load) for load in loads], asked_load, "load")
        rows = [row for row in rows if str(row.concurrency) == load]
        prints = [row.fingerprint for row in rows]
        wanted = next(
            (fingerprint for fingerprint in prints if asked["config"] and fingerprint.startswith(asked["config"])), None
        )
        names_of = {row.fingerprint: _config_name(row) for row in rows}
        config = _select("Config", prints, wanted, "config", lambda full: names_of.get(full, full))
    return next(row for row in rows if row.fingerprint == config)


def _select(title: str, options: Sequence[str], asked: str | None, name: str, shown: object = str) -> str:
    """A selection that writes itself into the address; what the address asks for and does not exist is not chosen."""
    key = f"evidence.{name}"
    chosen = asked if asked in options else options[0]
    if st.session_state.get(key) != chosen:
        st.session_state[key] = chosen

    def write() -> None:
        st.query_params[name] = st.session_state[key]

    assert callable(shown), "a way to write an option"
    return st.selectbox(title, options, key=key, format_func=shown, on_change=write)


def _config_name(row: BoardRow) -> str:
    name = row.config.name if row.config is not None else "config"
    if row.config is not None and row.config.is_served_method:
        name += f", {row.config.title}"
    return f"{name} ({row.fingerprint[:8]})" if row.fingerprint else DASH


def _figures(row: BoardRow) -> None:
    with st.container(key="figures"):
        cells = st.columns(6)
    speedup = row.speedup
    has_bounds = speedup is not None and speedup.estimate is not None
    bounds = f"{times(speedup.lower)} to {times(speedup.upper)}" if speedup is not None and has_bounds else None
    cells[0].metric("Speedup", DASH if speedup is None else times(speedup.estimate), help=formats.definition("speedup"))
    cells[0].caption(f"{bounds}; total times {total_time_text(row.total_time)}" if bounds else "no bounds yet")
    speedup = row.acceptance
    cells[1].metric(
        acceptance_title([row.acceptance]),
        DASH if speedup is None else percent(speedup.estimate),
        help=formats.definition("acceptance"),
    )
    cells[1].caption("no bounds yet" if speedup is None else f"{percent(speedup.lower)} to {percent(speedup.upper)}")
    speedup = row.tail
    slowed = "Requests slowed by more than the policy's tail_margin; the bound must lie below tail_share."
    cells[2].metric("Slowed", DASH if speedup is None else percent(speedup.estimate), help=slowed)
    cells[2].caption("no bounds yet" if speedup is None else f"at most {percent(speedup.upper)}")
    mark, word = PARITY_WORD[row.parity_outcome]
    cells[3].metric("Parity", f"{mark} {word}".strip(), help="The worst outcome of the parity tests below.")
    cells[3].caption(plural(len(row.parity), "test"))
    saved = DASH if row.saving is None else percent(row.saving.share)
    cells[4].metric("Device time saved", saved, help=DEVICE_TIME)
    cells[4].caption("" if row.saving is None else _money(row))
    cells[5].metric("Sessions", f"{row.num_clusters:,}", help=formats.definition("units"))
    needed = row.clusters_needed
    by = "" if row.expected_at is None else f" by {formats.ahead(row.expected_at)}"
    least = "at least" if row.still_needed is not None and row.still_needed.is_least else "about"
    otherwise = "no estimate of more" if row.verdict in (Verdict.HOLD, None) else "no more needed"
    cells[5].caption(otherwise if needed is None else f"{least} {needed:,} more{by}")


def _money(row: BoardRow) -> str:
    assert row.saving is not None, "there is a saving to price"
    money = row.saving.per_million_tokens
    if money is None:
        return "no device price is set"
    return f"{money:,.2f} {source.config().dashboard.currency} per million tokens"


def _why(pulse: Pulse, row: BoardRow) -> None:
    """Why the verdict, the next step and the picture; then the gate's reason with its notes, and stale evidence."""
    now, limit = formats.now(), source.config().dashboard.stale_after
    is_stale = row.is_stale(limit, now)
    st.html(why_section.html(row, is_stale=is_stale))
    if row.evidence_at is not None and is_stale:
        st.warning(
            f"Stale: the newest evidence is of {moment(row.evidence_at)}, {formats.ago(row.evidence_at, now)}. The "
            "verdict is in force, but nothing has been checked since. Traffic, models and load may have changed.",
            icon=":material/schedule:",
        )
    decision = row.current.decision
    if decision is None:
        return
    notes = "".join(f"<li>{formats.text(note)}</li>" for note in decision_notes(decision))
    st.html(f'<p class="ss-reason">The gate\'s reason: {formats.text(row.reason)}</p><ul class="ss-notes">{notes}</ul>')
    settings = source.config().endpoints.get(row.endpoint)
    policy = None if settings is None else settings.policy
    st.html(why_section.explained_html(decision, policy, _crossings(pulse, row)))


def _crossings(pulse: Pulse, row: BoardRow) -> Crossings | None:
    """Since when each test has crossed, where the reader asks for it and records are not too many to read."""
    if row.current.measured is None or _num_records(pulse, row) > MAX_UNIT_RECORDS:
        return None
    if not st.toggle(
        "When each test crossed",
        key="crossed",
        help="Recomputes the units from the stored runs of the endpoint, for the lines below.",
    ):
        return None
    return source.crossings(pulse, row.endpoint, row.slice_key, row.concurrency, row.fingerprint)


def _num_records(pulse: Pulse, row: BoardRow) -> int:
    return sum(number for (name, _, _), number in source.funnel(pulse).items() if name == row.endpoint)


def _sequences(pulse: Pulse, row: BoardRow) -> None:
    paths = source.paths(pulse, row.endpoint, row.slice_key, row.concurrency, row.fingerprint)
    paths = {name: path for name, path in paths.items() if any(point.estimate is not None for point in path.points)}
    if not paths:
        if row.current.measured is not None:
            states.empty(
                "No confidence sequence yet",
                "No test has an estimate yet. The first look with a unit of a test draws its estimate and bounds here.",
            )
        return
    st.markdown("## Confidence sequences", help=formats.definition("sequence"))
    by_unit = _by_unit(pulse, row, paths)
    drawn = by_unit or paths
    shown = [name for name in PATH_TESTS if name in drawn]
    for first in range(0, len(shown), 2):
        for column, name in zip(st.columns(2), shown[first : first + 2], strict=False):
            chart = _path(drawn[name])
            with column:
                charts.show(
                    chart,
                    f"{title_of_test(name)}, with bounds",
                    key=f"path-{name}",
                    help_text=formats.definition("bounds"),
                )
    looks = plural(max(len(path.points) for path in paths.values()), "look")
    st.caption(
        "Recomputed from the stored runs after each unit."
        if by_unit
        else f"{looks} of the gate. A dotted line marks where the verdict changed."
    )


def _by_unit(pulse: Pulse, row: BoardRow, paths: dict[str, TestPath]) -> dict[str, TestPath]:
    """After every unit instead of after every look, where looks are few and records are not too many to read."""
    if row.current.measured is None or _num_records(pulse, row) > MAX_UNIT_RECORDS:
        return {}
    looks = max(len(path.points) for path in paths.values())
    if not st.toggle(
        "After every unit",
        value=looks < 3,
        key="by_unit",
        help="Recomputes the bounds from the stored runs of the endpoint.",
    ):
        return {}
    return source.unit_paths(pulse, row.endpoint, row.slice_key, row.concurrency, row.fingerprint, paths)


def _path(test_path: TestPath) -> Chart:
    """By the looks of the gate on the reader's clock, or by units where no look is known."""
    moments = [formats.in_zone(point.at) for point in test_path.points if point.at is not None]
    has_moments = len(moments) == len(test_path.points)
    changes = [
        (formats.in_zone(point.at), formats.mark_verdict(point.verdict))
        for point in test_path.changes[1:]  # the first is no change: it is the first look
        if point.at is not None and point.verdict is not None
    ]
    return content.path(
        test_path.name,
        test_path.points,
        test_path.threshold,
        moments=moments if has_moments else (),
        changes=changes if has_moments else (),
    )


def _forest(board: Board, row: BoardRow) -> None:
    board_endpoint = next(endpoint for endpoint in board.endpoints if endpoint.name == row.endpoint)
    rows = [
        beside
        for beside in board_endpoint.all_rows
        if (beside.concurrency, beside.fingerprint) == (row.concurrency, row.fingerprint)
    ]
    rows.sort(key=lambda beside: (beside.slice_key != "", -(beside.traffic_share or 0.0)))
    known = [row for row in rows if row.speedup is not None and row.speedup.estimate is not None]
    if not known:
        return
    shown = known[:40]
    left = len(known) - len(shown)
    note = f" The {len(shown)} with most traffic of {len(known)}." if left else ""
    st.markdown("## Slices side by side", help=f"Every slice at this load and with this config.{note}")
    height = 80 + 26 * len(shown)
    names = _label_names(shown)
    by = formats.markdown(", ".join(names) or "slice")
    axis = speedup_range(shown)
    for column, figure, title in zip(
        st.columns(2),
        ("speedup", "acceptance"),
        (f"Speedup (\u00d7) by {by}", f"{acceptance_title(of.acceptance for of in shown)} by {by}"),
        strict=True,
    ):
        chart = content.forest(
            [_forest_row(of, figure, names) for of in shown if _has(of, figure)], axis if figure == "speedup" else None
        )
        with column:
            charts.show(
                chart,
                title,
                key=f"forest-{figure}",
                help_text=formats.definition("bounds"),
                height=height,
            )


def _has(row: BoardRow, figure: str) -> bool:
    test = getattr(row, figure)
    return test is not None and test.estimate is not None


def _forest_row(row: BoardRow, figure: str, names: Sequence[str]) -> content.ForestRow:
    """A slice, named by the values of its labels where the chart's title has their names: an axis has no room."""
    full = slice_title(row.slice_key)
    label = ", ".join(row.labels.values()) if names and row.slice_key else full
    return content.ForestRow(label, full, getattr(row, figure), formats.mark_verdict(row.verdict))


def _label_names(rows: Sequence[BoardRow]) -> tuple[str, ...]:
    """The labels that name the slices of these rows; empty where slices have different ones."""
    names = {tuple(row.labels) for row in rows if row.slice_key}
    return names.pop() if len(names) == 1 else ()


def _window() -> timedelta | None:
    """How far back measured figures go, from the newest hour."""
    name = st.segmented_control(
        "Measured figures of the last",
        list(WINDOWS),
        default=DEFAULT_WINDOW,
        required=True,
        key="measured",  # not the name of another page's choice: one that is made there would come along
        bind="query-params",
        help="Event time, up to the newest measured hour. Verdicts and bounds use all evidence of the run.",
    )
    return WINDOWS[name or DEFAULT_WINDOW]

"""The rollout board: one row for each endpoint with its verdict, its bounds and its next step."""

from __future__ import annotations

from functools import cache
from html import escape
from pathlib import Path
from typing import Any

import streamlit as st
import streamlit.components.v2 as components

from shadowspec.reports.content.urgency import Severity
from shadowspec.reports.pages.board import SORTS, UNDECIDED, Board, BoardFilter, find_rows, label_values, models_of
from shadowspec.reports.pages.fleet_digest import DAY, digest
from shadowspec.store import Pulse
from shadowspec.text import plural
from shadowspec.types import Verdict

from ..parts import formats, queries, source, states
from ..parts.board_columns import COLUMNS
from ..parts.board_table import TableContext, speedup_range, table_html
from ..parts.today import today_html
from ..parts.trial_charts import TRIALS

AHEAD = (
    "embed", "vega-interpreter", "loadVegaEmbed", "ArrowVegaLiteChart", "DataFrame", "Metric", "DownloadButton",
    "Multiselect",
)  # fmt: skip
CHARTS = "loadVegaEmbed."  # the one of them that hands out what draws charts
LABEL_KEYS = 6  # slice labels that get a filter; a slice has two by default


def page() -> None:
    """One row per endpoint, expandable to its slices and loads."""
    pulse = source.pulse()
    board = source.board(pulse)
    st.markdown("# Rollout board")
    if pulse.moved_at is None and pulse.decision_id is None:
        _empty(board)
        return
    today = st.container()  # above the filters, of which it follows the owner's
    st.html(_tallies(board))
    _partial(board)
    wanted, sort = _filters(board)
    with today:
        _today(board, pulse, wanted)
    _table(board, wanted, sort)
    _legend()


def _empty(board: Board) -> None:
    names = ", ".join(endpoint.name for endpoint in board.endpoints)
    configured = f" Configured: {formats.markdown(names)}." if names else ""
    states.empty(
        "No data yet",
        "The database is empty: no record was read. For a first verdict on a model, use `shadowspec try`, which writes "
        "a report. To fill this board, measure mirrored traffic, then run the gate." + configured,
        commands=(
            "shadowspec try --target DIR --traffic FILE",
            "shadowspec run FILE   # or: shadowspec worker",
            "shadowspec gate",
        ),
    )


def _tallies(board: Board) -> str:
    tallies = board.tallies()
    cells = "".join(
        f'<div class="ss-tally ss-{formats.verdict_text(verdict).lower()}" title="{escape(formats.meaning(verdict))}">'
        f"<b>{number}</b><span>{formats.mark_verdict(verdict)}</span></div>"
        for verdict, number in tallies.items()
        if number or verdict is not None
    )
    noun = "endpoint" if len(board.endpoints) == 1 else "endpoints"
    total = (
        f'<div class="ss-tally"><b>{len(board.endpoints)}</b>'
        f"<span>{noun}, {plural(len(board.rows), 'row')}</span></div>"
    )
    sure = f'<p class="ss-fleet">{escape(board.fleet.text)}</p>' if board.fleet.num_endpoints else ""
    return f'<div class="ss-tallies" role="group" aria-label="Endpoints by verdict">{total}{cells}</div>{sure}'


def _partial(board: Board) -> None:
    """Say which endpoints nobody has judged yet: their rows show what was measured, and no more."""
    waiting = [endpoint.name for endpoint in board.endpoints if endpoint.head.verdict is None]
    if waiting:
        names = ", ".join(waiting[:5]) + (f" and {len(waiting) - 5} more" if len(waiting) > 5 else "")
        st.html(
            f'<p class="ss-partial"><b>{formats.mark_verdict(None)}</b> {plural(len(waiting), "endpoint")} '
            f"without a decision: {formats.text(names)}. Each row below gives its next step.</p>"
        )


def _today(board: Board, pulse: Pulse, wanted: BoardFilter) -> None:
    """What changed since yesterday, what needs somebody and what it costs, of the chosen owners."""
    owners = {endpoint.name: endpoint.head.owner for endpoint in board.endpoints}
    since = formats.now().replace(second=0, microsecond=0) - DAY
    found = digest(
        board,
        source.values(pulse),
        queries.changes(None, since),
        lambda name: not wanted.owners or owners.get(name, "") in wanted.owners,
    )
    html = today_html(found, source.config().dashboard.currency)
    _component()(key="board_today", data={"html": html, "open": [], "opened": [], "ahead": [], "trials": []})


def _filters(board: Board) -> tuple[BoardFilter, str]:
    """Every filter is in the address."""
    models = sorted({name for row in board.rows for name in models_of(row)})
    with st.container(horizontal=True, vertical_alignment="bottom", gap="small"):
        search = st.text_input(
            "Search", key="q", bind="query-params", placeholder="name, owner, label, reason", width=190
        )
        verdicts = st.pills(
            "Verdict",
            [*(verdict.value for verdict in Verdict), UNDECIDED],
            selection_mode="multi",
            key="verdict",
            bind="query-params",
        )
        severities = st.pills("Severity", [*Severity], selection_mode="multi", key="severity", bind="query-params")
        owners = _owners(board)
        sort = st.selectbox("Sort by", list(SORTS), key="sort", bind="query-params", width=120)
        labels: dict[str, frozenset[str]] = {}
        with st.popover("More filters", icon=":material/filter_list:"):
            names = [endpoint.name for endpoint in board.endpoints]
            endpoints = st.multiselect("Endpoint", names, key="endpoints", bind="query-params")
            chosen = st.multiselect("Model (config, target or draft)", models, key="models", bind="query-params")
            for name, values in list(label_values(board).items())[:LABEL_KEYS]:
                title = name.replace("_", " ").capitalize()
                labels[name] = frozenset(st.multiselect(title, values, key=f"label.{name}", bind="query-params"))
    wanted = BoardFilter(
        search or "",
        frozenset(endpoints),
        frozenset(verdicts),
        frozenset(chosen),
        labels,
        frozenset(owners),
        frozenset(severities),
    )
    return wanted, sort


def _owners(board: Board) -> list[str]:
    """The owners that are asked for; no filter where no endpoint names one."""
    names = sorted({row.owner for row in board.rows if row.owner})
    return st.multiselect("Owner", names, key="owner", bind="query-params", width=150) if names else []


def _table(board: Board, wanted: BoardFilter, sort: str) -> None:
    rows = find_rows(board, wanted, sort)
    if not rows.endpoints:
        states.empty("No row matches", "The filters above leave nothing. Clear one, or the search.")
        return
    settings = source.config().dashboard
    policies = {name: endpoint.policy for name, endpoint in source.config().endpoints.items()}
    context = TableContext(formats.now(), settings.stale_after, settings.currency, speedup_range(board.rows), policies)
    opened = sorted(rows.opened)
    component = _component()
    component(
        key="board_table",
        data={
            "html": table_html(rows.endpoints, context, sort),
            "open": _open(),
            "opened": opened,
            "ahead": scripts_ahead(),
            "charts": next((name for name in scripts_ahead() if name.startswith(CHARTS)), None),
            "trials": TRIALS,
        },
        on_sort_change=_sort,
        on_open_change=_keep_open,
    )
    matching = f"{plural(rows.num_rows, 'row')} of {plural(len(rows.endpoints), 'endpoint')} shown"
    st.caption(matching)


def _open() -> list[str]:
    """The endpoints whose rows the address says are shown."""
    return [name for name in (st.query_params.get("open") or "").split(",") if name]


def _keep_open() -> None:
    names = st.session_state["board_table"].open or []
    if names:
        st.query_params["open"] = ",".join(names)
    elif "open" in st.query_params:
        del st.query_params["open"]


def _sort() -> None:
    st.session_state["sort"] = st.session_state["board_table"].sort


def _legend() -> None:
    with st.expander("Meaning of the columns", icon=":material/help:"):
        st.markdown("\n".join(f"- **{column.title}**: {column.meaning}" for column in COLUMNS))


def _component() -> Any:
    return _register_table()


@cache
def scripts_ahead() -> list[str]:
    """The names of Streamlit's scripts that other pages need and this one does not, heaviest first."""
    folder = Path(st.__file__).parent / "static" / "static" / "js"
    return [path.name for stem in AHEAD for path in sorted(folder.glob(f"{stem}.*.js"))]


@cache
def _register_table() -> Any:
    """Registered once for the process: a second registration of the same name is warned of."""
    script = Path(__file__).parent.parent / "parts" / "board.js"
    return components.component("shadowspec_board", js=script.read_text(encoding="utf-8"), isolate_styles=False)

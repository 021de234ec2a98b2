"""Drift and changes: everything that changed, as one line of time, with who, what and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import timedelta

import streamlit as st

from shadowspec.reports.content.changes import Change, ChangeKind
from shadowspec.reports.content.tables import audits_table
from shadowspec.reports.pages import page_charts
from shadowspec.reports.pages.page_charts import KIND_MARKS, where_changed
from shadowspec.reports.pages.timeline import KINDS
from shadowspec.text import DASH, moment, plain_text, plural

from ..parts import charts, formats, links, queries, states
from ..parts.tables import table_html

WINDOWS: Mapping[str, int | None] = {"1 day": 1, "7 days": 7, "30 days": 30, "90 days": 90, "all": None}
EVERYWHERE = "all endpoints"
MAX_SHOWN = 500
MEANING: Mapping[ChangeKind, str] = {
    ChangeKind.VERDICT: "The verdict on a hypothesis changed.",
    ChangeKind.ALARM: "A detector, a parity fault or memory over budget ended an ENABLE; or an audit found that "
    "engine and replay differ.",
    ChangeKind.FINGERPRINT: "A config changed under the same name: weights, template, engine or another part.",
    ChangeKind.MIX: "The traffic mix has shifted since the endpoint was enabled.",
    ChangeKind.ADVICE: "Figures are lower than at ENABLE; every proven limit still holds.",
    ChangeKind.OVERRIDE: "An operator set or cleared an override, or one expired.",
    ChangeKind.ROLLOUT: "The stage, share or depth of a rollout changed.",
}


def page() -> None:
    """The timeline, filtered, and the same as a table that leads to the evidence."""
    st.markdown("# Drift and changes")
    first, second = st.columns([2, 3], vertical_alignment="bottom")
    endpoint = first.selectbox("Endpoint", [EVERYWHERE, *queries.endpoints()], key="endpoint", bind="query-params")
    window = second.segmented_control(
        "Time", list(WINDOWS), default="30 days", key="window", bind="query-params", required=True
    )
    _audits(tuple(queries.endpoints()) if endpoint == EVERYWHERE else (endpoint,))
    days = WINDOWS[window or "30 days"]
    since = None if days is None else formats.now().replace(second=0, microsecond=0) - timedelta(days=days)
    every = queries.changes(None if endpoint == EVERYWHERE else endpoint, since)
    if not every:
        states.empty(
            "No changes in this time",
            "No verdict, override or stage changed. Choose a longer time. In a new store the gate's first decisions "
            "are the first entries.",
            commands=("shadowspec gate",),
        )
        return
    counts = Counter(change.kind for change in every)
    kinds = st.pills(
        "Kinds",
        [kind.value for kind in KINDS if counts[kind]],
        selection_mode="multi",
        key="kinds",
        bind="query-params",
        help="  \n".join(f"{KIND_MARKS[kind][0]} **{kind}**: {MEANING[kind]}" for kind in KINDS),
    )
    shown = [change for change in every if not kinds or change.kind.value in kinds]
    st.caption(
        ", ".join(f"{KIND_MARKS[kind][0]} {kind.value} {counts[kind]:,}" for kind in KINDS if counts[kind])
        + (f" \u2014 the newest {MAX_SHOWN} are shown" if len(shown) > MAX_SHOWN else "")
    )
    _draw(shown[:MAX_SHOWN])
    _table(shown[:MAX_SHOWN])


def _audits(endpoints: tuple[str, ...]) -> None:
    """The audits of the loop, alarms first, and where production answers otherwise; nothing where there is none."""
    rows = [(name, row) for name, audit_row in queries.audit_rows(endpoints).items() for row in audit_row]
    alarms = [pair for pair in rows if pair[1].state.has_alarmed]
    if alarms:
        st.error(
            f"{plural(len(alarms), 'engine audit')} failed: the engine's acceptance differs from replay's "
            f"expectation, so that "
            "one of them is wrong. An override HOLD keeps speculation off until an operator clears it.",
            icon=":material/error:",
        )
    if rows:
        with st.expander(f"Audits of the engine ({len(rows)})", expanded=bool(alarms)):
            others = (pair for pair in rows if not pair[1].state.has_alarmed)
            st.html(table_html(audits_table([*alarms, *others])))


def _draw(shown: Sequence[Change]) -> None:
    chart = page_charts.changes_by_endpoint(shown, formats.in_zone)
    charts.show(
        chart,
        "Changes by endpoint (each mark one change)",
        key="timeline",
        help_text="Changes by the gate, an operator or the rollout; hover for author and reason.",
        height=max(210, min(46 * len(chart.y.names) + 110, 520)),
    )


def _table(shown: Sequence[Change]) -> None:
    st.dataframe(
        charts.frame(
            [
                {
                    "When": formats.in_zone(change.at),
                    "Kind": f"{KIND_MARKS[change.kind][0]} {change.kind}",
                    "What": plain_text(change.what),
                    "Where": where_changed(change),
                    "Config": DASH if change.config_name is None else plain_text(change.config_name),
                    "Who": plain_text(change.who),
                    "Why": plain_text(change.why),
                    "Evidence": _evidence(change),
                    "UTC": moment(change.at),
                }
                for change in shown
            ]
        ),
        hide_index=True,
        height=min(480, 38 + 35 * len(shown)),
        key="changes",
        column_config={
            "When": st.column_config.DatetimeColumn(format="YYYY-MM-DD HH:mm", help="On your clock; UTC at the end."),
            "What": st.column_config.TextColumn(width=220),
            "Evidence": st.column_config.LinkColumn(display_text="open", help="The hypothesis that changed."),
            "Why": st.column_config.TextColumn(width="large"),
        },
    )


def _evidence(change: Change) -> str | None:
    if change.fingerprint is None or change.decision_id is None:
        return None
    return links.address(
        "evidence", endpoint=change.endpoint, slice=change.slice_key, load=change.concurrency, config=change.fingerprint
    )

"""Drift and changes: everything that changed, as one line of time, with who, what and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import timedelta

import altair as alt
import streamlit as st

from shadowspec.reports.content.changes import Change, ChangeKind
from shadowspec.reports.content.tables import audits_table
from shadowspec.reports.pages.timeline import KINDS
from shadowspec.text import DASH, moment, plain_text, plural, slice_title

from ..parts import charts, formats, links, queries, states
from ..parts.tables import table_html

WINDOWS: Mapping[str, int | None] = {"1 day": 1, "7 days": 7, "30 days": 30, "90 days": 90, "all": None}
EVERYWHERE = "all endpoints"
MAX_SHOWN = 500
# Word, shape and colour of each kind; the same in the chart and in the table.
SHAPES: Mapping[ChangeKind, tuple[str, str, str]] = {
    ChangeKind.VERDICT: ("\u25cf", "circle", charts.BLUE),
    ChangeKind.ALARM: ("\u25b2", "triangle-up", charts.VERMILION),
    ChangeKind.FINGERPRINT: ("\u2716", "cross", charts.PURPLE),
    ChangeKind.MIX: ("\u25bc", "triangle-down", charts.ORANGE),
    ChangeKind.ADVICE: ("\u25b7", "triangle-right", charts.SKY),
    ChangeKind.OVERRIDE: ("\u25a0", "square", charts.GREY),
    ChangeKind.ROLLOUT: ("\u25c6", "diamond", charts.GREEN),
}
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
        help="  \n".join(f"{SHAPES[kind][0]} **{kind}**: {MEANING[kind]}" for kind in KINDS),
    )
    shown = [change for change in every if not kinds or change.kind.value in kinds]
    st.caption(
        ", ".join(f"{SHAPES[kind][0]} {kind.value} {counts[kind]:,}" for kind in KINDS if counts[kind])
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
    rows = [
        {
            "at": formats.in_zone(change.at),
            "endpoint": plain_text(change.endpoint),
            "kind": change.kind.value,
            "what": plain_text(change.what),
            "where": _where(change),
            "who": plain_text(change.who),
            "why": plain_text(change.why)[:200],
            "utc": moment(change.at),
        }
        for change in shown
    ]
    is_long = bool(shown) and max(change.at for change in shown) - min(change.at for change in shown) > timedelta(
        days=3
    )
    kinds = [kind for kind in KINDS if any(change.kind is kind for change in shown)]
    names = [kind.value for kind in kinds]
    chart = (
        alt.Chart(charts.frame(rows))
        .mark_point(filled=True, size=110, opacity=0.9)
        .encode(
            x=alt.X("at:T", title="time (your clock)", axis=charts.DAYS if is_long else charts.HOURS),
            y=alt.Y("endpoint:N", title="endpoint", axis=alt.Axis(labelLimit=140)),
            yOffset=alt.YOffset("kind:N"),
            color=alt.Color(
                "kind:N",
                title="kind",
                legend=charts.BELOW,
                scale=alt.Scale(domain=names, range=[SHAPES[kind][2] for kind in kinds]),
            ),
            shape=alt.Shape(
                "kind:N",
                title="kind",
                legend=charts.BELOW,
                scale=alt.Scale(domain=names, range=[SHAPES[kind][1] for kind in kinds]),
            ),
            tooltip=[
                alt.Tooltip("utc:N", title="when"),
                alt.Tooltip("where:N", title="where"),
                alt.Tooltip("what:N", title="what"),
                alt.Tooltip("who:N", title="who"),
                alt.Tooltip("why:N", title="why"),
            ],
        )
    )
    endpoints = len({change.endpoint for change in shown})
    charts.show(
        chart,
        "Changes by endpoint (each mark one change)",
        key="timeline",
        alt_text=f"Timeline of {len(shown)} changes at {endpoints} endpoints",
        help_text="Changes by the gate, an operator or the rollout; hover for author and reason.",
        height=max(210, min(46 * endpoints + 110, 520)),
    )


def _table(shown: Sequence[Change]) -> None:
    st.dataframe(
        charts.frame(
            [
                {
                    "When": formats.in_zone(change.at),
                    "Kind": f"{SHAPES[change.kind][0]} {change.kind}",
                    "What": plain_text(change.what),
                    "Where": _where(change),
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


def _where(change: Change) -> str:
    load = "" if change.concurrency is None else f" at load {change.concurrency}"
    return plain_text(f"{change.endpoint}: {slice_title(change.slice_key)}{load}")


def _evidence(change: Change) -> str | None:
    if change.fingerprint is None or change.decision_id is None:
        return None
    return links.address(
        "evidence", endpoint=change.endpoint, slice=change.slice_key, load=change.concurrency, config=change.fingerprint
    )

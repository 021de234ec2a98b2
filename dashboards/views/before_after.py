"""Before and after each enabling: what the mirror measured around the moment, and what production itself counted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

import streamlit as st

from shadowspec.reports.pages import before_after, page_charts
from shadowspec.reports.pages.before_after import QUANTILES, ArmQuantiles, Enabling, HourPoint, PeriodFigures
from shadowspec.store import GroupSums
from shadowspec.store.histograms import MAX_RELATIVE_ERROR
from shadowspec.text import DASH, milliseconds, number, percent, plain_text, slice_title
from shadowspec.types import Arm

from ..parts import charts, formats, links, queries, states
from ..parts.live_section import live_section

EVERYWHERE = "all endpoints"
SPANS: Mapping[str, timedelta] = {"1 day": timedelta(days=1), "3 days": timedelta(days=3), "7 days": timedelta(days=7)}


def page() -> None:
    """One enabling at a time, the moment marked."""
    st.markdown("# Before and after")
    endpoint = st.selectbox("Endpoint", [EVERYWHERE, *queries.endpoints()], key="endpoint", bind="query-params")
    enablings = before_after.enablings(
        queries.verdict_changes(None if endpoint == EVERYWHERE else endpoint, None), queries.configs()
    )
    if not enablings:
        states.empty(
            "No ENABLE yet",
            "Each ENABLE decision appears here, with throughput, latency and request rate before and after it. "
            "The board shows the next step of each endpoint.",
        )
        return
    first, second = st.columns([4, 2], vertical_alignment="bottom")
    titles = {f"{enabling.decision_id}": enabling for enabling in enablings}
    ids, asked = list(titles), links.query_value("decision")
    chosen = first.selectbox(
        "Enabling",
        ids,
        index=ids.index(asked) if asked in ids else 0,
        format_func=lambda item: _title(titles[item]),
        key="enabling",
    )
    st.query_params["decision"] = chosen  # its title is written on the viewer's clock, and no address
    span = second.segmented_control(
        "Around it", list(SPANS), default="3 days", key="around", bind="query-params", required=True
    )
    _show(titles[chosen], SPANS[span or "3 days"])


def _title(enabling: Enabling) -> str:
    where = plain_text(f"{enabling.endpoint}: {slice_title(enabling.slice_key)} at load {enabling.concurrency}")
    return f"{formats.local(enabling.decided_at)} \u00b7 {where} \u00b7 {plain_text(enabling.config_name)}"


def _show(enabling: Enabling, span: timedelta) -> None:
    start = enabling.marked_at.replace(minute=0, second=0, microsecond=0)
    slice_key = enabling.slice_key or None
    groups = before_after.own_groups(
        queries.group_sums(enabling.endpoint, start - span, start + span, step="hour", slice_key=slice_key), enabling
    )
    address = links.address(
        "evidence",
        endpoint=enabling.endpoint,
        slice=enabling.slice_key,
        load=enabling.concurrency,
        config=enabling.fingerprint,
    )
    st.caption(
        f"Enabled {formats.local(enabling.decided_at)} by the gate: {plain_text(enabling.reason)}. "
        f"[Evidence]({address})"
    )
    if not groups:
        states.empty(
            "No requests around this moment",
            "No request of this slice, load and config was measured in this time. Choose a longer span.",
        )
    else:
        if enabling.marked_at != enabling.decided_at:
            st.info(
                f"The evidence ends at {formats.local(enabling.marked_at)}, before the gate's look. The mark is "
                f"there, in "
                "event time.",
                icon=":material/schedule:",
            )
        _periods(groups, start)
        _hours(before_after.hour_points(groups), enabling)
        _quantiles(enabling, start, span)
    live_section(enabling, span)


def _periods(groups: Sequence[GroupSums], start: datetime) -> None:
    before = before_after.period(
        [group for group in groups if group.start is not None and group.start < start], is_after=False
    )
    after = before_after.period(
        [group for group in groups if group.start is not None and group.start >= start], is_after=True
    )
    columns = st.columns(3)
    cells: tuple[tuple[str, float | None, float | None, str], ...] = (
        ("Requests per hour", before.requests_per_hour, after.requests_per_hour, _REQUESTS),
        ("Tokens per second, baseline", before.baseline_tokens_per_s, after.baseline_tokens_per_s, _THROUGHPUT),
        (
            "Tokens per second, speculative",
            before.speculative_tokens_per_s,
            after.speculative_tokens_per_s,
            _THROUGHPUT,
        ),
    )
    for column, (title, old, new, text) in zip(columns, cells, strict=True):
        change = None if old is None or new is None else f"{number(new - old)} since before"
        column.metric(f"{title}, after", number(new), change, delta_color="off", help=f"{text} Before: {number(old)}.")
    st.caption(f"{_count_text(before)} before, {_count_text(after)} after.")


_REQUESTS = "Requests of the traffic: measured requests, weighted by the inverse of their sampling rate."
_THROUGHPUT = "Output tokens of a request over its end-to-end time in the shadow, pooled."


def _count_text(period: PeriodFigures) -> str:
    return f"{period.num_requests:,} requests measured"


def _hours(points: Sequence[HourPoint], enabling: Enabling) -> None:
    """Both arms' latency and requests per hour, the moment marked in each."""
    charts.show(
        page_charts.latency_by_hour(points, enabling.marked_at, formats.in_zone),
        "Mean end-to-end time by hour (ms), both arms in the shadow",
        key="latency-by-hour",
        help_text="Prefill and decode of the arm. Both arms are measured before and after ENABLE.",
        height=300,
    )
    charts.show(
        page_charts.rate_by_hour(points, enabling.marked_at, formats.in_zone),
        "Request rate (requests per hour)",
        key="rate-by-hour",
        help_text=_REQUESTS,
        height=230,
    )


def _quantiles(enabling: Enabling, start: datetime, span: timedelta) -> None:
    slice_key = enabling.slice_key or None
    quantiles = [
        before_after.arm_quantiles(
            arm,
            queries.histogram(
                enabling.endpoint, f"{arm}_end_to_end_ms", slice_key, enabling.fingerprint, enabling.concurrency, *hours
            ),
            is_after=is_after,
        )
        for arm in Arm
        for is_after, hours in ((False, (start - span, start)), (True, (start, start + span)))
    ]
    st.markdown(
        "**End-to-end time (ms)**",
        help=f"{formats.definition('end-to-end')} Bins are 5% wide, so that a quantile is wrong by at most "
        f"{percent(MAX_RELATIVE_ERROR)}. It needs at least 1 / (1 - p) requests.",
    )
    st.dataframe(charts.frame([_quantile_row(quantile) for quantile in quantiles]), hide_index=True)


def _quantile_row(quantiles: ArmQuantiles) -> dict[str, str]:
    cells = {
        f"p{100 * share:g}": DASH if (value := quantiles.quantiles[share]) is None else milliseconds(value.estimate)
        for share in QUANTILES
    }
    when = "after" if quantiles.is_after else "before"
    return {"Arm": str(quantiles.arm), "When": when, "Requests": f"{quantiles.num_requests:,}", **cells}

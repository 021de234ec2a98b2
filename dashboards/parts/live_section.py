"""The counters of production's engines before and after an enabling, from live evidence."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import streamlit as st

from shadowspec.reports.pages import page_charts
from shadowspec.reports.pages.before_after import Enabling
from shadowspec.reports.pages.live_production import SHARES, LivePeriod
from shadowspec.store import Quantile
from shadowspec.text import DASH, milliseconds, number, percent, plural
from shadowspec.types import COMPUTE, END_TO_END, FIRST_TOKEN, LATENCIES, PER_TOKEN, QUEUE
from shadowspec.types.memory_pressure import MemoryPressure

from . import charts, formats, queries, states

MS_PER_S = 1_000.0
TITLES = {
    END_TO_END: "End to end",
    QUEUE: "Queue, a part of it",
    COMPUTE: "Compute, a part of it",
    FIRST_TOKEN: "Time to first token",
    PER_TOKEN: "Time per output token",
}
PRESSURE: dict[str, Callable[[MemoryPressure], str]] = {
    "KV cache in use, median": lambda pressure: percent(pressure.kv_use_median, 0),
    "KV cache in use, 95% of readings": lambda pressure: percent(pressure.kv_use_p95, 0),
    "KV cache in use, highest": lambda pressure: percent(pressure.kv_use_highest, 0),
    "Requests waiting, 95% of readings": lambda pressure: number(pressure.waiting_p95, 0),
    "Preemptions per thousand requests": lambda pressure: number(pressure.preemptions_per_thousand),
}


def live_section(enabling: Enabling, span: timedelta) -> None:
    """Production around the moment: all of the endpoint, at every slice and load."""
    production = queries.production(enabling.endpoint, enabling.decided_at, span)
    st.markdown("**Production**", help=_MEANING)
    if production is None:
        states.empty(
            "No counters of production yet",
            "The figures above come from the mirror: the same prompts in both arms. Only the serving engine's "
            "metrics show "
            "its **throughput, p50/p95/p99, request rate and prefix-cache hit rate**, and none were read for this "
            "time. "
            "Name their addresses in `[endpoints.NAME.live]`; `shadowspec schedule` reads them.",
        )
        return
    if production.switched_on is None:
        st.info(
            "Production has counted no draft since ENABLE. Has the exported configuration been applied?",
            icon=":material/info:",
        )
    else:
        st.caption(
            "Production counted its first draft after ENABLE in the window from "
            f"{formats.local(production.switched_on)}."
        )
    st.dataframe(charts.frame(_rows(production.before, production.after)), hide_index=True)
    st.caption(f"{_count_text(production.before)} before, {_count_text(production.after)} after.")
    moment = production.switched_on or enabling.decided_at
    chart = page_charts.live_throughput(production.points, moment, formats.in_zone)
    if chart is not None:
        title = "Output tokens per second in production"
        charts.show(chart, title, key="live-throughput", help_text=_MEANING, height=230)


_MEANING = (
    "Counters of the production engines for the whole endpoint, with any slice enabled. Other traffic, another day or "
    "other machines change them too: before and after are not paired, as the arms above are. Quantiles are "
    "interpolated "
    "within the bin of the engine's histogram. Those of queue and compute do not add up to the end-to-end quantile."
)


def _rows(before: LivePeriod, after: LivePeriod) -> list[dict[str, str]]:
    rows: list[tuple[str, ...]] = [
        ("Output tokens per second", number(before.output_tokens_per_s), number(after.output_tokens_per_s)),
        ("Requests per second", number(before.requests_per_s), number(after.requests_per_s)),
        *(
            (title, *(DASH if side.pressure is None else read(side.pressure) for side in (before, after)))
            for title, read in PRESSURE.items()
            if before.pressure is not None or after.pressure is not None
        ),
        ("Prefix-cache hit rate", percent(before.cache_hit_rate), percent(after.cache_hit_rate)),
        *(
            (f"{TITLES[name]}, p{100 * share:g}", _time(before, name, share), _time(after, name, share))
            for name in LATENCIES
            for share in SHARES
        ),
        (
            "Acceptance at the first position",
            percent(before.first_position_acceptance_rate),
            percent(after.first_position_acceptance_rate),
        ),
        ("Mean acceptance length", number(before.mean_acceptance_length), number(after.mean_acceptance_length)),
    ]
    return [{"Production": name, "Before": old, "After": new} for name, old, new in rows]


def _time(period: LivePeriod, name: str, share: float) -> str:
    quantile: Quantile | None = period.latencies.get(name, {}).get(share)
    if quantile is None:
        return DASH
    text = milliseconds(quantile.estimate * MS_PER_S)
    return text if quantile.upper != float("inf") else f"above {text}"


def _count_text(period: LivePeriod) -> str:
    words = plural(period.num_windows, "window")
    if period.num_requests is not None:
        words += f" with {period.num_requests:,} requests"
    if period.num_resets:
        words += f", {plural(period.num_resets, 'restart')}"
    if period.num_failed_scrapes:
        words += f", {period.num_failed_scrapes:,} readings failed"
    return words

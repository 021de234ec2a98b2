"""What every page shows at its top: what the data is, how fresh it is, where the records ended, and orders in force.

It is also the heartbeat of an open page: it looks for news at the configured pace, and only where there is any is the
page redrawn in place.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from html import escape

import streamlit as st

from shadowspec.config import DashboardSettings
from shadowspec.gate.verdict.current_decision import is_stale
from shadowspec.gate.verdict.current_verdict import active
from shadowspec.reports.content.definitions import COUNTER_MEANING
from shadowspec.reports.content.notes import data_note, order_note
from shadowspec.store import Pulse
from shadowspec.text import percent, plural
from shadowspec.types import FingerprintedConfig, FunnelCounter, FunnelKey, Override

from . import access, formats, queries, source, states

MAX_ENGINES = 2  # named in the strip; its tooltip names all
SEEN = "pulse_drawn"  # in the session: what the page on the screen was drawn of
COUNTER_COLOUR = {
    FunnelCounter.MEASURED: "#009E73",
    FunnelCounter.FAILED: "#D55E00",
    FunnelCounter.SAMPLED_OUT: "#9AA5B1",
    FunnelCounter.SHED: "#E69F00",
    FunnelCounter.UNSUPPORTED: "#CC79A7",
    FunnelCounter.MALFORMED: "#882255",
    FunnelCounter.DUPLICATE: "#56B4E9",
    FunnelCounter.EXPIRED: "#B5A642",
}


def header(settings: DashboardSettings) -> None:
    """Draw it, and go on looking for news."""
    st.session_state[SEEN] = source.pulse()
    st.fragment(_beat, run_every=settings.refresh_s)(settings)


def _beat(settings: DashboardSettings) -> None:
    with states.show_errors():
        if not access.is_admitted():  # a login ends while the page is open
            st.rerun()
        pulse = source.pulse()
        if pulse != st.session_state[SEEN]:
            st.rerun()
        now = formats.now()
        st.html(_strip(pulse, source.funnel(pulse), settings, now))
        orders = active(source.overrides(pulse), now)
        if orders:
            st.html(_orders(orders))


def _strip(pulse: Pulse, funnel: Mapping[FunnelKey, int], settings: DashboardSettings, now: datetime) -> str:
    totals: Counter[FunnelCounter] = Counter()
    for (_, counter, _), number in funnel.items():
        totals[counter] += number
    records = sum(totals.values())
    note = data_note(queries.configs().values(), settings.data_note or "")
    parts = [f'<span class="ss-muted">{escape(note)}</span>'] if note else []
    parts += _engines(queries.configs().values())
    parts += _freshness(pulse, settings, now)
    if records:
        parts += [f"<span><b>{records:,}</b> records read</span>", _bar(totals, records), _legend(totals, records)]
    return f'<div class="ss-header" role="group" aria-label="Freshness and funnel">{"".join(parts)}</div>'


def _engines(configs: Iterable[FingerprintedConfig]) -> list[str]:
    """The engine that measured all latency of the page; of several engines, each row's evidence names its engine."""
    places = sorted({(config.engine, config.device, config.dtype) for config in configs})
    said = [f"{engine} on {device}, {dtype}" for engine, device, dtype in places]
    more = f" and {len(said) - MAX_ENGINES} more" if len(said) > MAX_ENGINES else ""
    shown = f"{formats.text('; '.join(said[:MAX_ENGINES]))}{more}"
    return [f'<span title="{formats.text("; ".join(said))}">latency measured on {shown}</span>'] if said else []


def _orders(orders: Sequence[Override]) -> str:
    lines = "".join(
        f'<div title="{formats.text(order_note(order))}"><b>{formats.text(order.endpoint)}</b> '
        f"{formats.text(order_note(order, formats.local))}</div>"
        for order in orders
    )
    title = plural(len(orders), "override") + " in force"
    return f'<div class="ss-orders" role="status" tabindex="0"><b>\u25a0 {title}</b>{lines}</div>'


def _freshness(pulse: Pulse, settings: DashboardSettings, now: datetime) -> list[str]:
    moved, decided, event = pulse.moved_at, pulse.decided_at, pulse.newest_event
    if moved is None:
        return ["<span>no records read yet</span>"]
    stale = is_stale(moved, settings.stale_after, now)
    flag = ' <span class="ss-flag">stale</span>' if stale else ""
    parts = [f"<span>measured {formats.time_html(moved, formats.ago(moved, now))}{flag}</span>"]
    ago = "not decided yet" if decided is None else f"decided {formats.time_html(decided, formats.ago(decided, now))}"
    parts.append(f"<span>{ago}</span>")
    if event is not None:
        parts.append(f"<span>traffic up to {formats.time_html(event)}</span>")
    return parts


def _bar(totals: Mapping[FunnelCounter, int], records: int) -> str:
    pieces = "".join(
        f'<i style="width:{100 * totals[counter] / records:.2f}%;background:{COUNTER_COLOUR[counter]}" '
        f'title="{_said(counter, totals[counter], records)}"></i>'
        for counter in FunnelCounter
        if totals[counter]
    )
    label = ", ".join(f"{_word(counter)} {totals[counter]:,}" for counter in FunnelCounter if totals[counter])
    return f'<div class="ss-funnel" role="img" aria-label="Where the records ended: {label}">{pieces}</div>'


def _legend(totals: Mapping[FunnelCounter, int], records: int) -> str:
    entries = "".join(
        f'<span style="--c:{COUNTER_COLOUR[counter]}" title="{_said(counter, totals[counter], records)}">'
        f"{_word(counter)} {totals[counter]:,}</span>"
        for counter in FunnelCounter
        if totals[counter]
    )
    return f'<div class="ss-legend">{entries}</div>'


def _said(counter: FunnelCounter, number: int, records: int) -> str:
    return f"{plural(number, 'record')}, {percent(number / records)}: {escape(COUNTER_MEANING[counter])}"


def _word(counter: FunnelCounter) -> str:
    return counter.value.replace("_", " ")

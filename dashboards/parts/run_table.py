"""Single requests as a table: counts and timings, newest first, to look at and to take away."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import streamlit as st

from shadowspec.metrics import ratio
from shadowspec.store import RunFilter
from shadowspec.text import plain_text, plural, slice_title

from . import charts, downloads, formats, queries, source, states

MAX_SHOWN_RUNS = 200


def draw(endpoint: str, since: datetime | None) -> None:
    """The newest requests of one slice, load and config: counts and timings, to look at and to take away."""
    st.markdown("## Requests", help="Counts and timings of single requests. No text is stored; hashes are cut short.")
    groups, configs = queries.group_sums(endpoint, since), queries.configs()
    slices, loads, used = (
        sorted({getattr(group, name) for group in groups}) for name in ("slice_key", "concurrency", "fingerprint")
    )
    columns = st.columns([3, 1, 2])
    slice_key = columns[0].selectbox(
        "Slice",
        [None, *slices],
        format_func=lambda key: "all slices" if key is None else plain_text(slice_title(key)),
        key="run_slice",
        bind="query-params",
    )
    load = columns[1].selectbox(
        "Load",
        [None, *loads],
        format_func=lambda item: "all" if item is None else str(item),
        key="run_load",
        bind="query-params",
    )
    config = columns[2].selectbox(
        "Config",
        [None, *used],
        format_func=lambda item: (
            "all"
            if item is None
            else f"{configs[item].config.name} \u00b7 {item[:8]}"
            if item in configs
            else item[:12]
        ),
        key="run_config",
        bind="query-params",
    )
    wanted = RunFilter(endpoint, slice_key, load, config, since)
    page = source.store().run_page(wanted, limit=MAX_SHOWN_RUNS)
    if not page.rows:
        states.empty(
            "No single requests to list",
            "No request matches, or `shadowspec db retain` has removed them: rollups stay in the store, single "
            "requests "
            f"do not. The newest {page.num_walked:,} runs were searched; choose another slice, load, config or time.",
        )
        return
    st.dataframe(
        charts.frame([_shown_run(row) for row in page.rows]),
        hide_index=True,
        height=min(320, 38 + 35 * len(page.rows)),
        column_config=_RUN_COLUMNS,
        key="runs",
    )
    more = page.next_place is not None
    st.caption(
        f"{plural(len(page.rows), 'request')}, newest first{'; there are more' if more else ''}. "
        f"{plural(page.num_walked, 'run')} searched."
    )
    downloads.buttons(wanted)


def _shown_run(row: Mapping[str, Any]) -> dict[str, Any]:
    baseline, speculative = (
        None if row[f"{arm}_decode_ms"] is None else row[f"{arm}_prefill_ms"] + row[f"{arm}_decode_ms"]
        for arm in ("baseline", "speculative")
    )
    return {
        "time": formats.in_zone(row["event_time"]),
        "slice": plain_text(slice_title(row["slice_key"])) if row["slice_key"] else "",
        "load": row["concurrency"],
        "prompt_tokens": row["num_prompt_tokens"],
        "output_tokens": row["num_output_tokens"],
        "steps": row["num_drafts"],
        "drafted": row["num_draft_tokens"],
        "accepted": row["num_accepted_tokens"],
        "baseline_ms": baseline,
        "speculative_ms": speculative,
        "speedup": ratio(baseline, speculative) if baseline and speculative else None,
        "failure": row["failure"] or "",
        "finish": row["finish_reason"] or "",
        "place": f"{row['source']}[{row['source_partition']}]@{row['source_offset']}",
        "config": row["fingerprint"],
    }


_RUN_COLUMNS: dict[str, Any] = {
    "time": st.column_config.DatetimeColumn("Time", format="YYYY-MM-DD HH:mm:ss", help="Event time, on your clock."),
    "slice": "Slice",
    "load": st.column_config.NumberColumn("Load", help="Concurrent requests in the shadow."),
    "prompt_tokens": st.column_config.NumberColumn("Prompt tokens"),
    "output_tokens": st.column_config.NumberColumn("Output tokens"),
    "steps": st.column_config.NumberColumn("Steps", help="Propose-and-verify steps (num_drafts)."),
    "drafted": st.column_config.NumberColumn("Drafted"),
    "accepted": st.column_config.NumberColumn("Accepted"),
    "baseline_ms": st.column_config.NumberColumn("Baseline, ms", format="%.1f", help="Prefill and decode."),
    "speculative_ms": st.column_config.NumberColumn("Speculative, ms", format="%.1f"),
    "speedup": st.column_config.NumberColumn("Speedup", format="%.2f\u00d7"),
    "failure": "Failure",
    "finish": "Finish",
    "place": st.column_config.TextColumn("Place", help="Source (cut short), partition and offset or line."),
    "config": st.column_config.TextColumn("Fingerprint", help="Cut short."),
}

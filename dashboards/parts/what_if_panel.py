"""The what-if: thresholds, price and share to move, and what the stored evidence then says.  It stores nothing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import timedelta

import streamlit as st

from shadowspec.errors import NoDataError
from shadowspec.gate.policy import GatePolicy
from shadowspec.gate.verdict.figure_texts import bounds_text, shown_as, threshold_text, title_of
from shadowspec.reports.figures.token_costs import DeviceTime, device_time, saved_per_month
from shadowspec.reports.pages.load_cells import config_title
from shadowspec.reports.pages.what_if import MAX_MARGIN, WhatIf, what_if
from shadowspec.store import GroupSums
from shadowspec.text import DASH, number, plain_text
from shadowspec.types import Arm, Decision

from . import charts, formats, queries, source, states

MONTH = timedelta(days=30)
MAX_PRICE = 20.0  # of the slider, per GPU-hour; more is typed into the configuration


def draw(endpoint: str, slice_key: str, cells: Sequence[Decision], policy: GatePolicy) -> None:
    """The sliders, the verdict under them, each test, and what it would save."""
    st.markdown("## What if")
    st.warning(
        "**Not a decision.** The page recomputes the verdict from stored evidence; it stores and exports nothing. A "
        "threshold chosen after looking at the data proves nothing.",
        icon=":material/science:",
    )
    chosen = _chosen(cells)
    if chosen is None:
        states.empty(
            "No decision to vary yet", "The gate has not decided on any config here.", commands=("shadowspec gate",)
        )
        return
    changed = _thresholds(policy)
    current_decision = {decision.decision_id: decision for decision in queries.decisions(endpoint)}[chosen.decision_id]
    measured = next(
        measured_decision
        for measured_decision in queries.measured_decisions(endpoint)
        if measured_decision.decision_id == chosen.decision_id
    )
    evidence = queries.slice_evidence(endpoint, slice_key)
    try:
        config, evaluations = queries.configs()[chosen.fingerprint], queries.evaluations(endpoint)
        answer = what_if(measured, evidence, config, policy, changed, evaluations)
    except NoDataError as error:
        states.empty("No stored evidence", f"{error}.", commands=("shadowspec gate",))
        return
    _verdicts(current_decision, answer)
    _tests(answer)
    _savings(endpoint, slice_key, chosen, policy.device_price_per_hour)


def _chosen(cells: Sequence[Decision]) -> Decision | None:
    by_depth: dict[str, list[Decision]] = {}
    for cell in cells:
        by_depth.setdefault(config_title(cell), []).append(cell)
    if not by_depth:
        return None
    first, second = st.columns(2)
    config = _pick(first, "K and config (measured)", list(by_depth), "k")
    loads = {str(cell.concurrency): cell for cell in by_depth[config]}
    load = _pick(second, "Load (measured)", list(loads), "load")
    return loads[load]


def _pick(column: st.delta_generator.DeltaGenerator, label: str, options: list[str], key: str) -> str:
    """A slider over what was measured; a slider of one place would be none."""
    if len(options) == 1:
        column.markdown(f"{label}  \n**{options[0]}**")
        return options[0]
    return column.select_slider(label, options, key=key, bind="query-params")


def _thresholds(policy: GatePolicy) -> dict[str, float]:
    """The thresholds to try; the policy's where nothing is moved."""
    columns = st.columns(3)
    margin = columns[0].slider(
        "Speedup to prove (margin), %",
        0.0,
        100 * MAX_MARGIN,
        min(100 * policy.margin, 100 * MAX_MARGIN),
        0.5,
        key="margin",
        bind="query-params",
        help="The gate must prove a speedup above 1 + margin.",
    )
    floor = columns[1].slider(
        "Acceptance to prove (floor), %", 1.0, 99.0, 100 * policy.floor, 0.5, key="floor", bind="query-params"
    )
    tail = columns[2].slider(
        "Slowed requests allowed (tail_share), %",
        0.5,
        50.0,
        min(100 * policy.tail_share, 50.0),
        0.5,
        key="tail",
        bind="query-params",
        help=f"Share of requests that may be slowed by over {100 * policy.tail_margin:g}%.",
    )
    return {"margin": margin / 100, "floor": floor / 100, "tail_share": tail / 100}


def _verdicts(current_decision: Decision, answer: WhatIf) -> None:
    cards = (
        ("In force", current_decision, "`check` and `export` act on this verdict; overrides are included."),
        (
            "Today's figures, policy in force",
            answer.today,
            "The same evidence, judged again under the policy in force.",
        ),
        ("Today's figures, thresholds tried", answer.tried, "The same evidence under the sliders. Not a decision."),
    )
    for column, (title, decision, text) in zip(st.columns(3), cards, strict=True):
        with column.container(border=True):
            st.markdown(f"**{title}**", help=text)
            st.html(formats.verdict_html(decision.verdict))
            st.caption(plain_text(decision.reason))


def _tests(answer: WhatIf) -> None:
    before = {test.name: test for test in answer.today.tests}
    rows = [
        {
            "Test": title_of(test),
            "Estimate": shown_as(test.name)(test.estimate),
            "Bounds": bounds_text(test),
            "In force": threshold_text(before[test.name]) if test.name in before else DASH,
            "Tried": threshold_text(test),
            "Outcome in force": before[test.name].outcome if test.name in before else DASH,
            "Outcome tried": test.outcome,
        }
        for test in answer.tried.tests
    ]
    st.dataframe(
        charts.frame(rows),
        hide_index=True,
        column_config={
            "Bounds": st.column_config.TextColumn(
                help=formats.definition("bounds") + " A threshold between two points of the stored grid is "
                "rounded to the safe side."
            )
        },
    )


def _savings(endpoint: str, slice_key: str, chosen: Decision, policy_price: float | None) -> None:
    """What speculation saves at a price, from measured device time."""
    settings = source.config().dashboard
    known_price = settings.price_per_gpu_hour or policy_price or 0.0
    hours = queries.hours(endpoint)
    st.markdown("**Cost**", help="A request at load b holds 1/b of the device for its end-to-end time.")
    first, second = st.columns(2)
    price = first.slider(
        f"Price per GPU-hour, {settings.currency}",
        0.0,
        max(MAX_PRICE, float(math.ceil(known_price))),
        known_price,
        0.05,
        key="price",
        bind="query-params",
        help="The default is `[dashboard] price_per_gpu_hour`, else the policy's `device_price_per_hour`.",
    )
    share = second.slider(
        "Share of the traffic served with speculation, %", 0, 100, 100, 5, key="share", bind="query-params"
    )
    since = None if hours is None else hours[1] + timedelta(hours=1) - MONTH
    groups = [group for group in queries.group_sums(endpoint, since) if _is_of(group, slice_key, chosen)]
    time = device_time(groups)
    if time.seconds_per_million(Arm.BASELINE) is None or hours is None:
        st.caption("No request was timed in the last 30 days of traffic, so that no device time is known.")
        return
    if not price:
        _device_time(time)
        return
    saved = time.saved_per_million(price)
    begin = hours[0] if since is None else max(hours[0], since)
    span_h = (hours[1] - begin) / timedelta(hours=1) + 1
    month = saved_per_month(time, span_h, share / 100, price)
    columns = st.columns(4)
    unit = f"{settings.currency} per million output tokens"
    columns[0].metric("Baseline", number(time.cost_per_million(Arm.BASELINE, price)))
    columns[1].metric("Speculative", number(time.cost_per_million(Arm.SPECULATIVE, price)))
    columns[2].metric("Saved", number(saved), help="Below 0, speculation costs more.")
    columns[3].metric(
        "Saved per month",
        number(month, 0),
        help=f"Extrapolated from {span_h:,.0f} hours of mirrored traffic.",
    )
    for column, said in zip(columns, (unit, unit, unit, settings.currency), strict=True):
        column.caption(said)
    st.caption(
        f"From the device time of the last 30 days of traffic at load {chosen.concurrency} with "
        f"{plain_text(chosen.config.name)}, on the engine that measured. Another engine has other times."
    )


def _device_time(time: DeviceTime) -> None:
    baseline, speculative = (time.seconds_per_million(arm) for arm in Arm)
    columns = st.columns(3)
    columns[0].metric("Baseline", f"{number(baseline, 0)} s")
    columns[1].metric("Speculative", f"{number(speculative, 0)} s")
    if baseline is not None and speculative is not None:
        columns[2].metric("Saved", f"{number(baseline - speculative, 0)} s", help="Below 0, speculation takes more.")
    for column in columns:
        column.caption("of the device per million output tokens")
    st.caption(
        "This is device time, because no price is set. Move the slider, or set `[dashboard] price_per_gpu_hour`."
    )


def _is_of(groups: GroupSums, slice_key: str, chosen: Decision) -> bool:
    is_own_slice = slice_key in ("", groups.slice_key)
    return is_own_slice and groups.concurrency == chosen.concurrency and groups.fingerprint == chosen.fingerprint

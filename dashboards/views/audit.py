"""Audit and kill switch: what operators have ordered, a way to order, and the policy in force."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

import streamlit as st

from shadowspec.config.template import parameter_meanings
from shadowspec.errors import ShadowSpecError
from shadowspec.reports.pages.policy_parameters import Parameter, gate_parameters, rollout_parameters
from shadowspec.rollout.orders import scope_words, state_words
from shadowspec.text import DASH, moment, plain_text, plural, slice_title
from shadowspec.types import FORCEABLE, OverrideRecord, Verdict

from ..parts import access, charts, formats, kill_switch, queries, source, states

ALL_SLICES, ALL_LOADS = "all slices", "all loads"
EXPIRIES: Mapping[str, timedelta | None] = {
    "until it is cleared": None,
    "1 hour": timedelta(hours=1),
    "12 hours": timedelta(hours=12),
    "1 day": timedelta(days=1),
    "7 days": timedelta(days=7),
}
SAID = "order_said"  # in the session: the result of the last order, and until when it is shown
CONFIRMATION_TIME = timedelta(seconds=30)  # the header draws the page again as soon as it sees the order


def page() -> None:
    """Orders in force, the switch, the history, and the policy."""
    st.markdown("# Audit and kill switch")
    place = st.empty()  # there also when nothing is said: what follows would move, and its open tab close
    said, until = st.session_state.get(SAID, ("", None))
    if until is not None and formats.now() < until:
        place.success(said, icon=":material/check:")
    who = access.current()
    records, now = source.store().overrides(), formats.now()
    active = [record for record in records if record.is_active(now)]
    if who.may_order:
        first, second = st.tabs(["Switch off", f"Clear ({len(active)} in force)"])
        with first:
            _set(who.name)
        with second:
            _clear(active, who.name)
    else:
        st.info(
            "You have read access. Only operators set and clear overrides"
            + (
                " (`[dashboard.roles] operators`)."
                if who.name is not None
                else ": configure a login or `[dashboard] local_role`, or use `shadowspec override set`."
            ),
            icon=":material/visibility:",
        )
    _history(records, now)
    st.divider()
    _policy()


def _set(name: str | None) -> None:
    known = queries.endpoints()
    if not known:
        states.empty(
            "No endpoint to switch off",
            "No endpoint is configured or measured. Write a configuration first.",
            commands=("shadowspec init --target DIR --traffic FILE",),
        )
        return
    st.markdown(
        "An override keeps speculation off whatever the gate decides: `check` fails and `export` writes off at once. "
        "Evidence is still collected. After the override is cleared, the gate's verdict applies again. ENABLE cannot "
        "be "
        "forced."
    )
    first, second, third = st.columns([2, 3, 1])
    endpoint = first.selectbox("Endpoint", known, key="order_endpoint")
    decided = queries.measured_decisions(endpoint)
    slices = {
        plain_text(slice_title(key)): key
        for key in sorted({decision.slice_key for decision in decided if decision.slice_key})
    }
    title = second.selectbox("Slice", [ALL_SLICES, *slices], key="order_slice")
    loads = {str(load): load for load in sorted({decision.concurrency for decision in decided})}
    load = third.selectbox("Load", [ALL_LOADS, *loads], key="order_load")
    first, second = st.columns([2, 4])
    verdict = first.segmented_control(
        "Verdict",
        [literal.value for literal in FORCEABLE],
        default=Verdict.DISABLE.value,
        format_func=lambda item: formats.mark_verdict(Verdict(item)),
        key="order_verdict",
        required=True,
        help="HOLD keeps it off too; in CI, `check` exits with 3 instead of 1.",
    )
    reason = second.text_input(
        "Reason", key="order_reason", placeholder="why, in one line; stays in the audit", max_chars=1_000
    )
    first, second, third = st.columns([2, 2, 2], vertical_alignment="bottom")
    author = first.text_input(
        "Author",
        value=name or "",
        key="order_author",
        disabled=name is not None,
        placeholder="your name; stays in the audit",
    )
    expiry = second.selectbox("Until", list(EXPIRIES), key="order_expiry")
    confirmation = third.text_input(f"Type {endpoint} to confirm", key="order_confirmation")
    is_ready = confirmation == endpoint and bool(reason.strip()) and bool(author.strip())
    if st.button(
        f"Switch off {plain_text(endpoint)}",
        type="primary",
        icon=":material/power_settings_new:",
        disabled=not is_ready,
        key="order_set",
    ):
        try:
            done = kill_switch.set_override(
                endpoint=endpoint,
                slice_key=slices.get(title, ""),
                concurrency=loads.get(load),
                verdict=Verdict(verdict or Verdict.DISABLE.value),
                reason=reason,
                author=author,
                expires_in=EXPIRIES[expiry],
                confirmation=confirmation,
            )
        except ShadowSpecError as error:
            _show_refusal(error)
            return
        override = done.record.override
        covered = plural(done.num_decisions_covered, "current decision")
        _say(f"Override {override.override_id}: {scope_words(override)} is {override.verdict}. It covers {covered}.")


def _clear(active: Sequence[OverrideRecord], name: str | None) -> None:
    if not active:
        st.caption("No override is in force, so that none can be cleared.")
        return
    titles = {
        f"{override_record.override.override_id}: {scope_words(override_record.override)}": override_record
        for override_record in active
    }
    chosen = st.selectbox("Override", list(titles), key="clear_which", format_func=plain_text)
    first, second = st.columns([4, 2])
    reason = first.text_input("Reason", key="clear_reason", max_chars=1_000)
    author = second.text_input("Author", value=name or "", key="clear_author", disabled=name is not None)
    if st.button(
        "Clear it", icon=":material/undo:", disabled=not (reason.strip() and author.strip()), key="order_clear"
    ):
        try:
            record = kill_switch.clear_override(titles[chosen].override.override_id, reason=reason, author=author)
        except ShadowSpecError as error:
            _show_refusal(error)
            return
        _say(f"Override {record.override.override_id} is cleared: {scope_words(record.override)}.")


def _say(text: str) -> None:
    """Draw the page again, with the result at its top."""
    st.session_state[SAID] = plain_text(text), formats.now() + CONFIRMATION_TIME
    for name in ("order_reason", "order_confirmation", "clear_reason"):
        st.session_state.pop(name, None)
    queries.forget()
    st.rerun()


def _show_refusal(error: ShadowSpecError) -> None:
    st.error(f"Nothing was written: {plain_text(str(error))}", icon=":material/block:")


def _history(records: Sequence[OverrideRecord], now: datetime) -> None:
    st.markdown("## Overrides")
    if not records:
        st.caption("No override was set yet.")
        return
    rows = [
        {
            "State": "\u25a0 in force" if record.is_active(now) else "\u25cb ended",
            "Id": record.override.override_id,
            "Covers": plain_text(scope_words(record.override)),
            "Verdict": formats.mark_verdict(record.override.verdict),
            "Set": formats.in_zone(record.override.created_at),
            "By": plain_text(record.override.author),
            "Reason": plain_text(record.override.reason),
            "Since then": plain_text(state_words(record, now)),
            "UTC": moment(record.override.created_at),
        }
        for record in sorted(records, key=lambda override_record: override_record.override.created_at, reverse=True)
    ]
    st.dataframe(
        charts.frame(rows),
        hide_index=True,
        key="overrides",
        column_config={
            "Id": st.column_config.NumberColumn(width="small"),
            "Set": st.column_config.DatetimeColumn(format="YYYY-MM-DD HH:mm", help="On your clock; UTC at the end."),
            "Reason": st.column_config.TextColumn(width="large"),
        },
    )


def _policy() -> None:
    config = source.config()
    st.markdown("## Policy in force", help="The parameters of gate and rollout, read from the file below.")
    known = sorted(config.endpoints)
    if not known:
        states.empty(
            "No endpoint is configured",
            f"`{config.path.name}` names no endpoint. The defaults of the policy are in force.",
        )
        return
    first, second = st.columns([3, 2], vertical_alignment="bottom")
    endpoint = first.selectbox("Endpoint", known, key="policy_endpoint", bind="query-params")
    only_changed = second.toggle("Only changed parameters", key="policy_changed", bind="query-params")
    configured = config.endpoints[endpoint]
    gate = gate_parameters(configured.policy, queries.measured_decisions(endpoint))
    rollout = rollout_parameters(configured.rollout)
    meanings = parameter_meanings()
    rows = [
        _row(parameter, group, meanings)
        for group, parameters in (("gate", gate), ("rollout", rollout))
        for parameter in parameters
        if parameter.is_changed or parameter.fixed or not only_changed
    ]
    changed = sum(parameter.is_changed for parameter in (*gate, *rollout))
    st.caption(
        f"From `{config.policy_path.name}`: {plural(changed, 'parameter')} changed from the default, marked \u25cf. "
        "A parameter that is fixed at entry changes for a hypothesis when its next run begins."
    )
    if rows:
        st.dataframe(charts.frame(rows), hide_index=True, height=min(520, 38 + 35 * len(rows)), key="policy")
    else:
        st.caption("Every parameter has its default.")


def _row(parameter: Parameter, group: str, meanings: Mapping[str, str]) -> dict[str, str]:
    return {
        "": "\u25cf" if parameter.is_changed else "",
        "Parameter": parameter.name,
        "Value": parameter.value,
        "Default": parameter.default,
        "Fixed at entry": _fixed_text(parameter),
        "Meaning": meanings.get(parameter.name, ""),
        "Of": group,
    }


def _fixed_text(parameter: Parameter) -> str:
    if parameter.fixed:
        return f"yes; in force: {', '.join(parameter.fixed)}"
    return "yes" if parameter.is_fixed_at_entry else DASH

"""The only writes of the dashboard: overrides set and cleared, by an operator, through a separate database role.

The visitor is identified again here, at the moment of writing: a button that should not have been shown does nothing.
"""

from __future__ import annotations

from datetime import timedelta

import streamlit as st

from shadowspec.rollout import orders
from shadowspec.rollout.orders import Ordered
from shadowspec.store import Store
from shadowspec.types import Clearing, Override, OverrideRecord, Verdict

from . import access, identity, source
from .formats import now
from .identity import AccessError


def set_override(
    *,
    endpoint: str,
    slice_key: str,
    concurrency: int | None,
    verdict: Verdict,
    reason: str,
    author: str,
    expires_in: timedelta | None,
    confirmation: str,
) -> Ordered:
    """Store an override; `confirmation` is the endpoint's name, typed by the operator.

    Raises:
        AccessError: the visitor is not an operator, or did not confirm.
        UsageError: reason or author says nothing, or there is no such endpoint or label of its slices, or HOLD would
            weaken a DISABLE.
        StoreError: the database's role may not write overrides.
    """
    who = access.current()
    identity.require_operator(who)
    if confirmation != endpoint:
        raise AccessError(f"type {endpoint!r} to confirm")
    moment = now()
    override = Override(
        override_id=0,
        endpoint=endpoint,
        slice_key=slice_key,
        concurrency=concurrency,
        verdict=verdict,
        reason=orders.ordered_text(reason, "the reason"),
        author=_author(who, author),
        created_at=moment,
        expires_at=None if expires_in is None else moment + expires_in,
    )
    config = source.config()
    return orders.set_override(writer(), override, config.slice_by, config.concurrencies)


def clear_override(override_id: int, *, reason: str, author: str) -> OverrideRecord:
    """Store the end of an override.

    Raises:
        AccessError: the visitor is not an operator.
        UsageError: reason or author says nothing, or it was cleared before.
        StoreError: the database's role may not write overrides.
    """
    who = access.current()
    identity.require_operator(who)
    why = orders.ordered_text(reason, "the reason")
    return orders.clear_override(writer(), Clearing(override_id, why, _author(who, author), now()))


def writer() -> Store:
    """The store under the role that may write overrides and nothing else."""
    config = source.config()
    return _writer(config.dashboard.access.override_url or config.database_url)


def _author(who: identity.Identity, typed: str) -> str:
    """Who an order is by: whom the login vouches for, and only without one what was typed."""
    return orders.ordered_author(who.name if who.name is not None else typed, "the author")


@st.cache_resource(show_spinner=False, max_entries=2, on_release=Store.close)
def _writer(url: str) -> Store:
    return Store.open(url)

"""What several pages ask the store, kept for as long as nothing new was decided and for `MAX_AGE` at most.

Values are shared between all open pages and never changed.  What an operator orders is never kept: it counts at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

import streamlit as st

from shadowspec.gate.overrides import effective_decisions
from shadowspec.reports import changes as line
from shadowspec.reports.changes import Change
from shadowspec.store import AdviceChange, GroupSums, Histogram, VerdictChange
from shadowspec.store.rollup_sums import Step
from shadowspec.types import Decision, FingerprintedConfig, StoredEvidence

from . import source
from .formats import now

MAX_AGE = timedelta(seconds=60)  # rollups grow within their hour, whatever is decided
MAX_CHANGES = 2_000  # of one kind; the page says so where there are more

_keep = st.cache_resource(show_spinner=False, ttl=MAX_AGE, max_entries=256)


def endpoints() -> list[str]:
    """Every endpoint that is configured or was seen, sorted."""
    return sorted({*source.config().endpoints, *_endpoints(source.config().database_url)})


def configs() -> Mapping[str, FingerprintedConfig]:
    """Every config measured, by fingerprint."""
    return _configs(source.config().database_url)


def decisions(endpoint: str) -> list[Decision]:
    """The endpoint's latest decisions as they stand, overrides laid over them."""
    return effective_decisions(measured_decisions(endpoint), source.store().overrides(endpoint), now())


def measured_decisions(endpoint: str) -> list[Decision]:
    """The endpoint's latest decisions as the evidence left them."""
    return _decisions(source.config().database_url, endpoint)


def group_sums(
    endpoint: str,
    since: datetime | None = None,
    until: datetime | None = None,
    *,
    step: Step | None = None,
    slice_key: str | None = None,
) -> list[GroupSums]:
    """What the endpoint's rollups add up to."""
    return _group_sums(source.config().database_url, endpoint, since, until, step, slice_key)


def hours(endpoint: str) -> tuple[datetime, datetime] | None:
    """The first and the last hour of which the endpoint has a rollup."""
    return _hours(source.config().database_url, endpoint)


def labelled_runs(endpoint: str, since: datetime | None, limit: int) -> list[tuple[dict[str, Any], dict[str, str]]]:
    """The newest runs with their labels."""
    return _labelled_runs(source.config().database_url, endpoint, since, limit)


def slice_evidence(endpoint: str, slice_key: str) -> list[StoredEvidence]:
    """The folded evidence of one slice."""
    return _slice_evidence(source.config().database_url, endpoint, slice_key)


def histogram(
    endpoint: str,
    metric: str,
    slice_key: str | None,
    fingerprint: str,
    concurrency: int,
    since: datetime | None,
    until: datetime | None,
) -> Histogram:
    """A metric's histogram over the rollups that match."""
    own = (endpoint, metric, slice_key, fingerprint, concurrency, since, until)
    return _histogram(source.config().database_url, *own)


def verdict_changes(endpoint: str | None, since: datetime | None) -> list[VerdictChange]:
    """Where verdicts changed, newest first."""
    return _verdict_changes(source.config().database_url, endpoint, since)


def changes(endpoint: str | None, since: datetime | None) -> list[Change]:
    """Everything that changed (at one endpoint), newest first."""
    store, known = source.store(), configs()
    names = endpoints() if endpoint is None else [endpoint]
    found = [
        *line.verdict_changes(verdict_changes(endpoint, since), known),
        *line.advice_changes(_advice_changes(source.config().database_url, endpoint, since), known),
        *line.override_changes(store.overrides(endpoint), now()),
        *(each for name in names for each in line.rollout_changes(store.rollout_history(name), known)),
    ]
    return line.timeline(found, since=since)


def forget() -> None:
    """Ask anew at the next question."""
    for kept in (_endpoints, _configs, _decisions, _group_sums, _hours, _labelled_runs, _slice_evidence, _histogram):
        kept.clear()
    _verdict_changes.clear()
    _advice_changes.clear()


# `url` is part of what is kept by: another database has other answers.


@_keep
def _endpoints(url: str) -> list[str]:
    return source.store().endpoints()


@_keep
def _configs(url: str) -> dict[str, FingerprintedConfig]:
    return source.store().fingerprints()


@_keep
def _decisions(url: str, endpoint: str) -> list[Decision]:
    return source.store().latest_decisions(endpoint)


@_keep
def _group_sums(
    url: str, endpoint: str, since: datetime | None, until: datetime | None, step: Step | None, slice_key: str | None
) -> list[GroupSums]:
    return source.store().group_sums(endpoint, since, until, step=step, slice_key=slice_key)


@_keep
def _hours(url: str, endpoint: str) -> tuple[datetime, datetime] | None:
    return source.store().rollup_hours(endpoint)


@_keep
def _labelled_runs(
    url: str, endpoint: str, since: datetime | None, limit: int
) -> list[tuple[dict[str, Any], dict[str, str]]]:
    return source.store().labelled_runs(endpoint, since, limit=limit)


@_keep
def _slice_evidence(url: str, endpoint: str, slice_key: str) -> list[StoredEvidence]:
    return source.store().slice_evidence(endpoint, slice_key)


@_keep
def _histogram(
    url: str,
    endpoint: str,
    metric: str,
    slice_key: str | None,
    fingerprint: str,
    concurrency: int,
    since: datetime | None,
    until: datetime | None,
) -> Histogram:
    return source.store().histogram(
        endpoint,
        metric,
        slice_key=slice_key,
        fingerprint=fingerprint,
        concurrency=concurrency,
        since=since,
        until=until,
    )


@_keep
def _verdict_changes(url: str, endpoint: str | None, since: datetime | None) -> list[VerdictChange]:
    return source.store().verdict_changes(endpoint, since, limit=MAX_CHANGES)


@_keep
def _advice_changes(url: str, endpoint: str | None, since: datetime | None) -> list[AdviceChange]:
    return source.store().advice_changes(endpoint, since, limit=MAX_CHANGES)

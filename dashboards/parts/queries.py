"""Answers of the store for several pages, cached for as long as nothing new was decided and for `MAX_AGE` at most.

Values are shared between all open pages and never changed.  An operator's order is never cached: it counts at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import streamlit as st

from shadowspec.gate.verdict.current_decision import endpoint_decisions
from shadowspec.gate.verdict.current_verdict import active
from shadowspec.planning.frontier import Length
from shadowspec.reports.content.changes import Change
from shadowspec.reports.figures import frontiers
from shadowspec.reports.figures import replay_rows as replays
from shadowspec.reports.figures.replay_rows import AuditRow, ReplayRow, ReplaySums
from shadowspec.reports.figures.tally import CacheCost, ContextPoint, ContextRow, Tally, by_context
from shadowspec.reports.pages import timeline as line
from shadowspec.reports.pages.live_production import Production, around
from shadowspec.store import AdviceChange, GroupSums, Histogram, RunFilter, Traffic, VerdictChange
from shadowspec.store.read.rollup_reads import Step
from shadowspec.types import CostKey, Decision, Evaluation, FingerprintedConfig, ProfiledCosts, StoredEvidence

from . import source
from .formats import now

MAX_AGE = timedelta(seconds=60)  # rollups grow within their hour, without a decision
MAX_CONTEXT_RUNS = 2_000  # some hundred milliseconds; the page says how many they were
MAX_CHANGES = 2_000  # of one kind; the page says so where there are more

_Question = ParamSpec("_Question")
_Answer = TypeVar("_Answer")

_clear_calls: list[Callable[[], None]] = []  # what makes each question forget its answers


def _keep(ask: Callable[_Question, _Answer]) -> Callable[_Question, _Answer]:
    """Keep the answers to a question by its database and its parameters: another database has other answers."""

    @st.cache_resource(show_spinner=False, ttl=MAX_AGE, max_entries=256)
    @wraps(ask)  # its name too: Streamlit keeps answers by the name of what it calls
    def answer(url: str, *values: _Question.args, **named: _Question.kwargs) -> _Answer:
        return ask(*values, **named)

    @wraps(ask)
    def ask_current(*values: _Question.args, **named: _Question.kwargs) -> _Answer:
        return answer(source.config().database_url, *values, **named)

    _clear_calls.append(answer.clear)
    return ask_current


def forget() -> None:
    """Ask again at the next question."""
    for clear in _clear_calls:
        clear()


def endpoints() -> list[str]:
    """Every endpoint that is configured or was seen, sorted."""
    return sorted({*source.config().endpoints, *_seen_endpoints()})


@_keep
def _seen_endpoints() -> list[str]:
    return source.store().endpoints()


@_keep
def configs() -> Mapping[str, FingerprintedConfig]:
    """Every config measured, by fingerprint."""
    return source.store().fingerprints()


def decisions(endpoint: str) -> list[Decision]:
    """The endpoint's current decisions, overrides laid over them."""
    configured, moment = source.config().endpoints.get(endpoint), now()
    return endpoint_decisions(
        measured_decisions(endpoint),
        None if configured is None else configured.policy,
        active(source.store().overrides(endpoint), moment),
        moment,
        measured=_traffic(endpoint),
        configs=configs(),
    ).current


@_keep
def _traffic(endpoint: str) -> list[Traffic]:
    return source.store().traffic(endpoint)


@_keep
def measured_decisions(endpoint: str) -> list[Decision]:
    """The endpoint's latest decisions as the evidence left them."""
    return source.store().latest_decisions(endpoint)


@_keep
def group_sums(
    endpoint: str,
    since: datetime | None = None,
    until: datetime | None = None,
    *,
    step: Step | None = None,
    slice_key: str | None = None,
) -> list[GroupSums]:
    """What the endpoint's rollups add up to."""
    return source.store().group_sums(endpoint, since, until, step=step, slice_key=slice_key)


@_keep
def production(endpoint: str, enabled_at: datetime, span: timedelta) -> Production | None:
    """What the endpoint's production engines counted on both sides of an enabling; None: nothing was read."""
    return around(source.store(), endpoint, enabled_at, span)


@_keep
def costs() -> Mapping[CostKey, ProfiledCosts]:
    """What steps cost, as it was profiled last."""
    return source.store().costs()


@_keep
def _replay_sums(endpoints: tuple[str, ...]) -> ReplaySums:
    return source.store().replay_sums(endpoints)


@_keep
def list_replayed_lengths(endpoint: str) -> list[tuple[str, FingerprintedConfig, Length]]:
    """Tokens per step of everything that was replayed, by slice and config."""
    sums = _replay_sums((endpoint,))[endpoint]
    return frontiers.list_replayed_lengths(sums, source.store().replay_configs()) if sums else []


@_keep
def hours(endpoint: str) -> tuple[datetime, datetime] | None:
    """The first and the last hour of which the endpoint has a rollup."""
    return source.store().rollup_hours(endpoint)


@_keep
def labelled_runs(endpoint: str, since: datetime | None, limit: int) -> list[tuple[dict[str, Any], dict[str, str]]]:
    """The newest runs with their labels."""
    return source.store().labelled_runs(endpoint, since, limit=limit)


@_keep
def context_rows(
    endpoint: str, slice_key: str | None, fingerprint: str, concurrency: int, since: datetime | None
) -> tuple[tuple[ContextRow, ...], int]:
    """The newest runs of a hypothesis by the length of their prompts, and how many they are."""
    wanted = RunFilter(endpoint, slice_key, concurrency, fingerprint, since)
    store = source.store()
    cost = CacheCost.of(store.newest_memory(wanted))
    points = [
        ContextPoint(row["num_prompt_tokens"], row["num_output_tokens"], Tally.of_run(row))
        for row in store.run_page(wanted, limit=MAX_CONTEXT_RUNS).rows
        if row["failure"] is None
    ]
    return by_context(points, cost), len(points)


@_keep
def slice_evidence(endpoint: str, slice_key: str) -> list[StoredEvidence]:
    """The folded evidence of one slice."""
    return source.store().slice_evidence(endpoint, slice_key)


@_keep
def evaluations(endpoint: str) -> list[Evaluation]:
    """The task sets that were evaluated at an endpoint, oldest first."""
    return source.store().evaluations(endpoint)


@_keep
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
def replay_rows(endpoints: tuple[str, ...]) -> Mapping[str, tuple[ReplayRow, ...]]:
    """What logged responses of each of the endpoints were replayed to, beside the loop."""
    return replays.replay_rows(source.store(), _replay_sums(endpoints))


@_keep
def audit_rows(endpoints: tuple[str, ...]) -> Mapping[str, tuple[AuditRow, ...]]:
    """The audits of each of the endpoints' loops."""
    return replays.audit_rows(source.store(), endpoints)


@_keep
def verdict_changes(endpoint: str | None, since: datetime | None) -> list[VerdictChange]:
    """Where verdicts changed, newest first."""
    return source.store().verdict_changes(endpoint, since, limit=MAX_CHANGES)


@_keep
def _advice_changes(endpoint: str | None, since: datetime | None) -> list[AdviceChange]:
    return source.store().advice_changes(endpoint, since, limit=MAX_CHANGES)


def changes(endpoint: str | None, since: datetime | None) -> list[Change]:
    """Everything that changed (at one endpoint), newest first."""
    store, known = source.store(), configs()
    rows = [
        *line.verdict_changes(verdict_changes(endpoint, since), known),
        *line.advice_changes(_advice_changes(endpoint, since), known),
        *line.override_changes(store.overrides(endpoint), now()),
        *line.rollout_changes(store.rollout_history(endpoint), known),
    ]
    return line.timeline(rows, since=since)

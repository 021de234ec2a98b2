"""Where the pages' values come from: the configuration, and one store with a bounded pool for all open pages.

Answers are cached by the store's state (`pulse`), not only by time: a page that nothing new has come for asks the
database one small question.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Thread

import streamlit as st

from shadowspec.config import Config, find_config, load_config
from shadowspec.errors import ShadowSpecError
from shadowspec.gate.run.memory_store import MemoryRows
from shadowspec.gate.run.run_units import Crossings
from shadowspec.gate.run.unit_curves import Curves, endpoint_curves, latest_crossings
from shadowspec.gate.verdict.current_verdict import active
from shadowspec.gate.verdict.trial_levels import HypothesisId, hypothesis_id
from shadowspec.reports.figures.failure_rows import FAILURE_SUMS, Failures, stored_failures
from shadowspec.reports.pages.board import Board, build_board
from shadowspec.reports.pages.board_values import BoardValues, board_values
from shadowspec.reports.pages.evidence_page import PATH_TESTS, RollupFigures, TestPath, pool_figures
from shadowspec.reports.pages.evidence_page import paths as build_paths
from shadowspec.reports.pages.evidence_page import unit_paths as build_unit_paths
from shadowspec.store import Pulse, Store
from shadowspec.types import FunnelKey, OverrideRecord

READER = "read-ahead"  # the thread that reads what the end of a page needs
MAX_AGE = timedelta(minutes=10)  # of any cached answer, for any pulse


def config() -> Config:
    """The configuration, read again when its file changes.

    Raises:
        ConfigError: it cannot be found or is wrong.
    """
    path = find_config(None)
    return _config(path, path.stat().st_mtime_ns)


def store() -> Store:
    """The store that every page shares.

    Raises:
        StoreError: the database is at another revision; the message names the remedy.
        ServiceUnavailableError: it cannot be reached.
    """
    return _store(config().database_url)


def pulse() -> Pulse:
    """The state of the store, by which its answers are cached."""
    return store().pulse()


def funnel(of: Pulse) -> Mapping[FunnelKey, int]:
    """Records by endpoint, counter and reason."""
    return _funnel(config().database_url, of)


def overrides(of: Pulse) -> Sequence[OverrideRecord]:
    """Every override ever set."""
    return _overrides(config().database_url, of)


def board(of: Pulse) -> Board:
    """The board as of this minute."""
    current_config = config()
    now = datetime.now(UTC)
    return _board(
        current_config.database_url, current_config.path.stat().st_mtime_ns, of, now.replace(second=0, microsecond=0)
    )


def values(of: Pulse) -> BoardValues:
    """What the board is built of."""
    current_config = config()
    return _values(current_config.database_url, current_config.path.stat().st_mtime_ns, of)


def paths(of: Pulse, endpoint: str, slice_key: str, concurrency: int, fingerprint: str) -> dict[str, TestPath]:
    """The drawn tests of a hypothesis over the gate's looks."""
    return _paths(config().database_url, of, endpoint, slice_key, concurrency, fingerprint)


def unit_paths(
    of: Pulse, endpoint: str, slice_key: str, concurrency: int, fingerprint: str, last: dict[str, TestPath]
) -> dict[str, TestPath]:
    """The same after each unit, from the stored runs of the whole endpoint; empty where they do not say."""
    curves = _curves(config().database_url, of, endpoint).get((slice_key, concurrency, fingerprint), {})
    return build_unit_paths(curves, last)


def crossings(of: Pulse, endpoint: str, slice_key: str, concurrency: int, fingerprint: str) -> Crossings:
    """Since when each test of a hypothesis has crossed, from the stored runs; empty where they do not say."""
    return _crossings(config().database_url, of, endpoint, (slice_key, concurrency, fingerprint))


def rollup_figures(
    of: Pulse, endpoint: str, slice_key: str, concurrency: int, fingerprint: str, window: timedelta | None
) -> RollupFigures:
    """What rollups add up to for a hypothesis over the last `window` before the endpoint's newest hour (None: all)."""
    return _read_figures(config().database_url, of, endpoint, slice_key, concurrency, fingerprint, window)


def failures(
    of: Pulse, endpoint: str, slice_key: str, concurrency: int, fingerprint: str, window: timedelta | None
) -> Failures:
    """What was counted of a hypothesis's failures over the same time as `rollup_figures`, and what is suspected."""
    return _failures(config().database_url, of, endpoint, slice_key, concurrency, fingerprint, window)


def read_ahead(
    of: Pulse, endpoint: str, slice_key: str, concurrency: int, fingerprint: str, window: timedelta | None
) -> None:
    """Begin to read `rollup_figures` and `failures`: the database works while the page above is drawn."""
    cache_key = of, endpoint, slice_key, concurrency, fingerprint, window

    def read() -> None:
        with suppress(ShadowSpecError):  # it is met again, and said, where the page asks
            rollup_figures(*cache_key)
            failures(*cache_key)

    Thread(target=read, name=READER, daemon=True).start()


def window_start(hours: tuple[datetime, datetime] | None, window: timedelta | None) -> datetime | None:
    """Where a window before the newest hour begins; None: all of the time."""
    return None if hours is None or window is None else hours[1] - window


def forget() -> None:
    """Open the database and read everything again at the next question."""
    _store.clear()
    _config.clear()
    for kept in (_funnel, _overrides, _values, _board, _paths, _curves, _crossings, _read_figures, _failures):
        kept.clear()


@st.cache_resource(show_spinner=False, max_entries=4)
def _config(path: Path, changed_ns: int) -> Config:  # changed_ns: a part of the cache key
    return load_config(path)


@st.cache_resource(show_spinner=False, max_entries=4, on_release=Store.close)
def _store(url: str) -> Store:
    return Store.open(url)


# Values are frozen, so that all pages share them: `cache_data` would copy them at every rerun.


@st.cache_resource(show_spinner=False, max_entries=4, ttl=MAX_AGE)
def _funnel(url: str, of: Pulse) -> Mapping[FunnelKey, int]:
    return _store(url).funnel()


@st.cache_resource(show_spinner=False, max_entries=4, ttl=MAX_AGE)
def _overrides(url: str, of: Pulse) -> Sequence[OverrideRecord]:
    return _store(url).overrides()


@st.cache_resource(show_spinner=False, max_entries=2, ttl=MAX_AGE)
def _values(url: str, changed_ns: int, of: Pulse) -> BoardValues:
    current_config = config()
    default = current_config.dashboard.price_per_gpu_hour
    prices = {
        name: default or settings.policy.device_price_per_hour for name, settings in current_config.endpoints.items()
    }
    owners = {name: endpoint.owner for name, endpoint in current_config.endpoints.items()}
    return board_values(_store(url), prices, current_config.terms, datetime.now(UTC), owners)


@st.cache_resource(show_spinner=False, max_entries=4, ttl=MAX_AGE)
def _board(url: str, changed_ns: int, of: Pulse, minute: datetime) -> Board:
    return build_board(_values(url, changed_ns, of), active(_overrides(url, of), minute), minute)


@st.cache_resource(show_spinner=False, max_entries=64, ttl=MAX_AGE)
def _paths(
    url: str, of: Pulse, endpoint: str, slice_key: str, concurrency: int, fingerprint: str
) -> dict[str, TestPath]:
    return build_paths(_store(url).looks(endpoint, slice_key, concurrency, fingerprint, PATH_TESTS))


@st.cache_resource(show_spinner="Reading the endpoint's runs", max_entries=8, ttl=MAX_AGE)
def _curves(url: str, of: Pulse, endpoint: str) -> Curves:
    evidence = _store(url).evidence(endpoint)
    rows = MemoryRows(evidence.records, evidence.blocks, evidence.runs)
    return endpoint_curves(endpoint, evidence.folds, rows, evidence.latest_decisions)


@st.cache_resource(show_spinner="Reading the endpoint's runs", max_entries=8, ttl=MAX_AGE)
def _crossings(url: str, of: Pulse, endpoint: str, key: HypothesisId) -> Crossings:
    evidence = _store(url).evidence(endpoint)
    rows = MemoryRows(evidence.records, evidence.blocks, evidence.runs)
    latest = {hypothesis_id(decision): decision for decision in evidence.latest_decisions}
    return latest_crossings(endpoint, evidence.folds, rows, latest[key]) if key in latest else {}


@st.cache_resource(show_spinner=False, max_entries=64, ttl=MAX_AGE)
def _read_figures(
    url: str, of: Pulse, endpoint: str, slice_key: str, concurrency: int, fingerprint: str, window: timedelta | None
) -> RollupFigures:
    store_ = _store(url)
    since = window_start(store_.rollup_hours(endpoint), window)
    chosen_slice = slice_key or None
    groups = store_.group_sums(endpoint, since, slice_key=chosen_slice, place=(fingerprint, concurrency))
    counts = store_.position_counts(endpoint, chosen_slice, concurrency, fingerprint, since)
    histograms = store_.histograms(endpoint, chosen_slice, concurrency, fingerprint, since)
    return pool_figures([group.sums for group in groups], counts, histograms)


@st.cache_resource(show_spinner=False, max_entries=64, ttl=MAX_AGE)
def _failures(
    url: str, of: Pulse, endpoint: str, slice_key: str, concurrency: int, fingerprint: str, window: timedelta | None
) -> Failures:
    store_, place = _store(url), (fingerprint, concurrency)
    since = window_start(store_.rollup_hours(endpoint), window)
    return stored_failures(
        slice_key,
        place,
        store_.group_sums(endpoint, since, place=place, names=FAILURE_SUMS),
        store_.failure_counts(endpoint, since, place=place),
        _read_figures(url, of, endpoint, slice_key, concurrency, fingerprint, window).counts,
    )

"""What windows of live evidence add up to: rates by replica, pooled acceptance, quantiles of the engine's own bins."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from shadowspec.reports.pages.live_production import around, live_period, live_points, quantile, switched_on_at
from shadowspec.store import Store
from shadowspec.store.evidence.live_rows import hour_of_window, sum_windows
from shadowspec.types import END_TO_END, Buckets, LiveCounts, LiveHour, LiveWindow, Pool
from tests.store.live_traffic import windows

NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
BINS = Buckets((0.1, 0.2), (0, 0, 0))


def window(start: float, *, replica: str = "a", series: str = "s", minutes: float = 1, **counts: Any) -> LiveWindow:
    began = NOON + start * MINUTE
    return LiveWindow(replica, series, began, began + minutes * MINUTE, False, 0, LiveCounts(**counts))


def alone(windows: Iterable[LiveWindow]) -> list[LiveHour]:
    """Each as an hour of its own."""
    return [hour_of_window(window) for window in windows]


def test_rates_are_per_second_of_each_replica() -> None:
    """Two replicas side by side: 120 tokens in a minute and 120 in two make three a second together."""
    windows = [window(0, num_output_tokens=120), window(0, replica="b", minutes=2, num_output_tokens=120)]
    found = live_period(sum_windows(windows))
    assert found.output_tokens_per_s == pytest.approx(2.0 + 1.0)
    assert (found.requests_per_s, found.cache_hit_rate, found.num_requests) == (None, None, None)
    assert found.num_windows == 2
    empty = live_period([])
    assert (empty.output_tokens_per_s, empty.draft_acceptance_rate, empty.latencies) == (None, None, {})


def test_acceptance_is_pooled() -> None:
    windows = [
        window(0, num_drafts=100, num_draft_tokens=200, num_accepted_tokens=90, num_accepted_tokens_per_pos=(80, 10)),
        window(1, num_drafts=300, num_draft_tokens=600, num_accepted_tokens=30, num_accepted_tokens_per_pos=(30, 0)),
    ]
    found = live_period(sum_windows(windows))
    assert found.first_position_acceptance_rate == 110 / 400
    assert found.draft_acceptance_rate == 120 / 800
    assert found.mean_acceptance_length == 1 + 120 / 400


def test_what_went_wrong_is_counted() -> None:
    windows = [replace(window(0), is_reset=True), replace(window(1), num_failed_scrapes=3)]
    found = live_period(sum_windows(windows))
    assert (found.num_resets, found.num_failed_scrapes) == (1, 3)


def test_quantiles_lie_in_their_bins() -> None:
    drawn = np.random.default_rng(3).exponential(0.3, size=5_000)
    bounds = (0.05, 0.1, 0.25, 0.5, 1.0, 2.0)
    edges = np.array([-math.inf, *bounds, math.inf])
    counts = [int(((drawn > low) & (drawn <= high)).sum()) for low, high in pairwise(edges)]
    for share in (0.5, 0.95, 0.99):
        found, true = quantile(Buckets(bounds, tuple(counts)), share), float(np.quantile(drawn, share))
        assert found is not None
        assert found.lower <= true <= found.upper
        assert found.lower <= found.estimate <= found.upper
    assert quantile(Buckets((0.1, 0.2), (0, 100, 0)), 0.5) is not None
    half = quantile(Buckets((0.1, 0.2), (0, 100, 0)), 0.5)
    assert half is not None
    assert half.estimate == pytest.approx(0.15), "half-way through the bin, as Prometheus reads it"
    assert quantile(BINS, 0.5) is None
    assert quantile(Buckets((0.1,), (50, 0)), 0.99) is None, "of fifty requests p99 would be the largest"
    above = quantile(Buckets((0.1,), (0, 50)), 0.5)
    assert above is not None
    assert (above.lower, above.upper) == (0.1, math.inf)


def test_bins_of_another_version_are_not_added() -> None:
    windows = [
        window(0, latencies={END_TO_END: Buckets((0.1,), (10, 0))}),
        window(1, series="t", latencies={END_TO_END: Buckets((0.2,), (30, 1))}),
        window(2, replica="b", latencies={END_TO_END: Buckets((0.1,), (10, 0))}),
        window(3, series="t", latencies={END_TO_END: Buckets((0.2,), (0, 40))}),
    ]
    for hours in (alone(windows), sum_windows(windows)):
        found = live_period(hours).latencies[END_TO_END]
        assert found[0.5] is not None
        assert found[0.5].lower == 0.2, "41 of the newest version's 71 are above"
        assert found[0.99] is None, "they are 71, not a hundred"


def test_after_begins_where_production_first_drafted() -> None:
    off, on = window(5, num_drafts=0), window(9, num_drafts=50)
    assert switched_on_at(alone([off, on]), NOON) == NOON + 9 * MINUTE
    assert switched_on_at(alone([off]), NOON) is None
    assert switched_on_at(alone([window(-5, num_drafts=50), on]), NOON) == NOON, "it drafted before too"
    assert switched_on_at(alone([window(-0.5, num_drafts=50)]), NOON) == NOON


def test_points_of_a_line() -> None:
    """By the hour in which a window ended: the third belongs to the next."""
    windows = [window(0, num_output_tokens=60), window(1, num_output_tokens=180), window(59, num_output_tokens=60)]
    points = live_points(sum_windows(windows), NOON - 60 * MINUTE, 60 * MINUTE)
    assert [each.began_at for each in points] == [NOON, NOON + 60 * MINUTE]
    assert [each.output_tokens_per_s for each in points] == pytest.approx([2.0, 1.0])
    (both,) = live_points(sum_windows(windows), NOON, 180 * MINUTE)
    assert both.output_tokens_per_s == pytest.approx(300 / 180)


def test_a_control_is_on_neither_side_of_an_enabling(store: Store) -> None:
    live_windows = windows(1, NOON, timedelta(hours=10), NOON + timedelta(hours=5))
    plain = [each for each in live_windows if each.pool is Pool.PLAIN]
    speculative = [each for each in live_windows if each.pool is Pool.SPECULATIVE]
    with store.live_session("chat") as session:
        session.keep([], live_windows)
    with store.live_session("alone") as session:
        session.keep([], speculative)
    found, alone = (around(store, name, NOON + timedelta(hours=5), timedelta(days=1)) for name in ("chat", "alone"))
    assert found == alone is not None
    assert plain


@pytest.mark.parametrize("seed", range(4))
def test_hours_say_what_their_windows_say(seed: int) -> None:
    live_windows = windows(seed, NOON, timedelta(hours=12), NOON + timedelta(hours=5))
    whole = live_period(sum_windows(live_windows))
    assert whole == live_period(alone(live_windows))
    assert whole.first_position_acceptance_rate is not None
    assert live_points(sum_windows(live_windows), NOON, 120 * MINUTE) == live_points(
        alone(live_windows), NOON, 120 * MINUTE
    )
    # By hand, from the windows.
    reported = [each.counts.first_position for each in live_windows]
    assert whole.first_position_acceptance_rate == pytest.approx(
        sum(pair[0] for pair in reported if pair) / sum(pair[1] for pair in reported if pair)
    )
    rates = []
    for name in "abc":
        counted = [each for each in live_windows if each.replica == name and each.counts.num_requests is not None]
        seconds = sum(each.seconds for each in counted)
        rates.append(sum(each.counts.num_requests or 0 for each in counted) / seconds if counted else 0.0)
    assert whole.requests_per_s == pytest.approx(sum(rates))
    pairs = [(each.counts.accepted_tokens, each.counts.num_drafts) for each in live_windows]
    known = [(accepted, drafts) for accepted, drafts in pairs if accepted is not None and drafts]
    assert any(accepted is None and drafts for accepted, drafts in pairs), "some contradict themselves"
    length = 1 + sum(accepted for accepted, _ in known) / sum(drafts for _, drafts in known)
    assert whole.mean_acceptance_length == pytest.approx(length)

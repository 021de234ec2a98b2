"""What windows of live evidence add up to: rates by replica, pooled acceptance, quantiles of the engine's own bins."""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from shadowspec.reports.live import live_period, live_points, quantile, switched_on_at
from shadowspec.types import END_TO_END, Buckets, LiveCounts, LiveWindow

NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
BINS = Buckets((0.1, 0.2), (0, 0, 0))


def window(start: float, *, replica: str = "a", minutes: float = 1, **counts: Any) -> LiveWindow:
    began = NOON + start * MINUTE
    return LiveWindow(replica, "s", began, began + minutes * MINUTE, False, 0, LiveCounts(**counts))


def test_rates_are_per_second_of_each_replica() -> None:
    """Two replicas side by side: 120 tokens in a minute and 120 in two make three a second together."""
    own = [window(0, num_output_tokens=120), window(0, replica="b", minutes=2, num_output_tokens=120)]
    found = live_period(own)
    assert found.output_tokens_per_s == pytest.approx(2.0 + 1.0)
    assert (found.requests_per_s, found.cache_hit_rate, found.num_requests) == (None, None, None)
    assert found.num_windows == 2
    empty = live_period([])
    assert (empty.output_tokens_per_s, empty.draft_acceptance_rate, empty.latencies) == (None, None, {})


def test_acceptance_is_pooled() -> None:
    own = [
        window(0, num_drafts=100, num_draft_tokens=200, num_accepted_tokens=90, num_accepted_tokens_per_pos=(80, 10)),
        window(1, num_drafts=300, num_draft_tokens=600, num_accepted_tokens=30, num_accepted_tokens_per_pos=(30, 0)),
    ]
    found = live_period(own)
    assert found.first_position_acceptance_rate == 110 / 400
    assert found.draft_acceptance_rate == 120 / 800
    assert found.mean_acceptance_length == 1 + 120 / 400


def test_what_went_wrong_is_counted() -> None:
    own = [replace(window(0), is_reset=True), replace(window(1), num_failed_scrapes=3)]
    found = live_period(own)
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
    own = [
        window(0, latencies={END_TO_END: Buckets((0.1,), (10, 0))}),
        window(1, latencies={END_TO_END: Buckets((0.2,), (0, 20))}),
        window(2, latencies={END_TO_END: Buckets((0.2,), (0, 30))}),
    ]
    found = live_period(own).latencies[END_TO_END][0.5]
    assert found is not None
    assert found.lower == 0.2


def test_after_begins_where_production_first_drafted() -> None:
    off, on = window(5, num_drafts=0), window(9, num_drafts=50)
    assert switched_on_at([off, on], NOON) == NOON + 9 * MINUTE
    assert switched_on_at([off], NOON) is None
    assert switched_on_at([window(-5, num_drafts=50), on], NOON) == NOON, "it drafted before too"
    assert switched_on_at([window(-0.5, num_drafts=50)], NOON) == NOON


def test_points_of_a_line() -> None:
    own = [window(0, num_output_tokens=60), window(1, num_output_tokens=180), window(10, num_output_tokens=60)]
    points = live_points(own, NOON, 5 * MINUTE)
    assert [each.began_at for each in points] == [NOON, NOON + 10 * MINUTE]
    assert [each.output_tokens_per_s for each in points] == pytest.approx([2.0, 1.0])

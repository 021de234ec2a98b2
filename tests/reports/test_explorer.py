"""The explorer's cells are the ratios of what they hold, however it came to them."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shadowspec import metrics
from shadowspec.reports.figures import tally
from shadowspec.reports.figures.tally import Tally
from shadowspec.reports.pages import explorer
from shadowspec.reports.pages.explorer import FIGURES, LabelledTally
from shadowspec.store import GroupSums, RollupSums
from tests.reports import worlds

CONFIG = worlds.config()
NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)


def sums(**changes: float) -> RollupSums:
    entry: dict[str, Any] = {
        "num_runs": 10, "num_failed": 1, "num_timed": 9, "weight": 20.0, "weighted_drafts": 100.0,
        "weighted_draft_tokens": 400.0, "weighted_accepted_tokens": 150.0, "weighted_first_accepted_tokens": 60.0,
        "timed_weight": 18.0, "weighted_log_speedup": 18.0 * math.log(1.5), "weighted_baseline_end_to_end_ms": 1800.0,
        "weighted_speculative_end_to_end_ms": 1000.0,
    }  # fmt: skip
    return RollupSums(**(entry | changes))


def group(slice_key: str, load: int = 4, day: int | None = None, **changes: float) -> GroupSums:
    start = None if day is None else datetime(2026, 1, day, tzinfo=UTC)
    return GroupSums("chat", slice_key, CONFIG.fingerprint, load, start, sums(**changes))


def points(*groups: GroupSums) -> list[LabelledTally]:
    return explorer.rollup_points(groups, {CONFIG.fingerprint: CONFIG})


def test_figures_are_pooled_and_weighted() -> None:
    (point,) = points(group("prompt_class=code"))
    formed = {name: figure.form(point.tally) for name, figure in FIGURES.items()}
    assert formed == {
        "speedup": pytest.approx(1.5),
        "ratio of total times": pytest.approx(1.8),
        "acceptance length": pytest.approx(2.5),
        "first-position acceptance": pytest.approx(0.6),
        "draft acceptance": pytest.approx(0.375),
        "requests": 10,
        "failed requests": pytest.approx(0.1),
    }


def test_what_is_not_defined_is_none() -> None:
    formed = {name: figure.form(Tally()) for name, figure in FIGURES.items()}
    assert formed.pop("requests") == 0
    assert set(formed.values()) == {None}


def test_a_grid_adds_up_what_falls_into_a_cell() -> None:
    found = points(
        group("prompt_class=code,tier=pro"),
        group("prompt_class=code,tier=free", weighted_first_accepted_tokens=20.0),
        group("prompt_class=chat,tier=pro", load=16),
    )
    assert explorer.dimensions(found) == ["prompt_class", "tier", "load", "K", "config"]
    grid = explorer.grid(found, "first-position acceptance", "prompt_class", "load")
    cells = {(cell.x, cell.y): (cell.figure, cell.num_runs) for cell in grid.cells}
    assert cells == {("code", "4"): (pytest.approx(0.4), 20), ("chat", "16"): (pytest.approx(0.6), 10)}
    assert grid.x_values == ("chat", "code")
    assert grid.y_values == ("4", "16")  # as numbers, not as words
    assert grid.num_runs == 30
    assert all(cell.is_few for cell in grid.cells)


def test_filters_and_unknown_values() -> None:
    found = points(group("prompt_class=code,tier=pro"), group("prompt_class=chat"))
    assert explorer.values_of(found, "tier") == ("pro", "unknown")
    assert len(explorer.select_points(found, {"tier": ["unknown"]})) == 1
    assert len(explorer.select_points(found, {"tier": [], "prompt_class": ["code", "chat"]})) == 2
    assert explorer.select_points(found, {"tier": ["pro"], "prompt_class": ["chat"]}) == []


def test_days_and_buckets_read_in_their_order() -> None:
    found = points(group("b=x", day=10), group("b=x", day=9))
    assert explorer.values_of(found, explorer.DAY) == ("2026-01-09", "2026-01-10")
    buckets = [
        LabelledTally({"context_bucket": name}, Tally())
        for name in ("128k+", "2k-8k", "<512", "8k-32k", "512-2k", "odd")
    ]
    assert explorer.values_of(buckets, "context_bucket") == ("<512", "512-2k", "2k-8k", "8k-32k", "128k+", "odd")


def run(**changes: Any) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "event_time": NOON, "fingerprint": CONFIG.fingerprint[:12], "concurrency": 4, "failure": None,
        "sampling_rate": 0.5, "num_drafts": 10, "num_draft_tokens": 40, "num_accepted_tokens": 15,
        "num_first_accepted_tokens": 6, "baseline_prefill_ms": 10.0, "baseline_decode_ms": 90.0,
        "speculative_prefill_ms": 10.0, "speculative_decode_ms": 40.0, "num_prompt_tokens": 90,
    }  # fmt: skip
    return entry | changes


def test_single_runs_make_the_same_figures() -> None:
    (point,) = explorer.run_points([(run(), {"context_bucket": "<512"})], {CONFIG.fingerprint: CONFIG})
    assert point.values == {
        "context_bucket": "<512",
        "config": CONFIG.config.name,
        "K": "4",
        "load": "4",
        "day": "2026-01-02",
        "prompt tokens": "64-128",
    }
    assert tally.speedup(point.tally) == pytest.approx(2.0)
    assert tally.ratio_of_total_times(point.tally) == pytest.approx(2.0)
    assert metrics.mean_acceptance_length(point.tally) == pytest.approx(2.5)
    assert point.tally.weight == 2.0


def test_a_failed_run_counts_and_is_not_timed() -> None:
    none = dict.fromkeys(("num_drafts", "num_draft_tokens", "num_accepted_tokens", "num_first_accepted_tokens"))
    failed = run(failure="out_of_memory", **none, baseline_prefill_ms=None, baseline_decode_ms=None)
    of_run = Tally.of_run(failed)
    assert (of_run.num_runs, of_run.num_failed, of_run.num_timed, of_run.timed_weight, of_run.num_drafts) == (
        1,
        1,
        0,
        0.0,
        0.0,
    )


@given(st.lists(st.floats(0.25, 4.0), min_size=1, max_size=6))
def test_tallies_add_up_in_any_order(ratios: list[float]) -> None:
    tallies = [Tally.of_run(run(baseline_prefill_ms=0.0, baseline_decode_ms=100.0 * ratio)) for ratio in ratios]
    there, back = tally.total(tallies), tally.total(reversed(tallies))
    assert tally.speedup(there) == pytest.approx(tally.speedup(back))
    assert there.num_runs == len(ratios)

"""What the evidence page draws: paths over looks, distributions, and where time goes."""

from __future__ import annotations

import math
from datetime import timedelta

from shadowspec.gate.verdict.curves import SequencePoint
from shadowspec.reports.pages.evidence_page import MAX_POINTS, paths, pool_figures, unit_paths
from shadowspec.store import Histogram, LookPoint, RollupSums
from shadowspec.store.histograms import GROWTH, bin_of
from shadowspec.types import Arm, Verdict
from tests.reports.worlds import NOW


def look(number: int, verdict: Verdict = Verdict.HOLD, name: str = "speedup") -> LookPoint:
    at = NOW + timedelta(hours=number)
    return LookPoint(number, at, verdict, "code", name, "open", 1.2, 1.0 + number / 1e4, 1.4, 1.05, number)


def test_a_path_keeps_its_last_point_and_every_change_of_the_verdict() -> None:
    looks = [look(number, Verdict.ENABLE if 777 <= number < 779 else Verdict.HOLD) for number in range(1, 2_001)]
    path = paths(looks)["speedup"]
    assert MAX_POINTS <= len(path.points) <= MAX_POINTS + 4
    assert path.points[-1].num_units == 2_000
    assert {777, 779} <= {point.num_units for point in path.points}
    assert [(point.num_units, point.verdict) for point in path.changes] == [
        (1, Verdict.HOLD),
        (777, Verdict.ENABLE),
        (779, Verdict.HOLD),
    ]
    assert path.threshold == 1.05


def test_paths_by_test_and_after_each_unit() -> None:
    found = paths([look(1), look(1, name="tail"), look(2)])
    assert {name: len(path.points) for name, path in found.items()} == {"speedup": 2, "tail": 1}
    units = unit_paths({"speedup": [SequencePoint(3, 1.1, None, 1.9)], "acceptance": []}, found)
    assert set(units) == {"speedup"}
    (point,) = units["speedup"].points
    assert (point.at, point.num_units, point.estimate, point.lower, point.upper) == (None, 3, 1.1, None, 1.9)


def histogram(*values: float, weight: float = 1.0) -> Histogram:
    bins = [bin_of(value) for value in values]
    return Histogram(
        {number: bins.count(number) for number in bins}, {number: weight * bins.count(number) for number in bins}
    )


def test_distributions_are_known_to_within_a_bin() -> None:
    found = pool_figures(
        [], None, {"baseline_end_to_end_ms": histogram(*range(1, 101)), "speedup": histogram(0.5, 1.2, 1.2)}
    )
    (binned,) = found.distributions
    assert (binned.arm, binned.measure, binned.num_runs) == (Arm.BASELINE, "end_to_end_ms", 100)
    for share, quantile in binned.quantiles:
        assert quantile.lower <= 100 * share <= quantile.upper
    assert binned.cumulative[-1][1] == 1.0
    assert all(
        before < after for (_, before), (_, after) in zip(binned.cumulative, binned.cumulative[1:], strict=False)
    )
    assert sum(bar.num_requests for bar in found.speedups) == 3
    assert all(
        bar.lower is not None and (bar.lower >= 0.999) == (bar.upper > 1.001) for bar in found.speedups if bar.upper
    )
    assert math.isclose(dict(found.speedup_quantiles)[0.5].estimate, GROWTH ** (bin_of(1.2) + 0.5))


def test_time_parts_are_means_of_timed_requests_and_the_baseline_drafts_nothing() -> None:
    sums = RollupSums(num_timed=2, baseline_decode_ms=80.0, speculative_decode_ms=50.0, speculative_draft_ms=20.0)
    baseline, speculative = pool_figures([sums, sums], None, {}).parts
    assert (baseline.decode_ms, baseline.draft_ms) == (40.0, 0.0)
    assert (speculative.decode_ms, speculative.draft_ms) == (25.0, 10.0)
    assert pool_figures([], None, {}).parts == ()

"""The endpoint from its slices: bounds for any weights, the named candidate, what speaks for a small slice."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from shadowspec.gate.verdict.composition import SliceBounds, SliceTraffic, endpoint_bounds, weighted_bounds
from shadowspec.gate.verdict.slice_rules import (
    ANY_SHARE,
    MIN_SLICE_SHARE,
    bears_on_endpoint,
    covering_decision,
    forbidding_slices,
    is_shown_under_parent,
    named_candidates,
)
from shadowspec.types import Decision, TestResult, Trial, Verdict
from tests.gate.worlds import CONFIG, ENDPOINT, GRAPH, START
from tests.store.examples import in_traffic

CLIP = math.log(2.0)


def result(name: str, lower: float | None, upper: float | None, num_units: int = 100) -> TestResult:
    return TestResult(name, "pass", lower, lower, upper, 0.0, 0.01, "block", num_units, 10)


def decision(
    slice_key: str,
    verdict: Verdict = Verdict.ENABLE,
    *,
    speedup: tuple[float | None, float | None] = (1.1, 1.4),
    acceptance: tuple[float, float] = (0.5, 0.7),
    level: float | None = 0.01,
    code: str = "all_tests_pass",
    fingerprint: str = CONFIG.fingerprint,
    depth: int = 4,
    concurrency: int = 4,
    num_units: int = 100,
) -> Decision:
    tests = (result("speedup", *speedup, num_units), result("acceptance", *acceptance, num_units))
    config = replace(CONFIG.config, num_speculative_tokens=depth)
    return Decision(
        ENDPOINT, slice_key, concurrency, config, fingerprint, verdict, code, "", tests, 400, 100, None, START,
        run=None if level is None else Trial(2 * level, level, GRAPH),
    )  # fmt: skip


def test_bounds_are_sums_over_the_current_shares() -> None:
    found = weighted_bounds([SliceBounds("a", 3.0, 0.5, 0.7), SliceBounds("b", 1.0, 0.1, 0.9)], 0.0, 1.0)
    assert found is not None
    assert found.lower == pytest.approx(0.4)
    assert found.upper == pytest.approx(0.75)
    assert found.known_share == 1.0


def test_what_is_unknown_enters_at_the_end_of_the_range() -> None:
    found = weighted_bounds([SliceBounds("a", 1.0, 0.5, 0.7), SliceBounds("b", 1.0, None, None)], -1.0, 2.0)
    assert found is not None
    assert (found.lower, found.upper, found.known_share) == (-0.25, 1.35, 0.5)


def test_no_traffic_has_no_bounds() -> None:
    assert weighted_bounds([], 0.0, 1.0) is None
    assert weighted_bounds([SliceBounds("a", 0.0, 0.5, 0.7)], 0.0, 1.0) is None
    assert endpoint_bounds([decision("a")], {}, CLIP) == {}


def test_simultaneous_bounds_hold_for_any_weights_at_once() -> None:
    """Wherever every slice's mean lies within its bounds, so does the endpoint's, for all weights tried."""
    rng = np.random.default_rng(0)
    for _ in range(200):
        lower = rng.uniform(0.0, 0.5, 5)
        upper = lower + rng.uniform(0.0, 0.5, 5)
        truth, weights = rng.uniform(lower, upper), rng.dirichlet(np.ones(5))
        slices = [
            SliceBounds(str(i), float(w), float(lo), float(up))
            for i, (w, lo, up) in enumerate(zip(weights, lower, upper, strict=True))
        ]
        found = weighted_bounds(slices, 0.0, 1.0)
        assert found is not None
        assert found.lower - 1e-12 <= float(weights @ truth) <= found.upper + 1e-12


def test_speedup_is_weighted_by_requests_on_the_log_scale_and_acceptance_by_draft_tokens() -> None:
    slices = [
        decision("a", speedup=(1.2, 1.5), acceptance=(0.6, 0.8)),
        decision("b", speedup=(0.9, 1.1), acceptance=(0.2, 0.4)),
    ]
    traffic = {"a": SliceTraffic(100.0, 9_000.0), "b": SliceTraffic(300.0, 1_000.0)}
    found = endpoint_bounds(slices, traffic, CLIP)
    assert found["speedup"].lower == pytest.approx(1.2**0.25 * 0.9**0.75)
    assert found["speedup"].upper == pytest.approx(1.5**0.25 * 1.1**0.75)
    assert found["acceptance"].lower == pytest.approx(0.9 * 0.6 + 0.1 * 0.2)
    assert found["acceptance"].upper == pytest.approx(0.9 * 0.8 + 0.1 * 0.4)


@pytest.mark.parametrize(
    "unknown",
    [decision("b", level=None), decision("b", Verdict.HOLD, code="dependent"), decision("b", num_units=0), None],
)
def test_slices_without_a_bound_that_holds_count_as_unknown(unknown: Decision | None) -> None:
    traffic = {"a": SliceTraffic(50.0, 500.0), "b": SliceTraffic(50.0, 500.0)}
    slices = [decision("a"), *([unknown] if unknown else [])]
    found = endpoint_bounds(slices, traffic, CLIP)
    assert found["speedup"].lower == pytest.approx(math.sqrt(1.1 / 2.0))
    assert found["speedup"].upper == pytest.approx(math.sqrt(1.4 * 2.0))
    assert (found["speedup"].known_share, found["acceptance"].known_share) == (0.5, 0.5)
    assert (found["acceptance"].lower, found["acceptance"].upper) == (0.25, 0.85)


def test_a_bound_that_was_not_found_is_unknown() -> None:
    found = endpoint_bounds([decision("a", speedup=(None, 1.4))], {"a": SliceTraffic(1.0, 1.0)}, CLIP)
    assert found["speedup"].lower == pytest.approx(0.5)
    assert found["speedup"].upper == pytest.approx(1.4)


def test_the_candidate_with_the_best_lower_bound_is_named() -> None:
    candidates = [
        decision("a", speedup=(1.1, 1.9), fingerprint="wide"),
        decision("a", speedup=(1.2, 1.3), fingerprint="sure"),
        decision("a", Verdict.HOLD, speedup=(1.5, 1.6), fingerprint="held"),
        decision("a", Verdict.DISABLE, speedup=(1.6, 1.7), fingerprint="tail"),
        decision("a", speedup=(1.05, 1.1), fingerprint="other-load", concurrency=16),
        decision("b", Verdict.HOLD, fingerprint="none"),
    ]
    for order in (candidates, candidates[::-1]):
        assert named_candidates(order) == {("a", 4): "sure", ("a", 16): "other-load"}


def test_of_equal_candidates_the_shallower_is_named() -> None:
    same = [decision("a", fingerprint="deep", depth=8), decision("a", fingerprint="shallow", depth=3)]
    assert named_candidates(same) == named_candidates(same[::-1]) == {("a", 4): "shallow"}


def test_an_endpoint_never_enables_a_disabled_slice() -> None:
    endpoint = decision("")
    for level in (0.01, None):
        disabled = decision("a", Verdict.DISABLE, level=level)
        assert covering_decision(disabled, endpoint) is disabled


def shown_slower(slice_key: str, level: float | None, code: str = "dependent") -> Decision:
    """A HOLD whose bound of speedup has crossed."""
    held = decision(slice_key, Verdict.HOLD, speedup=(0.8, 0.9), level=level, code=code)
    return replace(held, tests=tuple(replace(t, outcome="fail") if t.name == "speedup" else t for t in held.tests))


def test_no_enable_covers_a_slice_that_its_own_bound_shows_to_be_slower() -> None:
    endpoint, slow = decision(""), shown_slower("a", None)
    assert covering_decision(slow, endpoint) is slow
    elsewhere = shown_slower("a", None, code="other_engine")
    assert covering_decision(elsewhere, endpoint) is endpoint, "of another engine's latency"
    found = [in_traffic(shown_slower("a", level), 0.3) for level in (None, 0.01)]
    for each in found:
        assert forbidding_slices(endpoint, [endpoint, each]) == [each]
    fallen = in_traffic(replace(found[1], verdict=Verdict.ENABLE), 0.3)
    assert forbidding_slices(endpoint, [endpoint, fallen]) == [], "an ENABLE in force is its detectors' question"


def test_small_slices_show_under_their_parent() -> None:
    endpoint, small = decision(""), decision("a", Verdict.HOLD, level=None, code="too_few_clusters")
    assert is_shown_under_parent(small)
    assert not is_shown_under_parent(endpoint)
    assert covering_decision(small, endpoint) is endpoint
    assert covering_decision(None, endpoint) is endpoint
    held = decision("a", Verdict.HOLD, code="low_acceptance")
    assert covering_decision(held, endpoint) is held
    assert covering_decision(small, None) is small
    assert covering_decision(None, None) is None


@pytest.mark.parametrize(
    ("share", "min_share", "bears"),
    [
        (0.05, MIN_SLICE_SHARE, True),
        (sum([0.01] * 5), MIN_SLICE_SHARE, True),
        (0.0499, MIN_SLICE_SHARE, False),
        (None, MIN_SLICE_SHARE, True),
        (None, 1.0, True),
        (0.0, ANY_SHARE, True),
        (0.1, 0.2, False),
    ],
)
def test_from_what_share_on_a_slice_bears_on_its_endpoint(share: float | None, min_share: float, bears: bool) -> None:
    assert bears_on_endpoint(share, min_share) == bears


def test_the_slices_that_forbid_are_disabled_here_and_carry_enough() -> None:
    whole = decision("")
    slow = in_traffic(decision("a", Verdict.DISABLE), 0.05)
    slower = in_traffic(decision("b", Verdict.DISABLE), 0.3)
    unknown = in_traffic(decision("c", Verdict.DISABLE), None)
    small = in_traffic(decision("d", Verdict.DISABLE), 0.01)
    others = [
        in_traffic(decision("e", Verdict.HOLD), 0.3),
        in_traffic(decision("f"), 0.3),
        in_traffic(decision("g", Verdict.DISABLE, concurrency=8), 0.3),
        in_traffic(decision("h", Verdict.DISABLE, fingerprint="other"), 0.3),
        decision("", Verdict.DISABLE),
    ]
    every = [whole, slow, small, unknown, slower, *others]
    assert forbidding_slices(whole, every) == [unknown, slower, slow]
    assert forbidding_slices(whole, every, ANY_SHARE) == [unknown, slower, slow, small]
    assert forbidding_slices(whole, every, 0.2) == [unknown, slower]

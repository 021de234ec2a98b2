"""What only all decisions of a look together can say: bounds under the mix, the named candidate, what changed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import pytest

from shadowspec.gate.policy import GatePolicy
from shadowspec.gate.verdict.composition import SliceTraffic, compose_endpoint, group_key, since, slice_state, split
from shadowspec.gate.verdict.trial_levels import supersede
from shadowspec.types import BettingFigures, Decision, EvidenceSummary, SliceCounts, TestResult, Trial, Verdict
from tests.gate.worlds import CONFIG, ENDPOINT, GRAPH, START

POLICY = GatePolicy(window_s=0.0, max_hypotheses=4, min_span_s=0.0)
SHARES = {"code": SliceTraffic(60.0, 600.0), "chat": SliceTraffic(40.0, 400.0)}
TRAFFIC = {CONFIG.fingerprint: SHARES, "two": SHARES}


def row(
    slice_key: str,
    *,
    verdict: Verdict = Verdict.ENABLE,
    num_closed: int = 1_000,
    num_measured: int = 400,
    speedup: float = 1.3,
    acceptance: float = 0.6,
    level: float | None = 0.005,
    fingerprint: str = CONFIG.fingerprint,
    lower: float = 1.1,
    num_blocks: int = 100,
) -> Decision:
    def result(name: str, mean: float, weight: float, low: float, high: float) -> TestResult:
        betting = BettingFigures(mean, weight, 3.0, -3.0, 0.003)
        return TestResult(name, "pass", mean, low, high, 0.0, 0.01, "block", 100, 10, betting=betting)

    tests = (
        result("speedup", math.log(speedup), float(num_blocks), lower, 1.6),
        result("acceptance", acceptance, 0.5 * num_measured, 0.45, 0.75),
    )
    return Decision(
        ENDPOINT, slice_key, 4, CONFIG.config, fingerprint, verdict, "", "", tests, num_measured, num_blocks, None,
        START, run=None if level is None else Trial(2 * level, level, GRAPH),
        evidence=EvidenceSummary(counts=SliceCounts(num_closed_clusters=num_closed)),
    )  # fmt: skip


def by_slice(decisions: list[Decision]) -> dict[str, Decision]:
    return {decision.slice_key: decision for decision in decisions}


def after(before: Mapping[str, Decision], **slices: Decision) -> Decision:
    """The endpoint's decision at the look after the one that gave `before`."""
    endpoint = replace(before[""], evidence=EvidenceSummary(), composition=None)
    previous = {group_key(before[""]): before[""]}
    return compose_endpoint([endpoint, *slices.values()], previous, TRAFFIC, POLICY)[0]


@pytest.fixture
def first() -> dict[str, Decision]:
    return by_slice(compose_endpoint([row(""), row("code"), row("chat", acceptance=0.5)], {}, TRAFFIC, POLICY))


def test_the_endpoint_shows_bounds_under_the_mix_and_slices_their_share(first: dict[str, Decision]) -> None:
    assert first[""].composition.bounds["speedup"].lower == pytest.approx(1.1)
    assert first[""].composition.bounds["acceptance"].lower == pytest.approx(0.45)
    assert first["code"].traffic_share == 0.6
    assert first["chat"].traffic_share == 0.4
    assert first[""].traffic_share is None


def test_the_best_candidate_of_each_slice_is_named() -> None:
    decisions = compose_endpoint(
        [row(""), row("code"), row("", fingerprint="two"), row("code", fingerprint="two", lower=1.2)],
        {},
        TRAFFIC,
        POLICY,
    )
    named = {(d.slice_key, d.fingerprint) for d in decisions if d.composition.is_named}
    assert named == {("", CONFIG.fingerprint), ("code", "two")}


def test_bounds_come_from_slices_of_the_same_load_and_config() -> None:
    other = row("code", fingerprint="two", lower=0.7)
    endpoint = compose_endpoint([row(""), row("code"), row("chat"), other], {}, TRAFFIC, POLICY)[0]
    assert endpoint.composition.bounds["speedup"].lower == pytest.approx(1.1)


def test_a_small_slice_shows_under_its_parent() -> None:
    found = by_slice(compose_endpoint([row(""), row("code", level=None, verdict=Verdict.HOLD)], {}, TRAFFIC, POLICY))
    assert found["code"].composition.cover.is_shown_under_parent
    assert found[""].composition.bounds["speedup"].known_share == 0.0


def test_an_enabled_endpoint_covers_small_slices_and_no_slice_that_is_disabled() -> None:
    small = row("chat", level=None, verdict=Verdict.HOLD)
    found = by_slice(compose_endpoint([row(""), row("code", verdict=Verdict.DISABLE), small], {}, TRAFFIC, POLICY))
    assert found["code"].composition.cover.covering_verdict == "DISABLE"
    assert found["chat"].composition.cover.covering_verdict == "ENABLE"


def test_a_superseded_row_is_left_as_it_is() -> None:
    old = supersede(row(""), "two", START)
    assert compose_endpoint([old], {}, TRAFFIC, POLICY) == [old]


def test_the_reference_is_taken_at_enable_and_kept(first: dict[str, Decision]) -> None:
    assert set(first[""].composition.mix_reference) == {"code", "chat"}
    second = after(first, code=row("code", num_closed=1_100), chat=row("chat", num_closed=1_100, acceptance=0.5))
    assert second.composition.mix_reference == first[""].composition.mix_reference
    held = compose_endpoint([row("", verdict=Verdict.HOLD), row("code")], {}, TRAFFIC, POLICY)[0]
    assert held.composition.mix_reference is None


def test_a_moved_mix_is_told_from_decay_within_slices(first: dict[str, Decision]) -> None:
    moved = after(
        first,
        code=row("code", num_closed=1_200, num_measured=480, num_blocks=120),
        chat=row("chat", num_closed=1_800, num_measured=720, num_blocks=180, acceptance=0.5),
    ).composition.mix_change
    assert moved.has_shifted
    assert moved.rates["acceptance"].mix_part == pytest.approx((0.2 * 0.6 + 0.8 * 0.5) - 0.55)
    assert moved.rates["acceptance"].within_part == pytest.approx(0.0)
    assert "the prompt mix has moved (" in moved.rates["acceptance"].text
    # code: 400 clusters at .6, then 400 more of which the mean of all 800 is .5: .4 since then
    decayed = after(
        first,
        code=row("code", num_closed=2_000, num_measured=800, num_blocks=200, acceptance=0.5),
        chat=row("chat", num_closed=2_000, num_measured=800, num_blocks=200, acceptance=0.5),
    ).composition.mix_change
    assert not decayed.has_shifted
    assert decayed.rates["acceptance"].mix_part == pytest.approx(0.0)
    assert decayed.rates["acceptance"].within_part == pytest.approx(-0.1)
    assert decayed.rates["acceptance"].text.startswith("no shift of the prompt mix is proven")


def test_the_sampling_of_slices_is_not_their_traffic() -> None:
    """Of a decided slice little is measured; its weight is its closed clusters'."""
    then = {"a": slice_state(row("a", num_closed=500, num_measured=400)), "b": slice_state(row("b", num_closed=500))}
    now = {
        "a": slice_state(row("a", num_closed=500, num_measured=4, acceptance=0.8)),
        "b": slice_state(row("b", num_closed=500, num_measured=400, acceptance=0.4)),
    }
    change = split("acceptance", then, now)
    assert change is not None
    assert change.after == pytest.approx(0.6)


def test_sums_that_begin_anew_count_from_their_beginning() -> None:
    then = slice_state(row("a", num_closed=1_000, num_measured=400, num_blocks=100))
    now = slice_state(row("a", num_closed=1_050, num_measured=20, num_blocks=5, acceptance=0.3))
    added = since(now, then)
    assert (added.num_closed, added.num_measured, added.speedup_weight) == (50, 20, 5)
    assert added.acceptance_total / added.acceptance_weight == pytest.approx(0.3)


def test_a_slice_that_was_not_measured_again_keeps_its_rate() -> None:
    then = {"a": slice_state(row("a", acceptance=0.7)), "b": slice_state(row("b", acceptance=0.5))}
    now = {
        "a": since(slice_state(row("a", num_closed=1_500, acceptance=0.7)), then["a"]),
        "b": since(slice_state(row("b", num_closed=1_100, num_measured=800, num_blocks=200)), then["b"]),
    }
    change = split("acceptance", then, now)
    assert change is not None
    assert {shift.slice_key: shift.within_part for shift in change.slices}["a"] == 0.0

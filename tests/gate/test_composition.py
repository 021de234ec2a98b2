"""What only all decisions of a look together can say: bounds under the mix, the named candidate, what changed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import pytest

from shadowspec.gate.composition import composed, group_key, since, slice_state, split
from shadowspec.gate.endpoint import SliceTraffic
from shadowspec.gate.policy import GatePolicy
from shadowspec.gate.restarts import Trial, superseded
from shadowspec.types import Decision, TestResult, Verdict
from tests.gate.worlds import CONFIG, ENDPOINT, START

POLICY = GatePolicy(max_hypotheses=4, min_span_s=0.0)
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
        details = {"mean": mean, "observed_weight": weight}
        return TestResult(name, "pass", mean, low, high, 0.0, 0.01, "block", 100, 10, details=details)

    tests = (
        result("speedup", math.log(speedup), float(num_blocks), lower, 1.6),
        result("acceptance", acceptance, 0.5 * num_measured, 0.45, 0.75),
    )
    return Decision(
        ENDPOINT, slice_key, 4, CONFIG.config, fingerprint, verdict, "", "", tests, num_measured, num_blocks, None,
        START, {"level": level, "num_closed_clusters": num_closed},
    )  # fmt: skip


def by_slice(decisions: list[Decision]) -> dict[str, Decision]:
    return {decision.slice_key: decision for decision in decisions}


def after(before: Mapping[str, Decision], **slices: Decision) -> Decision:
    """The endpoint's decision at the look after the one that gave `before`."""
    endpoint = replace(before[""], details={"level": 0.005, "num_closed_clusters": 0})
    previous = {group_key(before[""]): before[""]}
    return composed([endpoint, *slices.values()], previous, TRAFFIC, POLICY)[0]


@pytest.fixture
def first() -> dict[str, Decision]:
    return by_slice(composed([row(""), row("code"), row("chat", acceptance=0.5)], {}, TRAFFIC, POLICY))


def test_the_endpoint_shows_bounds_under_the_mix_and_slices_their_share(first: dict[str, Decision]) -> None:
    assert first[""].details["mix_speedup_lower"] == pytest.approx(1.1)
    assert first[""].details["mix_acceptance_lower"] == pytest.approx(0.45)
    assert first["code"].details["traffic_share"] == 0.6
    assert first["chat"].details["traffic_share"] == 0.4
    assert "traffic_share" not in first[""].details


def test_the_best_candidate_of_each_slice_is_named() -> None:
    decisions = composed(
        [row(""), row("code"), row("", fingerprint="two"), row("code", fingerprint="two", lower=1.2)],
        {},
        TRAFFIC,
        POLICY,
    )
    named = {(d.slice_key, d.fingerprint) for d in decisions if d.details["is_named"]}
    assert named == {("", CONFIG.fingerprint), ("code", "two")}


def test_bounds_come_from_slices_of_the_same_load_and_config() -> None:
    other = row("code", fingerprint="two", lower=0.7)
    endpoint = composed([row(""), row("code"), row("chat"), other], {}, TRAFFIC, POLICY)[0]
    assert endpoint.details["mix_speedup_lower"] == pytest.approx(1.1)


def test_a_small_slice_shows_under_its_parent() -> None:
    found = by_slice(composed([row(""), row("code", level=None, verdict=Verdict.HOLD)], {}, TRAFFIC, POLICY))
    assert found["code"].details["is_shown_under_parent"] == 1
    assert found[""].details["mix_speedup_known_share"] == 0.0


def test_an_enabled_endpoint_covers_small_slices_and_no_slice_that_is_disabled() -> None:
    small = row("chat", level=None, verdict=Verdict.HOLD)
    found = by_slice(composed([row(""), row("code", verdict=Verdict.DISABLE), small], {}, TRAFFIC, POLICY))
    assert found["code"].details["covering_verdict"] == "DISABLE"
    assert found["chat"].details["covering_verdict"] == "ENABLE"


def test_a_superseded_row_is_left_as_it_is() -> None:
    old = superseded(replace(row(""), details=Trial(CONFIG.fingerprint, 0.01).details()), "two", START)
    assert composed([old], {}, TRAFFIC, POLICY) == [old]


def test_the_reference_is_taken_at_enable_and_kept(first: dict[str, Decision]) -> None:
    assert isinstance(first[""].details["mix_reference"], str)
    second = after(first, code=row("code", num_closed=1_100), chat=row("chat", num_closed=1_100, acceptance=0.5))
    assert second.details["mix_reference"] == first[""].details["mix_reference"]
    held = composed([row("", verdict=Verdict.HOLD), row("code")], {}, TRAFFIC, POLICY)[0]
    assert "mix_reference" not in held.details


def test_a_moved_mix_is_told_from_decay_within_slices(first: dict[str, Decision]) -> None:
    moved = after(
        first,
        code=row("code", num_closed=1_200, num_measured=480, num_blocks=120),
        chat=row("chat", num_closed=1_800, num_measured=720, num_blocks=180, acceptance=0.5),
    ).details
    assert moved["mix_has_shifted"] == 1
    assert moved["mix_part_acceptance"] == pytest.approx((0.2 * 0.6 + 0.8 * 0.5) - 0.55)
    assert moved["within_part_acceptance"] == pytest.approx(0.0)
    assert "the prompt mix has moved (" in str(moved["change_of_acceptance"])
    # code: 400 clusters at .6, then 400 more of which the mean of all 800 is .5: .4 since then
    decayed = after(
        first,
        code=row("code", num_closed=2_000, num_measured=800, num_blocks=200, acceptance=0.5),
        chat=row("chat", num_closed=2_000, num_measured=800, num_blocks=200, acceptance=0.5),
    ).details
    assert decayed["mix_has_shifted"] == 0
    assert decayed["mix_part_acceptance"] == pytest.approx(0.0)
    assert decayed["within_part_acceptance"] == pytest.approx(-0.1)
    assert str(decayed["change_of_acceptance"]).startswith("no shift of the prompt mix is proven")


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
    assert {own.slice_key: own.within_part for own in change.slices}["a"] == 0.0

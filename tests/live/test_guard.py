"""The live guard: what a window holds after resets, gaps and other labels; when it sounds, and how seldom falsely."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shadowspec.live.guard import (
    FELL,
    conflict_between,
    from_then,
    is_too_coarse,
    promise_of,
    score_counts,
    watch_replica,
    window_between,
    windows_to_alarm,
)
from shadowspec.live.promise import Promise, unwatched_because
from shadowspec.servers.metrics_page import counts_between
from shadowspec.types import Buckets, Decision, LiveCounts, LiveReplica, LiveScrape, LiveWindow, Verdict
from shadowspec.types.settings import GuardPolicy
from tests.store import examples

NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
POLICY = GuardPolicy(run_length=1_000)


def counts(drafts: int, first: int, *, more: int = 0, **changes: Any) -> LiveCounts:
    live_counts = LiveCounts(
        drafts, 2 * drafts, first + more, (first, more), 3 * drafts, drafts // 10, 50 * drafts, 5 * drafts,
        {"end_to_end_s": Buckets((1.0,), (drafts, 1))},
    )  # fmt: skip
    return replace(live_counts, **changes)


def scrape(minutes: float, counts: LiveCounts, *, series: str = "vllm m", started: float | None = None) -> LiveScrape:
    started_at = None if started is None else NOON + started * MINUTE
    return LiveScrape("a", series, NOON + minutes * MINUTE, started_at, counts)


def after(live_scrape: LiveScrape, **changes: Any) -> LiveReplica:
    return LiveReplica("a", live_scrape, **changes)


def windows(pairs: Iterable[tuple[int, int]], start: datetime = NOON) -> list[LiveWindow]:
    """A window a minute with so many drafts and accepted first tokens."""
    return [
        LiveWindow("a", "vllm m", start + place * MINUTE, start + (place + 1) * MINUTE, False, 0, counts(*pair))
        for place, pair in enumerate(pairs)
    ]


def promise(rate: float = 0.6, since: datetime = NOON) -> Promise:
    return Promise(rate, since, ("draft",), frozenset({2}))


def test_a_window_is_what_was_counted_in_between() -> None:
    found = window_between(after(scrape(0, counts(100, 70)), num_failed=2), scrape(3, counts(160, 100)))
    assert found is not None
    assert (found.began_at, found.ended_at, found.seconds) == (NOON, NOON + 3 * MINUTE, 180.0)
    assert (found.is_reset, found.num_failed_scrapes) == (False, 2)
    assert found.counts == replace(counts(60, 30), latencies={"end_to_end_s": Buckets((1.0,), (60, 0))})


def test_the_first_scrape_and_an_old_one_say_nothing() -> None:
    assert window_between(None, scrape(0, counts(100, 70))) is None
    assert window_between(LiveReplica("a", None, 3), scrape(0, counts(100, 70))) is None
    for minutes in (0, -1):
        assert window_between(after(scrape(0, counts(100, 70))), scrape(minutes, counts(200, 90))) is None


@pytest.mark.parametrize("fallen", ["num_drafts", "num_requests", "num_cached_tokens", "per_pos", "latencies"])
def test_counters_that_fall_in_a_process_end_no_window(fallen: str) -> None:
    """Whichever of them: a restart and another process look alike, so that nothing is known of the time in between."""
    before, now = counts(100, 70, more=5), counts(160, 100, more=6)
    changes: dict[str, Any] = {fallen: 1}
    if fallen == "per_pos":
        changes = {"num_accepted_tokens_per_pos": (100, 4)}
    elif fallen == "latencies":
        changes = {"latencies": {"end_to_end_s": Buckets((1.0,), (160, 0))}}
    now = replace(now, **changes)
    assert window_between(after(scrape(0, before)), scrape(1, now)) is None
    conflict = conflict_between(scrape(0, before), scrape(1, now))
    assert conflict is not None
    assert conflict[0] == FELL


def test_a_process_that_began_anew_counts_from_its_own_start() -> None:
    """Also where its counters have passed the old ones, and where its labels are others."""
    for series in ("vllm m", "vllm m, other bins"):
        found = window_between(
            after(scrape(0, counts(100, 70), started=-500)), scrape(5, counts(160, 20), series=series, started=2)
        )
        assert found is not None
        assert (found.is_reset, found.began_at, found.counts) == (True, NOON + 2 * MINUTE, counts(160, 20))


def test_a_process_that_began_anew_is_known_though_its_clock_is_behind() -> None:
    """By its own clock it began before the last scrape of the one before it, which came off here."""
    old = after(scrape(0, counts(100, 70), started=-500))
    found = window_between(old, scrape(5, counts(160, 100), started=-0.5))
    assert found is not None
    assert (found.is_reset, found.began_at, found.counts) == (True, NOON, counts(160, 100))


def test_an_older_process_is_another_one_at_the_same_address() -> None:
    old, new = scrape(0, counts(100, 70), started=-500), scrape(1, counts(160, 100), started=-900)
    conflict = conflict_between(old, new)
    assert conflict is not None
    assert (conflict[0], window_between(after(old), new)) == ("several_processes", None)
    assert "name the page of each replica" in conflict[1]


def test_a_newer_process_that_served_before_the_last_scrape_begins_without_a_window() -> None:
    """As where an address moves on: what it counted before is no part of this address's time."""
    old, new = scrape(0, counts(100, 70), started=-500), scrape(1, counts(160, 100), started=-2)
    assert (conflict_between(old, new), window_between(after(old), new)) == (None, None)


@pytest.mark.parametrize("samples", [{"drafts engine=0": 150, "drafts engine=1": 10}, {"drafts engine=0": 160}])
def test_a_rank_that_begins_anew_is_seen_though_the_sum_grows(samples: dict[str, int]) -> None:
    old = replace(scrape(0, counts(100, 70)), samples={"drafts engine=0": 80, "drafts engine=1": 20})
    new = replace(scrape(1, counts(160, 100)), samples=samples)
    assert window_between(after(old), new) is None
    assert window_between(after(old), replace(new, samples={"drafts engine=0": 140, "drafts engine=1": 20})) is not None


@pytest.mark.parametrize(
    "changes",
    [
        {"num_accepted_tokens_per_pos": (200, 0)},  # the first place accepts more often than is drafted
        {"num_accepted_tokens_per_pos": (80, 50)},  # the second more often than the first
        {"num_accepted_tokens": 300},  # more than drafted
    ],
)
def test_growth_that_cannot_be_ends_no_window(changes: dict[str, Any]) -> None:
    old, new = scrape(0, counts(100, 70)), scrape(1, counts(160, 100))
    found = conflict_between(old, replace(new, counts=replace(new.counts, **changes)))
    assert found is not None
    assert found[0] == "garbage"
    assert conflict_between(old, new) is None


def test_a_page_without_the_end_that_the_last_one_had_was_cut_off() -> None:
    old, new = scrape(0, counts(100, 70)), scrape(1, counts(160, 100))
    conflict = conflict_between(replace(old, has_end_mark=True), new)
    assert conflict is not None
    assert conflict[0] == "cut_off"
    assert conflict_between(old, replace(new, has_end_mark=True)) is None


@pytest.mark.parametrize(
    ("changes", "metric", "why"),
    [
        ({}, "first_position_acceptance_rate", None),
        ({}, "draft_acceptance_rate", None),
        ({"num_accepted_tokens_per_pos": (), "num_accepted_tokens": None}, "first_position_acceptance_rate", None),
        (
            {"num_accepted_tokens_per_pos": (), "num_accepted_tokens": None, "num_output_tokens": 50},
            "first_position_acceptance_rate",
            "or they do not add up",
        ),
        ({"num_accepted_tokens": None}, "draft_acceptance_rate", "lacks counters that draft_acceptance_rate needs"),
        ({"num_drafts": None}, "first_position_acceptance_rate", "lacks counters that first_position"),
        (
            {"num_drafts": None, "num_draft_tokens": None, "num_accepted_tokens": None},
            "first_position_acceptance_rate",
            "counts no drafts",
        ),
        ({"num_accepted_tokens_per_pos": (9, 8, 7)}, "draft_acceptance_rate", "drafts 3 tokens in a step, and 2 is"),
    ],
)
def test_a_page_that_tells_the_guard_nothing_is_known(changes: dict[str, Any], metric: str, why: str | None) -> None:
    policy = replace(POLICY, metric=metric)
    found = unwatched_because(replace(counts(100, 70), **changes), policy, promise())
    assert (found is None) == (why is None)
    assert why is None or why in str(found)


def test_other_labels_begin_another_series() -> None:
    now = scrape(1, counts(160, 100), series="vllm m, 8 positions")
    assert window_between(after(scrape(0, counts(100, 70))), now) is None
    assert (
        window_between(after(scrape(0, counts(100, 70), started=-9)), replace(now, started_at=NOON - 9 * MINUTE))
        is None
    )


def rounded(minutes: float, drafts: int) -> LiveScrape:
    """Counters printed with six digits."""
    whole = counts(drafts, drafts // 2)
    printed = {name: int(float(f"{getattr(whole, name):.6g}")) for name in ("num_drafts", "num_draft_tokens")}
    return replace(scrape(minutes, replace(whole, **printed)), num_digits=6)


@pytest.mark.parametrize(
    ("before", "after", "is_coarse"),
    [
        (400_000, 400_050, False),  # 800,000 drafted tokens: whole
        (600_000, 600_050, True),  # printed to tens: 100 tokens may be 90 or 110
        (600_000, 601_000, False),
        (60_000_000, 60_040_000, True),  # to thousands
        (60_000_000, 60_500_000, False),
        (600_000, 600_000, True),  # nothing drafted, or a few
        (600_000, 50, False),  # begun anew
    ],
)
def test_a_rounded_counter_ends_a_window_only_where_rounding_is_small(before: int, after: int, is_coarse: bool) -> None:
    assert is_too_coarse(rounded(1, after), rounded(0, before)) is is_coarse
    exact = replace(rounded(0, before), num_digits=0), replace(rounded(1, after), num_digits=0)
    assert not is_too_coarse(exact[1], exact[0])


def test_what_is_unknown_in_either_stays_unknown() -> None:
    found = counts_between(counts(160, 100), replace(counts(100, 70), num_drafts=None, latencies={}))
    assert found is not None
    assert (found.num_drafts, found.num_draft_tokens, found.latencies) == (None, 120, {})


def test_what_is_scored() -> None:
    live_counts = counts(100, 70, more=30)
    assert score_counts(live_counts, "first_position_acceptance_rate") == (70, 100)
    assert score_counts(live_counts, "draft_acceptance_rate") == (100, 200)
    assert score_counts(replace(live_counts, num_drafts=0), "first_position_acceptance_rate") is None
    # SGLang: 300 tokens of 10 requests in 100 verifications leave 190 accepted ones, and at most every step's first.
    reported = LiveCounts(num_drafts=100, num_output_tokens=300, num_requests=10)
    assert reported.accepted_tokens == 190
    assert score_counts(reported, "first_position_acceptance_rate") == (100, 100)
    assert score_counts(replace(reported, num_output_tokens=130), "first_position_acceptance_rate") == (20, 100)
    assert score_counts(reported, "draft_acceptance_rate") is None
    assert replace(reported, num_output_tokens=100).accepted_tokens is None, "it contradicts itself"


@pytest.mark.parametrize(
    ("num_draft_tokens", "num_full_draft", "wanted"),
    [
        (200, 2, (70, 100)),  # nothing was forbidden
        (160, 2, (70, 80)),  # 20 of 100 drafts were empty, which the shadow counts as plain steps
        (160, None, (70, 100)),  # a lookup's drafts are short by themselves
        (160, 1, (70, 100)),  # one token may have been a whole draft: nothing is proven empty
        (160, 4, (70, 80)),  # the server drafts two, by its positions
        (60, 2, (70, 70)),  # a first token was drafted wherever one was accepted
    ],
)
def test_drafts_that_a_grammar_emptied_are_no_steps_that_drafted(
    num_draft_tokens: int, num_full_draft: int | None, wanted: tuple[int, int]
) -> None:
    reported = replace(counts(100, 70), num_draft_tokens=num_draft_tokens)
    assert score_counts(reported, "first_position_acceptance_rate", num_full_draft) == wanted


def test_empty_drafts_alone_sound_no_alarm() -> None:
    """Half the steps of structured output have no draft; those that have one accept what was promised."""
    whole = windows([(1_000, 320)] * 200)
    half = [replace(window, counts=replace(window.counts, num_draft_tokens=1_000)) for window in whole]
    assert watch_replica("a", half, promise(), POLICY).alarmed_at is not None
    assert watch_replica("a", half, replace(promise(), has_empty_drafts=True), POLICY).alarmed_at is None


def test_the_bound_of_an_engine_without_positions_is_never_too_low() -> None:
    """Steps that accept at least one token are at most the accepted tokens."""
    drawn = np.random.default_rng(0)
    for _ in range(200):
        depth = drawn.integers(0, 5, size=40)  # accepted in each step
        reported = LiveCounts(num_drafts=40, num_output_tokens=int(depth.sum()) + 40 + 3, num_requests=3)
        found = score_counts(reported, "first_position_acceptance_rate")
        assert found is not None
        assert found[0] >= (depth > 0).sum()


def test_a_bad_draft_sounds_within_the_stated_delay() -> None:
    stated = windows_to_alarm(0.6, 0.05, POLICY)
    assert stated is not None
    good, bad = [(1_000, 700)] * 50, [(1_000, 50)] * 30
    found = watch_replica("a", windows([*good, *bad]), promise(), POLICY)
    assert found.alarmed_at is not None
    late = (found.alarmed_at - NOON) // MINUTE - len(good)
    assert 0 < late <= stated <= 15
    assert watch_replica("a", windows([*good, *bad[: late - 1]]), promise(), POLICY).alarmed_at is None
    assert found.rate == pytest.approx((50 * 700 + 30 * 50) / 80_000)


def test_the_delay_by_hand() -> None:
    """L = 1 + f * (m0 - x) / (1 - m0) a window, and M = L * (M + 1): added up here step by step."""
    fractions, mean, number, m0, rate = (0.1, 0.3, 0.6, 0.95), 0.0, 0, 0.5, 0.2
    statistics = [0.0] * 4
    while mean < 1_000:
        factors = [1 + fraction * (m0 - rate) / (1 - m0) for fraction in fractions]
        statistics = [factor * (statistic + 1) for factor, statistic in zip(factors, statistics, strict=True)]
        mean, number = sum(statistics) / 4, number + 1
    assert windows_to_alarm(m0, rate, POLICY) == number
    assert windows_to_alarm(m0, 0.7, POLICY) is None
    assert windows_to_alarm(m0, rate, replace(POLICY, num_replicas=100)) > number


def test_the_delays_that_the_documentation_states() -> None:
    text = (Path(__file__).parents[2] / "docs" / "live.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\d+)% \| ([\d |]+) \|$", text, re.MULTILINE)
    assert len(rows) == 4
    for promised, cells in rows:
        rate = int(promised) / 100
        stated = [int(cell) for cell in cells.split("|")]
        assert stated == [windows_to_alarm(rate, share * rate, GuardPolicy()) for share in (0, 0.25, 0.5, 0.75, 0.9)]


def test_a_window_with_little_traffic_says_little() -> None:
    """Five drafts of 256 weigh a fiftieth: what sounds after a dozen full windows does not after a hundred of these."""
    assert watch_replica("a", windows([(256, 0)] * 20), promise(), POLICY).alarmed_at is not None
    assert watch_replica("a", windows([(5, 0)] * 100), promise(), POLICY).alarmed_at is None
    assert watch_replica("a", windows([(0, 0)] * 100), promise(), POLICY).detector.num_units == 0


def test_of_more_windows_than_are_folded_the_newest_testify(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shadowspec.live.guard.MAX_UNITS", 3)
    found = watch_replica("a", windows([(10, 1), (20, 2), (30, 3), (40, 4), (50, 5)]), promise(), POLICY)
    assert (found.detector.num_units, found.num_drafted, found.num_accepted) == (3, 120, 12)


def test_what_came_before_the_promise_does_not_testify() -> None:
    live_windows = windows([(1_000, 0)] * 40)
    assert watch_replica("a", live_windows, promise(), POLICY).alarmed_at is not None
    later = from_then(promise(), NOON + 39.5 * MINUTE)
    assert watch_replica("a", live_windows, later, POLICY).detector.num_units == 0, (
        "a window that straddles the moment is out too"
    )
    assert from_then(promise(), None) == promise()
    assert from_then(promise(), NOON - MINUTE) == promise(), "it was cleared before the promise was made"


def test_a_rate_over_drafted_tokens_speaks_of_the_depth_that_was_enabled() -> None:
    live_windows, policy = windows([(1_000, 0)] * 40), replace(POLICY, metric="draft_acceptance_rate")
    assert watch_replica("a", live_windows, promise(), policy).alarmed_at is not None
    assert watch_replica("a", live_windows, replace(promise(), depths=frozenset({4})), policy).detector.num_units == 0


def enabled(rates: dict[str, float], **changes: Any) -> Decision:
    decision = replace(examples.decision(Verdict.ENABLE), watch=examples.watched(**rates), verdict_since=NOON)
    return replace(decision, **changes)


def test_the_promise_is_the_lowest_of_what_stands() -> None:
    whole = enabled({"drift_acceptance": 0.4, "advisory_acceptance": 0.7})
    other = enabled({"drift_acceptance": 0.4, "advisory_acceptance": 0.65}, concurrency=8)
    sliced = enabled({"drift_acceptance": 0.4, "advisory_acceptance": 0.5}, slice_key="a=b")
    held = enabled({"advisory_acceptance": 0.1}, verdict=Verdict.HOLD)
    found = promise_of([whole, other, sliced, held])
    assert found is not None
    assert (found.rate, found.since, found.depths) == (0.65, NOON, frozenset({whole.config.num_speculative_tokens}))
    alone = promise_of([sliced])
    assert alone is not None
    assert alone.rate == 0.5, "where slices alone are enabled they speak"
    floor = promise_of([enabled({"drift_acceptance": 0.4})])
    assert floor is not None
    assert floor.rate == 0.4
    later = replace(other, verdict_since=NOON + MINUTE)
    both = promise_of([later, whole])
    assert both is not None
    assert both.since == NOON + MINUTE, "what came before either stood does not testify"
    assert promise_of([held]) is None
    assert promise_of([replace(whole, watch=None)]) is None


def test_empty_drafts_are_known_of_an_engine_that_counts_them_and_a_draft_that_is_always_there() -> None:
    on_vllm = enabled({"advisory_acceptance": 0.7}, serving_engine="vllm/0.33")
    on_vllm = replace(on_vllm, config=replace(on_vllm.config, proposer="draft_model"))
    lookup = replace(on_vllm, config=replace(on_vllm.config, proposer="suffix"))

    def known(*decisions: Decision) -> bool:
        found = promise_of(decisions)
        assert found is not None
        return found.has_empty_drafts

    assert known(on_vllm)
    assert not known(lookup, on_vllm)
    assert not known(replace(on_vllm, serving_engine="llama.cpp"))
    assert not known(replace(on_vllm, serving_engine=None, engine="unknown"))


@pytest.mark.representative("bursts")
@pytest.mark.parametrize("shape", ["steps", "bursts"])
def test_false_alarms_are_as_rare_as_was_promised(shape: str) -> None:
    """At the boundary itself, where acceptance is exactly the promise: windows of unequal traffic, accepted by chance.

    The statistic less the number of windows falls on average, so that within 400 windows at most 400 / 20,000 = 2% of
    runs alarm at a run length of 20,000 (Doob's inequality); three standard errors of 400 runs are added.
    """
    drawn = np.random.default_rng(7)
    policy, number, length = GuardPolicy(run_length=20_000), 0, 400
    for _ in range(400):
        drafts = drawn.integers(1, 600, size=length)
        chance = np.full(length, 0.6)
        if shape == "bursts":  # a window's steps go well or ill together: still 0.6 in the mean
            chance = np.where(drawn.random(length) < 0.5, 0.9, 0.3)
        accepted = drawn.binomial(drafts, chance)
        found = watch_replica("a", windows(zip(drafts.tolist(), accepted.tolist(), strict=True)), promise(), policy)
        number += found.alarmed_at is not None
    assert number <= 0.02 * 400 + 3 * np.sqrt(0.02 * 0.98 * 400)

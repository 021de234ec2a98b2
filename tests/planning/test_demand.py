"""Production's demand over the loads: what verdicts cover, what becomes a schedule, and the bounds of the mean."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shadowspec.gate.stats.capital import CapitalTable
from shadowspec.live.watch import take_scrapes
from shadowspec.planning.demand import (
    MAX_HEADROOM,
    Demand,
    EndpointLoads,
    LoadsPart,
    LoadVerdict,
    endpoint_loads,
    governing_shares,
    read_demand,
)
from shadowspec.rollout.export.load_schedule import endpoint_schedule, ranges_text
from shadowspec.store import Store
from shadowspec.types import Composition, LiveCounts, LiveScrape, SliceCover, TestResult, Verdict
from shadowspec.types.codec import to_builtins
from tests.rollout.export.worlds import config, decision, judged

NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)
MINUTE, HOUR, DAY_S = timedelta(minutes=1), timedelta(hours=1), 86_400.0
CLIP = math.log(2.0)
ON, OFF, OPEN = Verdict.ENABLE, Verdict.DISABLE, Verdict.HOLD


def demand(readings: dict[int, int], **changes: Any) -> Demand:
    return replace(Demand(NOON - HOUR, NOON, readings, {11: readings}), **changes)


def at(load: int, verdict: Verdict, lower: float = 0.1, upper: float = 0.2) -> LoadVerdict:
    return LoadVerdict(load, verdict, (lower + upper) / 2, lower, upper)


def loads(*verdicts: LoadVerdict, under: Demand | None = None) -> EndpointLoads:
    return EndpointLoads("chat", "draft", verdicts, CLIP, 0.01 * len(verdicts), under)


# worlds in which the truth is known: a speedup at each load within its bounds, and readings of production

bounded = st.tuples(st.floats(-CLIP, CLIP), st.floats(0.0, 0.3), st.floats(0.0, 0.3))
verdicts = st.lists(st.sampled_from([ON, OFF, OPEN]), min_size=1, max_size=4)
readings = st.dictionaries(st.integers(0, 40), st.integers(1, 50), min_size=1, max_size=12).filter(any)


@st.composite
def worlds(draw: st.DrawFn) -> tuple[EndpointLoads, list[float]]:
    """An endpoint under demand, and the true logarithm at each of its loads."""
    chosen = draw(verdicts)
    places = sorted(draw(st.sets(st.integers(1, 30), min_size=len(chosen), max_size=len(chosen))))
    truths, judged_loads = [], []
    for load, verdict in zip(places, chosen, strict=True):
        truth, below, above = draw(bounded)
        truths.append(truth)
        lower, upper = max(truth - below, -CLIP), min(truth + above, CLIP)
        judged_loads.append(LoadVerdict(load, verdict, truth, lower, upper))
    return loads(*judged_loads, under=demand(draw(readings))), truths


@given(worlds(), st.floats(1.0, 3.0), st.randoms(use_true_random=False))
def test_the_bounds_hold_whatever_the_demand_where_those_of_the_loads_do(
    world: tuple[EndpointLoads, list[float]], factor: float, rng: Any
) -> None:
    """Between two loads the truth is anywhere between theirs, below all at least the smallest's, above all anything."""
    endpoint, truths = world
    assert endpoint.demand is not None
    places = [each.concurrency for each in endpoint.loads]
    always = scheduled = 0.0
    for number, share in endpoint.demand.shares().items():
        crowd = number * factor
        beside = [index for index, place in enumerate(places) if place == crowd]
        if crowd > places[-1]:
            truth, is_on = rng.uniform(-CLIP, CLIP), False
        elif beside or crowd < places[0]:
            index = beside[0] if beside else 0
            truth = truths[index] if beside else rng.uniform(truths[0], CLIP)
            is_on = endpoint.loads[index].is_on
        else:
            after = next(index for index, place in enumerate(places) if place > crowd)
            low, high = sorted(truths[after - 1 : after + 1])
            truth, is_on = rng.uniform(low, high), all(each.is_on for each in endpoint.loads[after - 1 : after + 1])
        always += share * truth
        scheduled += share * truth * is_on
    found = endpoint.speedup(factor)
    assert found.lower * (1 - 1e-9) <= math.exp(scheduled) <= found.upper * (1 + 1e-9)
    assert found.always_lower * (1 - 1e-9) <= math.exp(always) <= found.always_upper * (1 + 1e-9)
    assert found.on_share <= found.covered_share + 1e-9 <= 1 + 2e-9


@given(worlds())
def test_ranges_part_the_numbers_and_say_what_each_is(world: tuple[EndpointLoads, list[float]]) -> None:
    endpoint, _ = world
    ranges = endpoint.ranges
    assert ranges[0].first == 1
    assert ranges[-1].last == endpoint.largest
    assert all(before.last + 1 == after.first and before.verdict != after.verdict for before, after in pairwise(ranges))
    for each in ranges:
        for number in range(each.first, each.last + 1):
            assert endpoint._serves(number) is (each.verdict is ON)
            assert endpoint._covers(number) is (each.verdict is not OPEN)
            assert endpoint._covers(number) is any(first <= number <= last for first, last in endpoint.covered)


@given(worlds())
def test_what_is_on_is_what_an_export_turns_on(world: tuple[EndpointLoads, list[float]]) -> None:
    """One rule between the loads, in both places."""
    endpoint, _ = world
    decisions = [decision(each.verdict, load=each.concurrency) for each in endpoint.loads]
    schedule = endpoint_schedule("chat", judged(decisions))
    found = endpoint_loads(decisions)
    assert found is not None
    for number in range(1, endpoint.largest + 3):
        assert found._serves(number) is (schedule.num_speculative_tokens(number) > 0)


def test_the_mean_s_bounds_miss_no_oftener_than_all_loads_together() -> None:
    """Bets of the gate on three loads, each at 10% a side, over 300 endpoints."""
    level, num_units, num_paths = 0.1, 120, 300
    truths, places = (0.25, 0.1, -0.1), (2, 8, 16)
    rng, grid = np.random.default_rng(7), np.arange(-0.69, 0.7, 0.01)
    under = demand({2: 4, 8: 2, 16: 1})
    assert under.shares() == pytest.approx({2: 8 / 40, 8: 16 / 40, 16: 16 / 40})
    truth = sum(share * value for share, value in zip(under.shares().values(), truths, strict=True))
    missed = missed_by_a_load = 0
    for _ in range(num_paths):
        found = []
        for load, value in zip(places, truths, strict=True):
            units = np.clip(value + rng.uniform(-0.35, 0.35, num_units), -CLIP, CLIP)
            tables = [CapitalTable.empty(side, grid, -CLIP, CLIP) for side in ("lower", "upper")]
            low, high = (table.fold(units, np.ones(num_units)).find_bound(level) for table in tables)
            assert low is not None
            assert high is not None
            missed_by_a_load += not low <= value <= high
            found.append(LoadVerdict(load, ON, value, low, high))
        speedup = loads(*found, under=under).speedup(1.0)
        missed += not speedup.always_lower <= math.exp(truth) <= speedup.always_upper
    assert missed <= missed_by_a_load <= 3 * 2 * level * num_paths
    assert missed_by_a_load > 0, "a world in which nothing misses could not show a fault"


# the words


@pytest.mark.parametrize(
    ("verdicts", "words", "limit", "covered"),
    [
        ((at(8, ON), at(16, OFF)), "on up to 8, off above", 8, "1 to 16 requests at once"),
        ((at(4, ON), at(8, ON), at(16, OFF)), "on up to 8, off above", 8, "1 to 16 requests at once"),
        ((at(8, ON),), "on up to 8, not measured above", None, "1 to 8 requests at once"),
        ((at(8, OFF),), "off at every load", None, "1 to 8 requests at once"),
        ((at(8, OPEN),), "undecided up to 8, not measured above", None, "no load yet"),
        (
            (at(8, ON), at(16, OPEN)),
            "on up to 8, undecided from 9 to 16, not measured above",
            None,
            "1 to 8 requests at once",
        ),
        (
            (at(4, OFF), at(8, ON), at(9, OPEN), at(10, OFF)),
            "off up to 7, on at 8, undecided at 9, off above",
            None,
            "1 to 8 and 10 requests at once",
        ),
    ],
)
def test_verdicts_by_load_are_said_as_one_schedule(
    verdicts: tuple[LoadVerdict, ...], words: str, limit: int | None, covered: str
) -> None:
    found = loads(*verdicts)
    assert (found.words, found.schedule_limit, found.covered_words) == (words, limit, covered)
    (line,) = found.lines()
    assert line.endswith("Production's load is not measured: set metrics_urls in endpoints.chat.live")


def test_the_demand_says_how_much_is_covered_and_what_to_add() -> None:
    """Two thirds of the busy time at 4, of which 1 in 5 requests; the rest at 32, above what was measured."""
    found = loads(at(4, ON), at(16, OFF, -0.3, -0.1), under=demand({0: 100, 4: 20, 32: 10}))
    assert found.covered_share() == pytest.approx(80 / 400)
    assert found.covered_share(by_time=True) == pytest.approx(20 / 30)
    assert found.added_load == 32
    document = to_builtins(LoadsPart.of(found))["demand"]
    assert (document["num_readings"], document["added_load"]) == (130, 32)
    said = "\n".join(found.lines())
    assert "covered: 20.0% of production's requests and 66.7% of its busy time (130 readings" in said
    assert "to cover the rest, add load 32 to endpoints.chat.loads" in said
    assert "error level 2.00% a side" in said


def test_a_small_share_above_asks_for_no_load() -> None:
    assert loads(at(4, ON), under=demand({4: 100, 5: 4})).added_load is None
    assert loads(at(4, ON), under=demand({4: 100, 5: 10})).added_load == 5


def test_a_schedule_loses_nothing_when_demand_rises() -> None:
    """On at 4, off at 8: today all requests are at 4, at twice the demand all are at 8."""
    found = loads(at(4, ON, 0.1, 0.2), at(8, OFF, -0.3, -0.1), under=demand({4: 10}))
    today, more, twice = found.speedups
    assert (today.lower, today.upper) == pytest.approx((math.exp(0.1), math.exp(0.2)))
    assert (today.always_lower, today.always_upper) == pytest.approx((today.lower, today.upper))
    assert (more.on_share, more.lower, more.upper) == (0.0, 1.0, 1.0), "between an on and an off it is off"
    assert (more.always_lower, more.always_upper) == pytest.approx((math.exp(-0.3), math.exp(0.2)))
    assert (twice.lower, twice.upper, twice.estimate) == (1.0, 1.0, 1.0)
    assert (twice.always_lower, twice.always_upper) == pytest.approx((math.exp(-0.3), math.exp(-0.1)))
    assert found.headroom == 1.0


def test_the_headroom_is_how_far_demand_may_rise() -> None:
    assert loads(at(4, ON, 0.1), at(40, ON, 0.1), under=demand({4: 10})).headroom == MAX_HEADROOM
    assert loads(at(8, ON, 0.1), under=demand({4: 10})).headroom == pytest.approx(2.0)
    assert loads(at(8, OFF, -0.2, -0.1), under=demand({4: 10})).headroom is None
    assert loads(at(8, ON)).headroom is None
    assert loads(at(8, ON)).speedups == ()


def test_below_the_smallest_load_only_the_lower_bound_is_claimed() -> None:
    found = loads(at(8, ON, 0.1, 0.2), under=demand({2: 1})).speedup(1.0)
    assert (found.lower, found.upper) == pytest.approx((math.exp(0.1), 2.0))


def test_each_load_weighs_what_it_governs() -> None:
    """3 readings at 4 and 1 at 6: 12 and 6 requests, and 40 above the largest load that count for none."""
    assert governing_shares(demand({0: 9, 4: 3, 6: 1, 40: 1}), [4, 8, 16]) == pytest.approx(
        {4: 12 / 18, 8: 6 / 18, 16: 0}
    )
    assert governing_shares(demand({40: 1}), [4, 8]) == {}


# from decisions


def test_the_draft_that_is_on_at_most_loads_speaks_with_its_best_depth() -> None:
    short, long, other = config(2), config(5), config(4, draft="org/other", name="other")
    found = endpoint_loads([
        decision(ON, load=4, of=short, lower=1.1),
        decision(ON, load=4, of=long, lower=1.4),
        decision(ON, load=8, of=short, lower=1.2),
        decision(OFF, load=8, of=long),
        decision(ON, load=4, of=other, lower=1.45),
    ])  # fmt: skip
    assert found is not None
    assert found.config_name == "draft_model-2 and draft_model-5"
    assert [(each.concurrency, each.verdict, round(math.exp(each.lower), 6)) for each in found.loads] == [
        (4, ON, 1.4),
        (8, ON, 1.2),
    ]
    assert found.error_level == pytest.approx(0.05), "the best is chosen among all five"
    (one,) = [endpoint_loads([decision(ON), decision(OFF, of=other)], fingerprint="fp-other")]
    assert one is not None
    assert one.words == "off at every load"


def test_a_forbidding_slice_turns_its_load_off() -> None:
    cover = Composition(True, SliceCover(0.5, False, ON))
    small = Composition(True, SliceCover(0.01, False, ON))
    for composition, words in ((cover, "on up to 4, off above"), (small, "on up to 8, not measured above")):
        off = replace(decision(OFF, load=8, slice_key="prompt_class=code"), composition=composition)
        found = endpoint_loads([decision(ON, load=4), decision(ON, load=8), off])
        assert found is not None
        assert found.words == words


def test_bounds_that_are_not_known_are_the_ends_of_the_range() -> None:
    bare = replace(decision(OPEN), tests=(), frozen_parameters={"log_speedup_clip": 0.5})
    none = replace(
        decision(OPEN, load=8), tests=(TestResult("speedup", "open", None, None, None, 1.05, 0.01, "block", 0, 27),)
    )
    found = endpoint_loads([bare, none], demand({8: 1}))
    assert found is not None
    assert [(each.lower, each.upper) for each in found.loads] == [(-0.5, 0.5)] * 2
    assert found.speedup(1.0).estimate == 1.0, "off everywhere"
    assert endpoint_loads([]) is None


def test_an_export_says_its_ranges() -> None:
    def said(*decisions: Any) -> str:
        return ranges_text(endpoint_schedule("chat", judged(decisions)))

    assert said(decision(ON, load=8), decision(OFF, load=16)) == "on at batch sizes up to 8, off above"
    assert said(decision(ON, load=1), decision(OFF, load=2), decision(ON, load=4)) == (
        "on at batch sizes up to 1 and from 4 to 4, off above"
    )
    assert said(decision(OFF)) == "off at every batch size"


# from production's engines


def scrape(minutes: float, running: int | None, *, replica: str = "a") -> LiveScrape:
    counts = LiveCounts(num_output_tokens=int(100 * minutes), num_requests=int(minutes))
    return LiveScrape(replica, "s", NOON + minutes * MINUTE, NOON - HOUR, counts, num_running=running)


def read(store: Store, running: Sequence[int | None], *, start: int = 0, replica: str = "a") -> None:
    for place, number in enumerate(running):
        take_scrapes(store, "chat", [scrape(start + place, number, replica=replica)])


def test_readings_are_kept_by_the_hour_and_outlive_their_windows(store: Store) -> None:
    """The first reading begins the counting; of two replicas each counts by itself."""
    read(store, [9, 3, 3, None, 0])
    read(store, [1, 5], replica="b")
    read(store, [7], start=90)
    found = read_demand(store, "chat", NOON + 2 * HOUR, DAY_S)
    assert found is not None
    assert found.readings == {0: 1, 3: 2, 5: 1, 7: 1}
    assert found.by_hour == {12: {0: 1, 3: 2, 5: 1}, 13: {7: 1}}
    assert (found.busiest_hour, found.num_readings) == (13, 5)
    assert (found.since, found.until) == (NOON, NOON + 90 * MINUTE)
    assert [each.num_running for each in store.live_windows("chat")] == [3, 5, 3, None, 0, 7]
    assert read_demand(store, "chat", NOON + 2 * HOUR, 1_800.0) is None, "older than the window"
    assert read_demand(store, "other", NOON + 2 * HOUR, DAY_S) is None


def test_idle_servers_are_no_demand(store: Store) -> None:
    read(store, [0, 0, 0])
    assert read_demand(store, "chat", NOON + HOUR, DAY_S) is None

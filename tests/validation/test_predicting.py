"""Costs taken from requests of their own, what they predict, and how a prediction is judged."""

from __future__ import annotations

from math import exp

import numpy as np
import pytest
from scipy import stats

from kernels.benchmarks.engines.predicting import (
    Costs,
    Place,
    Steps,
    TimedBlock,
    TimedRequest,
    costs_of,
    judged,
    measured_speedup,
    predicted_speedup,
    price_spread,
)
from kernels.benchmarks.engines.timing import CONCURRENCIES, COST_REQUESTS, REQUESTS_PER_SLOT, next_of, queues


def request(prompt: int, plain: float, drafts: float, costs: Costs) -> TimedRequest:
    steps = Steps(prompt, plain, drafts)
    prefill = costs.first_token_ms + costs.prompt_token_ms * prompt
    return TimedRequest(steps, prefill, costs.end_to_end_ms(steps) - prefill)


TRUE = Costs(first_token_ms=4.0, prompt_token_ms=0.05, plain_step_ms=3.0, draft_step_ms=5.0)


def test_costs_are_found_again() -> None:
    rng = np.random.default_rng(0)
    timed_requests = [
        request(int(rng.integers(20, 300)), int(rng.integers(5, 40)), int(rng.integers(5, 40)), TRUE) for _ in range(30)
    ]
    found = Costs.of(timed_requests)
    assert [found.first_token_ms, found.prompt_token_ms] == pytest.approx([4.0, 0.05])
    assert [found.plain_step_ms, found.draft_step_ms] == pytest.approx([3.0, 5.0])


def test_one_kind_of_step_costs_total_time_over_steps() -> None:
    timed_requests = [TimedRequest(Steps(10, 0, 10), 1.0, 20.0), TimedRequest(Steps(20, 0, 30), 1.0, 90.0)]
    found = Costs.of(timed_requests)
    assert found.draft_step_ms == pytest.approx(110.0 / 40.0)
    assert found.plain_step_ms == 0.0


def test_every_place_has_costs() -> None:
    cheap, dear = (10, 3.0), (20, 9.0)  # steps, price
    blocks = [
        TimedBlock(place, "code", 0, (TimedRequest(Steps(10, steps, 0), 1.0, steps * price),))
        for place, (steps, price) in ((Place(1, 0), cheap), (Place(8, 0), dear))
    ]
    costs = costs_of(blocks)
    assert {place: each.plain_step_ms for place, each in costs.items()} == pytest.approx(
        {Place(1, 0): 3.0, Place(8, 0): 9.0}
    )


def test_prices_wander_from_the_cheapest_block_to_the_dearest() -> None:
    def priced(place: Place, step_ms: float, *, is_for_costs: bool = True) -> TimedBlock:
        requests = (TimedRequest(Steps(10, 10, 0), 1.0, 10 * step_ms),)
        return TimedBlock(place, "code", 0, requests, is_for_costs=is_for_costs)

    alone = Place(1, 0)
    others = [priced(alone, 90.0, is_for_costs=False), priced(Place(8, 0), 90.0), priced(Place(1, 4), 90.0)]
    assert price_spread([priced(alone, 3.0), priced(alone, 4.5), *others]) == pytest.approx(1.5)


def test_a_prediction_is_the_ratio_of_total_times() -> None:
    costs = {Place(8, 0): Costs(4.0, 0.0, 2.0, 0.0), Place(8, 4): Costs(6.0, 0.0, 0.0, 5.0)}
    plain, steps = [Steps(10, 40, 0), Steps(10, 20, 0)], [Steps(10, 0, 12), Steps(10, 0, 8)]
    assert predicted_speedup(costs, Place(8, 4), plain, steps) == pytest.approx((8.0 + 120.0) / (12.0 + 100.0))


def block(depth: int, number: int, milliseconds: float) -> TimedBlock:
    return TimedBlock(Place(1, depth), "code", number, (TimedRequest(Steps(5, 5, 0), 0.0, milliseconds),))


def test_a_measured_speedup_pairs_blocks_by_number() -> None:
    base = [block(0, number, 100.0 * (number + 1)) for number in (2, 0, 1)]
    ratios = (1.2, 1.3, 1.25)
    blocks = [block(4, number, 100.0 * (number + 1) / ratio) for number, ratio in enumerate(ratios)]
    found = measured_speedup(base, blocks)
    logs = np.log(ratios)
    half = stats.t.ppf(0.975, 2) * logs.std(ddof=1) / 3**0.5
    assert (found.value, found.lower, found.upper) == pytest.approx(
        (exp(logs.mean()), exp(logs.mean() - half), exp(logs.mean() + half))
    )
    assert found.blocks == 3
    assert found.excludes_one


def test_both_turns_of_the_baseline_count() -> None:
    base = [block(0, number, milliseconds) for number in range(2) for milliseconds in (100.0, 140.0)]
    assert measured_speedup(base, [block(4, number, 100.0) for number in range(2)]).value == pytest.approx(1.2)


def test_a_prediction_lies_within_the_interval_or_not() -> None:
    base, blocks = (
        [block(0, number, 100.0) for number in range(3)],
        [block(4, *each) for each in enumerate((80, 90, 85))],
    )
    measured = measured_speedup(base, blocks)
    assert judged(measured.lower, measured)["is_inside"]
    assert not judged(measured.upper * 1.01, measured)["is_inside"]


@pytest.mark.parametrize(
    ("predicted", "times", "is_close", "sign"),
    [
        (1.25, (80.0, 80.1, 79.9), True, True),
        (1.4, (80.0, 80.1, 79.9), False, True),
        (0.98, (95.0, 95.1, 94.9), True, False),
        (0.98, (80.0, 130.0, 95.0), True, None),
    ],
)
def test_predictions_are_judged_by_size_and_by_sign(
    predicted: float, times: tuple[float, ...], is_close: bool, sign: bool | None
) -> None:
    base = [block(0, number, 100.0) for number in range(3)]
    blocks = [block(4, number, time) for number, time in enumerate(times)]
    found = judged(predicted, measured_speedup(base, blocks))
    assert (found["is_close"], found["sign_is_right"]) == (is_close, sign)


def test_a_portion_holds_every_slice_and_load_between_other_requests_for_the_costs() -> None:
    slices = {name: [(place, start) for place in range(50)] for start, name in enumerate(("a", "b"), start=10)}
    others = {name: [(place, start) for place in range(500)] for start, name in enumerate(("a", "b"), start=20)}
    portions = [queues(slices, others, number) for number in range(2)]
    for portion in portions:
        assert [queue.cell for queue in portion] == [(name, load) for name in slices for load in CONCURRENCIES]
        for queue in portion:
            assert len(queue.prompts) == REQUESTS_PER_SLOT[queue.concurrency] * queue.concurrency
            for prompts in queue.around:
                assert len(prompts) == COST_REQUESTS[queue.concurrency]
                assert {prompt[1] for prompt in prompts} == {20, 21}
    around = [prompts for portion in portions for prompts in portion[0].around]
    assert len(set().union(*around)) == sum(map(len, around)), "none of them comes twice"
    assert next_of([(row,) for row in range(5)], 3, 1) == ((3,), (4,), (0,))

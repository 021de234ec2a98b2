"""Queues: Lindley, Little and Erlang hold, and an independent simulator gives every wait the same."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import pytest
import simpy
from hypothesis import given, settings
from hypothesis import strategies as st

from shadowspec.errors import InputError
from shadowspec.planning.queueing import replay_queue, utilisation

milliseconds = st.floats(0.0, 1e4, allow_nan=False).map(lambda value: round(value, 3))
requests = st.lists(st.tuples(milliseconds, milliseconds), min_size=1, max_size=60)


def split(found: list[tuple[float, float]]) -> tuple[list[float], list[float]]:
    """Arrivals from the gaps between them, and service times."""
    return list(accumulate(gap for gap, _ in found)), [service for _, service in found]


def simulated(arrivals: list[float], services: list[float], slots: int) -> list[float]:
    """The same queue, run by simpy."""
    world = simpy.Environment()
    server = simpy.Resource(world, capacity=slots)
    waits = [math.nan] * len(arrivals)

    def request(number: int) -> Generator[Any, Any, None]:
        yield world.timeout(arrivals[number])
        came = world.now
        with server.request() as turn:
            yield turn
            waits[number] = world.now - came
            yield world.timeout(services[number])

    for number in range(len(arrivals)):
        world.process(request(number))
    world.run()
    return waits


@given(requests, st.integers(1, 8))
def test_an_independent_simulator_gives_the_same_waits(found: list[tuple[float, float]], slots: int) -> None:
    arrivals, services = split(found)
    shifted = [arrival - arrivals[0] for arrival in arrivals]
    assert replay_queue(arrivals, services, slots).waits_ms == pytest.approx(
        simulated(shifted, services, slots), abs=1e-6
    )


@given(requests)
def test_one_slot_is_lindleys_recursion(found: list[tuple[float, float]]) -> None:
    arrivals, services = split(found)
    wait, expected = 0.0, [0.0]
    for number in range(1, len(arrivals)):
        wait = max(0.0, wait + services[number - 1] - (arrivals[number] - arrivals[number - 1]))
        expected.append(wait)
    assert replay_queue(arrivals, services, 1).waits_ms == pytest.approx(expected, abs=1e-6)


@given(requests, st.integers(1, 4), st.floats(0.5, 8.0))
def test_littles_law_holds_of_every_replay(found: list[tuple[float, float]], slots: int, speed_up: float) -> None:
    """The time that requests wait, added up, is the number that wait, added up over time."""
    arrivals, services = split(found)
    queue = replay_queue(arrivals, services, slots, speed_up)
    came = [(at - arrivals[0]) / speed_up for at in arrivals]
    began = [at + wait for at, wait in zip(came, queue.waits_ms, strict=True)]
    moments = sorted({*came, *began})
    area = sum(
        (after - before) * sum(at <= before < start for at, start in zip(came, began, strict=True))
        for before, after in pairwise(moments)
    )
    assert area == pytest.approx(sum(queue.waits_ms), rel=1e-9, abs=1e-4)
    # Nobody waits while a slot is free, and no slot serves two at once.
    for start, wait in zip(began, queue.waits_ms, strict=True):
        busy = sum(
            first <= start < first + service for first, service in zip(began, services, strict=True) if first < start
        )
        assert busy <= slots
        if wait > 1e-6:
            before = sum(
                first < start <= first + service + 1e-6 for first, service in zip(began, services, strict=True)
            )
            assert before >= slots


@given(requests, st.integers(1, 4), st.floats(1.0, 8.0))
def test_more_traffic_or_longer_service_never_waits_less(
    found: list[tuple[float, float]], slots: int, factor: float
) -> None:
    arrivals, services = split(found)
    queue = replay_queue(arrivals, services, slots)
    faster = replay_queue(arrivals, services, slots, factor)
    longer = replay_queue(arrivals, [factor * each for each in services], slots)
    more_slots = replay_queue(arrivals, services, slots + 1)
    for name, other in (("faster", faster), ("longer", longer)):
        assert all(a <= b + 1e-6 for a, b in zip(queue.waits_ms, other.waits_ms, strict=True)), name
    assert all(b <= a + 1e-6 for a, b in zip(queue.waits_ms, more_slots.waits_ms, strict=True))


@given(st.lists(milliseconds, min_size=2, max_size=40), st.integers(1, 4))
def test_nobody_waits_where_arrivals_are_far_apart(services: list[float], slots: int) -> None:
    queue = replay_queue([20_000.0 * number for number in range(len(services))], services, slots)
    assert set(queue.waits_ms) == {0.0}
    assert queue.waiting_share == 0.0
    assert queue.mean_response_ms == pytest.approx(np.mean(services))


def erlang_c(slots: int, busy: float) -> float:
    """Erlang's chance of having to wait, of Poisson arrivals and exponential service times."""
    offered = slots * busy
    full = offered**slots / math.factorial(slots) / (1.0 - busy)
    return full / (sum(offered**number / math.factorial(number) for number in range(slots)) + full)


@pytest.mark.parametrize(("slots", "busy"), [(1, 0.5), (1, 0.8), (4, 0.7), (16, 0.9)])
def test_the_closed_forms_of_poisson_traffic_are_met(slots: int, busy: float) -> None:
    """M/M/1 and M/M/c: mean wait = C / (slots x (1 - busy)) service times; a seeded simulation of 400,000 requests."""
    draw = np.random.default_rng(7)
    number, mean = 400_000, 10.0
    arrivals = np.cumsum(draw.exponential(mean / (slots * busy), number)).tolist()
    services = draw.exponential(mean, number).tolist()
    queue = replay_queue(arrivals, services, slots)
    waiting = erlang_c(slots, busy)
    assert queue.utilisation == pytest.approx(busy, rel=0.01)
    assert queue.waiting_share == pytest.approx(waiting, rel=0.03)
    assert queue.mean_ms == pytest.approx(waiting * mean / (slots * (1.0 - busy)), rel=0.06)
    # The wait of those who wait is exponential: the p95 of all follows.
    expected = max(0.0, math.log(waiting / 0.05)) * mean / (slots * (1.0 - busy))
    assert queue.quantile_ms(0.95) == pytest.approx(expected, rel=0.08)


@settings(max_examples=30)
@given(requests, st.integers(1, 8), st.floats(0.1, 10.0))
def test_the_clocks_speed_scales_what_is_asked_for(
    found: list[tuple[float, float]], slots: int, speed_up: float
) -> None:
    arrivals, services = split(found)
    recorded, faster = (utilisation(arrivals, services, slots, factor) for factor in (1.0, speed_up))
    if arrivals[-1] > arrivals[0]:
        assert recorded is not None
        assert faster == pytest.approx(speed_up * recorded)
        assert recorded == pytest.approx((len(arrivals) - 1) * np.mean(services) / (arrivals[-1] - arrivals[0]) / slots)
    else:
        assert recorded is None


def test_more_than_can_be_served_is_an_overload() -> None:
    arrivals = [10.0 * number for number in range(200)]
    assert replay_queue(arrivals, [25.0] * 200, 2).is_overloaded
    assert not replay_queue(arrivals, [19.0] * 200, 2).is_overloaded
    assert not replay_queue([5.0, 5.0], [1.0, 1.0], 1).is_overloaded  # at one moment: no rate


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda: replay_queue([], [], 1), "make no queue"),
        (lambda: replay_queue([1.0], [1.0, 2.0], 1), "1 arrivals and 2 service times"),
        (lambda: replay_queue([1.0], [1.0], 0), "needs a slot"),
        (lambda: replay_queue([1.0], [1.0], 1, 0.0), "a clock that runs"),
        (lambda: replay_queue([2.0, 1.0], [1.0, 1.0], 1), "out of order"),
    ],
)
def test_what_is_no_queue_is_refused(change: Callable[[], object], says: str) -> None:
    with pytest.raises(InputError, match=says):
        change()

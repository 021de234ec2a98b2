"""Queue times that follow from arrivals and service times: slots that serve in order of arrival.

A server with b slots begins each request when a slot is free, in the order of arrival, and holds the slot until the
request is done.  The wait of every request follows from the arrivals and service times of the others (Kiefer and
Wolfowitz 1955; for one slot Lindley 1952), for any distributions: nothing is fitted.

A batching engine is simplified in one way: a service time does not depend on how many slots are busy.  Measured with
all of them busy it is the longest possible, so that the waits are an upper bound.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from shadowspec.errors import InputError


@dataclass(frozen=True, slots=True)
class Queue:
    """Waits of a replay in the order of arrival, and its input; milliseconds."""

    waits_ms: tuple[float, ...]
    utilisation: float | None  # time asked for over slot time there was between the first and the last arrival
    mean_service_ms: float

    @property
    def is_overloaded(self) -> bool:
        """Whether more comes in than can be served: the queue then grows for as long as that lasts."""
        return self.utilisation is not None and self.utilisation >= 1.0

    @property
    def mean_ms(self) -> float:
        return float(np.mean(self.waits_ms))

    @property
    def waiting_share(self) -> float:
        """Share of the requests that found no slot free."""
        return float(np.mean(np.asarray(self.waits_ms) > 0.0))

    @property
    def mean_response_ms(self) -> float:
        """From arrival to the last token."""
        return self.mean_ms + self.mean_service_ms

    def quantile_ms(self, probability: float) -> float:
        """The order statistic of the waits."""
        return float(np.quantile(self.waits_ms, probability, method="inverted_cdf"))


def replay_queue(
    arrivals_ms: Sequence[float], services_ms: Sequence[float], slots: int, speed_up: float = 1.0
) -> Queue:
    """Send the requests through the slots, which are free when the first one comes.

    Args:
        arrivals_ms: when each came, in order.
        services_ms: how long each holds its slot.
        speed_up: the clock of the arrivals runs this many times as fast: more traffic of the same pattern.

    Raises:
        InputError: nothing arrives, a request has no service time, arrivals are out of order, or there is no slot.
    """
    if not arrivals_ms or len(arrivals_ms) != len(services_ms):
        raise InputError(f"{len(arrivals_ms)} arrivals and {len(services_ms)} service times make no queue")
    if slots < 1 or not speed_up > 0.0:
        raise InputError(f"a queue needs a slot and a clock that runs, not {slots} and {speed_up:g}")
    first, before = arrivals_ms[0], 0.0
    free = [0.0] * slots  # when each slot is free next, a heap
    waits = []
    for arrival, service in zip(arrivals_ms, services_ms, strict=True):
        at = (arrival - first) / speed_up
        if at < before:
            raise InputError("arrivals are out of order")
        before = at
        start = max(at, free[0])
        heapq.heapreplace(free, start + service)
        waits.append(start - at)
    return Queue(
        tuple(waits), utilisation(arrivals_ms, services_ms, slots, speed_up), sum(services_ms) / len(services_ms)
    )


def utilisation(
    arrivals_ms: Sequence[float], services_ms: Sequence[float], slots: int, speed_up: float = 1.0
) -> float | None:
    """Arrivals per time, times the mean service time, over the slots; None where all came at one moment."""
    span = (arrivals_ms[-1] - arrivals_ms[0]) / speed_up
    mean_service = sum(services_ms) / len(services_ms)
    return (len(arrivals_ms) - 1) / span * mean_service / slots if span > 0.0 else None

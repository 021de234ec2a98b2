"""How large a shadow has to be: which sampling rate decides in time, and how many devices that keeps busy."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from shadowspec.errors import NoDataError
from shadowspec.metrics import ratio
from shadowspec.planning.block_costs import SessionCosts, session_costs
from shadowspec.planning.capacity import WHOLE_ENDPOINT
from shadowspec.planning.plans import EndpointPlan, SlicePlan
from shadowspec.store import Store

MAX_BLOCKS = 20_000  # of the store, by which a session's cost is known
MAX_REQUESTS = 5_000  # of an endpoint, by which its traffic is known
MAX_BUSY = 0.8  # of a device's time: traffic comes in bursts, and a block waits until it is full


@dataclass(frozen=True, slots=True)
class Sizing:
    """The shadow that decides an endpoint's open questions within a time.

    `sample_rate` is the least that suffices (0: nothing is open), and `busy_devices` how many devices it keeps at work
    until the first slice is decided; both are None where no question can be decided in that time.  `too_slow` are the
    questions that cannot be: rarer than that at rate 1, decided in no simulated outcome, or short of event time.
    """

    endpoint: str
    requests_per_s: float
    sample_rate: float | None
    busy_devices: float | None
    too_slow: tuple[SlicePlan, ...]


def stored_costs(store: Store, endpoints: Sequence[str]) -> dict[str, SessionCosts | None]:
    """The cost of a session of each endpoint, by its newest blocks; None without blocks."""
    return {name: session_costs(timed) for name, timed in store.block_times(endpoints, limit=MAX_BLOCKS).items()}


def stored_traffic(store: Store, endpoint: str) -> float | None:
    """The endpoint's mirrored requests per second of event time, by its newest; None where their time span is 0."""
    newest = store.arrivals(endpoint, limit=MAX_REQUESTS)
    if not newest:
        return None
    span_s = (newest[-1].at - newest[0].at).total_seconds()
    return ratio(sum(arrival.weight for arrival in newest[1:]), span_s)


def size_endpoint(
    plan: EndpointPlan,
    within_s: float,
    *,
    mirrored_per_s: float | None,
    requests_per_s: float | None = None,
    is_late: bool,
) -> Sizing:
    """The sizing by the median (`is_late`: 90%) of a plan's simulated outcomes.

    `mirrored_per_s` is the traffic from which the plan was made, `requests_per_s` the traffic to size for, of the same
    mix (None: the same).

    Raises:
        NoDataError: the traffic or the cost of a session is unknown.
    """
    if not mirrored_per_s or plan.costs is None:
        raise NoDataError(f"endpoint {plan.endpoint}: neither its traffic nor its blocks' times are known yet")
    traffic = mirrored_per_s if requests_per_s is None else requests_per_s
    # Sessions that come for measuring per second at rate 1; those of the whole endpoint are its slices'.
    scale = traffic / mirrored_per_s / plan.sample_rate
    offered = {
        (part.slice_key, part.concurrency): part.clusters_per_s * scale for part in plan.slices if part.slice_key
    }
    rates: list[float] = []
    too_slow = []
    for part in plan.slices:
        wanted = part.clusters_late if is_late else part.clusters_median
        if wanted == 0.0:
            continue
        comes = (
            sum(rate for (_, load), rate in offered.items() if load == part.concurrency)
            if part.slice_key == WHOLE_ENDPOINT
            else offered[part.slice_key, part.concurrency]
        )
        rate = math.inf if wanted is None or not comes else wanted / (within_s * comes)
        if rate > 1.0 or part.span_missing_s > within_s:
            too_slow.append(part)
        else:
            rates.append(rate)
    if not rates and too_slow:
        return Sizing(plan.endpoint, traffic, None, None, tuple(too_slow))
    least = max(rates, default=0.0)
    busy = least * sum(comes * plan.costs.at(name, load).seconds for (name, load), comes in offered.items())
    return Sizing(plan.endpoint, traffic, least, busy, tuple(too_slow))


def devices_needed(busy_devices: Iterable[float | None]) -> int | None:
    """Devices that take all of this work together, none busier than `MAX_BUSY`; None where none of it is known."""
    known = [busy for busy in busy_devices if busy is not None]
    return math.ceil(sum(known) / MAX_BUSY) if known else None

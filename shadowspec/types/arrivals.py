"""When requests came and how long each arm took for them: what derived queue times are made of."""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple

from shadowspec.types.consumed_records import FunnelCounter
from shadowspec.types.requests import RecordKey

# Usable requests of sampled sessions: of these every one is kept with its event time.
ARRIVING = frozenset({FunnelCounter.MEASURED, FunnelCounter.FAILED, FunnelCounter.SAMPLED_OUT, FunnelCounter.SHED})
NOT_SAMPLED = "not_sampled"  # the reason of a request that is kept though its session was not drawn


class ArrivedRequest(NamedTuple):
    """A usable request as it came, measured or not.

    `weight` is how many requests of the traffic it stands for: the inverse of its session's sampling rate, and 0 for
    one whose session was not drawn.  Added up they estimate the traffic without bias.
    """

    key: RecordKey
    slice_key: str
    at: datetime
    weight: float

    @staticmethod
    def weight_of(counter: FunnelCounter, reason: str | None, sampling_rate: float | None) -> float:
        """The weight of a stored request."""
        if counter is FunnelCounter.SAMPLED_OUT and reason == NOT_SAMPLED:
            return 0.0
        return 1.0 / (sampling_rate or 1.0)


class ServedRequest(NamedTuple):
    """A request that was timed in both arms, and its end-to-end times (prefill and decode) at that load."""

    key: RecordKey
    slice_key: str
    concurrency: int
    fingerprint: str
    baseline_ms: float
    speculative_ms: float

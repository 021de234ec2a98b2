"""When blocks began and how long their arms took: what measuring costs the shadow."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True)
class BlockTime:
    """One measured block.  Times in seconds.

    Of each arm, the baseline's and every candidate's, `least_s` adds up the longest request, which is the least that
    the arm can have taken, and `arms_s` the longer of that and of what all its requests, fillers included, take of
    the load's slots.  Prefill and decoding; neither parity nor audits, nor what lies between two blocks.
    `next_started_at` is when the store's next block began, at whatever endpoint; None: there is none yet.
    """

    slice_key: str
    concurrency: int
    num_requests: int  # fillers not among them
    least_s: float
    arms_s: float
    started_at: datetime
    next_started_at: datetime | None

"""What an output token costs with and without speculation, from measured device time and a price.

A request at load b holds 1/b of the device for its end-to-end time, as the gate's cost test has it.  No price is
assumed: where the operator has not said one there is device time, and no cost.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from shadowspec.metrics import ratio
from shadowspec.store import GroupSums
from shadowspec.types import Arm

MS_PER_S = 1_000.0
S_PER_HOUR = 3_600.0
TOKENS_PER_PRICE = 1_000_000
HOURS_PER_MONTH = 365.25 * 24 / 12


@dataclass(frozen=True, slots=True)
class DeviceTime:
    """Device time and output tokens of both arms over the same requests, timed or predicted, plain sums; they add up.

    `weighted_tokens` are the speculative arm's tokens with each request weighed by the inverse of its inclusion rate:
    what the traffic as a whole would have been.
    """

    baseline_ms: float = 0.0
    speculative_ms: float = 0.0
    baseline_tokens: float = 0
    speculative_tokens: float = 0
    weighted_tokens: float = 0.0

    def __add__(self, other: DeviceTime) -> DeviceTime:
        return DeviceTime(
            self.baseline_ms + other.baseline_ms,
            self.speculative_ms + other.speculative_ms,
            self.baseline_tokens + other.baseline_tokens,
            self.speculative_tokens + other.speculative_tokens,
            self.weighted_tokens + other.weighted_tokens,
        )

    def ms_per_token(self, arm: Arm) -> float | None:
        """Device time of an output token, ms."""
        if arm is Arm.BASELINE:
            return ratio(self.baseline_ms, self.baseline_tokens)
        return ratio(self.speculative_ms, self.speculative_tokens)

    def seconds_per_million(self, arm: Arm) -> float | None:
        """Device seconds for a million output tokens."""
        milliseconds = self.ms_per_token(arm)
        return None if milliseconds is None else milliseconds / MS_PER_S * TOKENS_PER_PRICE

    @property
    def saved_share(self) -> float | None:
        """What speculation saves of the baseline's device time per token; below 0 it takes more."""
        baseline, speculative = self.ms_per_token(Arm.BASELINE), self.ms_per_token(Arm.SPECULATIVE)
        kept = None if baseline is None or speculative is None else ratio(speculative, baseline)
        return None if kept is None else 1.0 - kept

    def cost_per_million(self, arm: Arm, price_per_hour: float) -> float | None:
        """What these tokens cost at that price."""
        seconds = self.seconds_per_million(arm)
        return None if seconds is None else seconds / S_PER_HOUR * price_per_hour

    def saved_per_million(self, price_per_hour: float) -> float | None:
        """What speculation saves of it; below 0 it costs more."""
        baseline, speculative = (self.cost_per_million(arm, price_per_hour) for arm in Arm)
        return None if baseline is None or speculative is None else baseline - speculative


def device_time(groups: Iterable[GroupSums]) -> DeviceTime:
    """The device time of grouped sums, each at its own load."""
    total = DeviceTime()
    for group in groups:
        sums = group.sums
        per_run = ratio(sums.timed_weight, sums.num_timed) or 0.0
        total += DeviceTime(
            baseline_ms=(sums.baseline_prefill_ms + sums.baseline_decode_ms) / group.concurrency,
            speculative_ms=(sums.speculative_prefill_ms + sums.speculative_decode_ms) / group.concurrency,
            baseline_tokens=sums.baseline_num_output_tokens,
            speculative_tokens=sums.speculative_num_output_tokens,
            weighted_tokens=sums.speculative_num_output_tokens * per_run,
        )
    return total


def saved_per_month(time: DeviceTime, num_hours: float, share: float, price_per_hour: float) -> float | None:
    """What a month of such traffic would save if `share` of it were served with speculation.

    `num_hours` is how long the traffic was watched: the month is as much longer.  It speaks of mirrored and measured
    traffic, and of the engine that measured.
    """
    saved = time.saved_per_million(price_per_hour)
    tokens_per_hour = ratio(time.weighted_tokens, num_hours)
    if saved is None or tokens_per_hour is None:
        return None
    return saved * tokens_per_hour * HOURS_PER_MONTH * share / TOKENS_PER_PRICE

"""One enabling, with what was measured before and after it: hour by hour, and as two histograms.

What is here comes from the mirror: both arms are measured in shadow before and after alike, so that the traffic
itself (its rate, its latency) shows beside the moment.  What the serving side did at that moment is live evidence
(`live_production`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from shadowspec.metrics import ratio
from shadowspec.reports.content.definitions import config_name
from shadowspec.reports.figures.tally import Tally, ratio_of_total_times, total
from shadowspec.store import GroupSums, Histogram, Quantile, VerdictChange
from shadowspec.types import Arm, FingerprintedConfig, Verdict

MS_PER_S = 1_000.0
QUANTILES = (0.5, 0.95, 0.99)


@dataclass(frozen=True, slots=True)
class Enabling:
    """One moment at which a hypothesis became ENABLE."""

    decision_id: int
    endpoint: str
    slice_key: str
    concurrency: int
    fingerprint: str
    config_name: str
    decided_at: datetime
    marked_at: datetime  # on the axis of event time: `decided_at`, or where the evidence ended if that lies elsewhere
    reason: str


@dataclass(frozen=True, slots=True)
class HourPoint:
    """What one hour of event time held: requests of the traffic per hour, and both arms' mean latency, milliseconds."""

    hour: datetime
    requests_per_hour: float
    baseline_ms: float | None
    speculative_ms: float | None
    speedup: float | None  # of total times


@dataclass(frozen=True, slots=True)
class ArmQuantiles:
    """End-to-end latency of one arm in one period, milliseconds, each quantile with the bin that holds it."""

    arm: Arm
    is_after: bool
    num_requests: int
    quantiles: Mapping[float, Quantile | None]


@dataclass(frozen=True, slots=True)
class PeriodFigures:
    """One side of the moment: output tokens per second of one request in each arm, and requests per hour."""

    is_after: bool
    num_requests: int
    requests_per_hour: float | None
    baseline_tokens_per_s: float | None
    speculative_tokens_per_s: float | None


def enablings(changes: Iterable[VerdictChange], configs: Mapping[str, FingerprintedConfig]) -> list[Enabling]:
    """The changes to ENABLE, newest first.

    The mark is at the decision's time where traffic was then still coming in; where the evidence had ended
    earlier (an old file, folded today) it is at its end, for the hours on the axis are those of the traffic.
    """
    enablings = []
    for change in changes:
        if change.verdict is not Verdict.ENABLE or change.before is Verdict.ENABLE:
            continue
        newest_at = change.evidence.newest_record or change.evidence.newest_evidence or change.decided_at
        is_far = change.decided_at - newest_at > timedelta(days=1)
        enablings.append(
            Enabling(
                decision_id=change.decision_id,
                endpoint=change.endpoint,
                slice_key=change.slice_key,
                concurrency=change.concurrency,
                fingerprint=change.fingerprint,
                config_name=config_name(configs, change.fingerprint),
                decided_at=change.decided_at,
                marked_at=newest_at if is_far else change.decided_at,
                reason=change.reason,
            )
        )
    return enablings


def own_groups(groups: Iterable[GroupSums], enabling: Enabling) -> list[GroupSums]:
    """Those of the enabling's slice (all of them for the whole endpoint), load and config."""
    return [
        group
        for group in groups
        if enabling.slice_key in ("", group.slice_key)
        and group.concurrency == enabling.concurrency
        and group.fingerprint == enabling.fingerprint
    ]


def hour_points(groups: Iterable[GroupSums]) -> list[HourPoint]:
    """Grouped sums by hour as points of a line, in the order of time; an hour without any has no point."""
    by_hour: dict[datetime, Tally] = {}
    for group in groups:
        assert group.start is not None, "sums by hour have their hour"
        by_hour[group.start] = by_hour.get(group.start, Tally()) + Tally.of_sums(group.sums)
    return [
        HourPoint(
            hour=hour,
            requests_per_hour=tally.weight,
            baseline_ms=ratio(tally.baseline_ms, tally.timed_weight),
            speculative_ms=ratio(tally.speculative_ms, tally.timed_weight),
            speedup=ratio_of_total_times(tally),
        )
        for hour, tally in sorted(by_hour.items())
    ]


def period(groups: Sequence[GroupSums], *, is_after: bool) -> PeriodFigures:
    """One side of the moment."""
    tallied = total(Tally.of_sums(group.sums) for group in groups)
    hours = len({group.start for group in groups})
    milliseconds = {
        Arm.BASELINE: sum(group.sums.baseline_prefill_ms + group.sums.baseline_decode_ms for group in groups),
        Arm.SPECULATIVE: sum(group.sums.speculative_prefill_ms + group.sums.speculative_decode_ms for group in groups),
    }
    tokens = {
        Arm.BASELINE: sum(group.sums.baseline_num_output_tokens for group in groups),
        Arm.SPECULATIVE: sum(group.sums.speculative_num_output_tokens for group in groups),
    }
    baseline, speculative = (ratio(tokens[arm] * MS_PER_S, milliseconds[arm]) for arm in Arm)
    return PeriodFigures(is_after, tallied.num_runs, ratio(tallied.weight, hours), baseline, speculative)


def arm_quantiles(arm: Arm, histogram: Histogram, *, is_after: bool) -> ArmQuantiles:
    """p50, p95 and p99 of a histogram; None below 1 / (1 - p) requests, where they would only be the largest."""
    number = sum(histogram.num_runs.values())
    quantiles = {
        share: histogram.quantile(share) if number >= round(1.0 / (1.0 - share)) else None for share in QUANTILES
    }
    return ArmQuantiles(arm, is_after, number, quantiles)

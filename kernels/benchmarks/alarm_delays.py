"""Units from a change to the alarm: the detectors of ENABLE beside CUSUM, which knows the law after the change.

    make bench NAME=alarm_delays

CUSUM sums log likelihood ratios of single requests: normal ones of known means and deviation, or slowed requests of
known shares (Page 1954).  It fires at the detectors' threshold.  Units are windows of four requests, and the detectors
begin at the change.  The table is on docs/research/simulation.md (`make simulation` writes it).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from kernels.benchmarks import harness
from kernels.benchmarks.early_stops import REQUESTS, first
from kernels.benchmarks.harness import machine, options, show, write
from shadowspec.gate.policy import GatePolicy
from shadowspec.gate.stats.betting import Floats
from shadowspec.gate.stats.drift import Detector, alarm_threshold, log_mean, log_statistic_paths

RESULTS = harness.RESULTS / "alarm_delays.json"
POLICY = GatePolicy()
LOG_THRESHOLD = math.log(alarm_threshold(POLICY))
UNITS = 1_500
FALLS = tuple((noise, speedup) for noise in (0.1, 0.25) for speedup in (1.0, 0.9))
SLOWED_LATER = (0.15, 0.25)


def alarms(detector: Detector, values: Floats) -> Floats:
    """The unit at which the detector fires in each repetition, [repetitions]; infinite where it never does."""
    paths = [log_mean(log_statistic_paths(detector, row, np.ones(len(row)))) for row in values]
    return first(np.stack(paths) >= LOG_THRESHOLD)


def cusum(ratios: Floats) -> Floats:
    """The same of CUSUM over log likelihood ratios of units, [repetitions, units]."""
    sums = np.cumsum(ratios, axis=1)
    lowest = np.minimum(np.minimum.accumulate(sums, axis=1), 0.0)
    return first(sums - lowest >= LOG_THRESHOLD)


def speedup_row(noise: float, speedup: float, repetitions: int) -> dict[str, Any]:
    """The fall of the mean to `speedup`, of a log speedup that was promised to be above the margin."""
    rng = np.random.default_rng([1, round(100 * noise), round(100 * speedup)])
    logs = rng.normal(math.log(speedup), noise, (repetitions, UNITS, REQUESTS))
    clip = POLICY.clip_for(noise)
    detector = Detector(POLICY.log_min_speedup, clip)
    promised, fallen = POLICY.log_min_speedup, math.log(speedup)
    ratios = ((logs - promised) ** 2 - (logs - fallen) ** 2).sum(axis=2) / (2.0 * noise**2)
    change = f"speedup falls to {speedup:.1f}x, noise {noise}"
    return _row(change, alarms(detector, np.clip(logs, -clip, clip).mean(axis=2)), cusum(ratios))


def tail_row(share: float, repetitions: int) -> dict[str, Any]:
    """The rise of the slowed share above its limit."""
    rng = np.random.default_rng([2, round(100 * share)])
    slowed = (rng.random((repetitions, UNITS, REQUESTS)) < share).sum(axis=2)
    limit = POLICY.tail_share
    ratios = slowed * math.log(share / limit) + (REQUESTS - slowed) * math.log((1.0 - share) / (1.0 - limit))
    change = f"slowed share rises to {share:.0%}"
    return _row(change, alarms(Detector(limit, 0.0), slowed / REQUESTS), cusum(ratios))


def _row(change: str, detector: Floats, best: Floats) -> dict[str, Any]:
    row: dict[str, Any] = {"change": change}
    for name, delays in (("detector", detector), ("cusum", best)):
        for level, quantile in (("median", 0.5), ("high", 0.9)):
            units = float(np.quantile(delays, quantile, method="inverted_cdf"))
            row[f"{name}_{level}"] = units if math.isfinite(units) else None
    return row


def main() -> None:
    """Write the table's rows."""
    parser = options(__doc__, RESULTS.name)
    parser.add_argument("--repetitions", type=int, default=200)
    arguments = parser.parse_args()
    rows = [speedup_row(noise, speedup, arguments.repetitions) for noise, speedup in FALLS]
    rows += [tail_row(share, arguments.repetitions) for share in SLOWED_LATER]
    show("Units to the alarm (90% of alarms in `high`)", rows)
    write(
        arguments.out,
        {
            "repetitions": arguments.repetitions,
            "threshold": alarm_threshold(POLICY),
            "rows": rows,
            **machine("numpy", "scipy"),
        },
    )


if __name__ == "__main__":
    main()

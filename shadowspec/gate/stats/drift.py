"""Detectors of change after a verdict: e-SR statistics on the unit values that ENABLE or DISABLE promised to hold.

The null is that the promise still holds: E[x | past] >= m0 at every unit, m0 the threshold that was proven
(never an estimate).  A unit with sum u and weight g gives L = 1 + lambda * (m0 * g - u), which under the null
is nonnegative with mean at most 1 while 0 < lambda < 1 / (x_best - m0).  M = L * (M + 1), from 0, then grows by
at most 1 a unit on average, so that the mean number of units until M reaches A is at least A, for any distribution; M
covers every possible moment of change at once.  The detector uses the mean of the M over the betting fractions.  After
Shin, Ramdas and Rinaldo, arXiv 2203.03532.

DISABLE promises the opposite of one limit, such as a mean speedup of at most 1 + margin.  Its detector is the same
statistic, and an alarm refutes the DISABLE: the next run decides again.  While the promise holds, which is while there
is nothing to gain, such an alarm comes no sooner, on average, than after the run length.

A promise "at most" has x_best below m0.  Lambda is then negative, and the statistic is the mirrored one.

The promise needs independent units as the tests do, and more so, because no look waits for r1 here.  Under
autocorrelated units the run length does not hold.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from shadowspec.errors import InputError
from shadowspec.gate.policy import GatePolicy
from shadowspec.gate.stats.betting import FRACTIONS, Floats, Side, Sums, UnitSeries
from shadowspec.types import TestResult


@dataclass(frozen=True, slots=True)
class Detector:
    """One detector: its promise, and its statistics since its start.

    `promise` is m0 and `best` x_best, on the scale of the unit values (log speedup, acceptance rate, slowed share, z):
    the highest value where the promise is a minimum, the lowest where it is a maximum.
    `log_statistics` are the natural logarithms of the M of each fraction (minus infinity at the start), so that
    nothing overflows; `log_peak` is the highest logarithm of their mean at any unit so far.
    """

    promise: float
    best: float
    log_statistics: tuple[float, ...] = (-math.inf,) * len(FRACTIONS)
    log_peak: float = -math.inf
    num_units: int = 0

    def __post_init__(self) -> None:
        if self.promise == self.best:
            raise InputError(f"a promise of {self.promise:g} leaves nothing to fall from: it is the best value")

    def fold(self, sums: Sums) -> Detector:
        """The detector after the units of `sums`, in their order; in pieces or at once is the same."""
        if not len(sums.values):
            return self
        paths = log_statistic_paths(self, sums.values, sums.weights)
        return replace(
            self,
            log_statistics=tuple(paths[:, -1].tolist()),
            log_peak=max(self.log_peak, float(log_mean(paths).max())),
            num_units=self.num_units + len(sums.values),
        )

    def has_alarmed(self, threshold: float) -> bool:
        """Whether the mean of the M reached `threshold` at any unit: an alarm is not taken back."""
        return self.log_peak >= math.log(threshold)

    @property
    def log10_peak(self) -> float | None:
        """The highest that the statistic has been, as a power of ten; None without a unit."""
        return self.log_peak / math.log(10.0) if math.isfinite(self.log_peak) else None


def log_statistic_paths(detector: Detector, values: Floats, weights: Floats) -> Floats:
    """Logarithm of the M of each fraction after each unit, [..., f, n], of units [..., n] from the detector's state."""
    slack = detector.best - detector.promise
    ratios = np.maximum((detector.promise * weights - values) / slack, -1.0)
    grown = np.log1p(FRACTIONS[:, None] * ratios[..., None, :]).cumsum(axis=-1)
    before = np.concatenate([np.zeros_like(grown[..., :1]), grown[..., :-1]], axis=-1)
    # M_n = prod L * (M_0 + sum over k of 1 / product of the L before unit k)
    started = np.logaddexp.accumulate(-before, axis=-1)
    paths: Floats = grown + np.logaddexp(np.array(detector.log_statistics)[:, None], started)
    return paths


def log_mean(paths: Floats) -> Floats:
    """Logarithm of the mean of the M of all fractions after each unit, [n], of `paths` [f, n]."""
    means: Floats = np.logaddexp.reduce(paths, axis=0) - math.log(len(FRACTIONS))
    return means


@dataclass(frozen=True, slots=True)
class DriftWatcher:
    """Maintains one detector over the units of the test `test_name`; None until the detector is started.

    A missing value is folded at its worst, as the bound of `side` has it: an arm that fails is a decay after ENABLE,
    and no gain after DISABLE.
    """

    name: str
    test_name: str
    side: Side = "lower"  # "upper" where a high value is the bad one
    is_uncredited: bool = False  # of the upper side: folds no values below the range

    def fold(self, detector: Detector | None, units: UnitSeries) -> Detector | None:
        """The detector after these units; its promise was fixed when it was started."""
        return None if detector is None else detector.fold(self.sums(units))

    def sums(self, units: UnitSeries) -> Sums:
        """The sums of these units that it folds."""
        if self.is_uncredited and units.uncredited is not None:
            return units.uncredited
        return units.lower if self.side == "lower" else units.upper


WATCHERS = (
    DriftWatcher("drift_speedup", "speedup"),
    DriftWatcher("drift_acceptance", "acceptance"),
    DriftWatcher("drift_tail", "tail", "upper", is_uncredited=True),
    DriftWatcher("drift_z_low", "parity_sampled"),
    DriftWatcher("drift_z_high", "parity_sampled", "upper"),
)
ADVISORY_WATCHERS = (DriftWatcher("advisory_speedup", "speedup"), DriftWatcher("advisory_acceptance", "acceptance"))


REOPENING_WATCHERS = (
    DriftWatcher("reopen_speedup", "speedup"),
    DriftWatcher("reopen_tail", "tail", "upper"),
    DriftWatcher("reopen_z_low", "parity_sampled"),
    DriftWatcher("reopen_z_high", "parity_sampled", "upper"),
)
ALL_WATCHERS = (*WATCHERS, *ADVISORY_WATCHERS, *REOPENING_WATCHERS)


def start_reopening(policy: GatePolicy, result: TestResult) -> dict[str, Detector]:
    """The detector of a DISABLE at the look that gives it, by watcher; `result` is the test that failed.

    Its promise is the limit beyond which the mean was proven to lie.
    """
    is_high = (result.estimate or 0.0) > 0.0
    promise = {
        "speedup": ("reopen_speedup", policy.log_min_speedup, -policy.log_speedup_clip),
        "tail": ("reopen_tail", policy.tail_share, 1.0),
        "parity_sampled": ("reopen_z_high", policy.z_bound, policy.z_clip)
        if is_high
        else ("reopen_z_low", -policy.z_bound, -policy.z_clip),
    }[result.name]
    return {promise[0]: Detector(*promise[1:])}


def start_detectors(
    policy: GatePolicy, lower_bounds: Mapping[str, float], *, has_z: bool = False, noise_share: float = 0.0
) -> dict[str, Detector]:
    """All detectors of a hypothesis at the look that decides ENABLE, by watcher.

    They fold the units that enter after that look: the units that proved the promise do not count again.
    `lower_bounds` are those of "speedup" (log) and "acceptance" at that look.  The advisory detectors hold the
    hypothesis to these bounds less the tolerance, but at least to the promise; they fire earlier and change no
    verdict.  Without `has_z` it has no sampled request, and no score to watch.  `noise_share` of the requests were
    slowed by the noise of pairs alone: an estimate, by which the slowed share may exceed its limit.
    """
    started = {
        "drift_speedup": Detector(policy.log_min_speedup, policy.log_speedup_clip),
        "drift_acceptance": Detector(policy.floor, 1.0),
        "drift_tail": Detector(min(policy.tail_share + noise_share, 1.0), 0.0),
        "drift_z_low": Detector(-policy.z_bound, policy.z_clip),
        "drift_z_high": Detector(policy.z_bound, -policy.z_clip),
    }
    watched = [watcher for watcher in WATCHERS if has_z or watcher.test_name != "parity_sampled"]
    detectors = {watcher.name: started[watcher.name] for watcher in watched}
    for watcher in ADVISORY_WATCHERS:
        held = started[f"drift_{watcher.test_name}"]
        if watcher.test_name in lower_bounds:
            value = max(held.promise, lower_bounds[watcher.test_name] - policy.drift_tolerance)
            detectors[watcher.name] = Detector(value, held.best)
    return detectors


def alarm_threshold(policy: GatePolicy) -> float:
    """The value of M at which a detector fires: the run length times all detectors that an endpoint may have.

    The sum of N statistics grows by at most N per unit of each, so that the first of N alarms at run length
    times N comes no sooner, on average, than after the run length.  The declared number of hypotheses bounds N for any
    set of hypotheses that are enabled or disabled: a DISABLE has one detector.
    """
    return policy.drift_run_length * float(len(WATCHERS) * policy.max_hypotheses)


def alarms(detectors: Mapping[str, Detector], policy: GatePolicy) -> tuple[DriftWatcher, ...]:
    """The watchers whose promise no longer holds."""
    return _select_alarmed((*WATCHERS, *REOPENING_WATCHERS), detectors, policy)


def advice(detectors: Mapping[str, Detector], policy: GatePolicy) -> tuple[str, ...]:
    """Names of the tests that have fallen below their values at ENABLE."""
    return tuple(watcher.test_name for watcher in _select_alarmed(ADVISORY_WATCHERS, detectors, policy))


def _select_alarmed(
    watchers: Sequence[DriftWatcher], detectors: Mapping[str, Detector], policy: GatePolicy
) -> tuple[DriftWatcher, ...]:
    threshold = alarm_threshold(policy)
    started = [watcher for watcher in watchers if watcher.name in detectors]
    return tuple(watcher for watcher in started if detectors[watcher.name].has_alarmed(threshold))

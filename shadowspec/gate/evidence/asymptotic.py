"""Asymptotic confidence sequences of means and ratios: shown beside the betting bounds, judged by nothing.

They need no bounds on the values, and are narrower where the values are tame; but their coverage is a limit, and
under rare large slowdowns they enabled falsely in 8 to 11% of runs at 5%, so that no verdict reads them.  Robbins'
normal mixture with estimated variance (Waudby-Smith, Arbour, Sinha, Kennedy and Ramdas, arXiv 2103.06476).

Everything is vectorised over leading axes: a moment may be one number or the running sums of many paths.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from shadowspec.gate.evidence.series import BettingTest
from shadowspec.types import Figure

BURN_IN = 100  # units below which the normal limit says nothing: no bounds before
PLANNED_UNITS = 500  # at which the bounds shown are tightest; fixed beforehand, or they would not hold

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class RatioMoments:
    """Sums over units of numerators A and denominators D, of one shape, from which a ratio's bounds are computed.

    They add up, in any order of folding.  With D = 1 throughout the ratio is the mean of A.
    """

    num_units: Floats
    sum_a: Floats
    sum_d: Floats
    sum_aa: Floats
    sum_ad: Floats
    sum_dd: Floats

    @staticmethod
    def of(numerators: Floats, denominators: Floats) -> RatioMoments:
        """The moments of all units, which lie along the last axis: [..., n] to [...]."""
        return RatioMoments(*(terms.sum(axis=-1) for terms in _terms(numerators, denominators)))

    def __add__(self, other: RatioMoments) -> RatioMoments:
        return RatioMoments(
            self.num_units + other.num_units,
            self.sum_a + other.sum_a,
            self.sum_d + other.sum_d,
            self.sum_aa + other.sum_aa,
            self.sum_ad + other.sum_ad,
            self.sum_dd + other.sum_dd,
        )

    @property
    def ratio(self) -> Floats:
        """sum of A over sum of D; NaN where D sums to 0."""
        return _divide(self.sum_a, self.sum_d)

    @property
    def influence_sd(self) -> Floats:
        """Standard deviation of the influence values (A - ratio * D) / mean of D; NaN below two units.

        That of the ratio itself is this over the root of n.
        """
        n, ratio = np.maximum(self.num_units, 1.0), self.ratio
        var_a = self.sum_aa - self.sum_a**2 / n  # each times n - 1
        var_d = self.sum_dd - self.sum_d**2 / n
        cov = self.sum_ad - self.sum_a * self.sum_d / n
        scatter = var_a - 2.0 * ratio * cov + ratio**2 * var_d
        variance = _divide(np.maximum(scatter, 0.0), (n - 1.0) * (self.sum_d / n) ** 2)
        return np.asarray(np.sqrt(variance), dtype=np.float64)


@lru_cache
def planned_rho(planned_units: float, level: float) -> float:
    """The mixture's scale at which the half-width is about smallest after `planned_units`."""
    log = -2.0 * np.log(level)
    return float(np.sqrt((log + np.log(log + 1.0)) / planned_units))


def half_width(sd: Floats, num_units: Floats, rho: float, level: float) -> Floats:
    """The mean lies within this of its estimate at all n at once, with probability about 1 - level."""
    return _width(sd, num_units, rho, np.log(np.sqrt(num_units * rho**2 + 1.0) / level))


def bounds(moments: RatioMoments, level: float, planned_units: float = PLANNED_UNITS) -> tuple[Floats, Floats]:
    """Two-sided bounds of the ratio; minus and plus infinity before BURN_IN units or where it is undefined."""
    ratio = moments.ratio
    width = half_width(moments.influence_sd, moments.num_units, planned_rho(planned_units, level), level)
    return _after_burn_in(moments, ratio - width, -np.inf), _after_burn_in(moments, ratio + width, np.inf)


def _width(sd: Floats, num_units: Floats, rho: float, log: Floats) -> Floats:
    """sd * sqrt(2 (n rho^2 + 1) / (n rho)^2 * log), n at least 1."""
    num_units = np.maximum(num_units, 1.0)
    return np.asarray(sd * np.sqrt(2.0 * (num_units * rho**2 + 1.0) / (num_units * rho) ** 2 * log), dtype=np.float64)


def shown_beside(test: BettingTest, level: float) -> BettingTest:
    """The test with asymptotic bounds of its mean at `level` among its figures; units that were seen count, all."""
    sums = test.series.observed
    kept = sums.weights > 0.0
    ratio_moments = RatioMoments.of(sums.values[kept], sums.weights[kept])

    def describe(totals: Mapping[str, float]) -> Mapping[str, Figure]:
        moments = RatioMoments(*(np.array(totals[f"asymptotic_{name}"]) for name in RatioMoments.__slots__))
        lower, upper = (float(bound) for bound in bounds(moments, level))
        return {
            **test.describe(totals),
            "asymptotic_alpha": level,
            "asymptotic_lower": None if math.isinf(lower) else test.to_readable(lower),
            "asymptotic_upper": None if math.isinf(upper) else test.to_readable(upper),
        }

    added = {f"asymptotic_{name}": float(getattr(ratio_moments, name)) for name in RatioMoments.__slots__}
    return replace(test, totals={**test.totals, **added}, describe=describe)


def _terms(numerators: Floats, denominators: Floats) -> tuple[Floats, ...]:
    a, d = np.broadcast_arrays(numerators, denominators)
    return np.ones_like(a), a, d, a * a, a * d, d * d


def _after_burn_in(moments: RatioMoments, bound: Floats, unknown: float) -> Floats:
    is_known = (moments.num_units >= BURN_IN) & np.isfinite(bound)
    return np.where(is_known, bound, unknown)


def _divide(numerator: Floats, denominator: Floats) -> Floats:
    """NaN where the denominator is not positive."""
    known = denominator > 0.0
    return np.where(known, numerator / np.where(known, denominator, 1.0), np.nan)

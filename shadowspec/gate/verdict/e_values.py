"""A rate of false discoveries over all endpoints: e-BH (Wang and Ramdas 2022, arXiv 2009.02824) on their e-values.

An endpoint's alpha is its own: the chance that it is ever enabled falsely, over all its looks, candidates and restarts.
Of a fleet it says only that at most the sum of the alphas is wrong, on average.  E-BH says more: of the endpoints
that it admits at rate q, at most the share q is wrong on average, whatever the dependence between them.

The e-value of an endpoint.  A required test's capital is an e-process of its nulls: at any look its mean is at
most 1 where a null holds.  The smallest of several capitals is no more than that of a null that holds, so that
it is an e-value for "this ENABLE is false".  So is (1 - share) ** -n for n greedy requests without a fault.  A
quantile has no capital: that it passes at its level, at any look, is worth 1 / level.  A run of level L weighs L
/ alpha: levels of all runs and candidates sum to no more than alpha, so that the sum over those whose nulls
hold has a mean of at most 1, whichever of them came to ENABLE.  Of several loads and candidates in force the
smallest e-value counts.  The capitals are those of the latest look, which is a stopping time.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from shadowspec.text import percent, plural
from shadowspec.types import Decision, TestResult, Verdict


def e_bh_rates(log10_values: Sequence[float]) -> list[float]:
    """Of each e-value (as its logarithm to base 10) the smallest rate at which e-BH rejects it, at most 1.

    With K values, of which e is the k-th largest, e-BH at rate q rejects the k largest for the largest k of which
    e >= K / (q k).
    """
    total = len(log10_values)
    order = sorted(range(total), key=lambda place: -log10_values[place])
    rates, least = [1.0] * total, 1.0
    for rank in range(total, 0, -1):
        place = order[rank - 1]
        exponent = math.log10(total / rank) - log10_values[place]
        least = min(least, 10.0**exponent if exponent < 0.0 else 1.0)
        rates[place] = least
    return rates


def e_bh(log10_values: Sequence[float], rate: float) -> frozenset[int]:
    """The places of the e-values that e-BH rejects at `rate`."""
    return frozenset(place for place, least in enumerate(e_bh_rates(log10_values)) if least <= rate)


def log10_evidence(decision: Decision) -> float:
    """The logarithm (base 10) of the e-value against "this ENABLE is false"; minus infinity without evidence."""
    if decision.run is None or not decision.level:
        return -math.inf
    required = [test for test in decision.tests if test.is_required and test.name != "memory"]  # memory: no null
    least = min((_log10_value(test) for test in required), default=-math.inf)
    return least + math.log10(decision.level / decision.run.graph.alpha)


@dataclass(frozen=True, slots=True)
class Fleet:
    """The endpoints on which something was decided: of each that is enabled the smallest rate at which it is admitted.

    `alpha` is the sum of the endpoints' alphas.
    """

    rates: Mapping[str, float]
    num_endpoints: int
    alpha: float

    def rate_of(self, endpoint: str) -> float:
        """The smallest rate at which e-BH admits the endpoint; 1 where it is not enabled."""
        return self.rates.get(endpoint, 1.0)

    @property
    def text(self) -> str:
        """How many of the enabled endpoints may be wrong, in one sentence."""
        if not self.rates:
            return f"None of {plural(self.num_endpoints, 'endpoint')} is enabled."
        number, rate = len(self.rates), max(self.rates.values())
        wrong = min(number * rate, self.alpha)
        return (
            f"Of {plural(number, 'enabled endpoint')}, {_count(wrong)} may be wrong on average (false discovery rate "
            f"{percent(rate)}); over all {self.num_endpoints} for all time, at most {_count(self.alpha)}."
        )


def fleet_of(decisions: Iterable[Decision]) -> Fleet:
    """The fleet of the latest decisions on all endpoints."""
    evidence: dict[str, float] = {}
    enabled: dict[str, float] = {}
    alphas: dict[str, float] = {}
    for decision in decisions:
        evidence.setdefault(decision.endpoint, -math.inf)
        if decision.run is not None:
            alphas[decision.endpoint] = decision.run.graph.alpha
        if not decision.slice_key and decision.verdict is Verdict.ENABLE:
            value = log10_evidence(decision)
            enabled[decision.endpoint] = min(value, enabled.get(decision.endpoint, math.inf))
    names = sorted(evidence)
    rates = e_bh_rates([enabled.get(name, -math.inf) for name in names])
    in_force = {name: rate for name, rate in zip(names, rates, strict=True) if name in enabled}
    return Fleet(in_force, len(names), sum(alphas.values()))


def _log10_value(test: TestResult) -> float:
    if test.betting is not None:
        return test.betting.log10_capital_pass
    if test.outcome != "pass":
        return -math.inf
    if test.name in ("parity_faults", "stream_faults") and test.threshold is not None:
        return -test.num_units * math.log10(1.0 - test.threshold)
    return -math.log10(test.alpha)


def _count(number: float) -> str:
    return f"{number:.2g}"

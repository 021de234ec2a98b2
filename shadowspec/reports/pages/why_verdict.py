"""Why a hypothesis has its verdict: the reason, and each required test's interval beside its limit."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from shadowspec.gate.verdict.figure_texts import ABOVE, BETWEEN, bounds_text, shown_as, threshold_text, title_of
from shadowspec.text import percent, plural, sentence, times
from shadowspec.types import Decision, TestResult

REACH: Final = 0.92  # of the half axis, at which the farthest known value is drawn
ORDER: Final[Mapping[str, int]] = {"fail": 0, "open": 1, "pass": 2}


@dataclass(frozen=True, slots=True)
class LimitLine:
    """A test's interval on an axis from -1 to 1 on which its limit is 0 and more is better.

    A bound that is not known yet lies at the end of the axis.  `estimate` is None before the first unit.
    """

    title: str
    outcome: str
    figures: str
    limit: str
    estimate: float | None
    worst: float
    best: float


def why(decision: Decision) -> str:
    """The reason for a verdict, in sentences; under an override also the verdict that was measured."""
    reason = sentence(decision.reason)  # those of earlier versions are none
    return reason if decision.override is None else f"{reason} The gate measured {decision.override.verdict}."


def limit_lines(decision: Decision) -> list[LimitLine]:
    """Every required test, those that failed first, then those that are open."""
    required = [test for test in decision.tests if test.is_required]
    return [_line(test) for test in sorted(required, key=lambda test: ORDER.get(test.outcome, 1))]


def _line(test: TestResult) -> LimitLine:
    if test.name in ("parity_faults", "stream_faults"):
        return _fault_line(test)
    shown, bounds = shown_as(test.name), bounds_text(test)
    known = test.estimate is not None
    figures = f"{shown(test.estimate)}{f' {bounds}' if '[' in bounds else ''}" if known else "no data yet"
    sign = "" if test.name in BETWEEN else "> " if test.name in ABOVE else "< "
    worst, best, estimate = _distances(test)
    values = [abs(value) for value in (worst, best, estimate) if value is not None and math.isfinite(value)]
    reach = max([*values, 0.0]) or 1.0

    def place(value: float | None, otherwise: float) -> float:
        return otherwise if value is None or not math.isfinite(value) else REACH * value / reach

    return LimitLine(
        title=title_of(test),
        outcome=test.outcome,
        figures=figures,
        limit=f"{sign}{threshold_text(test)}",
        estimate=None if estimate is None else place(estimate, 0.0),
        worst=place(worst, -1.0),
        best=place(best, 1.0),
    )


def _fault_line(test: TestResult) -> LimitLine:
    """One fault is enough to fail, so that its share is on no side of the limit."""
    number = int(test.figures.get("num_faults") or 0)
    worst, best = (-1.0, -REACH) if number else (-1.0, REACH)
    if not number and test.upper is not None and test.threshold:
        worst = REACH * max(-1.0, (test.threshold - test.upper) / test.threshold)
    return LimitLine(
        title=title_of(test),
        outcome=test.outcome,
        figures=f"{number or 'none'} of {plural(test.num_units, test.unit)}",
        limit="none" if number else f"< {threshold_text(test)}",
        estimate=best if test.num_units else None,
        worst=worst,
        best=best,
    )


def _distances(test: TestResult) -> tuple[float | None, float | None, float | None]:
    """The worst bound, the best bound and the estimate, each as its distance beyond the limit; None: not known."""
    limit, lower, upper, estimate = test.threshold, test.lower, test.upper, test.estimate
    if limit is None:
        return None, None, None
    shown = shown_as(test.name)
    if shown is percent:  # a share has natural bounds
        lower = 0.0 if lower is None else lower
        upper = 1.0 if upper is None and test.name in ABOVE else upper
    if test.name in BETWEEN:
        return _within(limit, lower, upper, estimate)
    scale: Callable[[float], float] = _log if shown is times else float
    sign = 1.0 if test.name in ABOVE else -1.0

    def distance(value: float | None) -> float | None:
        return None if value is None else sign * (scale(value) - scale(limit))

    worst, best = (lower, upper) if sign > 0 else (upper, lower)
    return distance(worst), distance(best), distance(estimate)


def _within(
    limit: float, lower: float | None, upper: float | None, estimate: float | None
) -> tuple[float | None, float | None, float | None]:
    middle = None if estimate is None else limit - abs(estimate)
    if lower is None or upper is None:
        return None, limit, middle
    nearest = 0.0 if lower <= 0.0 <= upper else min(abs(lower), abs(upper))
    return limit - max(abs(lower), abs(upper)), limit - nearest, middle


def _log(value: float) -> float:
    return math.log(value) if value > 0.0 else -math.inf

"""Why a hypothesis has its verdict: one sentence, and each required test's interval beside its limit."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from shadowspec.gate.verdict.current_verdict import DISABLE_CODES
from shadowspec.gate.verdict.decision import HOLD_CODES
from shadowspec.gate.verdict.hold_reasons import slowest_of
from shadowspec.gate.verdict.required_tests import waits_for_independence
from shadowspec.reports.content.definitions import bounds_text, shown_as, threshold_text, title_of
from shadowspec.text import percent, plural, span_text, times
from shadowspec.types import Decision, ReasonCode, TestResult, Verdict

ABOVE: Final = (
    *("speedup", "total_time", "acceptance", "ttft", "tpot"),
    *("structured_validity", "stream", "score", "task_score"),
)
BETWEEN: Final = ("parity_sampled",)  # every other test's figure must stay below its limit
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
    """The reason for a verdict in one sentence, without its terms of statistics."""
    required = [test for test in decision.tests if test.is_required]
    if decision.override is not None:
        return f"{_capital(decision.reason)}. The gate measured {decision.override.verdict}."
    if decision.verdict is Verdict.ENABLE:
        return f"{_all_pass(required)}."
    if decision.reason_code == ReasonCode.TOO_FEW_CLUSTERS:
        return f"Too early to say: the tests start after {plural(decision.clusters_needed or 1, 'more session')}."
    if decision.reason_code == ReasonCode.MIN_SPAN:
        span = span_text(decision.evidence.span_s)
        return f"{_all_pass(required)}. The policy requires a longer recording than {span}."
    if waits_for_independence(decision):
        return f"{_capital(decision.reason)}."
    failed = [test for test in required if test.outcome == "fail"]
    named = [test for test in failed if test.name == _TEST_OF_CODE.get(decision.reason_code)]
    if named or (failed and decision.reason_code == ReasonCode.GUARDRAIL):
        return f"{_failed((named or failed)[0])}."
    undecided = [test for test in required if test.outcome == "open"]
    if decision.reason_code == ReasonCode.TOO_FEW_UNITS and undecided:
        return f"{_undecided(slowest_of(undecided), len(undecided), len(required))}."
    try:
        return ReasonCode(decision.reason_code).meaning
    except ValueError:  # of a version that knew other codes
        return f"{_capital(decision.reason)}."


def limit_lines(decision: Decision) -> list[LimitLine]:
    """Every required test, those that failed first, then those that are open."""
    required = [test for test in decision.tests if test.is_required]
    return [_line(test) for test in sorted(required, key=lambda test: ORDER.get(test.outcome, 1))]


_TEST_OF_CODE: Final[dict[str, str]] = {
    **{code: name for name, code in {**HOLD_CODES, **DISABLE_CODES}.items()},
    ReasonCode.PARITY_FAULT: "parity_faults",
    ReasonCode.STREAM_FAULT: "stream_faults",
    ReasonCode.MEMORY_OVER_BUDGET: "memory",
}


def _all_pass(required: list[TestResult]) -> str:
    text = f"All {len(required)} required tests pass" if len(required) > 1 else "Every required test passes"
    speedup = next((test for test in required if test.name == "speedup" and test.lower is not None), None)
    if speedup is None:
        return text
    return f"{text}: the speedup is at least {times(speedup.lower)}, and {_limit(speedup)}"


def _failed(test: TestResult) -> str:
    shown = shown_as(test.name)
    if test.name == "parity_faults":
        number = test.figures.get("num_faults") or 1
        return f"{plural(int(number), 'output')} of the speculative arm differ from the target's by more than rounding"
    if test.name == "stream_faults":
        return f"{plural(int(test.figures.get('num_faults') or 1), 'chat')} streamed otherwise than the same tokens say"
    if test.name == "memory":
        return f"{title_of(test)}: {shown(test.estimate)} more, and {_limit(test)}"
    if test.name in BETWEEN:
        return f"{title_of(test)}: between {shown(test.lower)} and {shown(test.upper)}, and {_limit(test)}"
    bound = f"at most {shown(test.upper)}" if test.name in ABOVE else f"at least {shown(test.lower)}"
    return f"{title_of(test)}: {bound}, and {_limit(test)}"


def _undecided(test: TestResult, num_open: int, num_required: int) -> str:
    shown, passed = shown_as(test.name), num_required - num_open
    head = f"Not proven yet: {passed} of {num_required} tests pass"
    if test.num_units == 0 or (test.lower is None and test.upper is None):
        return f"{head}, and {title_of(test)} has no bounds yet"
    if test.upper is None:
        bound = f"at least {shown(test.lower)}"
    elif test.lower is None or (shown is percent and not test.lower):
        bound = f"at most {shown(test.upper)}"
    else:
        bound = f"between {shown(test.lower)} and {shown(test.upper)}"
    return f"{head}. {title_of(test)}: {bound}, and {_limit(test)}"


def _limit(test: TestResult) -> str:
    if test.name in BETWEEN:
        return f"the policy requires it within {threshold_text(test)}"
    if test.name in ABOVE:
        return f"the policy requires more than {threshold_text(test)}"
    return f"the policy allows less than {threshold_text(test)}"


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


def _capital(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}"

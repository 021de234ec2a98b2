"""Why a verdict: its reason, and lines that lie on the side that the outcome says."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from shadowspec.reports.pages.why_verdict import LimitLine, limit_lines, why
from shadowspec.types import OverriddenVerdict, TestResult, Verdict
from tests.builders.board_values import decision

FAST = TestResult("speedup", "pass", 1.31, 1.12, 1.5, 1.05, 0.01, "block", 30, 16)
UNSURE = TestResult("speedup", "open", 1.02, 0.8, 1.3, 1.05, 0.01, "block", 30, 16, 12)
SLOW = TestResult("speedup", "fail", 0.9, 0.85, 0.96, 1.05, 0.01, "block", 30, 16)
TAIL = TestResult("tail", "fail", 0.23, 0.12, 0.4, 0.1, 0.01, "block", 30, 16)
EQUAL = TestResult("parity_sampled", "pass", 0.001, -0.01, 0.01, 0.02, 0.01, "cluster", 90, 52)
FAULTS = TestResult(
    "parity_faults", "fail", 0.01, None, None, 0.05, 0.01, "request", 200, 113, figures={"num_faults": 2}
)
CLEAN = replace(FAULTS, outcome="pass", estimate=0.0, upper=0.02, figures={"num_faults": 0})
BLANK = TestResult("acceptance", "open", None, None, None, 0.4, 0.01, "cluster", 0, 20)


def line(test: TestResult) -> LimitLine:
    (found,) = limit_lines(replace(decision(), tests=(test,)))
    return found


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"reason": "The speedup is 1.02\u00d7. Send traffic."}, "The speedup is 1.02\u00d7. Send traffic."),
        (
            {"override": OverriddenVerdict(1, None, Verdict.ENABLE, "fast"), "reason": "Override 1 by ada: slow."},
            "Override 1 by ada: slow. The gate measured ENABLE.",
        ),
        ({"reason": "speedup: send 40 more"}, "Speedup: send 40 more."),
    ],
)
def test_the_reason_is_a_sentence_also_where_an_earlier_version_wrote_it(changes: dict[str, Any], said: str) -> None:
    assert why(replace(decision(), **changes)) == said


def test_more_to_the_right_is_better_for_every_test() -> None:
    fast, slow, tail, equal, unsure = (line(each) for each in (FAST, SLOW, TAIL, EQUAL, UNSURE))
    assert 0.0 < fast.worst < (fast.estimate or 0.0) < fast.best <= 1.0
    assert -1.0 <= slow.worst < slow.best < 0.0
    assert -1.0 <= tail.worst < tail.best < 0.0, "a share below its limit is better"
    assert 0.0 < equal.worst < equal.best, "a figure within two limits"
    assert unsure.worst < 0.0 < unsure.best
    assert (fast.figures, fast.limit) == ("1.31\u00d7 [1.12\u00d7, 1.50\u00d7]", "> 1.05\u00d7")
    assert (tail.limit, equal.limit) == ("< 10.0%", "\u00b10.0200")


def test_one_fault_fails_whatever_its_share() -> None:
    fault, clean = line(FAULTS), line(CLEAN)
    assert fault.best < 0.0 < clean.worst
    assert (fault.figures, fault.limit) == ("2 of 200 requests", "none")
    assert clean.figures == "none of 200 requests"


def test_a_test_without_data_says_so() -> None:
    blank = line(BLANK)
    assert (blank.estimate, blank.figures) == (None, "no data yet")
    assert line(replace(FAST, upper=None)).best == 1.0


def test_failed_tests_come_first_and_tests_that_are_not_required_are_left_out() -> None:
    tests = (FAST, UNSURE, replace(EQUAL, is_required=False), TAIL)
    assert [each.outcome for each in limit_lines(replace(decision(), tests=tests))] == ["fail", "open", "pass"]

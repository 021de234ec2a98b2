"""Why a verdict: one sentence of at most 25 words, and lines that lie on the side that the outcome says."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from shadowspec.reports.pages.why_verdict import LimitLine, limit_lines, why
from shadowspec.types import EvidenceSummary, OverriddenVerdict, ReasonCode, TestResult, Verdict
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
        (
            {"verdict": Verdict.ENABLE, "tests": (FAST, EQUAL)},
            "All 2 required tests pass: the speedup is at least 1.12\u00d7, and the policy requires more than "
            "1.05\u00d7.",
        ),
        (
            {"verdict": Verdict.DISABLE, "reason_code": "slowdown", "tests": (TAIL, SLOW)},
            "Speedup: at most 0.96\u00d7, and the policy requires more than 1.05\u00d7.",
        ),
        (
            {"verdict": Verdict.DISABLE, "reason_code": "tail_slowed", "tests": (SLOW, TAIL)},
            "Slowed requests: at least 12.0%, and the policy allows less than 10.0%.",
        ),
        (
            {"verdict": Verdict.DISABLE, "reason_code": "parity_fault", "tests": (FAST, FAULTS)},
            "2 outputs of the speculative arm differ from the target's by more than rounding.",
        ),
        (
            {"tests": (UNSURE, EQUAL)},
            "Not proven yet: 1 of 2 tests pass. Speedup: between 0.80\u00d7 and 1.30\u00d7, and the policy requires "
            "more than 1.05\u00d7.",
        ),
        ({"tests": (BLANK, EQUAL)}, "Not proven yet: 1 of 2 tests pass, and First token accepted has no bounds yet."),
        (
            {"reason_code": "too_few_clusters", "clusters_needed": 17},
            "Too early to say: the tests start after 17 more sessions.",
        ),
        (
            {"reason_code": "min_span", "tests": (FAST,), "evidence": EvidenceSummary(span_s=960.0)},
            "Every required test passes: the speedup is at least 1.12\u00d7, and the policy requires more than "
            "1.05\u00d7. The policy requires a longer recording than 16 minutes.",
        ),
        (
            {"override": OverriddenVerdict(1, None, Verdict.ENABLE, "fast"), "reason": "override 1 by ada: slow"},
            "Override 1 by ada: slow. The gate measured ENABLE.",
        ),
        ({"reason_code": "stale_data"}, ReasonCode.STALE_DATA.meaning),
        ({"reason_code": "dependent", "reason": "speedup: send 40 more"}, "Speedup: send 40 more."),
        ({"reason_code": "of_another_version", "reason": "something else"}, "Something else."),
    ],
)
def test_the_sentence_names_the_figure_that_decides(changes: dict[str, Any], said: str) -> None:
    found = why(replace(decision(), **changes))
    assert found == said
    assert all(len(sentence.split()) <= 25 for sentence in re.split(r"(?<=[.]) (?=[A-Z])", found))


@pytest.mark.parametrize("code", list(ReasonCode))
def test_every_reason_has_a_sentence(code: ReasonCode) -> None:
    for name in code.verdicts:
        found = why(replace(decision(), verdict=Verdict(name), reason_code=code, tests=(SLOW, FAULTS)))
        assert found.endswith(".")


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

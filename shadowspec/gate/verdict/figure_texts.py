"""How a test and its figures are written: its title, its subject in a sentence, its values, and the side of its limit.

In: results of tests.
Out: texts for people.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from shadowspec.text import DASH, figure, format_signed, percent, times
from shadowspec.types import ACCEPTANCE_KEPT, TestResult

Format = Callable[[float | None], str]

TEST_TITLE: Final[Mapping[str, str]] = {
    "speedup": "Speedup",
    "total_time": "Ratio of total times",
    "acceptance": "First token accepted",
    "tail": "Slowed requests",
    "parity_near_ties": "Parity, greedy near-ties",
    "parity_faults": "Parity, greedy faults",
    "stream_faults": "Chat streams, faults",
    "stream": "Whole chat streams, difference",
    "parity_sampled": "Parity, sampled",
    "memory": "Memory budget",
    "ttft": "Time to first token",
    "tpot": "Time per output token",
    "cost": "Cost per output token over its limit",
    "structured_validity": "Valid structured output, difference",
    "score": "Score, difference",
    "task_score": "Task sets' score, difference",
    ACCEPTANCE_KEPT: "Acceptance retained, difference",
    "p95": "p95 end to end, speculative over baseline",
    "p99": "p99 end to end, speculative over baseline",
}
_SUBJECT: Final[Mapping[str, str]] = {  # "the ... is 1.31x"
    "speedup": "speedup",
    "total_time": "speedup of all requests together",
    "acceptance": "share of first tokens accepted",
    "tail": "share of slowed requests",
    "parity_near_ties": "share of greedy outputs that differ by rounding",
    "parity_faults": "share of greedy outputs that differ by more than rounding",
    "stream_faults": "share of broken chat streams",
    "stream": "change in whole chat streams",
    "parity_sampled": "bias of sampled outputs",
    "memory": "extra memory",
    "ttft": "speedup of the first token",
    "tpot": "speedup of the further tokens",
    "cost": "cost per output token, over its limit,",
    "structured_validity": "change in valid structured outputs",
    "score": "change in the score",
    "task_score": "change in the score of the task sets",
    ACCEPTANCE_KEPT: "change in the acceptance",
    "p95": "ratio of the p95 times",
    "p99": "ratio of the p99 times",
}
ABOVE: Final = (
    *("speedup", "total_time", "acceptance", "ttft", "tpot"),
    *("structured_validity", "stream", "score", "task_score", ACCEPTANCE_KEPT),
)
BETWEEN: Final = ("parity_sampled",)  # every other test's figure must stay below its limit
OUTCOME: Final[Mapping[str, str]] = {"pass": "passes", "fail": "fails", "open": "open"}
CLIPPED_FROM: Final = 0.25  # of the requests
CLIPPED: Final = " clipped"  # behind such a figure
CLIPPED_NOTE: Final = (
    "Clipped: a quarter of the requests or more lie beyond the largest ratio that counts, and count as that ratio."
)
_ALL_DRAFTED: Final = "draft_acceptance_rate"  # the metric of acceptance that is not of first tokens


def interval_text(interval: TestResult, format_value: Format) -> str:
    """Estimate with bounds, as in `1.31x [1.12x, 1.54x]`."""
    bounds = f"[{format_value(interval.lower)}, {format_value(interval.upper)}]"
    return f"{format_value(interval.estimate)} {bounds}{CLIPPED * is_clipped(interval)}"


def is_clipped(test: TestResult | None) -> bool:
    """Whether so many requests were clipped that the figure must say so: else 0.45x would pass for 0.72x."""
    share = None if test is None else test.figures.get("clipped_share")
    return isinstance(share, float) and share >= CLIPPED_FROM


def shown_as(test_name: str) -> Format:
    """How a test's estimate, bounds and threshold are written."""
    if test_name in ("speedup", "total_time", "ttft", "tpot", "p95", "p99"):
        return times
    if test_name in ("acceptance", "tail", "parity_near_ties", "parity_faults", "stream_faults", "cost"):
        return percent
    if test_name == "memory":
        return memory_figure
    signed = ("parity_sampled", "structured_validity", "stream", "score", "task_score", ACCEPTANCE_KEPT)
    return format_signed if test_name in signed else figure


def memory_figure(value: float | None) -> str:
    """A share of the baseline's peak, or a whole number of KV tokens, as the policy's budget is set."""
    return figure(value) if value is None or (value == int(value) and abs(value) > 1) else percent(value)


def title_of_test(name: str) -> str:
    """The test's title; an unknown name is shown as words."""
    return TEST_TITLE.get(name, name.replace("_", " "))


def acceptance_title(tests: Iterable[TestResult | None]) -> str:
    """What the acceptance of these tests is a share of, for a heading over all of them."""
    metrics = {test.figures.get("metric") for test in tests if test is not None}
    if _ALL_DRAFTED not in metrics:
        return TEST_TITLE["acceptance"]
    return "Drafted tokens accepted" if len(metrics) == 1 else "Accepted"


def title_of(test: TestResult) -> str:
    """The title of a test of a decision."""
    return acceptance_title([test]) if test.name == "acceptance" else title_of_test(test.name)


def subject_of(test: TestResult) -> str:
    """The test's figure as the subject of a sentence, such as `share of slowed requests`."""
    if test.name == "acceptance" and test.figures.get("metric") == _ALL_DRAFTED:
        return "share of drafted tokens accepted"
    return _SUBJECT.get(test.name, title_of_test(test.name).lower())


def figures_text(test: TestResult) -> str:
    """The estimate, with its bounds where it has any."""
    bounds = bounds_text(test)
    shown = shown_as(test.name)(test.estimate) + ("" if bounds == DASH else f" {bounds}")
    return shown + CLIPPED * is_clipped(test)


def limit_text(test: TestResult) -> str:
    """On which side of its limit a test's figure must be, such as `above 1.05x`."""
    side = "within" if test.name in BETWEEN else "above" if test.name in ABOVE else "below"
    return f"{side} {threshold_text(test)}"


def bounds_text(test: TestResult) -> str:
    """[lower, upper]; none where the test has none (memory is measured, not estimated)."""
    if (test.lower is None and test.upper is None) or test.lower == test.upper:
        return DASH
    format_value = shown_as(test.name)
    return f"[{format_value(test.lower)}, {format_value(test.upper)}]"


def threshold_text(test: TestResult) -> str:
    """The threshold; the teacher-forced z has one on either side of 0."""
    threshold = shown_as(test.name)(test.threshold)
    return threshold.replace("+", "\u00b1") if test.name == "parity_sampled" else threshold

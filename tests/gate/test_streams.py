"""Chat streams at the gate: one proven fault disables, a rate beyond the baseline's holds, and no chat asks nothing."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from shadowspec.gate.evidence.guardrails import stream_test
from shadowspec.gate.verdict.required_tests import min_units
from shadowspec.types import Run, StreamParity, Verdict
from tests.builders.hypothesis_evidence import POLICY, draw_runs, evidence_of, look, result
from tests.gate.worlds import block_unit, run_of

WHOLE = StreamParity("whole", "whole", is_stream_fault=False)
PROVEN = StreamParity("whole", "message", is_stream_fault=True)
LEAK = StreamParity("whole", "marker", is_stream_fault=False)
BOTH = StreamParity("marker", "marker", is_stream_fault=False)


def chats(number: int, other: StreamParity = WHOLE, every: int = 0) -> list[Run]:
    """Fast runs of chats, each `every`-th with another stream."""
    return [
        replace(run, stream=other if every and place % every == every - 1 else WHOLE)
        for place, run in enumerate(draw_runs(number))
    ]


def test_whole_streams_pass_and_are_asked_of_chats_only() -> None:
    decision = look(evidence_of(chats(600)))
    assert decision.verdict is Verdict.ENABLE
    assert result(decision, "stream").outcome == "pass"
    assert result(decision, "stream_faults").outcome == "pass"
    names = [test.name for test in look(evidence_of(draw_runs(600))).tests]
    assert not {"stream", "stream_faults"} & set(names)


@pytest.mark.parametrize("number", [8, 600])
def test_one_proven_fault_disables_at_once(number: int) -> None:
    runs = chats(number)
    runs[3] = replace(runs[3], stream=PROVEN)
    decision = look(evidence_of(runs))
    assert (decision.verdict, decision.reason_code) == (Verdict.DISABLE, "stream_fault")
    assert result(decision, "stream_faults").figures["num_faults"] == 1


def test_leaks_that_may_be_the_model_s_hold_where_speculation_has_more_of_them() -> None:
    decision = look(evidence_of(chats(2_000, LEAK, every=5)))
    assert (decision.verdict, decision.reason_code) == (Verdict.HOLD, "guardrail")
    assert result(decision, "stream").outcome == "fail"
    assert look(evidence_of(chats(600, BOTH, every=5))).verdict is Verdict.ENABLE


def test_a_lost_chat_counts_as_broken_and_a_completion_not_at_all() -> None:
    runs = [replace(run_of(0, "b"), stream=WHOLE), run_of(1, "b"), run_of(2, "b", failure="timeout")]
    series = stream_test([block_unit(0, runs, n_max=4)], POLICY.stream_margin).series
    assert [sums.values.tolist() for sums in (series.lower, series.upper)] == [[-0.25], [0.25]]
    assert [sums.weights.tolist() for sums in (series.lower, series.upper)] == [[0.5], [0.5]]


def test_the_fewest_units_are_those_of_streams_that_no_arm_breaks() -> None:
    """A baseline that breaks streams would end the test sooner, and is nothing to plan with."""
    needed = min_units(stream_test((), 0.05), replace(POLICY, stream_margin=0.05), 0.045)
    assert needed >= math.log(1.0 / 0.045) / math.log(1.0 + 0.05 / 0.95), "a bet of all that the limit leaves"

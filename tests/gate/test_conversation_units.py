"""Blocks of conversations: the units of each test, what reasons say, and what is shown of prefix caches."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shadowspec.gate.evidence.agreement import near_tie_test
from shadowspec.gate.evidence.hypothesis import HypothesisEvidence
from shadowspec.gate.evidence.speedup import CACHED_TOKENS, speedup_test
from shadowspec.gate.evidence.units import BlockUnit
from shadowspec.gate.policy import GatePolicy
from shadowspec.gate.verdict.decision import Hypothesis, decide
from shadowspec.gate.verdict.required_tests import betting_results, fault_result, fault_units
from shadowspec.reports.content.definitions import test_notes as notes_of
from shadowspec.types import Parity, ServedRun, SliceCounts, Trial, Verdict
from tests.gate.worlds import CONFIG, ENDPOINT, GRAPH, START, block_unit, run_of

POLICY = GatePolicy(window_s=0.0)
TURNS = 4


def conversation_block(sequence: int, num_requests: int, *, differing: int = 0, log_speedup: float = 0.3) -> BlockUnit:
    """A block of four places with four turns each; of its greedy requests some differ."""
    runs = []
    for line in range(num_requests):
        parity = Parity(first_divergence=3, divergence_gap=1e-5, rerun_differs=False) if line < differing else None
        made = run_of(100 * sequence + line, f"b{sequence:05d}", log_speedup=log_speedup, parity=parity)
        runs.append(replace(made, served=ServedRun("response", 10, 5, 0)))
    unit = block_unit(sequence, runs, n_max=4 * TURNS)
    return replace(unit, block=replace(unit.block, max_turns=TURNS))


def evidence_of(*units: BlockUnit) -> HypothesisEvidence:
    return HypothesisEvidence().fold((), units, POLICY)


def test_near_ties_count_blocks_of_conversations_as_sums_over_their_full_size() -> None:
    units = [conversation_block(0, 16, differing=4), conversation_block(1, 8)]
    series = near_tie_test(units, POLICY).series
    assert series.num_units == 2
    assert series.observed.values.tolist() == [4 / 16, 0.0]
    assert series.observed.weights.tolist() == [1.0, 0.5]
    alone = [replace(unit, block=replace(unit.block, max_turns=1)) for unit in units]
    assert near_tie_test(alone, POLICY).series.num_units == 24, "requests that are measured by themselves"


def test_lost_requests_and_faults_are_counted_in_the_units_of_conversations() -> None:
    evidence = replace(
        evidence_of(*(conversation_block(number, 16) for number in range(10))), counts=SliceCounts(num_lost=16)
    )
    by_name = {result.name: result for result in betting_results(evidence, POLICY, 0.05)}
    near_ties = by_name["parity_near_ties"]
    assert (near_ties.unit, near_ties.num_units) == ("block", 10)
    faults = fault_result(evidence.runs, "float32", POLICY, 0.05)
    assert (faults.unit, faults.num_units, faults.outcome) == ("cluster", 40, "open")
    assert faults.figures["num_unknown"] == 0
    more = evidence_of(*(conversation_block(number, 16) for number in range(15)))
    assert fault_result(more.runs, "float32", POLICY, 0.05).outcome == "pass", "60 conversations, 59 are enough"


def test_the_shares_that_were_cached_are_shown_beside_the_speedup() -> None:
    units = [conversation_block(0, 16), conversation_block(1, 8)]
    evidence = evidence_of(units[0]).fold((), units[1:], POLICY)
    (result,) = (each for each in betting_results(evidence, POLICY, 0.05) if each.name == "speedup")
    tokens = units[0].runs[0].run.counts
    assert tokens is not None
    assert result.figures["baseline_cached_share"] == pytest.approx(10 / tokens.num_prompt_tokens)
    assert result.figures["speculative_cached_share"] == pytest.approx(5 / tokens.num_prompt_tokens)
    assert any(note.startswith("prompt tokens cached: baseline") for note in notes_of(result))
    alone = replace(units[0], block=replace(units[0].block, max_turns=1))
    assert not set(CACHED_TOKENS) & set(speedup_test([alone], POLICY).totals), "decisions of before keep theirs"


@pytest.mark.parametrize("is_on", [True, False])
def test_reasons_name_the_mode_and_stay_as_they_are_while_the_verdict_does(is_on: bool) -> None:
    details = {"prefix_cache": "on"} if is_on else {}
    config = replace(CONFIG, details={**CONFIG.details, **details})
    hypothesis, trial = Hypothesis(ENDPOINT, "", 4, config), Trial(0.05, 0.05, GRAPH)
    slow = evidence_of(*(conversation_block(number, 16, log_speedup=-0.5) for number in range(200)))
    decision = decide(hypothesis, slow, POLICY, trial=trial, has_entered=True, previous=None, now=START)
    assert decision.verdict is Verdict.DISABLE
    assert decision.reason.endswith(" It was measured with the prefix cache on, whole conversations.") is is_on
    again = decide(hypothesis, slow, POLICY, trial=trial, has_entered=True, previous=decision, now=START)
    assert again.reason == decision.reason


def test_a_plan_counts_conversations_as_the_tests_do() -> None:
    evidence = evidence_of(*(conversation_block(number, 16) for number in range(10)))
    assert fault_units(evidence.runs, evidence.runs.num_known_greedy) == ("cluster", 40)
    alone = [conversation_block(number, 16) for number in range(10)]
    alone = [replace(unit, block=replace(unit.block, max_turns=1)) for unit in alone]
    runs = evidence_of(*alone).runs
    assert fault_units(runs, runs.num_known_greedy) == ("request", 160)

"""The text of every reason: sentences with the cause, an amount and a remedy, and no names of the code."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

import pytest

from shadowspec.gate.evidence.hypothesis import HypothesisEvidence
from shadowspec.gate.verdict import reasons
from shadowspec.gate.verdict.current_verdict import current_verdict
from shadowspec.gate.verdict.decision import decide
from shadowspec.gate.verdict.hold_reasons import dependent, outlook, unproven_independence
from shadowspec.gate.verdict.reasons import REASONS
from shadowspec.gate.verdict.required_tests import (
    after_dependence,
    is_shown_dependent,
    max_autocorrelation,
    more_units,
    waits_for_independence,
)
from shadowspec.types import (
    CachedPrompts,
    Decision,
    Dependence,
    Override,
    Parity,
    ReasonCode,
    SliceCounts,
    TestResult,
    TestState,
    Verdict,
)
from shadowspec.types.speculation import CACHE_MODES, DEPLOYMENT
from tests.builders.hypothesis_evidence import (
    HYPOTHESIS,
    POLICY,
    correlated,
    costly_tail,
    draw_runs,
    evidence_of,
    look,
    result,
    sampled,
)
from tests.builders.watched_gate import POLICY as WATCHED
from tests.builders.watched_gate import Gate
from tests.builders.watched_gate import draw_runs as watched_runs
from tests.gate.test_carry_over import ordered, seen
from tests.gate.test_guardrails import scored_runs
from tests.gate.test_streams import PROVEN
from tests.gate.worlds import ENDPOINT, START, run_of

GOOD = evidence_of(draw_runs(400))
NEAR = Parity(first_divergence=5, divergence_gap=0.0, rerun_differs=False)
OF_DEPLOYMENT = replace(
    HYPOTHESIS,
    config=replace(
        HYPOTHESIS.config, config=replace(HYPOTHESIS.config.config, proposer=DEPLOYMENT, num_speculative_tokens=0)
    ),
)
FROZEN = replace(POLICY, log_speedup_clip=1.5, margin=1.5).with_frozen_parameters(POLICY.frozen_parameters())
REMEDY = re.compile(
    r"(?:^|(?<=[.;] )|(?<=, or )|(?<=, and ))(?:Send|Try|Change|Review|Raise|Lower|Find|Give|Let|Remove|Measure|Set|"
    r"Use|Evaluate|Look|Configure|Rename|Run|Keep|Gate)\b",
    re.IGNORECASE,
)
AMOUNT = re.compile(r"\d|\bno\b|\bnone\b|\bany\b", re.IGNORECASE)
CODE_NAME = re.compile(r"\b[a-z0-9]+(?:_[a-z0-9]+)+\b")
SENTENCE_END = re.compile(r"(?<=[.]) (?=[A-Z0-9`])")
LONGEST = 25  # words of a sentence


def drifted(runs_after: int = 0) -> Decision:
    gate = Gate(replace(WATCHED, on_alarm="hold"))
    assert gate.look(watched_runs(100, 0)).verdict is Verdict.ENABLE
    decision = gate.look(watched_runs(150, 1, speedup=1.0))
    return gate.look(watched_runs(runs_after, 2)) if runs_after else decision


def refuted(runs_after: int = 0) -> Decision:
    gate = Gate()
    assert gate.look(watched_runs(100, 0, speedup=0.9)).verdict is Verdict.DISABLE
    decision = gate.look(watched_runs(200, 1))
    return gate.look(watched_runs(runs_after, 2)) if runs_after else decision


def new_fingerprint(place: int) -> Decision:
    gate = Gate()
    gate.look(watched_runs(100, 0))
    gate.look(watched_runs(10, 1), "other")
    return gate.rows[place]


def tightened() -> Decision:
    gate = Gate()
    gate.look(watched_runs(100, 0))
    gate.policy = replace(WATCHED, margin=0.5)
    return gate.look(watched_runs(10, 1))


def unmeasured_memory() -> Decision:
    bare = [replace(unit, block=replace(unit.block, memory={})) for unit in GOOD.blocks]
    return look(replace(GOOD, blocks=tuple(bare)))


def changed_rate() -> Decision:
    blocks = [
        replace(unit, runs=tuple(replace(run, sampling_rate=0.5 if place % 2 else 0.02) for run in unit.runs))
        for place, unit in enumerate(GOOD.blocks)
    ]
    return look(replace(GOOD, blocks=tuple(blocks)), replace(POLICY, recording_only=True))


def small_slice() -> Decision:
    evidence = HypothesisEvidence(counts=SliceCounts(num_closed_clusters=40, recent_share=0.012))
    return decide(HYPOTHESIS, evidence, POLICY, trial=None, has_entered=False, previous=None, now=START)


def missed() -> Decision:
    runs = [run_of(i, "b", failure="timeout") if i % 19 == 0 else run for i, run in enumerate(draw_runs(400))]
    return look(evidence_of(runs))


def faulty(number: int) -> Decision:
    fault = Parity(first_divergence=3, divergence_gap=5.0, rerun_differs=True)
    runs = [replace(run, parity=fault) if index < number else run for index, run in enumerate(draw_runs(400))]
    return look(evidence_of(runs))


def revoked() -> Decision:
    gate = Gate()
    assert gate.look(watched_runs(100, 0)).verdict is Verdict.ENABLE
    fault = Parity(first_divergence=3, divergence_gap=5.0, rerun_differs=True)
    return gate.look([replace(run, parity=fault) for run in watched_runs(1, 1)])


def broken_stream() -> Decision:
    return look(evidence_of([replace(run, stream=PROVEN) for run in draw_runs(8)]))


def overridden() -> Decision:
    order = Override(3, ENDPOINT, "", None, Verdict.HOLD, "the tail of 2 July is under review", "ann", START)
    in_force = current_verdict(ENDPOINT, "", 4, look(GOOD), [order], START).decision
    assert in_force is not None
    return in_force


CASES: dict[str, list[Callable[[], Decision]]] = {
    "all_tests_pass": [
        lambda: look(GOOD),
        lambda: look(GOOD, replace(POLICY, recording_only=True, min_span_s=7 * 86_400.0)),
    ],
    "slowdown": [
        lambda: look(evidence_of(draw_runs(400, speedup=0.85))),
        lambda: look(evidence_of(draw_runs(400, speedup=0.85, acceptance=0.2))),
    ],
    "tail_slowed": [lambda: look(evidence_of(draw_runs(800, speedup=1.8, slowed_share=0.25)))],
    "parity_fault": [lambda: faulty(1), lambda: faulty(3), revoked],
    "stream_fault": [broken_stream],
    "parity_biased": [lambda: look(evidence_of(sampled(1_200, 0.06), is_greedy=False))],
    "memory_over_budget": [
        lambda: look(GOOD, replace(POLICY, memory_budget_share=0.0001)),
        lambda: look(GOOD, replace(POLICY, memory_budget_tokens=1)),
    ],
    "override": [overridden],
    "drift": [drifted, lambda: drifted(10)],
    "reopened": [refuted, lambda: refuted(10)],
    "too_few_clusters": [lambda: look(evidence_of(draw_runs(12)), level=None, has_entered=False)],
    "small_slice": [small_slice],
    "too_few_units": [
        lambda: look(evidence_of(draw_runs(60))),
        lambda: look(evidence_of(draw_runs(400, speedup=1.03)), replace(POLICY, indifference=0.0)),
        lambda: look(evidence_of(correlated(400, 0.5, seed=1)[:240])),
    ],
    "min_span": [
        lambda: look(GOOD, replace(POLICY, min_span_s=400.0)),
        lambda: look(GOOD, replace(POLICY, min_span_s=7 * 86_400.0)),
    ],
    "changed_fingerprint": [lambda: new_fingerprint(-1), lambda: new_fingerprint(-2)],
    "policy_changed": [tightened],
    "low_acceptance": [lambda: look(evidence_of(draw_runs(400, acceptance=0.25)))],
    "costlier": [lambda: look(evidence_of(costly_tail(1_600)))],
    "near_ties": [
        lambda: look(evidence_of([replace(r, parity=NEAR) if i % 4 == 0 else r for i, r in enumerate(draw_runs(400))]))
    ],
    "guardrail": [lambda: look(evidence_of(scored_runs(400, -0.5)), replace(POLICY, score_margin=0.1))],
    "mix_bound": [
        lambda: look(GOOD, replace(POLICY, require_mix_bound=True), hypothesis=replace(HYPOTHESIS, slice_key=""))
    ],
    "carry_over": [lambda: look(seen(ordered(300, noise=0.05)))],
    "dependent": [
        lambda: look(evidence_of(correlated(480, 0.9))),
        lambda: look(evidence_of(correlated(240, 0.9))),
    ],
    "futile": [lambda: look(evidence_of(draw_runs(240, speedup=1.0)))],
    "undecidable": [
        lambda: look(evidence_of(draw_runs(100, speedup=1.05)), replace(POLICY, max_clusters=100)),
        lambda: look(evidence_of(draw_runs(400, speedup=1.05)), replace(POLICY, indifference=0.2)),
    ],
    "other_engine": [lambda: look(GOOD, replace(POLICY, serving_engine="vllm 0.32"))],
    "no_level_left": [lambda: look(GOOD, level=None)],
    "unprovable": [lambda: look(GOOD, FROZEN)],
    "may_replace": [
        lambda: look(GOOD, replace(POLICY, is_upgrade=True)),
        lambda: look(GOOD, replace(POLICY, is_upgrade=True), hypothesis=OF_DEPLOYMENT),
    ],
    "must_not_replace": [
        lambda: look(evidence_of(draw_runs(400, speedup=0.85)), replace(POLICY, is_upgrade=True)),
        lambda: look(
            evidence_of(draw_runs(400, speedup=0.85)), replace(POLICY, is_upgrade=True), hypothesis=OF_DEPLOYMENT
        ),
    ],
    "missing_data": [missed],
    "late_data": [lambda: look(replace(GOOD, num_left_out=40))],
    "cache_mismatch": [
        lambda: look(replace(GOOD, cached=CachedPrompts(100, 1_000, 700, 400, 400))),
        lambda: look(replace(GOOD, cached=CachedPrompts(100, 1_000, 100, 400, 400))),
    ],
    "prompt_mismatch": [lambda: look(replace(GOOD, num_compared_prompts=400, num_other_prompts=20))],
    "changed_rate": [changed_rate],
    "untimed": [lambda: look(replace(GOOD, num_arrived=400, num_beyond=101))],
    "stale_data": [
        lambda: look(GOOD, replace(POLICY, max_evidence_age_s=60.0), now=START + timedelta(days=2)),
    ],
    "unknown_parity": [lambda: look(evidence_of([replace(run, parity=None) for run in draw_runs(400)]))],
    "unknown_memory": [unmeasured_memory],
}  # fmt: skip


OPEN_SCORE = TestResult("task_score", "open", 0.01, -0.1, 0.1, -0.02, 0.01, "document", 40, 20, 25)
BETWEEN_BATCHES = TestResult(
    "speedup", "pass", 1.3, 1.1, 1.5, 1.05, 0.01, "block", 240, 10, 0, dependence=Dependence(0.15, TestState(), 0.72)
)
# Reasons and parts of reasons that the looks above do not reach.
RARE: list[Callable[[], str]] = [
    lambda: outlook(OPEN_SCORE),
    lambda: outlook(replace(OPEN_SCORE, num_units=0)),
    lambda: outlook(replace(OPEN_SCORE, name="tail", unit="window", num_units=0)),
    lambda: outlook(replace(OPEN_SCORE, name="tail", unit="cluster")),
    lambda: dependent(BETWEEN_BATCHES),
    lambda: dependent(waiting(0.52, 60, merged=8)),
    lambda: f"{unproven_independence(waiting(0.0, 8))} {reasons.alike(2)}",
    lambda: reasons.of_the_future(START),
    lambda: reasons.late_blocks(0.12, 0.05),
    lambda: reasons.parity_unknown(None, 0.05),
    lambda: reasons.no_level_left("", 1),
    lambda: reasons.policy_asks_more([reasons.there_is(reasons.days_missing(1, 7)), reasons.slices_prove(1.02, 1.05)]),
    lambda: f"It still needs {reasons.days_needed(1, 7)} or {reasons.time_needed(3_600.0, 86_400.0)}. Send traffic.",
    lambda: f"{reasons.assumed_beyond(3_600.0)} {reasons.measured_as(CACHE_MODES['on'])} Send traffic to see.",
]


def sentences(reason: str) -> list[str]:
    return SENTENCE_END.split(reason)


def test_every_reason_that_the_gate_writes_is_in_the_table() -> None:
    assert set(CASES) == {code.value for code in ReasonCode} == {code.value for code in REASONS}


@pytest.mark.parametrize("code", CASES)
def test_a_reason_has_its_cause_an_amount_and_a_remedy(code: str) -> None:
    for case in CASES[code]:
        decision = case()
        reason = decision.reason
        assert decision.reason_code == code, reason
        assert AMOUNT.search(reason), f"no amount: {reason}"
        parts = sentences(reason)
        assert decision.verdict is Verdict.ENABLE or any(map(REMEDY.search, parts)), f"no remedy: {reason}"
        for part in parts:
            check_form(part)


@pytest.mark.parametrize("place", range(len(RARE)))
def test_a_rare_reason_has_the_same_form(place: int) -> None:
    reason = RARE[place]()
    assert AMOUNT.search(reason)
    assert any(map(REMEDY.search, sentences(reason))), reason
    for part in sentences(reason):
        check_form(part)


def check_form(sentence: str) -> None:
    words = sentence.split()
    assert len(words) <= LONGEST, f"{len(words)} words: {sentence}"
    assert len(words) >= 2, f"no sentence: {sentence}"
    assert re.match(r"[A-Z0-9`]", sentence), f"no capital: {sentence}"
    assert sentence.endswith("."), f"no full stop: {sentence}"
    plain = re.sub(r"`[^`]*`", "", sentence)
    assert not CODE_NAME.search(plain), f"a name of the code: {sentence}"
    assert "`" not in sentence or REMEDY.search(sentence) or "ends the override" in sentence, f"no remedy: {sentence}"


@pytest.mark.parametrize("code", ReasonCode)
def test_the_meaning_of_a_code_names_no_setting(code: ReasonCode) -> None:
    text = REASONS[code]
    for sentence in sentences(text.meaning):
        check_form(sentence)
        assert "`" not in sentence
    assert text.step[0].islower()
    assert not text.step.endswith(".")


def test_every_sentence_of_the_module_is_rendered_by_a_case(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sentence that no case renders would be read by nobody before a user reads it."""
    rendered: set[str] = set()
    functions = {
        name: function
        for name, function in vars(reasons).items()
        if inspect.isfunction(function)
        and function.__module__ == reasons.__name__
        and not name.startswith(("_", "without_"))
    }

    def noted(name: str, function: Callable[..., str]) -> Callable[..., str]:
        def call(*given: object, **named: object) -> str:
            rendered.add(name)
            return function(*given, **named)

        return call

    for name, function in functions.items():
        monkeypatch.setattr(reasons, name, noted(name, function))
    for case in [*(case for cases in CASES.values() for case in cases), *RARE]:
        case()
    assert functions.keys() - rendered == set()


def waiting(r1: float, num_units: int, *, agreement: float | None = None, merged: int = 1) -> TestResult:
    dependence = Dependence(r1, TestState(0, merged), agreement)
    return TestResult("speedup", "pass", 1.3, 1.1, 1.5, 1.05, 0.01, "block", num_units, 10, 0, dependence=dependence)


@pytest.mark.parametrize(
    ("found", "is_dependent", "more"),
    [
        (waiting(0.0, 8), False, 6),  # 14 units show an r1 of 0
        (waiting(0.52, 8), False, 6),  # of 8 units nothing is known, whatever their r1
        (waiting(0.1, 16), False, 7),  # (1.645 / .35)^2 = 22.1
        (waiting(0.52, 60), True, 40),  # at 100 they merge
        (waiting(0.52, 60, merged=8), True, None),
        (waiting(0.43, 60), False, 40),
        (waiting(0.0, 16, agreement=0.8), False, 9),  # 16 / .64
        (waiting(0.15, 240, agreement=0.72), True, 223),
        (waiting(0.0, 60, agreement=-0.1), False, None),
    ],
)
def test_too_few_units_to_judge_are_not_called_dependent(
    found: TestResult, is_dependent: bool, more: int | None
) -> None:
    assert after_dependence(found)[0] == "wait"
    assert (is_shown_dependent(found), more_units(found)) == (is_dependent, more)
    reason = dependent(found) if is_dependent else unproven_independence(found)
    assert ("too few" in reason) is not is_dependent
    assert str(more) in reason if more is not None else "over more time" in reason


@pytest.mark.parametrize(
    ("r1", "num_units", "agreement"),
    [(0.0, 8, None), (0.1, 16, None), (0.3, 40, None), (0.0, 16, 0.8), (0.15, 240, 0.72)],
)
def test_that_many_more_units_are_enough_and_fewer_are_not(r1: float, num_units: int, agreement: float | None) -> None:
    more = more_units(waiting(r1, num_units, agreement=agreement, merged=8))
    assert more is not None
    for added, action in ((more, "count"), (more - 1, "wait")):
        grown = None if agreement is None else agreement * math.sqrt((num_units + added) / num_units)
        assert after_dependence(waiting(r1, num_units + added, agreement=grown, merged=8))[0] == action


def test_a_wait_for_units_says_how_many_sessions_and_its_bounds_are_not_used() -> None:
    decision = look(evidence_of(correlated(400, 0.5, seed=1)[:240]))
    assert (decision.reason_code, result(decision, "speedup").outcome) == ("too_few_units", "pass")
    assert decision.clusters_needed == 40 * 4
    assert waits_for_independence(decision)
    assert not waits_for_independence(look(evidence_of(draw_runs(60))))
    assert not waits_for_independence(look(GOOD))


def test_the_largest_r1_is_the_limit_less_its_error() -> None:
    assert max_autocorrelation(110) == pytest.approx(0.45 - 1.645 / math.sqrt(110))
    assert max_autocorrelation(13) < 0.0 < max_autocorrelation(14)


def test_an_open_test_without_an_estimate_names_what_may_help() -> None:
    open_test = TestResult("tail", "open", 0.2, 0.05, 0.4, 0.1, 0.01, "window", 9, 20)
    assert outlook(open_test) == (
        "The share of slowed requests is 20.0% [5.0%, 40.0%] and must be below 10.0%. "
        "More of this traffic is not expected to prove it. Try another candidate, or a quiet "
        "machine if others share this one."
    )
    streams = TestResult("stream", "open", 0.0, -0.065, 0.065, -0.05, 0.01, "block", 55, 61, units_needed=16)
    assert outlook(streams) == (
        "Speculation broke 0.0% more of the chat streams than break without it. Up to 6.5% is not excluded yet, and "
        "the limit is 5.0%. Send about 16 more blocks."
    )
    assert outlook(replace(open_test, num_units=0)) == (
        "Nothing counts yet for the share of slowed requests, and it needs at least 20 windows. Send traffic."
    )

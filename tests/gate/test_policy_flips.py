"""Every parameter of the policy changes some decision: one case per field, and a new field without one fails.

A case is a value other than the case's own starting point, and what is decided under a policy: mostly verdict and
reason of a look, for what steers the measuring a decision of the tap or the worker.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from datetime import timedelta
from typing import Any

import pytest
from msgspec import structs

from shadowspec.config.file import _endpoint
from shadowspec.config.policy_file import EndpointPolicy
from shadowspec.config.sections import CandidateSection, EndpointSection
from shadowspec.gate.policy import GatePolicy
from shadowspec.gate.verdict.current_decision import LatestDecision
from shadowspec.gate.verdict.current_verdict import CurrentVerdict
from shadowspec.gate.verdict.e_values import Fleet
from shadowspec.rollout.rollout_policy import RolloutPolicy
from shadowspec.rollout.served_decision import judge_decisions
from shadowspec.tap.blocks import BlockFormer
from shadowspec.tap.endpoints import EndpointRule
from shadowspec.types import (
    ACCEPTANCE_KEPT,
    ArmTiming,
    CachedPrompts,
    Decision,
    PairedScore,
    Parity,
    RecordKey,
    Run,
    SpeculationCounts,
    StoredRecord,
)
from shadowspec.worker.service import SliceRates
from tests.builders.block_prompts import prompt as block_prompt
from tests.builders.hypothesis_evidence import Seen, draw_runs, evidence_of, look
from tests.builders.production_gate import gated
from tests.builders.sampled_records import RULE, admission
from tests.builders.sampled_records import record as sampled_record
from tests.builders.watched_gate import Gate
from tests.builders.watched_gate import draw_runs as drawn_blocks
from tests.gate.oracle import EndpointEvidence
from tests.gate.test_carry_over import ordered
from tests.gate.test_streams import WHOLE
from tests.gate.worlds import START, World, noisy_run, record_of, run_of
from tests.tap.mirror import admit, raw

BASE = GatePolicy(window_s=0.0, max_hypotheses=2, min_span_s=0.0)
SLICES = ("prompt_class=code", "prompt_class=sql")
FAST = draw_runs(400)


def word(decision: Decision) -> object:
    return decision.verdict, decision.reason_code


@dataclass(frozen=True)
class Case:
    """A changed value, what is decided, and what the policy is otherwise."""

    value: object
    decide: Callable[[GatePolicy], object]
    base: dict[str, Any] = field(default_factory=dict)


def seen(runs: list[Run] | Seen, **more: Any) -> Callable[[GatePolicy], object]:
    """The word on one hypothesis that has seen these runs."""
    evidence = runs if isinstance(runs, Seen) else evidence_of(runs, **more)
    return lambda policy: word(look(evidence, policy))


def stored(evidence: EndpointEvidence, *, input_ended: bool = True) -> Callable[[GatePolicy], object]:
    """The words on all hypotheses of an endpoint with these rows, and how many units they rest on."""

    def decide(policy: GatePolicy) -> object:
        decisions = gated(evidence, policy, input_ended=input_ended)
        return [
            (word(decision), decision.num_clusters, decision.evidence.counts.num_closed_clusters)
            for decision in decisions
        ]

    return decide


def records(*timed: tuple[str | None, float]) -> Callable[[GatePolicy], object]:
    """Records of (session, second), the input going on, beside a run that lets there be a hypothesis."""
    world = World(1).evidence()
    stored_records: list[StoredRecord] = []
    for number, (session, at_s) in enumerate(timed):
        plain = record_of(number, at_s=at_s, session=session)
        stored_records.append(structs.replace(plain, key=RecordKey("file", 2, number)))
    return stored(replace(world, records=[*world.records, *stored_records]), input_ended=False)


def changed(index: int, run: Run, every: int, to: Run) -> Run:
    return replace(to, key=run.key, block_id=run.block_id) if index % every == 0 else run


def of_tail(share_every: int) -> list[Run]:
    slow = run_of(0, "", log_speedup=-math.log(1.33))
    return [changed(index, run, share_every, slow) for index, run in enumerate(FAST)]


def clipped() -> list[Run]:
    """Half four times as fast, half a tenth slower."""
    logs = (math.log(4.0), -math.log(1.1))
    return [run_of(index, f"b{index // 4:05d}", log_speedup=logs[index % 2]) for index in range(400)]


def small_gains() -> list[Run]:
    """Short requests are faster, and the long ones, which cost most of the time, are not."""
    kinds = ((math.log(1.3), 20.0), (0.0, 1_000.0))
    return [
        run_of(index, f"b{index // 4:05d}", log_speedup=kinds[index % 2][0], baseline_ms=kinds[index % 2][1])
        for index in range(400)
    ]


def shallow() -> list[Run]:
    """Accepted at the first position, and seldom after it."""
    counts = SpeculationCounts(30, 120, 24, (20, 2, 1, 1), (10, 18, 1, 0, 1), 55, 10)
    return [replace(run, counts=counts) for run in FAST]


def long_sessions() -> Seen:
    """Three in ten sessions are long and accept little; the short ones accept much."""
    runs = [
        run_of(index, f"b{index // 4:05d}", num_drafts=640, num_first_accepted=64)
        if index % 10 < 3
        else run_of(index, f"b{index // 4:05d}", num_drafts=30, num_first_accepted=20)
        for index in range(400)
    ]
    return evidence_of(runs)


def with_parity(parity: Callable[[int], Parity], *, is_greedy: bool, num_runs: int = 400) -> Seen:
    runs = [replace(run, parity=parity(index)) for index, run in enumerate(FAST[:num_runs])]
    return evidence_of(runs, is_greedy=is_greedy)


def sampled(size: float, num_runs: int = 400) -> Seen:
    """Sampled runs whose mean z is `size`, up and down in turn, over 64 tokens."""
    return with_parity(
        lambda index: Parity(z_sum=64 * size * (-1) ** index, z_tokens=64, baseline_z_sum=0.0, baseline_z_tokens=64),
        is_greedy=False,
        num_runs=num_runs,
    )


def less_accepted() -> list[Run]:
    """Runs of two deployments, of which the second accepts less."""
    pair = PairedScore(0.7, 0.4)
    return [replace(run, scores={ACCEPTANCE_KEPT: pair}) for run in draw_runs(400, speedup=1.0)]


def one_fault() -> Seen:
    odd = Parity(first_divergence=3, divergence_gap=0.01, rerun_differs=True)
    return with_parity(lambda index: odd if index == 7 else Parity(), is_greedy=True)


def with_tokens() -> list[Run]:
    """Runs of which everything is measured that a guardrail asks for: both arms alike but in time."""
    runs = []
    for run in FAST:
        assert run.baseline is not None
        assert run.speculative is not None
        arms = [replace(arm, num_output_tokens=20) for arm in (run.baseline, run.speculative)]
        scores = {"structured_validity": PairedScore(1.0, 1.0), "score": PairedScore(0.5, 0.5)}
        runs.append(replace(run, baseline=arms[0], speculative=arms[1], scores=scores))
    return runs


def slow_tokens() -> list[Run]:
    """Faster as a whole, because only half as much is said."""
    return [
        replace(run, speculative=replace(run.speculative, num_output_tokens=10))
        for run in with_tokens()
        if run.speculative is not None
    ]


def late_start() -> list[Run]:
    """Faster as a whole, with a first token that comes 5% later."""
    return [
        replace(run, speculative=ArmTiming(0.0, run.baseline.prefill_ms * 1.05, run.speculative.decode_ms))
        for run in with_tokens()
        if run.baseline is not None and run.speculative is not None
    ]


def drifted(*, speedup: float, blocks: int) -> Callable[[GatePolicy], object]:
    """The word, and the advice, after an ENABLE under this policy and blocks at another speedup."""

    def decide(policy: GatePolicy) -> object:
        gate = Gate(policy)
        assert gate.look(drawn_blocks(100, 0)).verdict.value == "ENABLE"
        after = gate.look(drawn_blocks(blocks, 3, speedup=speedup))
        return word(after), after.drift.advice

    return decide


def traffic_shares(policy: GatePolicy) -> object:
    evidence = World(40, slices=SLICES, make_run=noisy_run(), gap_s=600.0).evidence()  # of a day
    early = [
        r for r in evidence.records if r.slice_key == SLICES[0] or (r.event_time or START) > START + timedelta(hours=15)
    ]
    kept = {record.key for record in early}
    endpoint_evidence = replace(evidence, records=early, runs=[run for run in evidence.runs if run.key in kept])
    decisions = gated(endpoint_evidence, policy)
    return [decision.traffic_share for decision in decisions]


def rule_of(policy: GatePolicy) -> EndpointRule:
    """The endpoint as the configuration hands it to tap and worker."""
    candidate = CandidateSection(name="ngram", proposer="ngram", num_speculative_tokens=3)
    section = EndpointSection(target="t", served_models=("m",), candidates=(candidate,))
    return _endpoint("chat", section, EndpointPolicy(policy, RolloutPolicy())).rule


def timed(policy: GatePolicy) -> object:
    """Which of the first requests of some sessions are measured."""
    endpoint_rule = replace(RULE, sample_rate=1.0, timed_positions=rule_of(policy).timed_positions)
    decide = admission(endpoint_rule)
    return [type(admit(decide, raw(sampled_record(number)))).__name__ for number in range(60)]


def waited(policy: GatePolicy) -> object:
    """Whether a block runs short after eleven minutes."""
    former = BlockFormer([replace(rule_of(policy), name="one", slice_by=("prompt_class",))])
    former.add(block_prompt(0, 0), 4)
    return len(former.add(block_prompt(1, 11.0), 4))


def budget(policy: GatePolicy) -> object:
    """How many of an hour's requests are passed over."""
    former = BlockFormer([replace(rule_of(policy), name="one", slice_by=("prompt_class",))])
    prompts = [block_prompt(number, 0.3 * number) for number in range(200)]
    passed = 0
    for prompt in prompts:
        if former.passes_over(prompt, 4, "prompt_class=code"):
            passed += 1
        else:
            former.add(prompt, 4)
    return passed


def admitted(policy: GatePolicy) -> object:
    """Whether an ENABLE is served of which e-BH over the endpoints admits at a rate of a half."""
    served = judge_decisions(
        [LatestDecision(CurrentVerdict(replace(look(evidence_of(FAST)), serving_engine="vllm"), None), True, START)],
        now=START,
        max_age=timedelta(days=1),
        accepts_any_engine=True,
        fleet=Fleet({"chat": 0.5}, 20, 1.0),
        policy=policy,
    )
    return [decision.off for decision in served]


def decided_rate(policy: GatePolicy) -> object:
    rates = SliceRates({"chat": (4,)})
    rates.measure_with({"chat": ("f",)})
    decision = look(evidence_of(FAST))
    current = decision.verdict, decision.reason_code
    rates.refresh({"chat": {("", 4, "f"): current, (SLICES[0], 4, "f"): current}})
    return rates(rule_of(policy), SLICES[0])


DRIFT: dict[str, Any] = {"max_hypotheses": 1, "drift_run_length": 1_000}
SESSIONS = [f"s{number}" for number in range(40)]
A_DAY_LATER = START + timedelta(days=1)
CASES = {
    "alpha": Case(1e-6, stored(World(60, make_run=noisy_run()).evidence())),
    "max_hypotheses": Case(3, stored(World(160, slices=SLICES, make_run=noisy_run()).evidence())),
    "entry_clusters": Case(10, stored(World(4).evidence())),
    "entry_share": Case(0.6, stored(World(60, slices=SLICES, make_run=noisy_run()).evidence())),
    "max_clusters": Case(40, seen(draw_runs(40, speedup=1.08))),
    "indifference": Case(1.0, seen(draw_runs(40, speedup=1.08))),
    "max_missing": Case(0.5, seen(FAST, num_lost=40)),
    "max_prompt_mismatch": Case(0.5, seen(replace(evidence_of(FAST), num_compared_prompts=100, num_other_prompts=10))),
    "max_cache_gap": Case(0.5, seen(replace(evidence_of(FAST), cached=CachedPrompts(100, 1_000, 700, 400, 400)))),
    "max_untimed_share": Case(0.6, seen(replace(evidence_of(FAST), num_arrived=100, num_beyond=50))),
    "window_s": Case(3_600.0, stored(World(160, make_run=noisy_run()).evidence()), {"min_span_s": 86_400.0}),
    "blocks_per_window": Case(2, budget, {"window_s": 3_600.0, "min_span_s": 86_400.0}),
    "min_span_s": Case(1e6, seen(FAST)),
    "recording_only": Case(True, seen(FAST), {"min_span_s": 1e6}),
    "max_evidence_age_s": Case(3_600.0, lambda policy: word(look(evidence_of(FAST), policy, now=A_DAY_LATER))),
    "margin": Case(0.28, seen(FAST)),
    "serving_engine": Case("vllm", seen(FAST)),
    "require_serving_engine": Case(False, seen(FAST), {"serving_engine": "vllm"}),
    "log_speedup_clip": Case(0.1, seen(clipped())),
    "objective": Case("both", seen(small_gains())),
    "acceptance_metric": Case("draft_acceptance_rate", seen(shallow())),
    "floor": Case(0.9, seen(FAST)),
    "max_scored_steps": Case(1, seen(long_sessions())),
    "tail_margin": Case(0.5, seen(of_tail(3))),
    "tail_share": Case(0.6, seen(of_tail(3))),
    "max_fault_share": Case(0.005, seen(FAST)),
    "max_carry_over": Case(0.5, seen(Seen((*evidence_of(FAST).clusters,), tuple(ordered(100, noise=0.05))))),
    "parity_margin": Case(0.002, seen(FAST)),
    "stream_margin": Case(0.002, seen([replace(run, stream=WHOLE) for run in FAST])),
    "near_tie_logit": Case(0.1, seen(one_fault())),
    "parity_tokens": Case(6_400, seen(sampled(0.01))),
    "z_clip": Case(0.95, seen(sampled(0.01, 200))),
    "z_bound": Case(0.001, seen(sampled(0.01))),
    "memory_budget_share": Case(0.05, seen(FAST)),
    "memory_budget_tokens": Case(0, seen(FAST)),
    "ttft_margin": Case(0.01, seen(late_start())),
    "tpot_margin": Case(0.01, seen(slow_tokens())),
    "p95_margin": Case(0.01, seen(FAST)),
    "p99_margin": Case(0.01, seen(FAST)),
    "max_cost_per_million_tokens": Case(0.001, seen(with_tokens()), {"device_price_per_hour": 3.6}),
    "device_price_per_hour": Case(
        1e6, seen(with_tokens()), {"max_cost_per_million_tokens": 100.0, "device_price_per_hour": 1.0}
    ),
    "validity_margin": Case(0.01, seen(FAST)),  # nothing says whether an output was valid
    "score_margin": Case(0.01, seen(FAST)),
    "task_margin": Case(0.01, seen(FAST)),
    "is_upgrade": Case(True, seen(FAST)),
    "upgrade_margin": Case(0.001, seen(draw_runs(400, speedup=1.0)), {"is_upgrade": True}),
    "acceptance_margin": Case(0.5, seen(less_accepted()), {"is_upgrade": True}),
    "drift_run_length": Case(10**9, drifted(speedup=0.9, blocks=60), DRIFT),
    "drift_tolerance": Case(1.0, drifted(speedup=1.05, blocks=100), DRIFT),
    "on_alarm": Case("hold", drifted(speedup=0.8, blocks=200), DRIFT),
    "require_mix_bound": Case(True, stored(World(400, slices=SLICES, make_run=noisy_run(speedup=1.2)).evidence())),
    "mix_window_s": Case(21_600.0, traffic_shares),
    "max_requests_per_cluster": Case(20, records(*((s, 3_000.0 + n) for n, s in enumerate(SESSIONS * 10)))),
    "cluster_idle_s": Case(100.0, records(*((s, float(n)) for n, s in enumerate(SESSIONS)), ("last", 900.0))),
    "cluster_max_age_s": Case(
        5_000.0, records(*((s, 1_000.0 * step + n) for step in range(7) for n, s in enumerate(SESSIONS)))
    ),
    "cluster_reopen_after_s": Case(
        10_000_000.0, records(*((s, at + n) for at in (0.0, 2e5) for n, s in enumerate(SESSIONS[:12])), ("last", 4e5))
    ),
    "time_block_s": Case(86_400.0, records(*((None, 700.0 * number) for number in range(40)), ("last", 80_000.0))),
    "dominant_key_share": Case(
        1.0, records(*((("busy" if n % 2 else f"s{n}"), 300.0 * n) for n in range(80)), ("last", 80_000.0))
    ),
    "timed_positions": Case(1, timed),
    "block_max_wait_s": Case(1_200.0, waited),
    "min_rate": Case(0.5, decided_rate),
    "fleet_fdr": Case(0.05, admitted),
}


@pytest.mark.parametrize("name", [field.name for field in fields(GatePolicy)])
def test_every_parameter_changes_some_decision(name: str) -> None:
    assert name in CASES, f"policy key {name!r} needs a case that shows what it decides"
    case = CASES[name]
    base = replace(BASE, **case.base)
    other = replace(base, **{name: case.value})  # type: ignore[arg-type]
    assert getattr(other, name) != getattr(base, name)
    assert case.decide(other) != case.decide(base)

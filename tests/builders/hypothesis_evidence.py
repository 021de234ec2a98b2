"""Evidence of one hypothesis from drawn blocks and clusters, and a look at it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

import numpy as np

from shadowspec.gate.evidence.hypothesis import HypothesisEvidence, restarted_states
from shadowspec.gate.evidence.units import BlockUnit, ClusterUnit
from shadowspec.gate.policy import GatePolicy
from shadowspec.gate.verdict.decision import Hypothesis, decide
from shadowspec.types import CachedPrompts, Decision, Parity, Run, SliceCounts, TestResult, Trial
from tests.gate.worlds import CONFIG, ENDPOINT, GRAPH, START, block_unit, cluster_unit, noisy_run, run_of

POLICY = GatePolicy(window_s=0.0, max_hypotheses=2, min_span_s=0.0)
HYPOTHESIS = Hypothesis(ENDPOINT, "prompt_class=code", 4, CONFIG)


@dataclass(frozen=True)
class Seen:
    """The units that a look has seen."""

    clusters: tuple[ClusterUnit, ...]
    blocks: tuple[BlockUnit, ...]
    num_lost: int = 0
    num_left_out: int = 0
    num_compared_prompts: int = 0
    num_other_prompts: int = 0
    cached: CachedPrompts = field(default_factory=CachedPrompts)
    num_arrived: int = 0
    num_beyond: int = 0

    def folded(self, policy: GatePolicy, previous: Decision | None = None) -> HypothesisEvidence:
        counts = SliceCounts(
            num_closed_clusters=len(self.clusters),
            num_members=sum(len(unit.cluster.members) for unit in self.clusters),
            num_lost=self.num_lost,
            num_left_out=self.num_left_out,
            num_compared_prompts=self.num_compared_prompts,
            num_other_prompts=self.num_other_prompts,
            cached=self.cached,
            num_arrived=self.num_arrived,
            num_beyond=self.num_beyond,
        )
        states = restarted_states(previous) if previous else {}
        return HypothesisEvidence(counts=counts).fold(self.clusters, self.blocks, policy, states=states)


def evidence_of(runs: Sequence[Run], *, is_greedy: bool = True, num_lost: int = 0) -> Seen:
    blocks = [
        block_unit(index // 4, list(runs[index : index + 4]), is_greedy=is_greedy) for index in range(0, len(runs), 4)
    ]
    clusters = tuple(cluster_unit(index, [run], is_greedy=is_greedy) for index, run in enumerate(runs))
    return Seen(clusters, tuple(blocks), num_lost)


def look(
    evidence: Seen,
    policy: GatePolicy = POLICY,
    *,
    level: float | None = 0.0125,
    has_entered: bool = True,
    previous: Decision | None = None,
    hypothesis: Hypothesis = HYPOTHESIS,
    now: datetime = START,
) -> Decision:
    folded = evidence.folded(policy, previous)
    trial = None if level is None else Trial(2.0 * level, level, GRAPH)
    return decide(hypothesis, folded, policy, trial=trial, has_entered=has_entered, previous=previous, now=now)


def draw_runs(num_runs: int, seed: int = 0, **world: float) -> list[Run]:
    rng, draw = np.random.default_rng(seed), noisy_run(**world)
    return [draw(rng, index, f"b{index // 4:05d}") for index in range(num_runs)]


def result(decision: Decision, name: str) -> TestResult:
    return next(test for test in decision.tests if test.name == name)


def sampled(num_runs: int, shift: float, seed: int = 0) -> list[Run]:
    """z of 48 tokens: mean `shift`, the spread of a Bernoulli."""
    rng = np.random.default_rng(seed)
    return [
        replace(run, parity=Parity(z_sum=48 * shift + 3.0 * float(rng.standard_normal()), z_tokens=48))
        for run in draw_runs(num_runs, seed)
    ]


def costly_tail(num_runs: int) -> list[Run]:
    """Most requests faster, one in 20 long and far slower: the fleet pays more though most users gain."""
    return [
        run_of(i, "b", log_speedup=-math.log(4.5), baseline_ms=400.0)
        if i % 20 == 0
        else run_of(i, "b", log_speedup=0.2 + 0.01 * (i % 7))
        for i in range(num_runs)
    ]


def correlated(num_runs: int, correlation: float, seed: int = 0) -> list[Run]:
    """Whole blocks share an AR(1) shock about a speedup of 1.3."""
    rng, shock, runs = np.random.default_rng(seed), 0.0, []
    for index in range(num_runs):
        if index % 4 == 0:
            shock = correlation * shock + math.sqrt(1 - correlation**2) * float(rng.standard_normal())
        runs.append(run_of(index, "b", log_speedup=math.log(1.3) + 0.1 * shock))
    return runs

"""A gate that goes on after ENABLE."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta

import numpy as np

from shadowspec.gate.evidence.hypothesis import HypothesisEvidence
from shadowspec.gate.policy import GatePolicy
from shadowspec.gate.stats.drift import ALL_WATCHERS
from shadowspec.gate.verdict.decision import Hypothesis
from shadowspec.gate.verdict.lifecycle import decide_in_run, next_evidence
from shadowspec.gate.verdict.trial_levels import latest_by_name, next_trial, supersede, with_level
from shadowspec.types import Decision, LevelGraph, Run, SliceCounts, Trial, Verdict
from tests.gate.worlds import CONFIG, ENDPOINT, START, block_unit, cluster_unit, noisy_run

POLICY = GatePolicy(window_s=0.0, max_hypotheses=1, min_span_s=0.0, drift_run_length=1_000)
SHARE = 0.05  # the only hypothesis has all of alpha: .9 of it in its first run, a part of .1 in its j-th restart
FIRST = Trial(SHARE, None, graph=LevelGraph(SHARE, 1, 0))


@dataclass
class Gate:
    """One hypothesis, look after look, with its evidence kept as a store would keep it."""

    policy: GatePolicy = POLICY
    rows: list[Decision] = field(default_factory=list)
    evidence: dict[str, HypothesisEvidence] = field(default_factory=dict)
    num_runs: int = 0
    is_greedy: bool = True

    def look(self, runs: Sequence[Run], fingerprint: str = CONFIG.fingerprint) -> Decision:
        """The decision after these runs, whose blocks and clusters are new."""
        hypothesis = Hypothesis(ENDPOINT, "prompt_class=code", 4, replace(CONFIG, fingerprint=fingerprint))
        start = self.num_runs
        self.num_runs += len(runs)
        greedy = self.is_greedy
        blocks = [
            block_unit((start + at) // 4, list(runs[at : at + 4]), is_greedy=greedy) for at in range(0, len(runs), 4)
        ]
        clusters = [cluster_unit(start + at, [run], is_greedy=greedy) for at, run in enumerate(runs)]
        by_fingerprint = {row.fingerprint: row for row in self.rows}
        name = "prompt_class=code", 4, CONFIG.config.name
        latest = latest_by_name(self.rows).get(name)
        previous = by_fingerprint.get(fingerprint)
        trial = with_level(next_trial(latest, previous, fingerprint, FIRST), name, {})
        before = self.evidence.get(fingerprint, HypothesisEvidence(counts=SliceCounts(num_closed_clusters=100)))
        folded = before.fold(clusters, blocks, self.policy, watchers=ALL_WATCHERS)
        now = START + timedelta(minutes=len(self.rows))
        if latest is not None and latest.fingerprint != fingerprint:
            self.rows.append(supersede(latest, fingerprint, now))
            self.evidence.pop(latest.fingerprint)
        decision = decide_in_run(
            hypothesis, folded, self.policy, trial=trial, has_entered=True, previous=previous, now=now
        )
        self.evidence[fingerprint] = next_evidence(folded, decision)
        self.rows.append(decision)
        return decision


def draw_runs(num_blocks: int, seed: int, **world: float) -> list[Run]:
    rng, draw = np.random.default_rng(seed), noisy_run(**world)
    return [draw(rng, index, f"b{index // 4:05d}") for index in range(4 * num_blocks)]


def enabled(policy: GatePolicy = POLICY) -> Gate:
    gate = Gate(policy)
    assert gate.look(draw_runs(100, 0)).verdict is Verdict.ENABLE
    return gate

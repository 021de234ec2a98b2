"""All the betting tests of a hypothesis, scored over some of its units."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from shadowspec.gate.evidence.agreement import acceptance_test, near_tie_test, z_test
from shadowspec.gate.evidence.asymptotic import shown_beside
from shadowspec.gate.evidence.guardrails import guardrail_tests
from shadowspec.gate.evidence.series import BettingTest, Blocks, add_times
from shadowspec.gate.evidence.speedup import speedup_test, tail_test, total_time_test
from shadowspec.gate.evidence.units import BlockUnit, ClusterUnit
from shadowspec.gate.policy import GatePolicy

Totals = Mapping[str, float]


def score_units(
    clusters: Sequence[ClusterUnit],
    blocks: Blocks,
    policy: GatePolicy,
    before: Mapping[str, Totals] | None = None,
) -> list[BettingTest]:
    """Every betting test over these units; `before` are the totals of the units before them, by test."""
    past, own = before or {}, add_times(blocks)
    return [
        shown_beside(speedup_test(own, policy), policy.alpha),
        shown_beside(total_time_test(own, policy, past.get("total_time")), policy.alpha),
        shown_beside(acceptance_test(clusters, policy), policy.alpha),
        tail_test(own, policy),
        near_tie_test(own, policy),
        z_test(clusters, policy),
        *guardrail_tests(own.units, policy),
    ]


def applies(test: BettingTest, *, has_greedy: bool, has_sampled: bool) -> bool:
    """Whether a hypothesis with requests of these sampling regimes has the test."""
    return {"greedy": has_greedy, "sampled": has_sampled}.get(test.regime or "", True)


def betting_tests(
    clusters: Sequence[ClusterUnit], blocks: Sequence[BlockUnit], policy: GatePolicy
) -> list[BettingTest]:
    """The betting tests that a hypothesis of these units has, each over all of them."""
    regimes = {measured.is_greedy for unit in blocks for measured in unit.runs}
    every = score_units(clusters, blocks, policy)
    return [test for test in every if applies(test, has_greedy=True in regimes, has_sampled=False in regimes)]

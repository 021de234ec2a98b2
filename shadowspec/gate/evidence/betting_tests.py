"""All the betting tests of a hypothesis, scored over some of its units."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

from shadowspec.gate.evidence.agreement import acceptance_test, near_tie_test, z_test
from shadowspec.gate.evidence.guardrails import guardrail_tests
from shadowspec.gate.evidence.series import BettingTest, Blocks, add_times
from shadowspec.gate.evidence.speedup import speedup_test, tail_test, total_time_test
from shadowspec.gate.evidence.units import BlockUnit, ClusterUnit
from shadowspec.gate.policy import GatePolicy
from shadowspec.types import PairedScore

Totals = Mapping[str, int | float]  # a count that is stored is read as an integer


def score_units(
    clusters: Sequence[ClusterUnit],
    blocks: Blocks,
    policy: GatePolicy,
    before: Mapping[str, Totals] | None = None,
    documents: Sequence[PairedScore] = (),
) -> list[BettingTest]:
    """Every betting test over these units; `before` are the totals of the units before them, by test."""
    timed, past = add_times(blocks), before or {}
    speedup, total_time = speedup_test(timed, policy), total_time_test(timed, policy, past.get("total_time"))
    tail = tail_test(timed, policy)
    acceptance = acceptance_test(clusters, policy)
    parity = [near_tie_test(timed, policy), z_test(clusters, policy)]
    guardrails = guardrail_tests(timed.units, policy, documents)
    return [speedup, total_time, acceptance, tail, *parity, *guardrails]


@lru_cache(maxsize=128)
def defined_tests(policy: GatePolicy) -> tuple[BettingTest, ...]:
    """Every betting test under a policy, of no units."""
    return tuple(score_units((), (), policy))


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

"""All the betting tests of a hypothesis, scored over some of its units."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from shadowspec.gate.evidence.agreement import RunGroup, acceptance_test, near_tie_test, z_test
from shadowspec.gate.evidence.guardrails import DOCUMENT, guardrail_tests, stream_test
from shadowspec.gate.evidence.series import BettingTest, Blocks, TimedBlocks, add_times
from shadowspec.gate.evidence.speedup import speedup_test, tail_test, total_time_test
from shadowspec.gate.evidence.totals import RunTotals
from shadowspec.gate.evidence.units import BlockUnit, ClusterUnit, MeasuredRun
from shadowspec.gate.evidence.windows import WINDOW, Windows
from shadowspec.gate.policy import GatePolicy
from shadowspec.types import PairedScore

Totals = Mapping[str, int | float]  # a count that is stored is read as an integer


def score_units(
    clusters: Sequence[ClusterUnit],
    blocks: Blocks,
    policy: GatePolicy,
    before: Mapping[str, Totals] | None = None,
    documents: Sequence[PairedScore] = (),
    windows: Windows | None = None,
) -> list[BettingTest]:
    """Every betting test over these units; `before` are the totals of the units before them, by test.

    With `windows` these are the units, and `clusters` are not scored: each measured request is, in its window.
    """
    timed, past = add_times(blocks), before or {}
    if windows is not None:
        return _score_windows(timed, policy, past, documents, windows)
    speedup, total_time = speedup_test(timed, policy), total_time_test(timed, policy, past.get("total_time"))
    tail = tail_test(timed, policy, past.get("tail"))
    acceptance = acceptance_test(clusters, policy)
    parity = [near_tie_test(timed, policy), z_test(clusters, policy)]
    streams = stream_test(timed.units, policy.stream_margin)
    guardrails = guardrail_tests(timed.units, policy, documents)
    tests = [speedup, total_time, acceptance, tail, *parity, streams, *guardrails]
    return tests if policy.unit_window is None else [_named(test) for test in tests]


@dataclass(frozen=True, slots=True)
class _Request:
    """One measured request, scored by itself: what its session shares with others stays within their window."""

    runs: tuple[MeasuredRun]


def _score_windows(
    timed: TimedBlocks,
    policy: GatePolicy,
    past: Mapping[str, Totals],
    documents: Sequence[PairedScore],
    windows: Windows,
) -> list[BettingTest]:
    requests: list[RunGroup] = [_Request((measured,)) for measured in timed.runs]
    of_blocks = [
        speedup_test(timed, policy),
        tail_test(timed, policy, past.get("tail")),
        stream_test(timed.units, policy.stream_margin),
    ]
    guardrails = guardrail_tests(timed.units, policy, documents)
    of_blocks += [test for test in guardrails if test.unit != DOCUMENT]
    of_requests = [acceptance_test(requests, policy), z_test(requests, policy)]
    near_ties = near_tie_test(timed, policy, by_request=True)
    tests = [total_time_test(timed, policy, past.get("total_time"), windows.totals)]
    for test in of_blocks:
        rows = np.arange(len(timed.units)) if test.rows is None else test.rows
        tests.append(windows.merge(test, rows, timed.n_max[rows]))
    for test in of_requests:
        rows = timed.places if test.rows is None else timed.places[test.rows]
        tests.append(windows.merge(test, rows, np.ones(len(rows))))
    assert near_ties.rows is not None, "each of its units is a request of a block"
    tests.append(windows.merge(near_ties, near_ties.rows, np.ones(len(near_ties.rows))))
    return [*map(_named, tests), *(test for test in guardrails if test.unit == DOCUMENT)]


def _named(test: BettingTest) -> BettingTest:
    """The test with windows as its units."""
    return test if test.unit == DOCUMENT else replace(test, unit=WINDOW)


@lru_cache(maxsize=128)
def defined_tests(policy: GatePolicy) -> tuple[BettingTest, ...]:
    """Every betting test under a policy, of no units."""
    return tuple(score_units((), (), policy))


def applies(test: BettingTest, regimes: Collection[str]) -> bool:
    """Whether a hypothesis with requests of these kinds (`RunTotals.regimes`) has the test."""
    return test.regime is None or test.regime in regimes


def betting_tests(
    clusters: Sequence[ClusterUnit], blocks: Sequence[BlockUnit], policy: GatePolicy
) -> list[BettingTest]:
    """The betting tests that a hypothesis of these units has, each over all of them."""
    regimes = RunTotals().fold(blocks).regimes
    return [test for test in score_units(clusters, blocks, policy) if applies(test, regimes)]

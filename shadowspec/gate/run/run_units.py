"""The units on which a decision rests, and since which of them each of its tests has crossed its limit.

Invariant: they are those of the stored folds, in folding order, less those of earlier runs of the hypothesis.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import groupby
from typing import TypeVar

from shadowspec.gate.evidence.betting_tests import defined_tests
from shadowspec.gate.evidence.hypothesis import HypothesisEvidence, fold_in_run
from shadowspec.gate.evidence.units import BlockUnit, ClusterUnit
from shadowspec.gate.policy import GatePolicy
from shadowspec.gate.run.state import Units
from shadowspec.gate.verdict.curves import UnitRecorder, crossed_since
from shadowspec.gate.verdict.trial_levels import passed_clusters
from shadowspec.types import Decision, window_of

Item = TypeVar("Item")

MAX_PIECES = 200  # in which blocks, and clusters, are folded to find when their units came


@dataclass(slots=True)
class PolicyUnits:
    """Units of one hypothesis that were folded under one policy, in folding order."""

    policy: GatePolicy
    clusters: list[ClusterUnit] = field(default_factory=list)
    blocks: list[BlockUnit] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Crossing:
    """Since when a test has crossed its limit: at every unit from number `unit` on, counted from 1.

    By event time `at` that unit had ended: exactly then, or within a `MAX_PIECES`th of the run's units later.
    """

    unit: int
    at: datetime


def add_units(parts: list[PolicyUnits], policy: GatePolicy, units: Units) -> None:
    """Append the units that a fold completed under this policy."""
    if not parts or parts[-1].policy != policy:
        parts.append(PolicyUnits(policy))
    parts[-1].clusters += units.clusters
    parts[-1].blocks += units.blocks


def units_of_run(decision: Decision, parts: Sequence[PolicyUnits]) -> Iterator[PolicyUnits]:
    """Those of the parts' units that came by in the run of a decision, up to it."""
    trial = decision.run
    first_cluster, first_block = (trial.start_clusters, trial.start_blocks) if trial is not None else (0, 0)
    wanted_clusters, wanted_blocks = passed_clusters(decision), decision.num_blocks
    for part in parts:
        clusters = part.clusters[first_cluster : first_cluster + wanted_clusters]
        first_cluster, wanted_clusters = max(first_cluster - len(part.clusters), 0), wanted_clusters - len(clusters)
        blocks = part.blocks[first_block : first_block + wanted_blocks]
        first_block, wanted_blocks = max(first_block - len(part.blocks), 0), wanted_blocks - len(blocks)
        yield PolicyUnits(part.policy, clusters, blocks)


def begin_run(decision: Decision, parts: Sequence[PolicyUnits]) -> HypothesisEvidence:
    """The evidence with which the run of a decision begins: what the blocks of earlier runs set."""
    evidence, left = HypothesisEvidence(), decision.run.start_blocks if decision.run is not None else 0
    for part in parts:
        evidence, left = evidence.pass_by(part.blocks[:left], part.policy), max(left - len(part.blocks), 0)
    return evidence


def crossings(decision: Decision, parts: Sequence[PolicyUnits]) -> dict[str, Crossing]:
    """Since when each betting test of a decision has crossed: those that pass or fail at it, by name.

    A test whose units do not come out as the decision has them is left out.
    """
    crossed = {test.name: test for test in decision.tests if test.outcome != "open" and test.betting is not None}
    recorders = {name: UnitRecorder(name) for name in crossed}
    ends: dict[str, list[datetime]] = defaultdict(list)  # by test: when each unit ended
    evidence, policy = begin_run(decision, parts), None
    for part in units_of_run(decision, parts):
        policy = part.policy
        for clusters, blocks, end in _pieces(part):
            before = {name: folded.num_seen for name, folded in evidence.tests.items()}
            evidence = fold_in_run(evidence, clusters, blocks, policy, decision, list(recorders.values()))
            for name, folded in evidence.tests.items():
                ends[name] += [end] * (folded.num_seen - before.get(name, 0))
    if policy is None:
        return {}

    evidence = replace(evidence, counts=decision.evidence.counts)
    found = {}
    for test in defined_tests(policy):
        result, counted = crossed.get(test.name), evidence.tests.get(test.name)
        series = recorders[test.name].series if result is not None else None
        if result is None or counted is None or series is None or counted.num_units != result.num_units:
            continue
        lost = evidence.lost_units(result.unit)
        unit = crossed_since(test, counted, series, result.alpha, num_lost=lost)
        if unit is not None:
            last = counted.state.start_unit + unit * counted.state.merged_units - 1
            found[test.name] = Crossing(unit, ends[test.name][last])
    return found


def _pieces(part: PolicyUnits) -> Iterator[tuple[Sequence[ClusterUnit], Sequence[BlockUnit], datetime]]:
    """The units in small pieces that end at a known event time; a window stays whole."""
    for clusters in _grouped([[unit] for unit in part.clusters]):
        yield clusters, (), clusters[-1].cluster.last_event
    window = part.policy.unit_window
    whole = [[unit] for unit in part.blocks]
    if window is not None:
        whole = [list(group) for _, group in groupby(part.blocks, key=lambda unit: window_of(unit.newest, window))]
    for blocks in _grouped(whole):
        yield (), blocks, blocks[-1].newest


def _grouped(whole: Sequence[Sequence[Item]]) -> Iterator[list[Item]]:
    """At most about `MAX_PIECES` groups of consecutive items; those that belong together stay so."""
    size = math.ceil(len(whole) / MAX_PIECES)
    for start in range(0, len(whole), max(size, 1)):
        yield [item for items in whole[start : start + size] for item in items]


Crossings = Mapping[str, Crossing]  # by test

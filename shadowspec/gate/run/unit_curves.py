"""Estimate and bounds of decisions' tests after each of their units, from the endpoint's stored rows.

Invariant: the units are those of the stored folds, repeated with their spans, watermarks and policies, so that a curve
ends at the figures of its decision.  A decision has no curve once any of its rows is gone.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from shadowspec.gate.evidence.betting_tests import defined_tests
from shadowspec.gate.evidence.hypothesis import fold_in_run
from shadowspec.gate.run.folding import FoldRules
from shadowspec.gate.run.memory_store import MemoryRows
from shadowspec.gate.run.recompute import policy_of, refold
from shadowspec.gate.run.run_units import Crossings, PolicyUnits, add_units, begin_run, crossings, units_of_run
from shadowspec.gate.verdict.curves import SequencePoint, UnitRecorder, sequence_points
from shadowspec.gate.verdict.trial_levels import HypothesisId, hypothesis_id
from shadowspec.types import Decision, Fold

Curves = Mapping[HypothesisId, Mapping[str, tuple[SequencePoint, ...]]]  # by hypothesis, then by test

DRAWN_TESTS = ("speedup", "acceptance", "tail")
TOLERANCE = 1e-9  # relative: units are added in other groups than the folds added them


def endpoint_curves(endpoint: str, folds: Sequence[Fold], rows: MemoryRows, decisions: Iterable[Decision]) -> Curves:
    """The curves of the endpoint's latest `decisions`, of those of `DRAWN_TESTS` that each has."""
    latest = {hypothesis_id(row): row for row in decisions if row.endpoint == endpoint}
    parts = _units_by_hypothesis(endpoint, folds, rows, latest)
    return {key: _curves(row, parts[key]) for key, row in latest.items() if key in parts}


def latest_crossings(endpoint: str, folds: Sequence[Fold], rows: MemoryRows, decision: Decision) -> Crossings:
    """Since when each test of the endpoint's latest decision on a hypothesis has crossed; empty where rows are gone."""
    key = hypothesis_id(decision)
    parts = _units_by_hypothesis(endpoint, folds, rows, {key: decision})
    return crossings(decision, parts[key]) if key in parts else {}


def _units_by_hypothesis(
    endpoint: str, folds: Sequence[Fold], rows: MemoryRows, latest: Mapping[HypothesisId, Decision]
) -> Mapping[HypothesisId, list[PolicyUnits]]:
    """The units of each hypothesis that has a latest decision, of any run; none where any row is gone."""
    parts: dict[HypothesisId, list[PolicyUnits]] = defaultdict(list)
    if not latest or any(rows.num_rows(fold.spans) != (fold.num_records, fold.num_runs) for fold in folds):
        return parts
    for rules, completed in refold(endpoint, rows, zip(folds, _rules(folds, latest), strict=True)):
        for key, units in completed.units.items():
            if key in latest:
                add_units(parts[key], rules.of(key), units)
    return parts


def _rules(folds: Iterable[Fold], latest: Mapping[HypothesisId, Decision]) -> list[FoldRules]:
    """The rules of each fold; folds under the same policy share their rules."""
    rules: list[FoldRules] = []
    before: Fold | None = None
    for fold in folds:
        if before is None or before.parameters != fold.parameters:
            rules.append(FoldRules.under(policy_of(fold), latest.values()))
        else:
            rules.append(rules[-1])
        before = fold
    return rules


def _curves(decision: Decision, parts: Sequence[PolicyUnits]) -> dict[str, tuple[SequencePoint, ...]]:
    # 1. The evidence of the units that the decision rests on, and their values as they are folded into it.
    evidence, recorders = begin_run(decision, parts), {name: UnitRecorder(name) for name in DRAWN_TESTS}
    for part in units_of_run(decision, parts):
        evidence = fold_in_run(evidence, part.clusters, part.blocks, part.policy, decision, list(recorders.values()))

    # 2. The points; units that do not reproduce the decision's figures are not its units.
    evidence = replace(evidence, counts=decision.evidence.counts)
    definitions = {test.name: test for test in defined_tests(evidence.policy_of(parts[-1].policy))}
    curves = {}
    for result in decision.tests:
        name = result.name
        series = recorders[name].series if name in recorders else None
        if series is None or name not in evidence.tests:
            continue
        lost = evidence.lost_units(result.unit)
        points = sequence_points(definitions[name], evidence.tests[name], series, result.alpha, num_lost=lost)
        if points and points[-1].num_units == result.num_units:
            last = points[-1]
            if _is_close(last.lower, result.lower) and _is_close(last.upper, result.upper):
                curves[name] = tuple(points)
    return curves


def _is_close(one: float | None, other: float | None) -> bool:
    if one is None or other is None:
        return one is other
    return math.isclose(one, other, rel_tol=TOLERANCE, abs_tol=TOLERANCE)

"""Recomputes a past decision from the stored rows, by the folds that it rested on, and compares every number."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, fields, replace
from typing import Protocol

from shadowspec.errors import InputError, NoDataError
from shadowspec.gate.policy import GatePolicy
from shadowspec.gate.run.endpoint_look import EndpointLook, evidence_after
from shadowspec.gate.run.fold_spans import merge_spans
from shadowspec.gate.run.folding import Completed, Folding, FoldRules
from shadowspec.gate.run.gate_store import Rows
from shadowspec.gate.run.memory_store import MemoryUnits
from shadowspec.gate.run.run_units import Crossings, PolicyUnits, add_units, crossings
from shadowspec.gate.run.state import FOLD_AGAIN, FOLD_VERSION, EndpointState, RunEvidence, fold_units, new_state
from shadowspec.gate.verdict.trial_levels import (
    frozen_policy,
    has_passed,
    hypothesis_id,
    is_superseded,
    latest_by_name,
    name_of,
    passing_runs,
    supersede,
    with_level,
)
from shadowspec.types import (
    Decision,
    Evaluation,
    Figure,
    FingerprintedConfig,
    Fold,
    Span,
    Trial,
)
from shadowspec.types.codec import require_version
from shadowspec.types.decision_documents import TEST_FIELDS, decision_figures, shown_figure, shown_test_details

TOLERANCE = 1e-9  # relative, and absolute about 0: sums are stored, read and added in the same order


class ReplayRows(Rows, Protocol):
    """The stored rows of one endpoint, its folds and its decisions."""

    def folds_until(self, fold_id: int) -> list[Fold]:
        """The folds that the evidence of this one rests on, oldest first."""

    def decisions_on(self, decision: Decision) -> list[tuple[int | None, Decision]]:
        """Every decision on its hypothesis up to this one, oldest first, with its fold."""

    def decisions_of(self, fold_id: int) -> list[Decision]:
        """Every decision of the look that ended with this fold, in their order."""

    def evaluations(self) -> list[Evaluation]:
        """The task sets that were evaluated, oldest first."""

    def fingerprints(self) -> dict[str, FingerprintedConfig]:
        """Every config measured."""


class ReplayStore(Protocol):
    """The store's part that an explanation reads."""

    def decision(self, decision_id: int) -> tuple[int | None, Decision] | None:
        """A decision with the fold that it rests on."""

    def evidence_rows(self, endpoint: str) -> AbstractContextManager[ReplayRows]:
        """An endpoint's rows, for as long as the replay takes."""


@dataclass(frozen=True, slots=True)
class Difference:
    """A figure that came out otherwise."""

    name: str
    stored: Figure
    recomputed: Figure


@dataclass(frozen=True, slots=True)
class Explanation:
    """A stored decision beside the one that its rows give."""

    stored: Decision
    recomputed: Decision
    differences: tuple[Difference, ...]
    num_figures: int
    num_folds: int
    num_records: int
    num_runs: int
    policy: GatePolicy  # in force at the decision
    crossings: Crossings


class LostRowsError(NoDataError):
    """A stored decision cannot be recomputed: `decision` is what is left of it."""

    def __init__(self, message: str, decision: Decision) -> None:
        super().__init__(message)
        self.decision = decision


def explain(store: ReplayStore, decision_id: int) -> Explanation:
    """Recompute a decision.

    Raises:
        InputError: there is no such decision.
        LostRowsError: rows of its evidence are gone, or it is older than the stored folds.
    """
    stored = store.decision(decision_id)
    if stored is None:
        raise InputError(f"there is no decision {decision_id}; `shadowspec check` shows the numbers of decisions")
    fold_id, decision = stored
    if fold_id is None:
        words = f"decision {decision_id} is older than the first stored fold: it cannot be recomputed"
        raise LostRowsError(words, decision)
    with store.evidence_rows(decision.endpoint) as rows:
        history = rows.decisions_on(decision)
        if is_superseded(decision):
            fold_id = history[-2][0]
            if fold_id is None:
                words = f"decision {decision_id} repeats one that was made before folds were stored"
                raise LostRowsError(words, decision)
        return _Replay(rows, decision, fold_id, history).explanation()


class _Replay:
    """One explanation.  Lives as long as the rows are open."""

    def __init__(
        self, rows: ReplayRows, decision: Decision, fold_id: int, history: Sequence[tuple[int | None, Decision]]
    ) -> None:
        self._rows, self._decision, self._fold_id = rows, decision, fold_id
        # Of a row that takes a verdict out of force, the figures are those of the decision before it.
        self._target = history[-2][1] if is_superseded(decision) else decision
        self._history = [(fold or 0, row) for fold, row in history if (row.decision_id or 0) < self._target_id]
        self._key = hypothesis_id(decision)
        self._parts: list[PolicyUnits] = []

    @property
    def _target_id(self) -> int:
        assert self._target.decision_id is not None, "a decision that was read has its id"
        return self._target.decision_id

    def explanation(self) -> Explanation:
        """Fold again, decide again, compare."""
        folds = self._rows.folds_until(self._fold_id)
        state, run_evidence = self._refold(folds)
        recomputed = self._decide(state, run_evidence, folds[-1])
        if self._decision.supersession is not None:
            recomputed = supersede(recomputed, self._decision.supersession.by, self._decision.decided_at)
        differences, num_figures = compare(self._decision, recomputed)
        return Explanation(
            self._decision,
            recomputed,
            tuple(differences),
            num_figures,
            len(folds),
            state.num_records,
            sum(fold.num_runs for fold in folds),
            policy_of(folds[-1]),
            crossings(self._target, self._parts),
        )

    def _refold(self, folds: Sequence[Fold]) -> tuple[EndpointState, RunEvidence | None]:
        state, run_evidence = EndpointState(), None
        refolded = refold(self._decision.endpoint, self._rows, ((fold, self._rules(fold)) for fold in folds))
        for fold, (rules, completed) in zip(folds, refolded, strict=True):
            if (completed.num_records, completed.num_runs) != (fold.num_records, fold.num_runs):
                raise LostRowsError(
                    f"decision {self._target_id} of endpoint {self._decision.endpoint} cannot be recomputed. Of fold "
                    f"{fold.fold_id} {completed.num_records} of {fold.num_records} records and {completed.num_runs} of "
                    f"{fold.num_runs} runs are left. Retention has removed the others",
                    self._decision,
                )
            state = completed.state
            if self._key in completed.units:
                policy, previous = rules.of(self._key), rules.previous.get(self._key)
                run_evidence = fold_units(run_evidence, completed.units[self._key], policy, previous)
                add_units(self._parts, policy, completed.units[self._key])
            for fold_id, row in self._history:
                if fold_id == fold.fold_id and run_evidence is not None:
                    run_evidence = evidence_after(run_evidence, row)
        return state, run_evidence

    def _trial(self) -> Trial | None:
        """The target's run with the level of its part of alpha and of the parts that others had passed on by then."""
        target, run = self._target, self._target.run
        if run is None:
            return None
        trial = self._level(run, self._rows.decisions_of(self._fold_id))
        if trial == target.run:
            return trial
        # Hypotheses that this look no longer asked about may have passed levels on at earlier ones.
        folds = self._rows.folds_until(self._fold_id)
        return self._level(run, [row for fold in folds for row in self._rows.decisions_of(fold.fold_id or 0)])

    def _level(self, run: Trial, rows: Sequence[Decision]) -> Trial:
        latest = latest_by_name(rows)
        runs = {name: replace(row.run, has_passed=has_passed(row)) for name, row in latest.items() if row.run}
        return with_level(run, name_of(self._target), passing_runs(runs))

    def _rules(self, fold: Fold) -> FoldRules:
        """The policy as it was, only for this hypothesis: others' clusters do not affect it."""
        assert fold.fold_id is not None, "a fold that was read has its id"
        before = [row for fold_id, row in self._history if fold_id < fold.fold_id]
        return FoldRules.under(frozen_policy(policy_of(fold), before[-1] if before else None), before[-1:])

    def _decide(self, state: EndpointState, run_evidence: RunEvidence | None, fold: Fold) -> Decision:
        decision, rules = self._target, replace(self._rules(fold), policy=policy_of(fold))
        look = EndpointLook(
            endpoint=decision.endpoint,
            state=state,
            evidence={} if run_evidence is None else {self._key: run_evidence},
            rules=rules,
            configs=self._rows.fingerprints(),
            loads=(decision.concurrency,),
            known_until=decision.evidence.newest_record,
            evaluations=[
                evaluation for evaluation in self._rows.evaluations() if evaluation.measured_at <= decision.decided_at
            ],
        )
        trial = self._trial()
        has_entered = bool(look.entered([self._key], [decision]))
        stored = [row for row in self._rows.decisions_of(self._fold_id) if not is_superseded(row)]
        again = look.with_mix_bound(look.look_at(self._key, trial, has_entered=has_entered), stored)
        recomputed = again.decide(decision.decided_at)
        everyone = [recomputed if hypothesis_id(row) == self._key else row for row in stored]
        composed = next(row for row in look.compose(everyone) if hypothesis_id(row) == self._key)
        held_by = decision.evidence.watermark_held_by  # of the ledger as it was then, which is kept nowhere else
        return replace(composed, evidence=replace(composed.evidence, watermark_held_by=held_by))


def refold(endpoint: str, rows: Rows, folds: Iterable[tuple[Fold, FoldRules]]) -> Iterator[tuple[FoldRules, Completed]]:
    """Repeat stored folds, oldest first, each with its spans and watermark, and the given rules.

    Rows that retention has removed are missing: the caller compares the counts with the fold's.
    """
    units, state = MemoryUnits(), EndpointState()
    cursors: tuple[Span, ...] = ()
    for fold, rules in folds:
        if fold.begins is not None:
            state = new_state(fold.begins, rules.clusterings)
        cursors = merge_spans((*cursors, *fold.spans))
        completed = Folding(endpoint, rows, units, rules).complete(state, fold.spans, cursors, fold.closed_by)
        units.save_open_blocks(completed.open_blocks, completed.entered_blocks)
        state = completed.state
        yield rules, completed


def policy_of(fold: Fold) -> GatePolicy:
    """The policy of a fold; parameters that no longer exist are left out."""
    require_version(fold.parameters, FOLD_VERSION, "a stored fold", FOLD_AGAIN)
    known = {field.name for field in fields(GatePolicy)}
    return GatePolicy(**{name: value for name, value in fold.parameters.items() if name in known})


def compare(stored: Decision, recomputed: Decision) -> tuple[list[Difference], int]:
    """The figures that differ, and how many there are."""
    first, second = dict(figures(stored)), dict(figures(recomputed))
    names = sorted({*first, *second})
    differing = [name for name in names if not _is_same(first.get(name), second.get(name))]
    shown = [(shown_figure(first.get(name)), shown_figure(second.get(name))) for name in differing]
    return [Difference(name, *pair) for name, pair in zip(differing, shown, strict=True)], len(names)


def figures(decision: Decision) -> Iterator[tuple[str, object]]:
    """Everything that a decision says, by name; the reason by its code, because versions word its sentence."""
    yield "verdict", decision.verdict.value
    for name in ("reason_code", "num_clusters", "num_blocks", "clusters_needed"):
        yield name, getattr(decision, name)
    yield from ((f"details.{name}", value) for name, value in decision_figures(decision).items())
    for test in decision.tests:
        for name in TEST_FIELDS[1:]:  # but its name
            yield f"{test.name}.{name}", getattr(test, name)
        yield from ((f"{test.name}.details.{name}", value) for name, value in shown_test_details(test).items())


def _is_same(one: object, other: object) -> bool:
    if isinstance(one, float | int) and isinstance(other, float | int):
        return math.isclose(one, other, rel_tol=TOLERANCE, abs_tol=TOLERANCE)
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_is_same(value, other[name]) for name, value in one.items())
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_is_same, one, other))
    return one == other

"""Recomputes a past decision from the stored rows, by the folds that it rested on, and compares every number."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, fields, replace
from datetime import datetime
from typing import Protocol

from shadowspec.errors import InputError, NoDataError
from shadowspec.gate.composition import composed, group_key
from shadowspec.gate.decision import Hypothesis
from shadowspec.gate.evidence import HypothesisEvidence
from shadowspec.gate.memory_keys import MemoryKeys
from shadowspec.gate.open_clusters import KeyTable
from shadowspec.gate.policy import GatePolicy
from shadowspec.gate.restarts import is_superseded, superseded, trial_of
from shadowspec.gate.standing import standing_decision
from shadowspec.gating.current import evidence_after, with_counts
from shadowspec.gating.folding import Folding, Rules
from shadowspec.gating.looks import frozen_policy
from shadowspec.gating.ports import Rows
from shadowspec.gating.runs import WATERMARK_HELD_BY
from shadowspec.gating.spans import merged
from shadowspec.gating.state import EndpointState, KeptEvidence, begun_state, way_of
from shadowspec.gating.traffic import traffic_of
from shadowspec.gating.trials import HypothesisId, hypothesis_id
from shadowspec.types import Decision, FingerprintedConfig, Fold, OpenBlock, Span

TOLERANCE = 1e-9  # relative, and absolute about 0: sums are stored, read and added in the same order

Figure = float | int | str | None


class ReplayRows(Rows, Protocol):
    """The stored rows of one endpoint, and what was folded and decided."""

    def folds_until(self, fold_id: int) -> list[Fold]:
        """The folds that the evidence of this one rests on, oldest first."""

    def decisions_on(self, decision: Decision) -> list[tuple[int | None, Decision]]:
        """Every decision on its hypothesis up to this one, oldest first, with its fold."""

    def decisions_of(self, fold_id: int) -> list[Decision]:
        """Every decision of the look that ended with this fold, in their order."""

    def fingerprints(self) -> dict[str, FingerprintedConfig]:
        """Every config measured."""


class ReplayStore(Protocol):
    """What an explanation needs of a store."""

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


class MemoryUnits:
    """Begun units in memory."""

    def __init__(self) -> None:
        self._keys: dict[str, MemoryKeys] = {}
        self._blocks: dict[str, OpenBlock] = {}

    def keys(self, way: str) -> KeyTable:
        """The open keys of one way of making clusters."""
        return self._keys.setdefault(way, MemoryKeys())

    def open_blocks(self) -> dict[str, OpenBlock]:
        """The blocks that were begun and are in no evidence yet, by id."""
        return dict(self._blocks)

    def save_open_blocks(self, begun: Mapping[str, OpenBlock], entered: Iterable[str]) -> None:
        """Keep blocks as they are now, and forget those that entered."""
        for block_id in entered:
            del self._blocks[block_id]
        self._blocks |= begun


def explain(store: ReplayStore, decision_id: int) -> Explanation:
    """Recompute a decision.

    Raises:
        InputError: there is no such decision.
        NoDataError: rows that it rested on are gone, or it is older than the folds that are kept.
    """
    found = store.decision(decision_id)
    if found is None:
        raise InputError(f"there is no decision {decision_id}")
    fold_id, decision = found
    if fold_id is None:
        raise NoDataError(f"decision {decision_id} was made before it was kept what decisions rest on")
    with store.evidence_rows(decision.endpoint) as rows:
        history = rows.decisions_on(decision)
        if is_superseded(decision):
            fold_id = history[-2][0]
            if fold_id is None:
                raise NoDataError(f"decision {decision_id} repeats one that was made before folds were kept")
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

    @property
    def _target_id(self) -> int:
        assert self._target.decision_id is not None, "a decision that was read has its id"
        return self._target.decision_id

    def explanation(self) -> Explanation:
        """Fold again, decide again, compare."""
        folds = self._rows.folds_until(self._fold_id)
        state, kept = self._folded(folds)
        recomputed = self._decided(state, kept, folds[-1])
        if is_superseded(self._decision):
            by = str(self._decision.details["superseded_by"])
            recomputed = superseded(recomputed, by, self._decision.decided_at)
        differences, num_figures = compare(self._decision, recomputed)
        return Explanation(
            self._decision,
            recomputed,
            tuple(differences),
            num_figures,
            len(folds),
            state.num_records,
            sum(fold.num_runs for fold in folds),
        )

    def _folded(self, folds: Sequence[Fold]) -> tuple[EndpointState, KeptEvidence | None]:
        units, state, kept = MemoryUnits(), EndpointState(), None
        cursors: tuple[Span, ...] = ()
        for fold in folds:
            rules = self._rules(fold)
            if fold.begins is not None:
                state = begun_state(fold.begins, rules.ways)
            cursors = merged((*cursors, *fold.spans))
            folding = Folding(self._decision.endpoint, self._rows, units, rules)
            before: dict[HypothesisId, KeptEvidence] = {} if kept is None else {self._key: kept}
            folded = folding.fold(state, before, fold.spans, cursors, fold.closed_by, only=self._key)
            if (folded.num_records, folded.num_runs) != (fold.num_records, fold.num_runs):
                raise NoDataError(
                    f"decision {self._target_id} of endpoint {self._decision.endpoint} cannot be recomputed: of fold "
                    f"{fold.fold_id} {folded.num_records} of {fold.num_records} records and {folded.num_runs} of "
                    f"{fold.num_runs} runs are left; the others have been removed by retention"
                )
            state, kept = folded.state, folded.changed.get(self._key, kept)
            for fold_id, row in self._history:
                if fold_id == fold.fold_id and kept is not None:
                    kept = evidence_after(kept, row)
        return state, kept

    def _rules(self, fold: Fold) -> Rules:
        """The policy as it was, for this hypothesis alone: others' clusters do not bear on it."""
        assert fold.fold_id is not None, "a fold that was read has its id"
        before = [row for fold_id, row in self._history if fold_id < fold.fold_id]
        policy = frozen_policy(_policy(fold), before[-1] if before else None)
        return Rules(policy, {self._key: policy}, {self._key: before[-1]} if before else {})

    def _decided(self, state: EndpointState, kept: KeptEvidence | None, fold: Fold) -> Decision:
        decision, previous = self._target, self._history[-1][1] if self._history else None
        rules = self._rules(fold)
        policy, trial = rules.of(self._key), trial_of(decision)
        newest = decision.details.get("newest_record")
        known_until = datetime.fromisoformat(newest) if isinstance(newest, str) else None
        evidence = kept.evidence if kept is not None else HypothesisEvidence()
        config = self._rows.fingerprints()[decision.fingerprint]
        own = standing_decision(
            Hypothesis(decision.endpoint, decision.slice_key, decision.concurrency, config),
            with_counts(evidence, state, self._key, policy, trial, known_until),
            policy,
            trial=trial,
            has_entered=trial is not None or decision.slice_key in state.ways[way_of(policy)].entries,
            previous=previous,
            now=decision.decided_at,
        )
        everyone = [
            own if hypothesis_id(row) == self._key else row
            for row in self._rows.decisions_of(self._fold_id)
            if not is_superseded(row)
        ]
        before = {group_key(previous): previous} if previous is not None and not previous.slice_key else {}
        current = _policy(fold)
        traffic = traffic_of(state.traffic, current, known_until)
        found = next(row for row in composed(everyone, before, traffic, current) if hypothesis_id(row) == self._key)
        held_by = decision.details.get(WATERMARK_HELD_BY)  # of the ledger as it stood, which is kept nowhere else
        return found if held_by is None else replace(found, details={**found.details, WATERMARK_HELD_BY: held_by})


def _policy(fold: Fold) -> GatePolicy:
    """The policy that a fold went by; parameters that are no more are left out."""
    known = {field.name for field in fields(GatePolicy)}
    return GatePolicy(**{name: value for name, value in fold.parameters.items() if name in known})


def compare(stored: Decision, recomputed: Decision) -> tuple[list[Difference], int]:
    """The figures that differ, and how many there are."""
    first, second = dict(figures(stored)), dict(figures(recomputed))
    names = sorted({*first, *second})
    differing = [name for name in names if not _is_same(first.get(name), second.get(name))]
    return [Difference(name, first.get(name), second.get(name)) for name in differing], len(names)


def figures(decision: Decision) -> Iterator[tuple[str, Figure]]:
    """Everything that a decision says, by name."""
    yield "verdict", decision.verdict.value
    for name in ("reason_code", "reason", "num_clusters", "num_blocks", "clusters_needed"):
        yield name, getattr(decision, name)
    yield from ((f"details.{name}", value) for name, value in decision.details.items())
    for test in decision.tests:
        for name in (field.name for field in fields(test) if field.name not in ("name", "details")):
            yield f"{test.name}.{name}", getattr(test, name)
        yield from ((f"{test.name}.details.{name}", value) for name, value in test.details.items())


def _is_same(one: object, other: object) -> bool:
    if isinstance(one, float | int) and isinstance(other, float | int):
        return math.isclose(one, other, rel_tol=TOLERANCE, abs_tol=TOLERANCE)
    if isinstance(one, str) and isinstance(other, str) and one != other and one[:1] == other[:1] == "{":
        return _is_same(json.loads(one), json.loads(other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_is_same(value, other[name]) for name, value in one.items())
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_is_same, one, other))
    return one == other

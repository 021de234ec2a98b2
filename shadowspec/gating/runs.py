"""From committed rows to decisions, endpoint by endpoint: folds what is new, decides and appends, under a lock.

Every transaction moves the cursors, the evidence and (the last one) the decisions together.  A gate that is killed
leaves whole folds behind, from which the next one goes on.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, replace
from datetime import UTC, datetime
from typing import Any, Protocol

from shadowspec.errors import InputError
from shadowspec.garbage import uncollected
from shadowspec.gate.policy import GatePolicy
from shadowspec.gate.restarts import is_superseded, trial_of
from shadowspec.gating.current import Standing
from shadowspec.gating.folding import NEVER, Folded, Folding, Rules
from shadowspec.gating.looks import frozen_policy
from shadowspec.gating.ports import OpenUnits, Place, Rows
from shadowspec.gating.spans import Plan, merged, next_plan
from shadowspec.gating.state import (
    EndpointState,
    KeptEvidence,
    begun,
    begun_state,
    decode_evidence,
    decode_state,
    encode_evidence,
    encode_state,
    evidence_parameters,
    is_readable,
)
from shadowspec.gating.trials import HypothesisId, hypothesis_id
from shadowspec.types import (
    Decision,
    EndpointProgress,
    FingerprintedConfig,
    Fold,
    Span,
    StoredEvidence,
    Watermark,
)

WATERMARK_HELD_BY = "watermark_held_by"  # a decision's detail


class GateSession(Rows, OpenUnits, Protocol):
    """One transaction over an endpoint's evidence."""

    @property
    def progress(self) -> EndpointProgress | None:
        """How far the evidence has come."""

    def watermark(self) -> Watermark:
        """How far the endpoint's input is known."""

    def finished(self) -> list[Span]:
        """Of each consumer and partition: the offsets of which everything is stored."""

    def ended(self) -> frozenset[Place]:
        """Where nothing follows: files that were read to their end."""

    def first_offset(self, span: Span) -> int | None:
        """The first offset in the span of which a record is stored."""

    def num_rows(self, spans: Iterable[Span]) -> tuple[int, int]:
        """Stored records and runs of the endpoint in the spans."""

    def num_folded(self) -> tuple[int, int]:
        """Records and runs that the folds took in since the evidence last began anew."""

    def fingerprints(self) -> dict[str, FingerprintedConfig]:
        """Every config measured."""

    def latest_decisions(self) -> list[Decision]:
        """The last decision on every hypothesis of the endpoint."""

    def evidence(self) -> list[StoredEvidence]:
        """The evidence of every hypothesis."""

    def save_evidence(self, changed: Sequence[StoredEvidence]) -> None:
        """Keep evidence."""

    def begin_anew(self) -> None:
        """Forget everything that was folded."""

    def append(self, fold: Fold, document: Mapping[str, Any], cursors: Sequence[Span]) -> int:
        """Keep a fold, and the progress and what is folded after it."""

    def append_decisions(self, decisions: Sequence[Decision], fold_id: int) -> list[int]:
        """Append decisions; their ids."""


class EvidenceStore(Protocol):
    """What the gate needs of a store."""

    def evidence_session(self, endpoint: str) -> AbstractContextManager[GateSession]:
        """A transaction that commits at the end, or leaves nothing behind if an exception leaves it."""

    def endpoint_lock(self, endpoint: str) -> AbstractContextManager[object]:
        """Held by one gate at a time."""


def run_gate(
    store: EvidenceStore,
    policy_by_endpoint: Mapping[str, GatePolicy],
    *,
    input_ended: bool | None = None,
    loads_by_endpoint: Mapping[str, Sequence[int]] | None = None,
    fingerprints_by_endpoint: Mapping[str, Collection[str]] | None = None,
    now: datetime | None = None,
) -> list[Decision]:
    """Fold what is new, decide every endpoint of `policy_by_endpoint` and append the decisions.

    `input_ended` says whether more records of the same sessions may come (None: as the ledger has it).
    Without `loads_by_endpoint` and `fingerprints_by_endpoint`, the loads and configs are those measured with.
    However many gates run at once, each unit enters the evidence once: each endpoint is folded under its lock.

    Raises:
        InputError: rows contradict each other, or rows that must be folded anew are gone.
    """
    decisions: list[Decision] = []
    for endpoint, policy in policy_by_endpoint.items():
        loads = None if loads_by_endpoint is None else loads_by_endpoint.get(endpoint, ())
        wanted = None if fingerprints_by_endpoint is None else fingerprints_by_endpoint.get(endpoint, ())
        with store.endpoint_lock(endpoint):  # read within it, the clock orders decisions as they are committed
            gate = EndpointGate(endpoint, policy, loads, wanted, input_ended, now or datetime.now(UTC))
            while not gate.has_decided:
                try:
                    with uncollected(), store.evidence_session(endpoint) as session:
                        gate.step(session)
                except BeginsAnewError as error:  # nothing of this fold was kept
                    gate.begins = error.begins
        decisions += gate.decisions
    return decisions


class EndpointGate:
    """One gate run at one endpoint.  Lives while it holds the endpoint's lock."""

    def __init__(
        self,
        endpoint: str,
        policy: GatePolicy,
        loads: Sequence[int] | None,
        fingerprints: Collection[str] | None,
        input_ended: bool | None,
        now: datetime,
    ) -> None:
        self.endpoint, self._policy, self._now = endpoint, policy, now
        self._loads, self._fingerprints, self._input_ended = loads, fingerprints, input_ended
        self.decisions: list[Decision] = []
        self.has_decided = False
        self.begins: Mapping[str, Any] | None = None  # the next fold begins anew from this

    def step(self, session: GateSession) -> None:
        """Fold the next part within this transaction; if it was the last one, decide."""
        # 1. What is known.  The watermark comes first: what it promises is then below the ledger's places.
        mark = session.watermark()
        is_ended = mark.is_ended if self._input_ended is None else self._input_ended
        rules = self._rules(session)
        state, kept, cursors, begins = self._begun(session, rules)

        # 2. Fold.
        plan = next_plan(session, cursors)
        after = merged((*cursors, *plan.spans))
        folding = Folding(self.endpoint, session, session, rules)
        closed_by = None if is_ended else mark.time or NEVER
        folded = folding.fold(state, kept, plan.spans, after, closed_by, plan.unfinished, plan.finite)
        if folded.new_dominant:
            raise BeginsAnewError(_kept_progress(folded.state))
        kept = {**kept, **folded.changed}
        changed = dict(folded.changed)

        # 3. Decide, once nothing is left to fold.
        decisions: tuple[Decision, ...] = ()
        if not plan.unfinished:
            configs = session.fingerprints()
            wanted = folded.state.seen if self._fingerprints is None else self._fingerprints
            loads = sorted(folded.state.loads) if self._loads is None else self._loads
            own = {fingerprint: configs[fingerprint] for fingerprint in wanted}
            standing = Standing(self.endpoint, folded.state, kept, rules, own, loads, mark.time)
            decided = standing.decided(self._now)
            decisions = tuple(held_back(decision, mark) for decision in decided.decisions)
            changed |= decided.changed

        # 4. Keep all of it.
        session.save_evidence([encode_evidence(key, changed[key]) for key in sorted(changed)])
        fold_id = session.append(self._fold(plan, folded, begins), encode_state(folded.state), after)
        if not plan.unfinished:
            ids = session.append_decisions(decisions, fold_id)
            named = zip(decisions, ids, strict=True)
            self.decisions = [replace(decision, decision_id=own) for decision, own in named]
            self.has_decided = True
        self.begins = None

    def _rules(self, session: GateSession) -> Rules:
        previous = {hypothesis_id(row): row for row in session.latest_decisions()}
        return Rules(self._policy, {key: frozen_policy(self._policy, row) for key, row in previous.items()}, previous)

    def _begun(
        self, session: GateSession, rules: Rules
    ) -> tuple[EndpointState, dict[HypothesisId, KeptEvidence], tuple[Span, ...], Mapping[str, Any] | None]:
        """State, evidence and cursors to go on from; and what they begin anew from, if they do."""
        progress = session.progress
        if progress is None:
            return begun_state({}, rules.ways), {}, (), {}
        stored, begins = session.evidence(), self.begins
        reason: str | None = "keys that dominate their slice must be cut"
        if not is_readable(progress.document, stored):
            reason = "another version of ShadowSpec wrote it"
            begins = {} if begins is None else begins
        elif begins is None:
            state = decode_state(progress.document)
            kept = {(each.slice_key, each.concurrency, each.fingerprint): decode_evidence(each) for each in stored}
            reason = _outdated(state, kept, rules)
            if reason is None:
                return state, kept, progress.cursors, None
            begins = _kept_progress(state)
        left, folded = session.num_rows(progress.cursors), session.num_folded()
        if left[0] < folded[0] or left[1] < folded[1]:
            raise InputError(
                f"the evidence of endpoint {self.endpoint} must be folded anew ({reason}), but rows that it rests on "
                f"have been removed by retention: {left[0]} of {folded[0]} records and {left[1]} of {folded[1]} runs "
                "are left"
            )
        session.begin_anew()
        return begun_state(begins, rules.ways), {}, (), begins

    def _fold(self, plan: Plan, folded: Folded, begins: Mapping[str, Any] | None) -> Fold:
        return Fold(
            spans=plan.spans,
            closed_by=folded.closed_by,
            num_records=folded.num_records,
            num_runs=folded.num_runs,
            parameters=asdict(self._policy),
            folded_at=self._now,
            begins=begins,
        )


def held_back(decision: Decision, mark: Watermark) -> Decision:
    """The decision, with what holds the watermark back where something does."""
    if mark.held_by is None or is_superseded(decision):
        return decision
    return replace(decision, details={**decision.details, WATERMARK_HELD_BY: str(mark.held_by)})


class BeginsAnewError(Exception):
    """Leaves a transaction of which nothing may be kept."""

    def __init__(self, begins: Mapping[str, Any]) -> None:
        super().__init__("the evidence begins anew")
        self.begins = begins


def _outdated(state: EndpointState, kept: Mapping[HypothesisId, KeptEvidence], rules: Rules) -> str | None:
    """Why the evidence must be folded anew; None if it need not be."""
    if not rules.ways.keys() <= state.ways.keys():
        return "the policy makes other clusters"
    for key, own in kept.items():
        previous = rules.previous.get(key)
        has_entered = previous is not None and trial_of(previous) is not None
        if not has_entered and own.parameters != evidence_parameters(rules.of(key)):
            return "the policy of hypotheses that have not entered was changed"
    return None


def _kept_progress(state: EndpointState) -> Mapping[str, Any]:
    return begun(
        {way: own.entries if own.dominant else {} for way, own in state.ways.items()},
        {way: own.dominant for way, own in state.ways.items()},
    )

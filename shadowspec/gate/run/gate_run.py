"""An endpoint's gate run: audits, then the fold of new rows, then the decisions, under its lock.

Every transaction moves the cursors, the evidence and (the last one) the decisions together.  A gate that is killed
leaves only whole folds, and the next one continues from there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import Any

from shadowspec.errors import InputError
from shadowspec.gate.policy import GatePolicy
from shadowspec.gate.run.audit_run import CellAudit, run_audits
from shadowspec.gate.run.endpoint_look import EndpointLook
from shadowspec.gate.run.fold_spans import Plan, merge_spans, next_plan
from shadowspec.gate.run.folding import NEVER, Completed, Folding, FoldRules
from shadowspec.gate.run.gate_store import GateSession, GateStore
from shadowspec.gate.run.state import (
    FOLD_VERSION,
    EndpointState,
    RunEvidence,
    decode_evidence,
    decode_state,
    encode_evidence,
    encode_state,
    evidence_parameters,
    fold_units,
    has_entered,
    is_readable,
    new_progress,
    new_state,
    without_runs,
)
from shadowspec.gate.verdict.trial_levels import HypothesisId, hypothesis_id, is_superseded
from shadowspec.gc_control import gc_paused
from shadowspec.types import Decision, Fold, Span, StoredEvidence, Watermark

OTHER_UNITS = "recordings and production have other units"


def run_endpoint_gate(
    store: GateStore,
    endpoint: str,
    policy: GatePolicy,
    *,
    input_ended: bool | None = None,
    now: datetime | None = None,
) -> EndpointGateRun:
    """Audit the endpoint's new runs, fold its new rows, decide its hypotheses and append the decisions.

    `input_ended`: no more records of the same sessions may come (None: the ledger says whether); `now` is the moment of
    all steps (None: each reads the clock).  Each unit enters the evidence once, however many gates run at a time.

    Raises:
        InputError: rows contradict each other, or rows that must be folded again are gone.
    """
    with store.endpoint_lock(endpoint):  # read within it, the clock orders decisions as they are committed
        # The audits come first: an alarm holds even if a later step fails.
        audits = run_audits(store, endpoint, now or datetime.now(UTC))
        run = EndpointGateRun(endpoint, policy, input_ended, now or datetime.now(UTC), audits)
        while not run.has_decided:
            try:
                with gc_paused(), store.evidence_session(endpoint) as session:
                    run.step(session)
            except BeginsAnewError as error:  # nothing of this fold was kept
                run.begins = error.begins
    return run


@dataclass(frozen=True, slots=True)
class FoldPart:
    """The rows of one transaction of a gate run, and the progress before it; `cursors` are those after it."""

    mark: Watermark
    rules: FoldRules
    evidence: Mapping[HypothesisId, RunEvidence]
    begins: Mapping[str, Any] | None
    plan: Plan
    cursors: Sequence[Span]
    completed: Completed


class EndpointGateRun:
    """One gate run at one endpoint.  Its transactions run under the endpoint's lock; its results remain."""

    def __init__(
        self,
        endpoint: str,
        policy: GatePolicy,
        input_ended: bool | None,
        now: datetime,
        audits: Sequence[CellAudit] = (),
    ) -> None:
        self.endpoint, self._policy, self._input_ended, self._now = endpoint, policy, input_ended, now
        self.audits = audits  # the endpoint's, after its new runs
        self.decisions: list[Decision] = []
        self.latest: list[Decision] = []  # the last decision on every hypothesis, as the store then returns them
        self.has_decided = False
        self.begins: Mapping[str, Any] | None = None  # the next fold restarts from this

    def step(self, session: GateSession) -> None:
        """Fold the next part within this transaction; if it was the last one, decide."""
        self.conclude(session, self.fold(session))

    def fold(self, session: GateSession) -> FoldPart:
        """Take in the next part's rows.

        Raises:
            BeginsAnewError: keys must be cut.
        """
        # The watermark comes first: the records that it promises are then below the ledger's places.
        mark = session.watermark()
        is_ended = mark.is_ended if self._input_ended is None else self._input_ended
        rules = FoldRules.under(self._policy, session.latest_decisions())
        state, evidence, cursors, begins = self._load_progress(session, rules)
        plan = next_plan(session, cursors)
        after = merge_spans((*cursors, *plan.spans))
        folding = Folding(self.endpoint, session, session, rules)
        closed_by = None if is_ended else mark.time or NEVER
        completed = folding.complete(state, plan.spans, after, closed_by, plan.unfinished, plan.finite)
        if completed.new_dominant:
            raise BeginsAnewError(_restart_progress(completed.state))
        return FoldPart(mark, rules, evidence, begins, plan, after, completed)

    def conclude(self, session: GateSession, part: FoldPart) -> None:
        """Store the results of a part, and decide if it was the last one."""
        # 1. Evidence.
        completed, plan, rules = part.completed, part.plan, part.rules
        changed = {
            key: fold_units(part.evidence.get(key), units, rules.of(key), rules.previous.get(key))
            for key, units in completed.units.items()
        }
        evidence = {**part.evidence, **changed}

        # 2. Decide, once nothing is left to fold.
        decisions: tuple[Decision, ...] = ()
        if not plan.unfinished:
            configs = session.fingerprints()
            look = EndpointLook(
                self.endpoint,
                completed.state,
                evidence,
                rules,
                {fingerprint: configs[fingerprint] for fingerprint in completed.state.seen},
                sorted(completed.state.loads),
                part.mark.time,
                session.evaluations(),
            )
            decided = look.decide(self._now)
            decisions = tuple(note_held_watermark(decision, part.mark) for decision in decided.decisions)
            changed |= decided.changed

        # 3. Keep all of it.
        session.save_evidence([encode_evidence(key, changed[key]) for key in sorted(changed)])
        session.save_open_blocks(completed.open_blocks, completed.entered_blocks)
        fold_id = session.append(self._fold(plan, completed, part.begins), encode_state(completed.state), part.cursors)
        if not plan.unfinished:
            ids = session.append_decisions(decisions, fold_id)
            named = zip(decisions, ids, strict=True)
            self.decisions = [replace(decision, decision_id=number) for decision, number in named]
            latest = {**rules.previous, **{hypothesis_id(decision): decision for decision in self.decisions}}
            self.latest = [latest[key] for key in sorted(latest)]
            self.has_decided = True
        self.begins = None

    def _load_progress(
        self, session: GateSession, rules: FoldRules
    ) -> tuple[EndpointState, Mapping[HypothesisId, RunEvidence], tuple[Span, ...], Mapping[str, Any] | None]:
        """State, evidence and cursors to continue from; and, if they restart, the progress before."""
        progress, begins = session.progress, self.begins
        if progress is None:  # the first fold, or the first again with keys cut
            begins = begins or new_progress({}, {})
            return new_state(begins, rules.clusterings), {}, (), begins
        loaded = load_evidence(progress.document, session.evidence(), rules)
        reason = loaded.refold_reason
        if begins is None and reason is None:
            return loaded.state, loaded.evidence, progress.cursors, None
        begins = loaded.restart if begins is None else begins
        reason = reason or "keys that dominate their slice must be cut"
        left, folded = session.num_rows(progress.cursors), session.num_folded()
        if left[0] < folded[0] or left[1] < folded[1]:
            if not loaded.has_other_units:
                raise InputError(
                    f"the evidence of endpoint {self.endpoint} must be folded again ({reason}), but retention has "
                    f"removed rows that it rests on. {left[0]} of {folded[0]} records and {left[1]} of {folded[1]} "
                    "runs are left. Restore the others, undo the change, or rename the endpoint to begin with new rows"
                )
            # Neither a trial's nor production's verdicts rest on the other's evidence: what begins here has no past.
            begins = without_runs(begins, loaded.state.num_removed_runs + folded[1] - left[1])
        session.discard_evidence()
        return new_state(begins, rules.clusterings), {}, (), begins

    def _fold(self, plan: Plan, completed: Completed, begins: Mapping[str, Any] | None) -> Fold:
        return Fold(
            spans=plan.spans,
            closed_by=completed.closed_by,
            num_records=completed.num_records,
            num_runs=completed.num_runs,
            parameters={"version": FOLD_VERSION, **asdict(self._policy)},
            folded_at=self._now,
            begins=begins,
        )


def note_held_watermark(decision: Decision, mark: Watermark) -> Decision:
    """The decision, with the cause that holds the watermark back, if any."""
    if mark.held_by is None or is_superseded(decision):
        return decision
    return replace(decision, evidence=replace(decision.evidence, watermark_held_by=str(mark.held_by)))


class BeginsAnewError(Exception):
    """Leaves a transaction of which nothing may be kept."""

    def __init__(self, begins: Mapping[str, Any]) -> None:
        super().__init__("the evidence restarts")
        self.begins = begins


@dataclass(frozen=True, slots=True)
class LoadedEvidence:
    """Stored evidence; with a `refold_reason` it may not be gone on from, and is folded again from `restart`."""

    state: EndpointState
    evidence: Mapping[HypothesisId, RunEvidence]
    refold_reason: str | None
    restart: Mapping[str, Any]

    @property
    def has_other_units(self) -> bool:
        """Whether a trial follows production, or production a trial."""
        return self.refold_reason == OTHER_UNITS


def load_evidence(document: Mapping[str, Any], stored: Sequence[StoredEvidence], rules: FoldRules) -> LoadedEvidence:
    """The state and the evidence that were stored, and why they may not be gone on from under `rules`, if so."""
    if not is_readable(document, stored):
        nothing = EndpointState()
        return LoadedEvidence(nothing, {}, "another version of ShadowSpec wrote it", _restart_progress(nothing))
    state = decode_state(document)
    evidence = {(row.slice_key, row.concurrency, row.fingerprint): decode_evidence(row) for row in stored}
    return LoadedEvidence(state, evidence, _find_refold_reason(state, evidence, rules), _restart_progress(state))


def _find_refold_reason(
    state: EndpointState, evidence: Mapping[HypothesisId, RunEvidence], rules: FoldRules
) -> str | None:
    """Why the evidence must be folded again; None if it need not be."""
    if not rules.clusterings.keys() <= state.clusterings.keys():
        return "the policy makes other clusters"
    for key, run_evidence in evidence.items():
        if run_evidence.has_other_units(rules.of(key)):
            return OTHER_UNITS
        if not has_entered(rules.previous.get(key)) and run_evidence.parameters != evidence_parameters(rules.of(key)):
            return "the policy of hypotheses that have not entered was changed"
    return None


def _restart_progress(state: EndpointState) -> Mapping[str, Any]:
    return new_progress(
        {
            clustering: progress.entries if progress.dominant else {}
            for clustering, progress in state.clusterings.items()
        },
        {clustering: progress.dominant for clustering, progress in state.clusterings.items()},
        state.num_removed_runs,
    )

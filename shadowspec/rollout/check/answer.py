"""The answer to a promotion check: per endpoint or slice, over its loads, with its evidence; and its JSON document.

Names in the document carry their units; an undefined figure is null.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Annotated, Self

from shadowspec.gate.policy import GatePolicy
from shadowspec.gate.verdict.current_decision import EndpointDecisions, Expectation
from shadowspec.gate.verdict.e_values import Fleet
from shadowspec.gate.verdict.slice_rules import keeps_off
from shadowspec.planning.demand import Demand, EndpointLoads, LoadsPart
from shadowspec.rollout.check.outcome import OnHold, Outcome, exit_code
from shadowspec.rollout.served_decision import DEFAULT_MAX_AGE, Off, ServedDecision
from shadowspec.store import Traffic
from shadowspec.types import Decision, FingerprintedConfig, Rollout, Verdict
from shadowspec.types.public_documents import AtLoad, Labels, PublicDocument, PublicValue, public, shows
from shadowspec.types.serving_engines import IN_PROCESS, is_for_serving, parse_engines, verdict_engine

_OF_UPGRADE = {Outcome.ENABLE: Outcome.REPLACE, Outcome.DISABLE: Outcome.KEEP}
WORST_FIRST = (Outcome.DISABLE, Outcome.UNUSABLE, Outcome.HOLD)


class Role(StrEnum):
    """How a finding bears on the answer."""

    REQUIRED = "required"  # must be ENABLE
    WATCHED = "watched"  # must not be DISABLE, nor have a bound that shows harm
    ORDERED = "ordered"  # an operator's override: speculation is off there, regardless of decisions
    SHOWN = "shown"  # bears on nothing: too little traffic


@dataclass(frozen=True, slots=True)
class Bounds:
    """A speedup with its anytime-valid bounds; None where undefined."""

    estimate: float | None
    lower: float | None
    upper: float | None


@dataclass(frozen=True, slots=True)
class LoadFinding:
    """One load: its share of the endpoint's traffic and its latest decision as it is served, None where it has none.

    `age` is that of the newest evidence (None: all evidence is older than the read limit); `problem` is why the
    decision cannot be used.
    """

    concurrency: int
    share: float
    served: ServedDecision | None
    age: timedelta | None
    problem: str | None = None

    @property
    def decision(self) -> Decision | None:
        return None if self.served is None else self.served.decision

    @property
    def off_because(self) -> Off | None:
        """The code of why speculation is off; None where it is on or undecided."""
        return None if self.served is None else self.served.off

    @property
    def outcome(self) -> Outcome:
        """A DISABLE stays in force at any age; a load without a decision is HOLD, as is an ENABLE that is off."""
        if self.served is None:
            return Outcome.HOLD
        if self.served.decision.verdict is Verdict.DISABLE or self.served.off is Off.DISABLED:
            return Outcome.DISABLE
        if self.problem:
            return Outcome.UNUSABLE
        return Outcome.ENABLE if self.served.is_on else Outcome.HOLD


@dataclass(frozen=True, slots=True)
class Finding:
    """The endpoint as a whole (no `slice_key`) or one slice, over its loads.

    `on_up_to` is the load up to which it is ENABLE where it is DISABLE at every larger one, else None.  `since` is when
    its verdict began; `age` that of the oldest among its loads' newest evidence; `traffic_share` is
    None where no traffic is known.  `override_id` is set where the finding is about an order and not about decisions;
    it then has no loads.
    """

    slice_key: str
    role: Role
    outcome: Outcome
    reason: str
    traffic_share: float | None
    speedup: Bounds | None
    since: datetime | None
    age: timedelta | None
    loads: tuple[LoadFinding, ...]
    override_id: int | None = None
    on_up_to: int | None = None

    @property
    def is_blocking(self) -> bool:
        """Whether the answer is not ENABLE because of this."""
        if self.role is Role.REQUIRED:
            return self.outcome is not Outcome.ENABLE
        is_harmed = self.outcome is Outcome.DISABLE or any(keeps_off(decision) for decision in self.decisions)
        return self.role is Role.ORDERED or (self.role is Role.WATCHED and is_harmed)

    @property
    def decisions(self) -> tuple[Decision, ...]:
        """The decisions that it rests on."""
        return tuple(load.decision for load in self.loads if load.decision is not None)


@dataclass(frozen=True, slots=True)
class Answer:
    """The decisions' answer for one speculation config, the best of the endpoint's candidates.

    `engines` measured, `serving_engine` serves (None: none is named).  `others` are the candidates that it was chosen
    from, with their outcomes; `remarks` are further facts for the deployer, which change no outcome.  `loads` is what
    the endpoint's verdicts say of its loads.  `unwatched` are the replicas that do not show whether
    the promise of ENABLE holds, with the cause.  A refusal has a `problem` and neither config nor findings.
    """

    question: Question
    checked_at: datetime
    config_name: str | None
    fingerprints: tuple[str, ...]
    engines: tuple[str, ...]
    findings: tuple[Finding, ...]
    serving_engine: str | None = None
    others: tuple[tuple[str, Outcome], ...] = ()
    remarks: tuple[str, ...] = ()
    problem: str | None = None
    loads: EndpointLoads | None = None
    unwatched: Mapping[str, str] = field(default_factory=dict)

    @property
    def outcome(self) -> Outcome:
        """DISABLE before UNUSABLE before HOLD; ENABLE where all that is required is."""
        blocking = {finding.outcome for finding in self.findings if finding.is_blocking}
        if self.problem is not None:
            return Outcome.UNUSABLE
        return next((outcome for outcome in WORST_FIRST if outcome in blocking), Outcome.ENABLE)

    @property
    def shown_outcome(self) -> Outcome:
        """The outcome as people and pipelines read it: of a second deployment it is no ENABLE and no DISABLE."""
        return self.shown(self.outcome)

    def shown(self, outcome: Outcome) -> Outcome:
        """An outcome of this answer, or of a finding, as it is shown."""
        return _OF_UPGRADE.get(outcome, outcome) if self.question.is_upgrade else outcome

    @property
    def verdict_engine(self) -> str:
        """The engine that the answer is for."""
        return verdict_engine(self.serving_engine, " ".join(self.engines))

    @property
    def is_for_serving(self) -> bool:
        """Whether the answer is for an engine that serves clients."""
        return is_for_serving(self.serving_engine, " ".join(self.engines))

    @property
    def served_share(self) -> float:
        """The share of the traffic that the rollouts behind an ENABLE let through; 0 for any other answer."""
        if self.outcome is not Outcome.ENABLE:
            return 0.0
        required = [finding for finding in self.findings if finding.role is Role.REQUIRED]
        served = [load.served for finding in required for load in finding.loads if load.served is not None]
        return min((served_decision.share for served_decision in served if served_decision.is_on), default=0.0)

    @property
    def schedule_limit(self) -> int | None:
        """Up to which load all that bears on the answer is on, where some of it is DISABLE above.

        None where nothing is DISABLE above a load, or something else blocks.
        """
        bearing = [finding for finding in self.findings if finding.role is not Role.SHOWN]
        is_settled = all(finding.on_up_to is not None or not finding.is_blocking for finding in bearing)
        limits = [finding.on_up_to for finding in bearing if finding.on_up_to is not None]
        return min(limits) if is_settled and limits else None

    @property
    def blocking(self) -> Sequence[Finding]:
        """The findings that keep the answer from ENABLE, worst first."""
        blocking = (finding for finding in self.findings if finding.is_blocking)
        return sorted(blocking, key=lambda finding: WORST_FIRST.index(finding.outcome))


def refusal(question: Question, problem: str, now: datetime) -> Answer:
    """The answer where there is nothing to judge, for reports that must be written all the same."""
    return Answer(question, now, None, (), (), (), problem=problem)


@dataclass(frozen=True, slots=True)
class Question:
    """May speculation be on here?

    Without `slice_labels` it is about the whole endpoint, else about every slice with all these labels; without
    `concurrency` about all of the endpoint's loads, by their shares.  `accepts_schedule`: speculation may be on up to a
    load and off above, as exports write it.  `is_upgrade` asks instead whether the second deployment may replace the
    first.  The expected deployment (None: any) is compared
    with the speculation configs that are measured now, by `Expectation`.
    """

    endpoint: str
    slice_labels: Mapping[str, str] = field(default_factory=dict)
    concurrency: int | None = None
    max_age: timedelta = DEFAULT_MAX_AGE
    expected_fingerprint: str | None = None
    model_revision: str | None = None
    expected_engine: str | None = None
    accepts_schedule: bool = False
    is_upgrade: bool = False

    @property
    def is_for_in_process(self) -> bool:
        """Whether it asks for the engine in process by name: no other question takes its verdicts."""
        return any(engine.name == IN_PROCESS for engine in parse_engines(self.expected_engine or ""))

    @property
    def expected(self) -> Expectation:
        return Expectation(self.expected_fingerprint, self.model_revision, self.expected_engine)


@dataclass(frozen=True, slots=True)
class EndpointTerms:
    """What the configuration says of an endpoint that is checked; without shares or candidates: as measured."""

    policy: GatePolicy
    load_shares: Mapping[int, float] = field(default_factory=dict)
    candidates: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class CheckInput:
    """The input of a check: the decisions in force at an endpoint, and their weights.

    `configs` are every measured one by fingerprint, `rollouts` the newest stages.  Where production's `demand` is
    measured it weighs the loads instead of the operator's shares.  A load without a bound counts as a speedup at plus
    or minus the policy's `log_speedup_clip`, the end of the range.
    """

    decisions: EndpointDecisions
    configs: Mapping[str, FingerprintedConfig]
    traffic: Sequence[Traffic]
    terms: EndpointTerms
    rollouts: Sequence[Rollout] = ()
    demand: Demand | None = None
    fleet: Fleet | None = None


class OtherCandidate(PublicValue, frozen=True, kw_only=True):
    """The outcome of a candidate beside the one that the answer is about."""

    config: str
    outcome: Outcome

    @classmethod
    def of(cls, value: tuple[str, Outcome]) -> Self:
        return cls(config=value[0], outcome=value[1])


class LoadDocument(PublicValue, frozen=True, kw_only=True):
    """One load of a finding; without a decision the decision's fields are null."""

    concurrency: int
    share: float
    outcome: Outcome
    problem: str | None
    off_because: Off | None
    decision_id: Annotated[int | None, "decision.decision_id"]
    verdict: Annotated[Verdict | None, "decision.verdict"]
    reason_code: Annotated[str | None, "decision.reason_code"]
    reason: Annotated[str | None, "decision.reason"]
    fingerprint: Annotated[str | None, "decision.fingerprint"]
    engine: Annotated[str | None, "decision.engine"]
    clusters_needed: Annotated[int | None, "decision.clusters_needed"]
    decided_at: Annotated[datetime | None, "decision.decided_at"]
    evidence_age_s: float | None

    @classmethod
    def of(cls, value: LoadFinding) -> Self:
        return public(cls, value, evidence_age_s=_age_s(value))


@shows(Finding, "age")
class FindingDocument(PublicValue, frozen=True, kw_only=True):
    """One slice, or the whole endpoint, over its loads."""

    is_blocking: bool
    evidence_age_s: float | None
    loads: list[LoadDocument]

    @classmethod
    def of(cls, value: Finding) -> Self:
        return public(cls, value, evidence_age_s=_age_s(value))


class CheckDocument(PublicDocument, frozen=True, kw_only=True):
    """The answer of `check --json`."""

    endpoint: str
    slice: Labels
    load: AtLoad | None
    outcome: Annotated[Outcome, "shown_outcome"]
    exit_code: int
    on_hold: OnHold
    config: Annotated[str | None, "config_name"]
    fingerprints: Sequence[str]
    engines: Sequence[str]
    serving_engine: str | None
    verdict_engine: str | None
    other_candidates: Annotated[list[OtherCandidate], "others"]
    remarks: Sequence[str]
    accepts_schedule: bool
    is_upgrade: bool  # the outcome is REPLACE or KEEP in place of ENABLE and DISABLE, which findings have
    schedule_limit: int | None
    served_share: float
    loads: LoadsPart | None
    findings: list[FindingDocument]
    unwatched: Mapping[str, str]  # replica and reason
    checked_at: datetime


def answer_document(answer: Answer, on_hold: OnHold) -> CheckDocument:
    """The answer as `check --json` prints it."""
    return public(
        CheckDocument,
        answer,
        answer.question,
        exit_code=exit_code(answer.outcome, on_hold),
        on_hold=on_hold,
        verdict_engine=None if answer.config_name is None else answer.verdict_engine,
    )


def _age_s(finding: Finding | LoadFinding) -> float | None:
    return None if finding.age is None else finding.age.total_seconds()

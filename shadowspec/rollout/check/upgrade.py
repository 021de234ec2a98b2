"""May a second deployment replace the one that serves an endpoint: the answer of `check --upgrade`.

The gate judges a second deployment by the tests of speculation, and writes its verdict as HOLD (`may_replace`,
`must_not_replace`), so that nothing that acts on ENABLE acts on it.  Only here it becomes an outcome again.

Each accepted upgrade keeps, by slice and load, the acceptance of both deployments and the bounds of its change
(`acceptance_kept`).  Upgrades that each lose too little to be refused must not add up: the sum of their upper bounds
and this one's, all of which hold at once, may not lie below `acceptance_margin`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final

from shadowspec.errors import UsageError
from shadowspec.gate.policy import GatePolicy
from shadowspec.gate.verdict.current_decision import LatestDecision
from shadowspec.gate.verdict.figure_texts import OUTCOME, figures_text, title_of
from shadowspec.rollout.served_decision import Off, ServedDecision
from shadowspec.text import plural, sentence
from shadowspec.types import ACCEPTANCE_KEPT, Decision, FingerprintedConfig, ReasonCode, TestResult, Verdict
from shadowspec.types.server_facts import differing_facts

_OFF: Final[Mapping[str, Off | None]] = {ReasonCode.MAY_REPLACE: None, ReasonCode.MUST_NOT_REPLACE: Off.DISABLED}


@dataclass(frozen=True, slots=True)
class KeptAcceptance:
    """The acceptance of one slice at one load over accepted upgrades and the one that is asked about."""

    first: float | None  # of the deployment that serves, in this upgrade
    second: float | None
    change_upper: float | None  # the sum of the upper bounds of the changes; None where one is unknown
    num_before: int

    def loss(self, margin: float | None) -> str | None:
        """Why the upgrades lose too much together; None where that is not shown."""
        if margin is None or not self.num_before or self.change_upper is None or self.change_upper >= -margin:
            return None
        return (
            f"over this and {plural(self.num_before, 'earlier upgrade')} acceptance fell by at least "
            f"{-self.change_upper:.3f} (limit {margin:g})"
        )

    @property
    def text(self) -> str | None:
        """Both acceptances; None where not both speculate."""
        if self.first is None or self.second is None:
            return None
        return f"acceptance {self.first:.3f} in the deployment that serves, {self.second:.3f} in the other"


def require_kind(endpoint: str, configs: Iterable[FingerprintedConfig], *, is_upgrade: bool) -> None:
    """Raise UsageError where the question is of speculation and the candidate a second deployment, or vice versa."""
    kinds = {config.config.is_deployment for config in configs}
    if is_upgrade and False in kinds:
        raise UsageError(
            f'endpoint {endpoint!r}: its candidate is a way of speculating; --upgrade needs a kind = "deployment" '
            "(docs/ci.md)"
        )
    if not is_upgrade and True in kinds:
        raise UsageError(f"endpoint {endpoint!r}: its candidate is a second deployment; ask with --upgrade")


def upgrade_decisions(
    latest: Collection[LatestDecision], policy: GatePolicy, now: datetime, max_age: timedelta
) -> list[ServedDecision]:
    """The `latest` decisions on second deployments with their outcomes and their evidence as reasons."""
    served, every = [], [one.decision for one in latest]
    for one in latest:
        decision, reason = one.decision, one.decision.reason
        if not decision.config.is_deployment:
            continue
        off = _OFF.get(decision.reason_code, Off.DISABLED if decision.verdict is Verdict.DISABLE else Off.HELD)
        kept = kept_acceptance(decision, every)
        if off is None and (loss := kept.loss(policy.acceptance_margin)) is not None:
            off, reason = Off.DISABLED, loss
        told = " ".join(sentence(text) for text in (reason, kept.text or "", evidence_text(decision.tests)) if text)
        expires_at = now if one.evidence_at is None else one.evidence_at + max_age
        served.append(ServedDecision(replace(decision, reason=told), expires_at, off))
    return served


def upgrade_remarks(config: FingerprintedConfig) -> tuple[str, ...]:
    """Both deployments, and the facts in which they differ."""
    serving = config.details.get("baseline_engine", "unknown")
    engines = f"the deployment that serves runs {serving}, the other one {config.engine}"
    facts = ", ".join(difference.text for difference in differing_facts(config.details))
    return (engines, *([f"the deployments differ in {facts}"] if facts else []))


def kept_acceptance(decision: Decision, latest: Iterable[Decision]) -> KeptAcceptance:
    """That of a decision's slice and load, over the endpoint's `latest` decisions on every candidate."""
    own = decision.find_test(ACCEPTANCE_KEPT)
    before = [
        test
        for other in latest
        if (other.slice_key, other.concurrency) == (decision.slice_key, decision.concurrency)
        and other.fingerprint != decision.fingerprint
        and other.reason_code == ReasonCode.MAY_REPLACE
        and other.decided_at < decision.decided_at
        and (test := other.find_test(ACCEPTANCE_KEPT)) is not None
        and test.num_units
    ]
    uppers = [test.upper for test in (*before, *([] if own is None else [own]))]
    known = [upper for upper in uppers if upper is not None]
    figures: Mapping[str, object] = {} if own is None else own.figures
    return KeptAcceptance(
        first=_rate(figures.get("baseline_acceptance")),
        second=_rate(figures.get("speculative_acceptance")),
        change_upper=sum(known) if own is not None and own.num_units and len(known) == len(uppers) else None,
        num_before=len(before),
    )


def _rate(value: object) -> float | None:
    return value if isinstance(value, float) else None


def evidence_text(tests: Iterable[TestResult]) -> str:
    """The other tests than the speedup's, with their bounds."""
    shown = [
        f"{title_of(test).lower()} {OUTCOME.get(test.outcome, test.outcome)}, {figures_text(test)}"
        for test in tests
        if test.name != "speedup" and test.num_units and (test.is_required or test.name == ACCEPTANCE_KEPT)
    ]
    return "; ".join(shown)

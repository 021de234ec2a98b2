"""All that one hypothesis is judged on at one look."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from shadowspec.gate.decision import Hypothesis
from shadowspec.gate.evidence import HypothesisEvidence
from shadowspec.gate.policy import GatePolicy
from shadowspec.gate.restarts import Trial
from shadowspec.gate.standing import standing_decision
from shadowspec.types import Decision


@dataclass(frozen=True, slots=True)
class Look:
    """One hypothesis at one look; `policy` has its frozen parameters as at its entry."""

    hypothesis: Hypothesis
    evidence: HypothesisEvidence
    policy: GatePolicy
    trial: Trial | None
    has_entered: bool
    previous: Decision | None

    @property
    def level(self) -> float | None:
        """Level of its run; None where it has none."""
        return self.trial.level if self.trial is not None else None

    def decided(self, now: datetime) -> Decision:
        """The decision on it, what stands included."""
        return standing_decision(
            self.hypothesis,
            self.evidence,
            self.policy,
            trial=self.trial,
            has_entered=self.has_entered,
            previous=self.previous,
            now=now,
        )

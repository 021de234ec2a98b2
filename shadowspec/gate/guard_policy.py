"""How the live guard of an endpoint listens; without numpy, for whoever only reads a configuration."""

from __future__ import annotations

from dataclasses import dataclass

FIRST_POSITION = "first_position_acceptance_rate"


@dataclass(frozen=True, slots=True)
class GuardPolicy:
    """How the live guard of one endpoint listens.

    `metric` is the policy's acceptance metric, `scored_drafts` S, `run_length` windows between false alarms.
    """

    metric: str = FIRST_POSITION
    scored_drafts: int = 256
    run_length: int = 100_000
    num_replicas: int = 1

    @property
    def threshold(self) -> float:
        """The value of the statistic at which a replica's detector sounds."""
        return float(self.run_length * self.num_replicas)

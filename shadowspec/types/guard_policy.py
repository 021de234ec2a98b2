"""The policy of the live guard, which reads the counters of production engines.

It is part of the configuration file, so it needs pydantic; `shadowspec.types` itself loads without.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from shadowspec.types.constrained import Positive
from shadowspec.types.live_windows import FIRST_POSITION


@dataclass(frozen=True, slots=True)
class GuardPolicy:
    """How the live guard of one endpoint listens.

    `metric` is the policy's acceptance metric, `scored_drafts` S, `run_length` windows between false alarms.
    """

    metric: Annotated[str, Field(alias="(metric)")] = FIRST_POSITION
    scored_drafts: Positive = 256
    run_length: Positive = 100_000
    num_replicas: Annotated[int, Field(alias="(num_replicas)")] = 1

    @property
    def threshold(self) -> float:
        """The value of the statistic at which a replica's detector fires."""
        return float(self.run_length * self.num_replicas)

"""What was measured of a device: the costs of the loop's steps, and what they are the costs of."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Final, NamedTuple, Self

from shadowspec.types.speculation import FingerprintedConfig

BASELINE: Final = 0  # the depth at which nothing is drafted


class Place(NamedTuple):
    """Where a cost is asked for: the load, the depth (0 is the baseline) and the prompt's tokens."""

    concurrency: float
    num_speculative_tokens: float
    context: float

    @property
    def baseline(self) -> Place:
        """The same without drafting."""
        return self._replace(num_speculative_tokens=BASELINE)

    def grown(self, tokens: float) -> Place:
        """The same with so many more tokens of context."""
        return self._replace(context=self.context + tokens)


@dataclass(frozen=True, slots=True)
class StepCost:
    """What was measured at one point; milliseconds, medians."""

    concurrency: int  # rows of the batch
    num_speculative_tokens: int  # drafted per step; 0 is the baseline
    context: int  # prompt tokens of each row
    prefill_ms: float  # of the target, and of the draft where there is one
    draft_ms: float  # of a step; the draft's passes
    verify_ms: float  # the target's pass and the verification
    other_ms: float  # bookkeeping

    @property
    def place(self) -> Place:
        return Place(self.concurrency, self.num_speculative_tokens, self.context)

    @property
    def step_ms(self) -> float:
        return self.draft_ms + self.verify_ms + self.other_ms


@dataclass(frozen=True, slots=True)
class CostKey:
    """What a cost surface is of: a pair under a verify rule, on an engine and a device.

    It is what a config's fingerprint is made of, less the depth, which the surface ranges over, and what costs nothing.
    """

    engine: str
    device: str
    dtype: str
    proposer: str
    target_weights: str  # digests
    draft_weights: str
    verify_rule: str
    is_greedy: bool  # requests at temperature 0, whose verification does not sample

    @classmethod
    def of(cls, config: FingerprintedConfig, *, is_greedy: bool) -> Self:
        """Of a config's requests of one kind."""
        own, details = config.config, config.details
        return cls(
            engine=config.engine,
            device=config.device,
            dtype=config.dtype,
            proposer=own.proposer,
            target_weights=details.get("target_weights", ""),
            draft_weights=details.get("draft_weights", ""),
            verify_rule=own.verify_rule.value,
            is_greedy=is_greedy,
        )


@dataclass(frozen=True, slots=True)
class ProfiledCosts:
    """The points of one profile, a whole grid of load, depth and context."""

    key: CostKey
    profiled_at: datetime  # aware, UTC
    points: tuple[StepCost, ...]

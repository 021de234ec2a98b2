"""Measurements of a device: the costs of the engine's steps, the setup that they belong to, and the times of blocks."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final, NamedTuple, Self

from shadowspec.types.served_methods import DEPTH_KEYS, plain_key, settings_text
from shadowspec.types.speculation import FingerprintedConfig, SpeculationConfig

BASELINE: Final = 0  # the depth at which nothing is drafted
SERVED: Final = "served: "  # before the model that a server was started with, in place of a digest


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
        """The same with this many more tokens of context."""
        return self._replace(context=self.context + tokens)


@dataclass(frozen=True, slots=True)
class StepCost:
    """The measurement at one point; milliseconds, medians.

    The errors are standard errors of the mean over rounds; None where they are not known.
    """

    concurrency: int  # rows of the batch
    num_speculative_tokens: int  # drafted per step; 0 is the baseline
    context: int  # prompt tokens of each row
    prefill_ms: float  # of the target, and of the draft where there is one
    draft_ms: float  # of a step; the draft's passes
    verify_ms: float  # the target's pass and the verification
    other_ms: float  # bookkeeping; of a server, the whole step, whose parts it does not report
    step_error_ms: float | None = None
    prefill_error_ms: float | None = None

    @property
    def place(self) -> Place:
        return Place(self.concurrency, self.num_speculative_tokens, self.context)

    @property
    def step_ms(self) -> float:
        return self.draft_ms + self.verify_ms + self.other_ms


@dataclass(frozen=True, slots=True)
class CostKey:
    """The setup of a cost surface: a pair under a verify rule, on an engine and a device.

    It is a config's fingerprint without the depth, over which the surface ranges, and without parts that cost nothing.
    A server's weights have no known digest: the pair is then named as in the configuration (`SERVED` before it), which
    also identifies the same pair in a config of another engine (`serves`).
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
        speculation_config = config.config
        served = _name_served(speculation_config) if speculation_config.is_served else None
        return cls(
            engine=config.engine,
            device=config.device,
            dtype=config.dtype,
            proposer=speculation_config.proposer,
            target_weights=served[0] if served else config.target_weights,
            draft_weights=served[1] if served else config.draft_weights,
            verify_rule=speculation_config.verify_rule.value,
            is_greedy=is_greedy,
        )

    def serves(self, config: SpeculationConfig) -> bool:
        """Whether it is the cost of a server that runs this pair, by whichever engine the config was measured."""
        way = self.target_weights, self.draft_weights, self.proposer, self.verify_rule
        return way == (*_name_served(config), config.proposer, config.verify_rule.value)


def _name_served(config: SpeculationConfig) -> tuple[str, str]:
    """Target and draft as the configuration names them; the draft with the server's other start settings."""
    settings = {key: value for key, value in config.server_settings.items() if plain_key(key) not in DEPTH_KEYS}
    others = f" {settings_text(settings)}" if config.is_served_method else ""
    return f"{SERVED}{config.target}", f"{SERVED}{config.draft or ''}{others}"


@dataclass(frozen=True, slots=True)
class ProfiledCosts:
    """The points of one profile, a whole grid of load, depth and context."""

    key: CostKey
    profiled_at: datetime  # aware, UTC
    points: tuple[StepCost, ...]

    def with_depths_of(self, earlier: ProfiledCosts) -> ProfiledCosts:
        """With the depths that only an earlier profile of the same loads and contexts has: a server runs one at a time.

        A profile of other places adds nothing, for a surface is a whole grid.
        """
        depths = {point.num_speculative_tokens for point in self.points}
        if _places(self.points) != _places(earlier.points):
            return self
        others = tuple(point for point in earlier.points if point.num_speculative_tokens not in depths)
        return replace(self, points=(*self.points, *others))


def _places(points: Iterable[StepCost]) -> set[tuple[int, int]]:
    return {(point.concurrency, point.context) for point in points}


@dataclass(frozen=True, slots=True)
class BlockTime:
    """One measured block.  Times in seconds.

    `seconds` is all that it took, where that was measured.  `arms_s` sums over the arms, the baseline's and every
    candidate's, the longer of the longest request and of the time in which all requests, fillers included, occupy the
    load's slots: prefill and decoding, but neither parity nor audits.
    """

    slice_key: str
    concurrency: int
    num_requests: int  # fillers not among them
    arms_s: float
    seconds: float | None


@dataclass(frozen=True, slots=True)
class BlockSeconds:
    """A block of the traffic: the event time of its newest request, and the seconds that it took (None: not known)."""

    slice_key: str
    concurrency: int
    at: datetime
    seconds: float | None

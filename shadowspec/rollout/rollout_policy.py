"""An operator's limits of a rollout: shares, soak times and depths per stage, with their defaults.

Durations are seconds (`_s`), shares fractions of 1, depths numbers of speculative tokens.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from shadowspec.errors import ConfigError
from shadowspec.types import Stage

DAY_S = 86_400.0

_ALARM_STAGES = ("previous", "shadow")
_DURATIONS = ("shadow_soak_s", "partial_soak_s", "depth_soak_s", "max_decision_age_s", "control_retry_s")
_TOLERATED = ("max_slowdown", "max_first_token_slowdown", "max_failure_increase", "max_load_difference")
_DEPTHS = ("first_depth", "partial_max_depth", "broad_max_depth")


@dataclass(frozen=True, slots=True)
class RolloutPolicy:
    """Parameters of the rollout of one endpoint.

    Raises:
        ConfigError: a value is out of its range; the message names the key.
    """

    partial_share: float = 0.10  # of the enabled traffic, served with speculation in the partial stage
    shadow_soak_s: float = DAY_S  # for which ENABLE must have been in force in the shadow
    partial_soak_s: float = 7 * DAY_S  # for which it must have been in force in the partial stage
    min_soak_blocks: int = 50  # blocks newly measured in the stage that is left: silence proves nothing
    max_decision_age_s: float = DAY_S  # an older decision moves nothing forward
    max_disabled_share: float = 0.05  # of a DISABLEd slice's traffic, from which on nothing moves forward
    alarm_stage: str = "previous"  # where an alarm moves the rollout: one stage back, or to the "shadow"
    # Depths are numbers of speculative tokens; only proven ones are served, within the limits.
    first_depth: int = 1  # the partial stage begins with the deepest proven one up to this, else with the first
    depth_soak_s: float = DAY_S  # for which ENABLE must have been in force at one depth before the next
    partial_max_depth: int = 16  # a limit below every proven depth keeps the endpoint in the stage before
    broad_max_depth: int = 16
    context_max_depths: Mapping[str, int] = field(default_factory=dict)  # by context bucket
    # The control: the replicas of `plain_metrics_urls` beside those of `metrics_urls`.
    control_level: float = 0.05  # probability, at most, that it moves a config back that is no worse than tolerated
    control_run_length: int = 100_000  # intervals until the control's first false alarm of a change, on average
    control_interval_s: float = 600.0  # the pools are compared in intervals of this length
    control_requests: int = 20  # of each pool in an interval, else it does not count
    max_slowdown: float = 0.02  # end-to-end time and time per output token may be longer by this
    max_first_token_slowdown: float = 0.25  # time to first token may be longer by this
    max_failure_increase: float = 0.005  # the share of failed requests may be higher by this
    max_load_difference: float = 0.5  # by which requests per replica may differ, else an interval does not count
    control_retry_s: float = 7 * DAY_S  # after which a config that the control moved back may be tried again
    # A config leaves the shadow only if its export was measured as it is (a candidate that is `exported`).
    require_confirmed: bool = True
    has_control: bool = False  # set from the endpoint's `plain_metrics_urls`; in no policy file

    def __post_init__(self) -> None:
        for name in _DURATIONS:
            _require(name, getattr(self, name), lambda value: 0.0 <= value < math.inf, "0 or more")
        for name in _DEPTHS:
            _require_whole(name, getattr(self, name), 1)
        _require_whole("min_soak_blocks", self.min_soak_blocks, 0)
        _require("partial_share", self.partial_share, lambda value: 0.0 < value < 1.0, "above 0 and below 1")
        for name in _TOLERATED:
            _require(name, getattr(self, name), lambda value: 0.0 <= value < math.inf, "0 or more")
        _require("control_level", self.control_level, lambda value: 0.0 < value < 1.0, "above 0 and below 1")
        _require("control_interval_s", self.control_interval_s, lambda value: 1.0 <= value < math.inf, "1 or more")
        _require_whole("control_requests", self.control_requests, 1)
        _require_whole("control_run_length", self.control_run_length, 1)
        _require("max_disabled_share", self.max_disabled_share, lambda value: 0.0 < value <= 1.0, "above 0, at most 1")
        if not isinstance(self.require_confirmed, bool):
            raise ConfigError(f"policy key 'require_confirmed' must be true or false, not {self.require_confirmed!r}")
        if self.alarm_stage not in _ALARM_STAGES:
            raise ConfigError(f"policy key 'alarm_stage' must be one of {_ALARM_STAGES}, not {self.alarm_stage!r}")
        if not isinstance(self.context_max_depths, Mapping):
            raise ConfigError("policy key 'context_max_depths' must be a table of context buckets")
        for bucket, depth in self.context_max_depths.items():
            _require_whole(f"context_max_depths.{bucket}", depth, 0)

    def share_of(self, stage: Stage) -> float:
        """Share of the enabled traffic that a stage serves with speculation."""
        return {Stage.SHADOW: 0.0, Stage.PARTIAL: self.partial_share, Stage.BROAD: 1.0}[stage]


def _require(name: str, value: object, is_valid: Callable[[float], bool], wanted: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not is_valid(value):
        raise ConfigError(f"policy key {name!r} must be {wanted}, not {value!r}")


def _require_whole(name: str, value: object, lowest: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < lowest:
        raise ConfigError(f"policy key {name!r} must be a whole number, {lowest} or more, not {value!r}")

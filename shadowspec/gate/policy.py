"""What an endpoint's operator promises and risks: every parameter of the gate, with its default.

Durations are seconds of event time (`_s`); shares, rates and margins are fractions of 1.  A threshold may be
changed between looks, because the bounds hold for all thresholds at once; what defines an estimand (the
FROZEN fields) is fixed for a hypothesis when it enters and is carried in its decisions.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass, fields, replace

from shadowspec.errors import ConfigError

DAY_S = 86_400.0

# At which top-2 logit gap of the target two greedy outputs may differ by rounding alone: about what one
# unit in the last place of a logit near 16 amounts to after a forward pass in that dtype.
NEAR_TIE_LOGIT = {"float32": 1e-3, "float16": 0.015625, "bfloat16": 0.125}

# Clips, caps and definitions of what is averaged, per hypothesis and of its units.
FROZEN_VALUES = ("log_speedup_clip", "z_clip", "max_scored_steps", "parity_tokens", "tail_margin", "acceptance_metric")
FROZEN_UNITS = (
    "max_requests_per_cluster",
    "cluster_idle_s",
    "cluster_max_age_s",
    "cluster_reopen_after_s",
    "time_block_s",
    "dominant_key_share",
    "entry_clusters",
)

_ACCEPTANCE_METRICS = ("first_position_acceptance_rate", "draft_acceptance_rate")
_OBJECTIVES = ("latency", "both")


@dataclass(frozen=True, slots=True)
class GatePolicy:
    """Parameters of the gate for one endpoint.

    Raises:
        ConfigError: a value is out of its range; the message names the key.
    """

    alpha: float = 0.05  # family-wise error of the endpoint
    max_hypotheses: int = 8  # the endpoint's own included; each gets alpha / max_hypotheses
    entry_clusters: int = 20  # closed clusters of its slice at which a hypothesis enters
    max_clusters: int = 20_000  # measured clusters after which an open question is called undecidable
    indifference: float = 0.01  # an interval this close about the threshold is undecidable
    max_missing: float = 0.05  # share of failed and shed requests above which the verdict is HOLD
    min_span_s: float = 7 * DAY_S  # event time that ENABLE needs to have seen: a whole cycle of the traffic

    margin: float = 0.05  # speedup to be proven: 1 + margin
    log_speedup_clip: float = math.log(2.0)  # a request's log speedup is clipped to plus or minus this
    objective: str = "latency"  # "both": a lower total time must be proven too
    acceptance_metric: str = "first_position_acceptance_rate"  # or "draft_acceptance_rate"
    floor: float = 0.40  # acceptance to be proven
    max_scored_steps: int = 64  # a cluster's weight in the acceptance rate is capped at so many denominators
    tail_margin: float = 0.20  # a request is slowed if its end-to-end time grew by more than this
    tail_share: float = 0.10  # share of slowed requests that is tolerated
    max_fault_share: float = 0.05  # share of greedy faults to be excluded, none having been seen
    parity_margin: float = 0.05  # share of greedy near-ties beyond the baseline's own that is tolerated
    near_tie_logit: float | None = None  # None: by dtype, NEAR_TIE_LOGIT
    parity_tokens: int = 64  # a cluster's weight in the z score is capped at so many tokens
    z_clip: float = 0.2
    z_bound: float = 0.02  # the mean teacher-forced z must lie within plus or minus this
    memory_budget_share: float | None = 0.25  # extra peak memory over the baseline's own peak
    memory_budget_tokens: int | None = None  # KV-cache tokens of the target that the draft may displace

    max_requests_per_cluster: int = 8
    cluster_idle_s: float = 1_800.0
    cluster_max_age_s: float = DAY_S
    cluster_reopen_after_s: float = DAY_S
    time_block_s: float = 600.0
    dominant_key_share: float = 0.05  # a key above this share of its slice's records is cut into time blocks
    timed_positions: int = 4  # a session is timed at its J-th request, J uniform in 1..timed_positions
    block_max_wait_s: float = 600.0  # a block not full after this long runs short

    def __post_init__(self) -> None:
        for name, (is_valid, wanted) in _RANGES.items():
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not is_valid(value):
                raise ConfigError(f"policy key {name!r} must be {wanted}, not {value!r}")
        for name in _WHOLE_NUMBERS:
            if not isinstance(getattr(self, name), int):
                raise ConfigError(f"policy key {name!r} must be a whole number, not {getattr(self, name)!r}")
        if self.objective not in _OBJECTIVES:
            raise ConfigError(f"policy key 'objective' must be one of {_OBJECTIVES}, not {self.objective!r}")
        if self.acceptance_metric not in _ACCEPTANCE_METRICS:
            raise ConfigError(
                f"policy key 'acceptance_metric' must be one of {_ACCEPTANCE_METRICS}, not {self.acceptance_metric!r}"
            )
        if math.log1p(self.margin) >= self.log_speedup_clip:
            raise ConfigError("policy key 'margin' must be below exp(log_speedup_clip) - 1, or nothing could prove it")
        if self.z_bound >= self.z_clip:
            raise ConfigError("policy key 'z_bound' must be below 'z_clip', or nothing could prove it")
        for name in ("near_tie_logit", "memory_budget_share", "memory_budget_tokens"):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int | float) or value < 0):
                raise ConfigError(f"policy key {name!r} must be 0 or more, not {value!r}")
        if self.memory_budget_share is None and self.memory_budget_tokens is None:
            raise ConfigError("policy needs 'memory_budget_share' or 'memory_budget_tokens'")

    def near_tie_logit_of(self, dtype: str) -> float:
        """Top-2 logit gap up to which a greedy difference is a near-tie, for a model run in `dtype`.

        Raises:
            ConfigError: no gap is known for this dtype and the policy sets none.
        """
        if self.near_tie_logit is not None:
            return self.near_tie_logit
        name = dtype.removeprefix("torch.")
        if name not in NEAR_TIE_LOGIT:
            raise ConfigError(f"policy key 'near_tie_logit' must be set for models run in {dtype}")
        return NEAR_TIE_LOGIT[name]

    def frozen_parameters(self) -> str:
        """The FROZEN fields as one JSON object, to be stored with the decision at which they were fixed."""
        return json.dumps({name: getattr(self, name) for name in FROZEN_VALUES + FROZEN_UNITS}, sort_keys=True)

    def with_frozen_parameters(self, stored: str) -> GatePolicy:
        """This policy with the FROZEN fields as they were fixed at a hypothesis's entry."""
        known = {field.name for field in fields(self)}
        return replace(self, **{name: value for name, value in json.loads(stored).items() if name in known})

    def unit_parameters(self) -> tuple[float, ...]:
        """What decides which records make which clusters."""
        return tuple(getattr(self, name) for name in FROZEN_UNITS)


_Range = tuple[Callable[[float], bool], str]
_FRACTION: _Range = (lambda value: 0.0 < value < 1.0, "above 0 and below 1")
_SHARE: _Range = (lambda value: 0.0 <= value <= 1.0, "from 0 to 1")
_POSITIVE: _Range = (lambda value: 0.0 < value < math.inf, "above 0")
_NOT_NEGATIVE: _Range = (lambda value: 0.0 <= value < math.inf, "0 or more")
_COUNT: _Range = (lambda value: value >= 1, "1 or more")

_WHOLE_NUMBERS = (
    "max_hypotheses",
    "entry_clusters",
    "max_clusters",
    "max_scored_steps",
    "parity_tokens",
    "max_requests_per_cluster",
    "timed_positions",
)
_RANGES: dict[str, _Range] = {
    **dict.fromkeys(_WHOLE_NUMBERS, _COUNT),
    **dict.fromkeys(
        ("alpha", "floor", "tail_share", "max_fault_share", "parity_margin", "z_clip", "z_bound"), _FRACTION
    ),
    **dict.fromkeys(("max_missing", "dominant_key_share"), _SHARE),
    **dict.fromkeys(("log_speedup_clip", "cluster_idle_s", "cluster_max_age_s", "time_block_s"), _POSITIVE),
    **dict.fromkeys(
        ("indifference", "min_span_s", "margin", "tail_margin", "cluster_reopen_after_s", "block_max_wait_s"),
        _NOT_NEGATIVE,
    ),
}

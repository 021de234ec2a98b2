"""The promises and risks of an endpoint's operator: every parameter of the gate, with its default.

Durations are seconds of event time (`_s`); shares, rates and margins are fractions of 1.  An operator may change a
threshold between looks, because the bounds hold for all thresholds at once.  The definition of an estimand (the FROZEN
fields) is fixed when a hypothesis enters, and its decisions carry it.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from datetime import timedelta
from typing import Any

from shadowspec.errors import ConfigError
from shadowspec.types import Figure
from shadowspec.types.serving_engines import is_measured_on

DAY_S = 86_400.0

# The top-2 logit gap of the target up to which two greedy outputs may differ by rounding: about one unit in the last
# place of a logit near 16 after a forward pass in that dtype.
NEAR_TIE_LOGIT = {"float32": 1e-3, "float16": 0.015625, "bfloat16": 0.125}

# Clips, caps and definitions of averages, per hypothesis and per unit.
FROZEN_VALUES = (
    "log_speedup_clip",
    "z_clip",
    "max_scored_steps",
    "parity_tokens",
    "tail_margin",
    "acceptance_metric",
    "max_cost_per_million_tokens",
    "device_price_per_hour",
)
FROZEN_UNITS = (
    "max_requests_per_cluster",
    "cluster_idle_s",
    "cluster_max_age_s",
    "cluster_reopen_after_s",
    "time_block_s",
    "dominant_key_share",
    "entry_clusters",
    "entry_share",
)

_ACCEPTANCE_METRICS = ("first_position_acceptance_rate", "draft_acceptance_rate")
_OBJECTIVES = ("latency", "both")
_ON_ALARM = ("disable", "hold")


MIN_CLIP = 0.25  # of the log speedup
CLIP_ROOM = 0.2  # above the margin
CLIP_SDS = 3.0  # robust standard deviations of a request's log speedup

# Limits of means that are clipped at plus or minus log_speedup_clip, by test.
CLIPPED_MARGINS = {"speedup": "margin", "ttft": "ttft_margin", "tpot": "tpot_margin"}


@dataclass(frozen=True, slots=True)
class Clash:
    """A limit that a definition leaves without a proof: the test, both their keys, and the required limit."""

    test: str
    limit: str
    fixed: str
    wanted: str


@dataclass(frozen=True, slots=True)
class UnprovableLimit:
    """A limit of today that nothing proves under a definition that was fixed when the tests began: keys and values."""

    limit: str
    value: float
    fixed: str
    fixed_value: float


@dataclass(frozen=True, slots=True)
class GatePolicy:
    """Parameters of the gate for one endpoint.

    Raises:
        ConfigError: a value is out of its range; the message names the key.
    """

    alpha: float = 0.05  # family-wise error of the endpoint
    max_hypotheses: int = 8  # loads x candidates x (slices + 1): the whole endpoint gets half of alpha, slices the rest
    entry_clusters: int = 20  # closed clusters of its slice at which a hypothesis enters
    entry_share: float = 0.02  # share of its endpoint's requests of the last week that its slice must then have
    max_clusters: int = 20_000  # measured clusters after which an open question is called undecidable
    indifference: float = 0.01  # an interval this close about the threshold is undecidable
    max_missing: float = 0.05  # share of failed and shed requests above which the verdict is HOLD
    # Share of prompts that production counts otherwise above which it is HOLD.  Simulated worlds log no prompts.
    max_prompt_mismatch: float = field(default=0.02, repr=False)
    # Share of prompt tokens by which production and the baseline may differ in what their caches held, else HOLD.
    max_cache_gap: float = field(default=0.2, repr=False)
    # Share of requests beyond `timed_positions` above which ENABLE is HOLD.  In simulated worlds there are none.
    max_untimed_share: float = field(default=0.25, repr=False)
    # Event time of a unit in production; recordings have blocks as units, and 0 stands for them.
    window_s: float = field(default=3_600.0, repr=False)
    # Measured of each slice, load and worker process in a window, on average.
    blocks_per_window: int = field(default=1, repr=False)
    min_span_s: float = 7 * DAY_S  # event time, and days with evidence, that ENABLE needs: a whole cycle of the traffic
    max_evidence_age_s: float | None = None  # HOLD if the newest evidence is older; None: files may be of any age
    # A trial: ENABLE needs no span, speaks of this recording only, and is never promoted.  Simulated worlds, whose
    # definition is their representation, have none.
    recording_only: bool = field(default=False, repr=False)

    margin: float = 0.05  # speedup to be proven: 1 + margin
    # A request's log speedup is clipped to plus or minus this; in production the first windows set a smaller clip.
    log_speedup_clip: float = math.log(2.0)
    objective: str = "latency"  # "both": a lower total time must be proven too
    acceptance_metric: str = "first_position_acceptance_rate"  # or "draft_acceptance_rate"
    floor: float = 0.40  # acceptance to be proven
    max_scored_steps: int = 64  # a cluster's weight in the acceptance rate is capped at this denominator
    tail_margin: float = 0.20  # a request is slowed if its end-to-end time grew by more than this
    tail_share: float = 0.10  # share of slowed requests that is tolerated
    max_fault_share: float = 0.05  # share of greedy faults to be excluded, none having been seen
    max_carry_over: float = 0.01  # what the order of the arms may add to the speedup
    # Share of broken chat streams beyond the baseline's that is tolerated.  Simulated worlds stream none.
    stream_margin: float = field(default=0.05, repr=False)
    parity_margin: float = 0.05  # share of greedy near-ties beyond the baseline's that is tolerated
    near_tie_logit: float | None = None  # None: by dtype, NEAR_TIE_LOGIT
    parity_tokens: int = 64  # a cluster's weight in the z score is capped at this number of tokens
    z_clip: float = 0.2
    z_bound: float = 0.02  # the mean teacher-forced z must lie within plus or minus this
    # With neither budget memory is not judged: a server's operator, who has sized it, may choose this.
    memory_budget_share: float | None = 0.25  # extra peak memory over the baseline's peak
    memory_budget_tokens: int | None = None  # KV-cache tokens of the target that the draft may displace

    # Guardrails: each is required where it is set.
    ttft_margin: float | None = None  # time to first token may be longer by this
    tpot_margin: float | None = None  # time per output token may be longer by this
    p95_margin: float | None = None  # the arm's 95% quantile of end-to-end time may be longer by this
    p99_margin: float | None = None
    max_cost_per_million_tokens: float | None = None  # output tokens, in the currency of the price
    device_price_per_hour: float | None = None
    validity_margin: float | None = None  # share of valid structured outputs may be lower by this
    score_margin: float | None = None  # the mean of the user's score, from 0 to 1, may be lower by this
    task_margin: float | None = None  # the mean score of the documents of task sets may be lower by this

    # Of a candidate that is a second deployment: it need not be faster, only not slower by more than this.
    upgrade_margin: float = field(default=0.05, repr=False)
    # Its acceptance may be lower by this than the first deployment's.
    acceptance_margin: float | None = field(default=0.02, repr=False)
    is_upgrade: bool = field(default=False, repr=False)  # by the endpoint's candidate; no key of a policy

    require_serving_engine: bool = True  # where a serving engine is named, only its latency counts
    serving_engine: str | None = None  # a key of the endpoint, not of the policy

    drift_run_length: int = 10_000  # units between false alarms of an endpoint's detectors, on average, at least
    drift_tolerance: float = 0.02  # advisory detectors hold to the lower bound at ENABLE less this (log speedup, rate)
    on_alarm: str = "disable"  # or "hold": the verdict after ENABLE when a detector fires
    # ENABLE is served only where e-BH over all endpoints admits it at this false discovery rate.  Worlds have one.
    fleet_fdr: float | None = field(default=None, repr=False)
    require_mix_bound: bool = False  # ENABLE of the endpoint also needs the speedup that its slices prove by their mix
    mix_window_s: float = 7 * DAY_S  # event time that counts as the current traffic: a whole cycle

    max_requests_per_cluster: int = 8
    cluster_idle_s: float = 1_800.0
    cluster_max_age_s: float = DAY_S
    cluster_reopen_after_s: float = DAY_S
    time_block_s: float = 600.0
    dominant_key_share: float = 0.05  # a key above this share of its slice's records is cut into time blocks
    timed_positions: int = 4  # a session is timed at its J-th request, J uniform in 1..timed_positions
    block_max_wait_s: float = 600.0  # a block not full after this long runs short
    min_rate: float = 0.1  # sampling rate of slices that feed nothing open: alarms take 1 / min_rate as much traffic

    def __post_init__(self) -> None:
        for name, (is_valid, wanted) in _RANGES.items():
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not is_valid(value):
                raise ConfigError(f"policy key {name!r} must be {wanted}, not {value!r}")
        for name in _WHOLE_NUMBERS:
            if not isinstance(getattr(self, name), int):
                raise ConfigError(f"policy key {name!r} must be a whole number, not {getattr(self, name)!r}")
        for name in ("recording_only", "require_serving_engine", "require_mix_bound", "is_upgrade"):
            if not isinstance(value := getattr(self, name), bool):
                raise ConfigError(f"policy key {name!r} must be true or false, not {value!r}")
        if self.objective not in _OBJECTIVES:
            raise ConfigError(f"policy key 'objective' must be one of {_OBJECTIVES}, not {self.objective!r}")
        if self.acceptance_metric not in _ACCEPTANCE_METRICS:
            raise ConfigError(
                f"policy key 'acceptance_metric' must be one of {_ACCEPTANCE_METRICS}, not {self.acceptance_metric!r}"
            )
        if self.on_alarm not in _ON_ALARM:
            raise ConfigError(f"policy key 'on_alarm' must be one of {_ON_ALARM}, not {self.on_alarm!r}")
        if self.fleet_fdr is not None and not _FRACTION[0](self.fleet_fdr):
            raise ConfigError(f"policy key 'fleet_fdr' must be {_FRACTION[1]}, not {self.fleet_fdr!r}")
        for name in _OPTIONAL:
            value = getattr(self, name)
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            if value is not None and not (is_number and 0.0 <= value < math.inf):
                raise ConfigError(f"policy key {name!r} must be 0 or more, not {value!r}")
        for name in ("validity_margin", "score_margin", "task_margin", "acceptance_margin"):
            if (getattr(self, name) or 0.0) >= 1.0:
                raise ConfigError(f"policy key {name!r} must be below 1, or nothing is tested")
        if self.max_cost_per_million_tokens == 0:
            raise ConfigError("policy key 'max_cost_per_million_tokens' must be above 0, or nothing could prove it")
        if self.unit_window is not None and self.min_span_s < DAY_S:
            raise ConfigError(
                "policy key 'min_span_s' must be at least a day (86400), because windows of a shorter span share "
                "its incidents; for a recording set recording_only = true"
            )
        for clash in self.clashes():
            raise ConfigError(f"policy key {clash.limit!r} must be {clash.wanted}, or nothing could prove it")

    @property
    def unit_window(self) -> timedelta | None:
        """The event time of a unit; None where blocks are the units."""
        return None if self.recording_only or not self.window_s else timedelta(seconds=self.window_s)

    @property
    def min_speedup(self) -> float:
        """The speedup to be proven: above 1 by the margin, and below it of a second deployment."""
        return 1.0 - self.upgrade_margin if self.is_upgrade else 1.0 + self.margin

    @property
    def log_min_speedup(self) -> float:
        """Its logarithm, which is the threshold of the test."""
        return math.log1p(-self.upgrade_margin if self.is_upgrade else self.margin)

    @property
    def judges_parity(self) -> bool:
        """Whether outputs must be the target's: not of a second deployment that is judged by a score of quality."""
        return not self.is_upgrade or (self.score_margin is None and self.task_margin is None)

    def rule_parts(self) -> dict[str, Any]:
        """The policy's part of an `EndpointRule`."""
        return {
            "min_rate": self.min_rate,
            "timed_positions": self.timed_positions,
            "block_max_wait": timedelta(seconds=self.block_max_wait_s),
            "time_block": timedelta(seconds=self.time_block_s),
            "forget_unit_after": 2 * timedelta(seconds=self.cluster_max_age_s),
            "window": self.unit_window,
            "blocks_per_window": self.blocks_per_window,
            "is_trial": self.recording_only,
        }

    def clashes(self) -> tuple[Clash, ...]:
        """Limits that nothing can prove: none in a policy as it is written, but see `with_frozen_parameters`."""
        clashes = [
            Clash(test, limit, "log_speedup_clip", "below exp(log_speedup_clip) - 1")
            for test, limit in CLIPPED_MARGINS.items()
            if math.log1p(getattr(self, limit) or 0.0) >= self.log_speedup_clip
        ]
        if self.z_bound >= self.z_clip:
            clashes.append(Clash("parity_sampled", "z_bound", "z_clip", "below 'z_clip'"))
        if self.max_cost_per_million_tokens is not None and not self.device_price_per_hour:
            wanted = "set together with 'device_price_per_hour' above 0"
            clashes.append(Clash("cost", "max_cost_per_million_tokens", "device_price_per_hour", wanted))
        return tuple(clashes)

    def unprovable(self, test_name: str) -> UnprovableLimit | None:
        """The limit that keeps a test from being proven under frozen definitions; None where evidence can prove it.

        Used on a policy from `with_frozen_parameters`, with whose definitions a current limit may clash.
        """
        clash = next((clash for clash in self.clashes() if clash.test == test_name), None)
        if clash is None:
            return None
        limit, fixed = getattr(self, clash.limit), getattr(self, clash.fixed)
        return UnprovableLimit(clash.limit, limit, clash.fixed, fixed or 0.0)

    def other_engine(self, measured: str) -> str | None:
        """The engine that serves, where latency that was measured on this one says nothing of it; None if it counts."""
        serving = self.serving_engine
        if self.is_upgrade or serving is None or not self.require_serving_engine or is_measured_on(serving, measured):
            return None
        return serving

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

    def frozen_parameters(self) -> dict[str, Figure]:
        """The FROZEN fields, to be stored with the decision at which they were fixed."""
        return {name: getattr(self, name) for name in FROZEN_VALUES + FROZEN_UNITS}

    def with_frozen_parameters(self, stored: Mapping[str, Figure]) -> GatePolicy:
        """This policy with the FROZEN fields as fixed at a hypothesis's entry; fields that were not set stay free.

        A current limit that clashes with a frozen field raises nothing, so that the endpoint's other hypotheses
        continue; `unprovable` reports it.
        """
        known = {field.name for field in fields(self)}
        frozen = copy.copy(self)
        for name, value in stored.items():
            if name in known and value is not None:
                object.__setattr__(frozen, name, value)  # `replace` would refuse a clash
        return frozen

    def clip_for(self, robust_sd: float) -> float:
        """The clip of a log speedup whose noise has this standard deviation.

        Bets are limited by the worst value that a request may have, so that a narrow clip decides sooner.  It leaves
        room for the noise, and for a mean well above every margin.
        """
        margin = max(math.log1p(getattr(self, limit) or 0.0) for limit in CLIPPED_MARGINS.values())
        return min(max(MIN_CLIP, margin + CLIP_ROOM, CLIP_SDS * robust_sd), self.log_speedup_clip)

    def with_clip(self, clip: float | None) -> GatePolicy:
        """This policy with the clip that a hypothesis's first windows set (None: they have not)."""
        return self if clip is None else self.with_frozen_parameters({"log_speedup_clip": clip})

    def unit_parameters(self) -> tuple[float, ...]:
        """The parameters that decide which records make which clusters."""
        return tuple(getattr(self, name) for name in FROZEN_UNITS)


_Range = tuple[Callable[[float], bool], str]
_FRACTION: _Range = (lambda value: 0.0 < value < 1.0, "above 0 and below 1")
_SHARE: _Range = (lambda value: 0.0 <= value <= 1.0, "from 0 to 1")
_POSITIVE: _Range = (lambda value: 0.0 < value < math.inf, "above 0")
_NOT_NEGATIVE: _Range = (lambda value: 0.0 <= value < math.inf, "0 or more")
_COUNT: _Range = (lambda value: value >= 1, "1 or more")

_OPTIONAL = (
    "fleet_fdr",
    "max_evidence_age_s",
    "near_tie_logit",
    "memory_budget_share",
    "memory_budget_tokens",
    "ttft_margin",
    "tpot_margin",
    "p95_margin",
    "p99_margin",
    "max_cost_per_million_tokens",
    "device_price_per_hour",
    "validity_margin",
    "score_margin",
    "task_margin",
    "acceptance_margin",
)
_WHOLE_NUMBERS = (
    "max_hypotheses",
    "entry_clusters",
    "max_clusters",
    "max_scored_steps",
    "drift_run_length",
    "parity_tokens",
    "max_requests_per_cluster",
    "timed_positions",
    "blocks_per_window",
)
_RANGES: dict[str, _Range] = {
    **dict.fromkeys(_WHOLE_NUMBERS, _COUNT),
    **dict.fromkeys(
        (
            "alpha",
            "floor",
            "tail_share",
            "max_fault_share",
            "parity_margin",
            "stream_margin",
            "z_clip",
            "z_bound",
            "min_rate",
            "upgrade_margin",
        ),
        _FRACTION,
    ),
    **dict.fromkeys(
        (
            "max_missing",
            "max_prompt_mismatch",
            "max_cache_gap",
            "max_untimed_share",
            "dominant_key_share",
            "entry_share",
        ),
        _SHARE,
    ),
    **dict.fromkeys(
        ("log_speedup_clip", "cluster_idle_s", "cluster_max_age_s", "time_block_s", "mix_window_s"), _POSITIVE
    ),
    **dict.fromkeys(
        (
            "indifference",
            "min_span_s",
            "window_s",
            "margin",
            "tail_margin",
            "drift_tolerance",
            "max_carry_over",
            "cluster_reopen_after_s",
            "block_max_wait_s",
        ),
        _NOT_NEGATIVE,
    ),
}

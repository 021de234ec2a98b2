"""The policy refuses what it cannot use."""

from __future__ import annotations

import math

import pytest

from shadowspec.errors import ConfigError
from shadowspec.gate.policy import GatePolicy, UnprovableLimit


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("alpha", 0.0),
        ("alpha", 1.0),
        ("max_hypotheses", 0),
        ("max_hypotheses", 2.5),
        ("floor", 1.0),
        ("margin", 1.0),
        ("margin", -0.1),
        ("z_bound", 0.2),
        ("objective", "throughput"),
        ("acceptance_metric", "mean_acceptance_length"),
        ("memory_budget_tokens", -1),
        ("min_span_s", -1.0),
        ("cluster_idle_s", math.inf),
        ("tail_share", True),
        ("parity_tokens", "64"),
        ("near_tie_logit", "small"),
        ("ttft_margin", 1.0),
        ("tpot_margin", 1.5),
        ("validity_margin", 1.0),
        ("score_margin", 1.5),
        ("task_margin", 1.0),
    ],
)
def test_a_value_out_of_range_is_an_error_that_names_the_key(key: str, value: object) -> None:
    with pytest.raises(ConfigError, match=key):
        GatePolicy(window_s=0.0, **{key: value})  # type: ignore[arg-type]


def test_near_ties_depend_on_the_dtype() -> None:
    assert GatePolicy(window_s=0.0).near_tie_logit_of("float32") == 1e-3
    assert GatePolicy(window_s=0.0).near_tie_logit_of("torch.bfloat16") == 0.125
    assert GatePolicy(window_s=0.0, near_tie_logit=0.5).near_tie_logit_of("float8") == 0.5
    with pytest.raises(ConfigError, match="float8"):
        GatePolicy(window_s=0.0).near_tie_logit_of("float8")


def test_frozen_parameters_outlive_a_change_of_policy_and_thresholds_do_not() -> None:
    entered = GatePolicy(window_s=0.0, log_speedup_clip=0.5, margin=0.05)
    later = GatePolicy(window_s=0.0, log_speedup_clip=0.7, margin=0.1).with_frozen_parameters(
        entered.frozen_parameters()
    )
    assert later.log_speedup_clip == 0.5
    assert later.margin == 0.1
    assert not later.clashes()


@pytest.mark.parametrize(
    ("entered", "today", "test", "found"),
    [
        (
            {"log_speedup_clip": 0.5},
            {"margin": 0.8},
            "speedup",
            UnprovableLimit("margin", 0.8, "log_speedup_clip", 0.5),
        ),
        (
            {"log_speedup_clip": 0.5},
            {"ttft_margin": 0.8},
            "ttft",
            UnprovableLimit("ttft_margin", 0.8, "log_speedup_clip", 0.5),
        ),
        (
            {"log_speedup_clip": 0.5},
            {"tpot_margin": 0.8},
            "tpot",
            UnprovableLimit("tpot_margin", 0.8, "log_speedup_clip", 0.5),
        ),
        ({"z_clip": 0.1}, {"z_bound": 0.15}, "parity_sampled", UnprovableLimit("z_bound", 0.15, "z_clip", 0.1)),
        (
            {"device_price_per_hour": 0.0},
            {"max_cost_per_million_tokens": 2.0},
            "cost",
            UnprovableLimit("max_cost_per_million_tokens", 2.0, "device_price_per_hour", 0.0),
        ),
    ],
)
def test_a_limit_that_clashes_with_what_was_fixed_at_entry_is_told_and_no_error(
    entered: dict[str, float], today: dict[str, float], test: str, found: UnprovableLimit
) -> None:
    stored = GatePolicy(window_s=0.0, **entered).frozen_parameters()  # type: ignore[arg-type]
    policy = GatePolicy(window_s=0.0, log_speedup_clip=2.0, device_price_per_hour=1.0, **today)  # type: ignore[arg-type]
    assert policy.unprovable(test) is None
    assert policy.with_frozen_parameters(stored).unprovable(test) == found
    with pytest.raises(ConfigError, match=f"{next(iter(today))!r} must be"):
        GatePolicy(window_s=0.0, **(entered | today))  # type: ignore[arg-type]

"""The reason codes of decisions: why a hypothesis has its verdict, for programs.

People read sentences: `shadowspec.gate.verdict.reasons` has those of every code.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Self


class ReasonCode(StrEnum):
    """Why a hypothesis has its verdict; `verdicts` are those that carry the code."""

    verdicts: tuple[str, ...]

    def __new__(cls, value: str, verdicts: str = "") -> Self:
        member = str.__new__(cls, value)  # the default is that of a lookup by value
        member._value_ = value
        member.verdicts = tuple(verdicts.split("/"))
        return member

    ALL_TESTS_PASS = "all_tests_pass", "ENABLE"
    SLOWDOWN = "slowdown", "DISABLE"
    TAIL_SLOWED = "tail_slowed", "DISABLE"
    PARITY_FAULT = "parity_fault", "DISABLE"
    STREAM_FAULT = "stream_fault", "DISABLE"
    PARITY_BIASED = "parity_biased", "DISABLE"
    MEMORY_OVER_BUDGET = "memory_over_budget", "DISABLE"
    DRIFT = "drift", "DISABLE/HOLD"
    REOPENED = "reopened", "DISABLE"
    OVERRIDE = "override", "DISABLE/HOLD"
    TOO_FEW_CLUSTERS = "too_few_clusters", "HOLD"
    SMALL_SLICE = "small_slice", "HOLD"
    TOO_FEW_UNITS = "too_few_units", "HOLD"
    MIN_SPAN = "min_span", "HOLD"
    CHANGED_FINGERPRINT = "changed_fingerprint", "HOLD"
    POLICY_CHANGED = "policy_changed", "HOLD"
    LOW_ACCEPTANCE = "low_acceptance", "HOLD"
    COSTLIER = "costlier", "HOLD"
    NEAR_TIES = "near_ties", "HOLD"
    GUARDRAIL = "guardrail", "HOLD"
    MIX_BOUND = "mix_bound", "HOLD"
    CARRY_OVER = "carry_over", "HOLD"
    DEPENDENT = "dependent", "HOLD"
    UNDECIDABLE = "undecidable", "HOLD"
    FUTILE = "futile", "HOLD"
    OTHER_ENGINE = "other_engine", "HOLD"
    NO_LEVEL_LEFT = "no_level_left", "HOLD"
    UNPROVABLE = "unprovable", "HOLD"
    MAY_REPLACE = "may_replace", "HOLD"
    MUST_NOT_REPLACE = "must_not_replace", "HOLD"
    MISSING_DATA = "missing_data", "HOLD"
    LATE_DATA = "late_data", "HOLD"
    PROMPT_MISMATCH = "prompt_mismatch", "HOLD"
    CACHE_MISMATCH = "cache_mismatch", "HOLD"
    CHANGED_RATE = "changed_rate", "HOLD"
    UNTIMED = "untimed", "HOLD"
    STALE_DATA = "stale_data", "HOLD"
    UNKNOWN_PARITY = "unknown_parity", "HOLD"
    UNKNOWN_MEMORY = "unknown_memory", "HOLD"

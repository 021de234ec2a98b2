"""What the gate says: the required tests at one look, and the decision that rests on them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from shadowspec.types.requests import parse_slice_key
from shadowspec.types.speculation import SpeculationConfig


class Verdict(StrEnum):
    """What the gate recommends for one hypothesis."""

    ENABLE = "ENABLE"
    DISABLE = "DISABLE"
    HOLD = "HOLD"


@dataclass(frozen=True, slots=True)
class TestResult:
    """One required test of a hypothesis at one look.

    `outcome` is "pass", "fail" or "open"; the bounds are simultaneous over all looks.  `unit` says what
    `num_units` counts ("block", "cluster" or "request"); `min_units` is the smallest number at which this
    test could pass; `units_needed` estimates how many more it takes (None: cannot be said, or decided).
    """

    __test__ = False  # a value, not a pytest class

    name: str
    outcome: str
    estimate: float | None
    lower: float | None
    upper: float | None
    threshold: float | None
    alpha: float
    unit: str
    num_units: int
    min_units: int
    units_needed: int | None = None
    details: Mapping[str, float | int | str | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Decision:
    """The gate's word on one hypothesis (endpoint x slice x load x speculation config) at one look.

    An empty `slice_key` is the whole endpoint.  `reason` is a sentence for people; `reason_code` a stable
    short code ("all_tests_pass", "slowdown", "too_few_units", "no_level_left", "missing_data", ...).
    `decision_id` is the store's own number for it, None until it has been appended.
    """

    endpoint: str
    slice_key: str
    concurrency: int
    config: SpeculationConfig
    fingerprint: str
    verdict: Verdict
    reason_code: str
    reason: str
    tests: tuple[TestResult, ...]
    num_clusters: int
    num_blocks: int
    clusters_needed: int | None
    decided_at: datetime
    details: Mapping[str, float | int | str | None] = field(default_factory=dict)
    decision_id: int | None = field(default=None, compare=False)

    @property
    def slice_labels(self) -> dict[str, str]:
        return parse_slice_key(self.slice_key)

    @property
    def engine(self) -> str:
        """What its latency was measured on, by name and version; "unknown" where that was not kept."""
        return str(self.details.get("engine") or "unknown")

    @property
    def serving_engine(self) -> str | None:
        """What serves the endpoint, as it was named when this was decided; None where nothing was."""
        named = self.details.get("serving_engine")
        return named if isinstance(named, str) else None

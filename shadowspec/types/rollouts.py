"""The stage of speculation at an endpoint and load, and an operator's orders against the gate."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Final

from shadowspec.errors import UsageError
from shadowspec.types.requests import parse_slice_key
from shadowspec.types.verdicts import Verdict


class Stage(StrEnum):
    """How much of the enabled traffic is served with speculation."""

    SHADOW = "shadow"  # none: measured only
    PARTIAL = "partial"  # the policy's share
    BROAD = "broad"  # all of it


@dataclass(frozen=True, slots=True)
class Rollout:
    """One endpoint at one load: which config is rolled out, to which stage, and how deep it may draft.

    `depth_caps` is the `num_speculative_tokens` to serve per context bucket ("": any context), each a proven depth; 0
    where none is proven within the limits; empty in shadow.  `num_blocks` is the evidence of the endpoint's decision
    when the stage began.  `reason_code` is a stable short code, `reason` a sentence for people.
    """

    endpoint: str
    concurrency: int
    stage: Stage
    fingerprint: str | None
    since: datetime  # when the stage began
    decided_at: datetime
    reason_code: str
    reason: str
    num_blocks: int = 0
    alarms: tuple[str, ...] = ()  # that had fired
    depth_since: datetime | None = None  # when the caps were last raised or reset
    depth_caps: Mapping[str, int] = field(default_factory=dict)
    share: float = 0.0  # of the enabled traffic that is to be served with speculation


class RoleKind(StrEnum):
    """Who uses the database."""

    WRITER = "writer"  # the worker, and `run`
    GATE = "gate"
    READER = "reader"  # reports and dashboards
    OPERATOR = "operator"  # sets overrides of decisions
    SCHEDULER = "scheduler"  # `schedule`: the gate's rights, and the schedule's log


# ENABLE cannot be forced: only proven speculation is enabled.  An operator who wants it without proof sets it at the
# serving engine, where nobody takes it for the gate's verdict.
FORCEABLE: Final = (Verdict.DISABLE, Verdict.HOLD)
# Authors of the orders that ShadowSpec sets; people may not sign with them.
GUARD: Final = "live guard"
AUDITOR: Final = "audit"


@dataclass(frozen=True, slots=True)
class Override:
    """One order, in force until it is cleared or `expires_at` is reached, whichever comes first.

    It covers the decisions of `endpoint` whose slice has all the labels of `slice_key` ("": all of the endpoint's)
    and, if `concurrency` is given, only that load.  `override_id` is 0 until it is stored.

    Raises:
        UsageError: a verdict that cannot be forced.
    """

    override_id: int
    endpoint: str
    slice_key: str
    concurrency: int | None
    verdict: Verdict
    reason: str
    author: str
    created_at: datetime
    expires_at: datetime | None = None

    def __post_init__(self) -> None:
        if self.verdict not in FORCEABLE:
            raise UsageError(f"{self.verdict} cannot be forced: only the gate enables speculation")

    @property
    def slice_labels(self) -> dict[str, str]:
        return parse_slice_key(self.slice_key)


@dataclass(frozen=True, slots=True)
class Clearing:
    """The order that ends another one."""

    override_id: int  # of the override that it ends
    reason: str
    author: str
    cleared_at: datetime


@dataclass(frozen=True, slots=True)
class OverrideEffect:
    """What production's counters show after an override: that speculation is off, or that it is still on."""

    override_id: int
    is_off: bool
    observed_at: datetime
    reason: str


@dataclass(frozen=True, slots=True)
class OverrideRecord:
    """An override with its clearing and its effects in production: the whole of its history."""

    override: Override
    clearing: Clearing | None
    effects: tuple[OverrideEffect, ...] = ()

    def is_active(self, now: datetime) -> bool:
        """Whether it is in force.  It is from the moment it is stored, even if the storing machine's clock is ahead."""
        expires_at = self.override.expires_at
        return self.clearing is None and (expires_at is None or now < expires_at)

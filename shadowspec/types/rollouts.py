"""How far speculation is rolled out: the stage that an endpoint has reached at one load."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum


class Stage(StrEnum):
    """How much of the enabled traffic is served with speculation."""

    SHADOW = "shadow"  # none: measured only
    PARTIAL = "partial"  # the policy's share
    BROAD = "broad"  # all of it


@dataclass(frozen=True, slots=True)
class Rollout:
    """One endpoint at one load: which config is rolled out, how far, and how deep it may draft.

    `depth_caps` is the `num_speculative_tokens` to serve per context bucket ("": any context), each a proven depth; 0
    where none is proven within the limits; empty in shadow.
    `num_blocks` is what the endpoint's decision rested on when the stage began.  `reason_code` is a stable short
    code, `reason` a sentence for people.
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
    alarms: tuple[str, ...] = ()  # that were sounding
    depth_since: datetime | None = None  # when the caps were last raised or reset
    depth_caps: Mapping[str, int] = field(default_factory=dict)
    share: float = 0.0  # of the enabled traffic that is to be served with speculation

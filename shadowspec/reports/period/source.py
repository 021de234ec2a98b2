"""What a report on a span of time reads; the store satisfies it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Protocol

from shadowspec.store.changes import AdviceChange, VerdictChange
from shadowspec.store.rollup_sums import GroupSums
from shadowspec.types import (
    Decision,
    EvidenceSnapshot,
    FingerprintedConfig,
    FunnelCounter,
    OverrideRecord,
    Rollout,
)


class PeriodSource(Protocol):
    """Committed rows, read only."""

    def endpoints(self) -> Sequence[str]:
        """Names of all endpoints with any row."""
        ...

    def decisions_at(self, moment: datetime) -> Sequence[Decision]:
        """The decision on every hypothesis that was the last one before the moment."""
        ...

    def verdict_changes(
        self, endpoint: str | None = None, since: datetime | None = None, until: datetime | None = None, *, limit: int
    ) -> Sequence[VerdictChange]:
        """The newest decisions that differ from the one before on their hypothesis, newest first."""
        ...

    def advice_changes(
        self, endpoint: str | None = None, since: datetime | None = None, until: datetime | None = None, *, limit: int
    ) -> Sequence[AdviceChange]:
        """The newest rows at which a standing ENABLE got advice or a shifted mix beside it, newest first."""
        ...

    def overrides(self, endpoint: str | None = None) -> Sequence[OverrideRecord]:
        """Every override ever set, with what became of it."""
        ...

    def rollout_history(self) -> Sequence[Rollout]:
        """Every change of stage or depth, oldest first."""
        ...

    def group_sums(
        self, endpoint: str, since: datetime | None = None, until: datetime | None = None
    ) -> Sequence[GroupSums]:
        """What rollups add up to by slice, config and load."""
        ...

    def fingerprints(self) -> Mapping[str, FingerprintedConfig]:
        """Every speculation config that was ever measured."""
        ...

    def funnel(self) -> Mapping[tuple[str | None, FunnelCounter, str | None], int]:
        """Records by (endpoint, counter, reason)."""
        ...

    def folded_evidence(self, endpoint: str) -> EvidenceSnapshot:
        """The endpoint's evidence as the last gate run left it."""
        ...

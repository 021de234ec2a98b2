"""What a report reads: declared here, by its caller; the store satisfies it, and so does a source in memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from shadowspec.reports.replays import ReplaySource
from shadowspec.types import (
    CostKey,
    Decision,
    FingerprintedConfig,
    FunnelCounter,
    OverrideRecord,
    ProfiledCosts,
    Run,
    StoredBlock,
    StoredRecord,
)


class ReportSource(ReplaySource, Protocol):
    """Committed rows, read only.  An endpoint without rows has empty sequences, never an error."""

    def endpoints(self) -> Sequence[str]:
        """Names of all endpoints with any row."""
        ...

    def records(self, endpoint: str) -> Sequence[StoredRecord]:
        """Consumed records of one endpoint."""
        ...

    def blocks(self, endpoint: str) -> Sequence[StoredBlock]:
        """Measured blocks of one endpoint."""
        ...

    def runs(self, endpoint: str) -> Sequence[Run]:
        """Measured requests of one endpoint, one per speculation config."""
        ...

    def fingerprints(self) -> Mapping[str, FingerprintedConfig]:
        """Every speculation config that was ever measured, by fingerprint."""
        ...

    def latest_decisions(self) -> Sequence[Decision]:
        """The latest decision of each hypothesis, as the evidence left it."""
        ...

    def overrides(self) -> Sequence[OverrideRecord]:
        """Every override ever set, with what became of it."""
        ...

    def costs(self) -> Mapping[CostKey, ProfiledCosts]:
        """The newest cost surface of each pair, rule, engine, device and kind of requests."""
        ...

    def funnel(self) -> Mapping[tuple[str | None, FunnelCounter, str | None], int]:
        """Records by (endpoint, counter, reason); the endpoint is None where none could be told."""
        ...

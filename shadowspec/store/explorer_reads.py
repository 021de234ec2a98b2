"""The reads behind exploring: grouped sums, single runs, one slice's evidence, and where decisions changed."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Engine

from shadowspec.store import (
    arrival_reads,
    block_reads,
    changes,
    cost_surfaces,
    evidence_snapshot,
    rollup_sums,
    run_pages,
    session,
)
from shadowspec.store.changes import AdviceChange, VerdictChange
from shadowspec.store.rollup_sums import ConfigAndLoad, GroupSums, Step
from shadowspec.store.rollups import SUM_NAMES
from shadowspec.store.run_pages import Place, RunFilter, RunPage
from shadowspec.types import ArrivedRequest, BlockTime, CostKey, Memory, ProfiledCosts, ServedRequest, StoredEvidence


class ExplorerReads:
    """What can be asked of one database beside what the gate asks.  Times come back in UTC."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def group_sums(
        self,
        endpoint: str,
        since: datetime | None = None,
        until: datetime | None = None,
        *,
        step: Step | None = None,
        slice_key: str | None = None,
        place: ConfigAndLoad | None = None,
        names: Sequence[str] = SUM_NAMES,
    ) -> list[GroupSums]:
        """What rollups add up to by slice, config and load (and hour or day); sums not in `names` stay 0."""
        with session.read(self._engine) as connection:
            return rollup_sums.read_group_sums(
                connection, endpoint, since, until, step=step, slice_key=slice_key, place=place, names=names
            )

    def rollup_hours(self, endpoint: str) -> tuple[datetime, datetime] | None:
        """The first and the last hour of which the endpoint has a rollup."""
        with session.read(self._engine) as connection:
            return rollup_sums.read_hours(connection, endpoint)

    def run_page(self, wanted: RunFilter, after: Place | None = None, *, limit: int) -> RunPage:
        """A page of runs, newest first, as counts and timings."""
        with session.read(self._engine) as connection:
            return run_pages.read_run_page(connection, wanted, after, limit)

    def newest_memory(self, wanted: RunFilter) -> Memory | None:
        """What the block of the newest run that matches took."""
        with session.read(self._engine) as connection:
            return run_pages.read_newest_memory(connection, wanted)

    def labelled_runs(
        self, endpoint: str, since: datetime | None = None, *, limit: int
    ) -> list[tuple[dict[str, Any], dict[str, str]]]:
        """The newest runs of an endpoint, each with all the labels of its record."""
        with session.read(self._engine) as connection:
            return run_pages.read_recent_labels(connection, endpoint, since, limit)

    def slice_evidence(self, endpoint: str, slice_key: str) -> list[StoredEvidence]:
        """The folded evidence of one slice ("" for the whole endpoint), at every load and of every config."""
        with session.read(self._engine) as connection:
            return evidence_snapshot.read_slice_evidence(connection, endpoint, slice_key)

    def costs(self) -> dict[CostKey, ProfiledCosts]:
        """The newest profile of each pair, rule, engine, device and kind of requests."""
        with session.read(self._engine) as connection:
            return cost_surfaces.read_costs(connection)

    def arrivals(self, endpoint: str, *, limit: int) -> list[ArrivedRequest]:
        """The endpoint's newest usable requests, measured or not, in the order in which they came."""
        with session.read(self._engine) as connection:
            return arrival_reads.read_arrivals(connection, endpoint, limit)

    def served(self, endpoint: str, since: datetime) -> list[ServedRequest]:
        """The requests since then that were timed in both arms, at every load and with every config."""
        with session.read(self._engine) as connection:
            return arrival_reads.read_served(connection, endpoint, since)

    def block_times(self, endpoints: Sequence[str], *, limit: int) -> dict[str, list[BlockTime]]:
        """Of each endpoint its newest blocks with what their arms took, in the order in which they began."""
        with session.read(self._engine) as connection:
            return block_reads.read_block_times(connection, endpoints, limit)

    def verdict_changes(
        self, endpoint: str | None = None, since: datetime | None = None, until: datetime | None = None, *, limit: int
    ) -> list[VerdictChange]:
        """The newest decisions that differ from the one before on their hypothesis, newest first."""
        with session.read(self._engine) as connection:
            return changes.read_verdict_changes(connection, endpoint, since, until, limit)

    def advice_changes(
        self, endpoint: str | None = None, since: datetime | None = None, until: datetime | None = None, *, limit: int
    ) -> list[AdviceChange]:
        """The newest rows at which a standing ENABLE got advice or a shifted mix beside it, newest first."""
        with session.read(self._engine) as connection:
            return changes.read_advice_changes(connection, endpoint, since, until, limit)

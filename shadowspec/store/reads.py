"""The reads of the store, each one snapshot of the database."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timedelta

from shadowspec.store import evidence_snapshot, ledger, overrides, queries, resume, rollouts, rollup_queries, session
from shadowspec.store.audit_reads import AuditReads
from shadowspec.store.board_reads import BoardReads
from shadowspec.store.evidence_rows import EvidenceRows
from shadowspec.store.explorer_reads import ExplorerReads
from shadowspec.store.failure_reads import FailureKey, read_failure_counts
from shadowspec.store.histograms import Histogram
from shadowspec.store.live_reads import LiveReads
from shadowspec.store.rollup_sums import ConfigAndLoad
from shadowspec.store.rollups import SHARE_WINDOW, Rollup, Traffic
from shadowspec.store.schedule_reads import ScheduleReads
from shadowspec.store.snapshots import TestSnapshot
from shadowspec.types import (
    Decision,
    EndpointRows,
    EvidenceSnapshot,
    FingerprintedConfig,
    FunnelKey,
    LedgerEntry,
    OverrideRecord,
    PartitionId,
    RecordKey,
    Rollout,
    Run,
    StoredBlock,
    StoredRecord,
    UnitMemory,
    Verdict,
    Watermark,
)


class Reads(AuditReads, ExplorerReads, BoardReads, LiveReads, ScheduleReads):
    """What can be asked of one database.  Times come back in UTC."""

    # what was measured and decided

    def endpoints(self) -> list[str]:
        """Every endpoint seen, sorted."""
        with session.read(self._engine) as connection:
            return queries.read_endpoints(connection)

    def stored_record_keys(self, source: str) -> set[RecordKey]:
        """Keys of the records kept of one source."""
        with session.read(self._engine) as connection:
            return queries.read_record_keys(connection, source)

    def stored_block_ids(self, source: str | None = None) -> set[str]:
        """Ids of the blocks kept, or of those that hold a run of one source."""
        with session.read(self._engine) as connection:
            return queries.read_block_ids(connection, source)

    def evidence(self, endpoint: str) -> EndpointRows:
        """All that the gate needs of one endpoint, of one moment."""
        with session.read(self._engine, timeout_s=session.LONG_TIMEOUT_S) as connection:
            return queries.read_evidence(connection, endpoint)

    def folded_evidence(self, endpoint: str) -> EvidenceSnapshot:
        """The endpoint's evidence as the last gate run left it, without holding anything up."""
        with session.read(self._engine, timeout_s=session.LONG_TIMEOUT_S) as connection:
            return evidence_snapshot.read_snapshot(connection, endpoint)

    def records(self, endpoint: str) -> list[StoredRecord]:
        """The endpoint's records in the order of event time, ties by key."""
        with session.read(self._engine, timeout_s=session.LONG_TIMEOUT_S) as connection:
            return queries.read_records(connection, endpoint)

    def blocks(self, endpoint: str) -> list[StoredBlock]:
        """The endpoint's blocks in start order."""
        with session.read(self._engine, timeout_s=session.LONG_TIMEOUT_S) as connection:
            return queries.read_blocks(connection, endpoint)

    def runs(self, endpoint: str) -> list[Run]:
        """The endpoint's runs in the start order of their blocks, within a block by key and fingerprint."""
        with session.read(self._engine, timeout_s=session.LONG_TIMEOUT_S) as connection:
            return queries.read_runs(connection, endpoint)

    def fingerprints(self) -> dict[str, FingerprintedConfig]:
        """Every config measured, by fingerprint."""
        with session.read(self._engine) as connection:
            return queries.read_fingerprints(connection)

    def latest_decisions(self, endpoint: str | None = None) -> list[Decision]:
        """The last decision on every hypothesis (endpoint x slice x load x fingerprint), sorted by it."""
        with session.read(self._engine) as connection:
            return queries.read_latest_decisions(connection, endpoint)

    def standing_verdicts(self, endpoint: str) -> dict[tuple[str, int, str], Verdict]:
        """The last verdict on each hypothesis of the endpoint, by slice key, concurrency and fingerprint."""
        with session.read(self._engine) as connection:
            return queries.read_verdicts(connection, endpoint)

    def decision(self, decision_id: int) -> tuple[int | None, Decision] | None:
        """A decision with the id of the fold that it rests on (None: of a gate before there were any)."""
        with session.read(self._engine) as connection:
            return queries.read_decision(connection, decision_id)

    @contextmanager
    def evidence_rows(self, endpoint: str) -> Iterator[EvidenceRows]:
        """What an endpoint's evidence is made of, for as long as a replay takes."""
        with session.read(self._engine, timeout_s=session.LONG_TIMEOUT_S) as connection:
            yield EvidenceRows(connection, endpoint)

    def snapshots(self, endpoint: str) -> list[TestSnapshot]:
        """Every test of every gate run, oldest first."""
        with session.read(self._engine) as connection:
            return queries.read_snapshots(connection, endpoint)

    # what operators ordered, and how far it is rolled out

    def overrides(self, endpoint: str | None = None) -> list[OverrideRecord]:
        """Every override ever set (of one endpoint), oldest first, with what became of it."""
        with session.read(self._engine) as connection:
            return overrides.read_overrides(connection, endpoint)

    def rollouts(self, endpoint: str | None = None) -> list[Rollout]:
        """Where every endpoint (or one) stands at each load, sorted by both."""
        with session.read(self._engine) as connection:
            return rollouts.read_rollouts(connection, endpoint)

    def rollout_history(self, endpoint: str | None = None) -> list[Rollout]:
        """Every change of stage or depth at every endpoint (or one), oldest first."""
        with session.read(self._engine) as connection:
            return rollouts.read_rollout_history(connection, endpoint)

    # rollups

    def rollups(self, endpoint: str, since: datetime | None = None, until: datetime | None = None) -> list[Rollup]:
        """The endpoint's rollups of the hours from `since` up to, but without, `until`; sorted by key."""
        with session.read(self._engine) as connection:
            return rollup_queries.read_rollups(connection, endpoint, since, until)

    def traffic(self, endpoint: str, span: timedelta = SHARE_WINDOW) -> list[Traffic]:
        """How much each slice, config and load of the endpoint stood for, of the last `span` before its newest hour."""
        with session.read(self._engine) as connection:
            return rollup_queries.read_traffic(connection, endpoint, span)

    def failure_counts(
        self,
        endpoint: str,
        since: datetime | None = None,
        until: datetime | None = None,
        *,
        place: ConfigAndLoad | None = None,
    ) -> Mapping[FailureKey, Counter[str]]:
        """The endpoint's counts of failures (`shadowspec.failures`) by slice, fingerprint and load."""
        with session.read(self._engine) as connection:
            return read_failure_counts(connection, endpoint, since, until, place)

    def histogram(
        self,
        endpoint: str,
        metric: str,
        *,
        slice_key: str | None = None,
        fingerprint: str | None = None,
        concurrency: int | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
    ) -> Histogram:
        """A metric of `shadowspec.store.rollups.METRICS` over all rollups that match; None matches any."""
        own = {"slice_key": slice_key, "fingerprint": fingerprint, "concurrency": concurrency}
        with session.read(self._engine) as connection:
            return rollup_queries.read_histogram(connection, endpoint, metric, own, since, until)

    # how far consumers have come

    def funnel(self) -> dict[FunnelKey, int]:
        """Records by (endpoint, counter, reason); they add up to the records consumed."""
        with session.read(self._engine) as connection:
            return ledger.read_funnel(connection)

    def ledger(self, consumer: str) -> list[LedgerEntry]:
        """Every partition that the consumer has begun, sorted."""
        with session.read(self._engine) as connection:
            return ledger.read_ledger(connection, consumer)

    def ledger_entry(self, consumer: str, partition: PartitionId) -> LedgerEntry | None:
        """Where the consumer stands in a partition; None if it has not begun."""
        with session.read(self._engine) as connection:
            return ledger.read_entry(connection, consumer, partition)

    def watermark(self, endpoint: str) -> Watermark:
        """How far the input of an endpoint is known."""
        with session.read(self._engine) as connection:
            return ledger.read_watermark(connection, endpoint)

    def finished_records(self, partition: PartitionId, from_offset: int) -> dict[RecordKey, StoredRecord]:
        """The stored records of a partition from an offset on."""
        with session.read(self._engine) as connection:
            return resume.read_finished_records(connection, partition, from_offset)

    def unit_memories(
        self,
        endpoint: str,
        since: datetime,
        *,
        partition: PartitionId | None = None,
        before_offset: int | None = None,
    ) -> dict[str, UnitMemory]:
        """What the records from `since` on remember of each unit; given these, of one partition, below an offset."""
        with session.read(self._engine) as connection:
            return resume.read_unit_memories(connection, endpoint, since, partition, before_offset)

    def recent_request_ids(
        self,
        endpoint: str,
        since: datetime,
        *,
        partition: PartitionId | None = None,
        before_offset: int | None = None,
    ) -> set[str]:
        """Hashed request ids of the records from `since` on; given these, of one partition, below an offset."""
        with session.read(self._engine) as connection:
            return resume.read_recent_request_ids(connection, endpoint, since, partition, before_offset)

    def attempts(self, keys: list[RecordKey]) -> dict[RecordKey, int]:
        """How often each record was tried alone; 0 of one that never was."""
        with session.read(self._engine) as connection:
            return ledger.read_attempts(connection, keys)

"""The stored rows that make up evidence, and the earlier folds and decisions.

Rows are read by ranges of offsets below the ledger's place.  Nothing is added there, so the content of a range never
changes (but for retention).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, and_, func, select, true, tuple_

from shadowspec.store import bulk
from shadowspec.store import table_definitions as tables
from shadowspec.store.column_types import RECORD_KEY
from shadowspec.store.read import decision_reads, row_reads
from shadowspec.store.write import append_only_rows, ledger_rows
from shadowspec.types import (
    Decision,
    EndpointRows,
    Evaluation,
    FingerprintedConfig,
    Fold,
    FunnelCounter,
    RecordKey,
    Run,
    Span,
    StoredBlock,
    StoredRecord,
    Watermark,
)

KEYS_AT_ONCE = 5_000  # of records in one statement

_records, _runs, _ledger = tables.records.c, tables.runs.c, tables.ledger.c


class EvidenceRows:
    """The stored rows that evidence is made of, of one endpoint, in one transaction: satisfies `ReplayRows`."""

    def __init__(self, connection: Connection, endpoint: str) -> None:
        self._connection = connection
        self.endpoint = endpoint

    def watermark(self) -> Watermark:
        return ledger_rows.read_watermark(self._connection, self.endpoint)

    def finished_spans(self) -> list[Span]:
        """Of each consumer that has seen the endpoint in a source: the offsets of which everything is stored."""
        counts = tables.funnel_counts.c
        seen = select(counts.consumer, counts.source).where(counts.endpoint == self.endpoint).distinct()
        columns = (_ledger.source, _ledger.source_partition, _ledger.first_offset, _ledger.next_offset)
        statement = select(*columns).where(tuple_(_ledger.consumer, _ledger.source).in_(seen))
        rows = self._connection.execute(statement.where(_ledger.first_offset < _ledger.next_offset))
        return sorted(Span(source, partition, int(start), int(stop)) for source, partition, start, stop in rows)

    def ended_places(self) -> frozenset[tuple[str, int]]:
        """Where nothing follows, as a consumer says: files that were read to their end."""
        columns = (_ledger.source, _ledger.source_partition)
        rows = self._connection.execute(select(*columns).where(_ledger.is_ended).distinct())
        return frozenset((source, partition) for source, partition in rows)

    def first_offset(self, span: Span) -> int | None:
        """The first offset in the span with a stored record of any endpoint; None without one."""
        statement = select(func.min(_records.source_offset)).where(_match_span(tables.records.c, span))
        first_offset = self._connection.scalar(statement)
        return None if first_offset is None else int(first_offset)

    def num_rows(self, spans: Iterable[Span]) -> tuple[int, int]:
        totals = [0, 0]
        for span in spans:
            for number, table in enumerate((tables.records, tables.runs)):
                where = (_match_span(table.c, span), table.c.endpoint == self.endpoint)
                number_of_rows = self._connection.scalar(select(func.count()).select_from(table).where(*where))
                totals[number] += int(number_of_rows or 0)
        return totals[0], totals[1]

    def records(self, spans: Iterable[Span]) -> list[StoredRecord]:
        records: list[StoredRecord] = []
        for span in spans:
            where = _match_span(_records, span), _records.endpoint == self.endpoint
            records += row_reads.read_records_where(self._connection, *where)
        return records

    def runs(self, spans: Iterable[Span]) -> list[Run]:
        """The endpoint's runs of the records in the spans, by span."""
        runs: list[Run] = []
        for span in spans:
            runs += row_reads.read_runs_where(
                self._connection, _match_span(_runs, span), _runs.endpoint == self.endpoint
            )
        return runs

    def runs_of(self, keys: Sequence[RecordKey]) -> list[Run]:
        runs: list[Run] = []
        for part in _split(sorted(set(keys))):
            condition = bulk.one_of(self._connection, [_runs[name] for name in RECORD_KEY], part)
            runs += row_reads.read_runs_where(self._connection, condition, _runs.endpoint == self.endpoint)
        return runs

    def records_of(self, keys: Sequence[RecordKey]) -> list[StoredRecord]:
        """These records, as far as they are stored."""
        records: list[StoredRecord] = []
        for part in _split(sorted(set(keys))):
            condition = bulk.one_of(self._connection, [_records[name] for name in RECORD_KEY], part)
            records += row_reads.read_records_where(self._connection, condition)
        return records

    def blocks(self, block_ids: Iterable[str]) -> dict[str, tuple[StoredBlock, int]]:
        """These blocks by id, each with the number of runs that it was stored with."""
        wanted = sorted(set(block_ids))
        blocks: dict[str, tuple[StoredBlock, int]] = {}
        for start in range(0, len(wanted), KEYS_AT_ONCE):
            blocks |= row_reads.read_blocks_of(self._connection, wanted[start : start + KEYS_AT_ONCE])
        return blocks

    def key_columns(
        self, slice_key: str, until: datetime, counters: Iterable[FunnelCounter]
    ) -> list[tuple[tuple[str, int], int, str | None, str | None]]:
        """Place, offset, session and user of the slice's records up to an event time that ended in these counters."""
        columns = (_records.source, _records.source_partition, _records.source_offset)
        statement = select(*columns, _records.session_hash, _records.user_hash).where(
            _records.endpoint == self.endpoint,
            _records.slice_key == slice_key,
            _records.event_time <= until,
            _records.counter.in_([counter.value for counter in counters]),
        )
        return [((row[0], row[1]), row[2], row[3], row[4]) for row in self._connection.execute(statement)]

    def fingerprints(self) -> dict[str, FingerprintedConfig]:
        """Every config measured, by fingerprint."""
        return row_reads.read_fingerprints(self._connection)

    def evaluations(self) -> list[Evaluation]:
        return append_only_rows.read_evaluations(self._connection, self.endpoint)

    def latest_decisions(self) -> list[Decision]:
        return decision_reads.read_latest_decisions(self._connection, self.endpoint)

    # earlier folds, for a recomputation

    def num_folded(self) -> tuple[int, int]:
        columns = tables.folds.c
        condition = columns.endpoint == self.endpoint
        begun = select(func.max(columns.fold_id)).where(condition, columns.begins.is_not(None)).scalar_subquery()
        sums = func.sum(columns.num_records), func.sum(columns.num_runs)
        totals = self._connection.execute(
            select(*sums).where(condition, columns.fold_id >= func.coalesce(begun, 0))
        ).one()
        return int(totals[0] or 0), int(totals[1] or 0)

    def folds_until(self, fold_id: int) -> list[Fold]:
        """The folds that the evidence of this one rests on, oldest first: from where it last restarted."""
        return read_folds(self._connection, self.endpoint, fold_id)

    def decisions_on(self, decision: Decision) -> list[tuple[int | None, Decision]]:
        return decision_reads.read_decisions_on(self._connection, decision)

    def decisions_of(self, fold_id: int) -> list[Decision]:
        return decision_reads.read_decisions_of(self._connection, fold_id)


def _match_span(columns: Any, span: Span) -> Any:
    return and_(
        columns.source == span.source,
        columns.source_partition == span.partition,
        columns.source_offset >= span.start,
        columns.source_offset < span.stop,
    )


def _split(keys: Sequence[RecordKey]) -> Iterable[Sequence[RecordKey]]:
    for start in range(0, len(keys), KEYS_AT_ONCE):
        yield keys[start : start + KEYS_AT_ONCE]


def read_folds(connection: Connection, endpoint: str, until: int | None = None) -> list[Fold]:
    """The folds that the endpoint's evidence rests on (up to this fold), oldest first, from where it restarted."""
    condition = and_(tables.folds.c.endpoint == endpoint, true() if until is None else tables.folds.c.fold_id <= until)
    begun = (
        select(func.max(tables.folds.c.fold_id)).where(condition, tables.folds.c.begins.is_not(None)).scalar_subquery()
    )
    statement = (
        select(tables.folds)
        .where(condition, tables.folds.c.fold_id >= func.coalesce(begun, 0))
        .order_by(tables.folds.c.fold_id)
    )
    names = ("fold_id", "closed_by", "num_records", "num_runs", "parameters", "begins", "folded_at")
    return [
        Fold(spans=tuple(Span(*span) for span in row["spans"]), **{name: row[name] for name in names})
        for row in connection.execute(statement).mappings()
    ]


def read_evidence(connection: Connection, endpoint: str) -> EndpointRows:
    """All that the gate needs of one endpoint, of one moment."""
    return EndpointRows(
        endpoint=endpoint,
        records=tuple(row_reads.read_records(connection, endpoint)),
        blocks=tuple(row_reads.read_blocks(connection, endpoint)),
        runs=tuple(row_reads.read_runs(connection, endpoint)),
        folds=tuple(read_folds(connection, endpoint)),
        watermark=ledger_rows.read_watermark(connection, endpoint),
        fingerprints=row_reads.read_fingerprints(connection),
        latest_decisions=tuple(decision_reads.read_latest_decisions(connection, endpoint)),
    )

"""One endpoint's evidence within one transaction: the rows to fold, and the results to store.

The transaction's end moves the cursors and everything else together, and only if no other gate has moved them
meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple
from typing import Any, Final

from sqlalchemy import ColumnElement, Connection, and_, delete, insert, select, tuple_, update

from shadowspec.errors import StoreError
from shadowspec.store import bulk, row_values
from shadowspec.store import table_definitions as tables
from shadowspec.store.evidence.evidence_keys import StoredKeys
from shadowspec.store.evidence.evidence_rows import KEYS_AT_ONCE, EvidenceRows
from shadowspec.store.read.decision_reads import read_latest_decisions
from shadowspec.store.read.row_reads import read_fingerprints
from shadowspec.store.write.append_only_rows import read_evaluations
from shadowspec.store.write.ledger_rows import read_watermark
from shadowspec.types import (
    Decision,
    EndpointProgress,
    EvidenceSnapshot,
    Fold,
    OpenBlock,
    Span,
    StoredEvidence,
)
from shadowspec.types.codec import from_document, to_document
from shadowspec.types.decision_documents import stored_details

OPEN_BLOCK_VERSION: Final = 1  # rises only with that of the endpoint's state: then everything is folded again


class EvidenceSession(EvidenceRows):
    """Reads and changes an endpoint's evidence: satisfies `GateSession`.  Lives as long as its transaction."""

    def __init__(self, connection: Connection, endpoint: str) -> None:
        super().__init__(connection, endpoint)
        self._before = _read_progress(connection, endpoint, is_locked=True)

    @property
    def progress(self) -> EndpointProgress | None:
        """The progress of the evidence when the transaction began; None without evidence."""
        return self._before

    def keys(self, clustering: str) -> StoredKeys:
        return StoredKeys(self._connection, self.endpoint, clustering)

    def evidence(self) -> list[StoredEvidence]:
        return _read_evidence(self._connection, tables.evidence.c.endpoint == self.endpoint)

    def save_evidence(self, changed: Sequence[StoredEvidence]) -> None:
        """Store these, in place of the stored evidence of the same hypotheses."""
        columns = tables.evidence.c
        key = (columns.endpoint, columns.slice_key, columns.concurrency, columns.fingerprint)
        if not changed:
            return
        named = [(evidence.slice_key, evidence.concurrency, evidence.fingerprint) for evidence in changed]
        same = bulk.one_of(self._connection, key[1:], named)
        self._connection.execute(delete(tables.evidence).where(columns.endpoint == self.endpoint, same))
        names = [column.name for column in key]
        values = [
            dict(
                zip(names, (self.endpoint, evidence.slice_key, evidence.concurrency, evidence.fingerprint), strict=True)
            )
            | {"content": evidence.content}
            for evidence in changed
        ]
        self._connection.execute(insert(tables.evidence), values)

    def open_blocks(self) -> dict[str, OpenBlock]:
        columns = tables.evidence_blocks.c
        rows = self._connection.execute(select(columns.block_id, columns.runs).where(columns.endpoint == self.endpoint))
        return {
            block_id: from_document(kept, OpenBlock, OPEN_BLOCK_VERSION, "a stored open block")
            for block_id, kept in rows
        }

    def save_open_blocks(self, begun: Mapping[str, OpenBlock], entered: Iterable[str]) -> None:
        evidence_blocks = tables.evidence_blocks
        gone = sorted({*begun, *entered})
        for start in range(0, len(gone), KEYS_AT_ONCE):
            part = gone[start : start + KEYS_AT_ONCE]
            self._connection.execute(
                delete(evidence_blocks).where(
                    evidence_blocks.c.endpoint == self.endpoint, evidence_blocks.c.block_id.in_(part)
                )
            )
        values = [
            {"endpoint": self.endpoint, "block_id": block_id, "runs": to_document(kept, OPEN_BLOCK_VERSION)}
            for block_id, kept in sorted(begun.items())
        ]
        if values:
            self._connection.execute(insert(evidence_blocks), values)

    def discard_evidence(self) -> None:
        """Forget everything that was folded; decisions and folds stay."""
        for table in (tables.evidence, tables.evidence_keys, tables.evidence_blocks, tables.evidence_cursors):
            self._connection.execute(delete(table).where(table.c.endpoint == self.endpoint))

    def append(self, fold: Fold, document: Mapping[str, Any], cursors: Sequence[Span]) -> int:
        """Keep a fold, and the endpoint's progress and the ranges that are folded after it; the fold's id.

        Raises:
            StoreError: another gate has moved the endpoint's evidence since this transaction read it.
        """
        statement = insert(tables.folds).returning(tables.folds.c.fold_id)
        fold_id = int(self._connection.execute(statement, self._fold_row(fold)).scalar_one())
        evidence_endpoints, values = tables.evidence_endpoints, {"fold_id": fold_id, "document": dict(document)}
        if self._before is None:
            self._connection.execute(insert(evidence_endpoints), values | {"endpoint": self.endpoint})
        else:
            same = (
                evidence_endpoints.c.endpoint == self.endpoint,
                evidence_endpoints.c.fold_id == self._before.fold_id,
            )
            if self._connection.execute(update(evidence_endpoints).where(*same).values(values)).rowcount != 1:
                raise StoreError(f"endpoint {self.endpoint}: another gate has folded its evidence meanwhile")
        cursors_table = tables.evidence_cursors
        names = ("source", "source_partition", "start_offset", "folded_offset")
        own_place = tuple_(cursors_table.c.source, cursors_table.c.source_partition)
        moved = sorted({(span.source, span.partition) for span in fold.spans})
        if moved:
            gone = delete(cursors_table).where(cursors_table.c.endpoint == self.endpoint, own_place.in_(moved))
            self._connection.execute(gone)
            ranges = [
                dict(zip(names, astuple(span), strict=True)) | {"endpoint": self.endpoint}
                for span in cursors
                if (span.source, span.partition) in set(moved)
            ]
            self._connection.execute(insert(cursors_table), ranges)
        return fold_id

    def append_decisions(self, decisions: Sequence[Decision], fold_id: int) -> list[int]:
        """Append the decisions of a look, with the fold that they rest on; their ids."""
        return append_decisions(self._connection, decisions, fold_id)

    def _fold_row(self, fold: Fold) -> dict[str, Any]:
        return {
            "endpoint": self.endpoint,
            "spans": [[span.source, span.partition, span.start, span.stop] for span in fold.spans],
            "closed_by": fold.closed_by,
            "num_records": fold.num_records,
            "num_runs": fold.num_runs,
            "parameters": dict(fold.parameters),
            "begins": None if fold.begins is None else dict(fold.begins),
            "folded_at": fold.folded_at,
        }


def append_decisions(connection: Connection, decisions: Sequence[Decision], fold_id: int | None = None) -> list[int]:
    """Append one gate run: a row per decision and one per test, in the order given; the decisions' ids.

    `fold_id` is the fold that they rest on.
    """
    values = [
        (*(getattr(decision, name) for name in row_values.DECISION), stored_details(decision), fold_id)
        for decision in decisions
    ]
    ids = bulk.insert_in_order(connection, tables.decisions, (*row_values.DECISION, "document", "fold_id"), values)
    snapshots = [
        row
        for decision_id, decision in zip(ids, decisions, strict=True)
        for row in row_values.test_rows(decision_id, decision)
    ]
    if snapshots:
        names = tuple(snapshots[0])
        bulk.insert_new(connection, tables.test_snapshots, names, [tuple(row.values()) for row in snapshots])
    return ids


def read_snapshot(connection: Connection, endpoint: str) -> EvidenceSnapshot:
    """The evidence after the last gate run, and the sources to read it, without holding a lock."""
    return EvidenceSnapshot(
        endpoint=endpoint,
        progress=_read_progress(connection, endpoint),
        evidence=tuple(_read_evidence(connection, tables.evidence.c.endpoint == endpoint)),
        watermark=read_watermark(connection, endpoint),
        fingerprints=read_fingerprints(connection),
        latest_decisions=tuple(read_latest_decisions(connection, endpoint)),
        evaluations=tuple(read_evaluations(connection, endpoint)),
    )


def read_slice_evidence(connection: Connection, endpoint: str, slice_key: str) -> list[StoredEvidence]:
    """The folded evidence of one slice ("": the whole endpoint) at every load and of every config, sorted."""
    columns = tables.evidence.c
    evidence = _read_evidence(connection, and_(columns.endpoint == endpoint, columns.slice_key == slice_key))
    return sorted(evidence, key=lambda row: (row.concurrency, row.fingerprint))


def _read_evidence(connection: Connection, condition: ColumnElement[bool]) -> list[StoredEvidence]:
    names = ("slice_key", "concurrency", "fingerprint", "content")
    statement = select(*(tables.evidence.c[name] for name in names)).where(condition)
    rows = connection.execute(statement, execution_options={"shadowspec_binary": True})
    return [StoredEvidence(*row) for row in rows]


def _read_progress(connection: Connection, endpoint: str, *, is_locked: bool = False) -> EndpointProgress | None:
    columns = tables.evidence_endpoints.c
    statement = select(columns.fold_id, columns.document).where(columns.endpoint == endpoint)
    row = connection.execute(statement.with_for_update() if is_locked else statement).first()
    if row is None:
        return None
    return EndpointProgress(int(row.fold_id), row.document, _read_cursors(connection, endpoint))


def _read_cursors(connection: Connection, endpoint: str) -> tuple[Span, ...]:
    """The ranges of offsets that are folded, sorted."""
    cursor_columns = tables.evidence_cursors.c
    columns = (
        cursor_columns.source,
        cursor_columns.source_partition,
        cursor_columns.start_offset,
        cursor_columns.folded_offset,
    )
    rows = connection.execute(select(*columns).where(cursor_columns.endpoint == endpoint))
    return tuple(sorted(Span(source, partition, int(start), int(stop)) for source, partition, start, stop in rows))

"""One endpoint's evidence within one transaction: what is folded, and what is kept of it.

The transaction's end moves the cursors and everything else together, and only if no other gate has moved them
meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, delete, insert, select, tuple_, update

from shadowspec.errors import StoreError
from shadowspec.store import bulk, tables, writes
from shadowspec.store.evidence_keys import StoredKeys
from shadowspec.store.evidence_rows import KEYS_AT_ONCE, EvidenceRows
from shadowspec.store.evidence_snapshot import read_cursors
from shadowspec.types import (
    Decision,
    EndpointProgress,
    Fold,
    OpenBlock,
    RecordKey,
    Span,
    StoredEvidence,
)


class EvidenceSession(EvidenceRows):
    """Reads and changes an endpoint's evidence.  Lives as long as its transaction."""

    def __init__(self, connection: Connection, endpoint: str) -> None:
        super().__init__(connection, endpoint)
        self._before = self._read_progress()

    @property
    def progress(self) -> EndpointProgress | None:
        """How far the evidence had come when the transaction began; None: it has not begun."""
        return self._before

    def keys(self, way: str) -> StoredKeys:
        """The open keys of one way of making clusters."""
        return StoredKeys(self._connection, self.endpoint, way)

    def evidence(self) -> list[StoredEvidence]:
        """The evidence of every hypothesis."""
        own = tables.evidence.c
        names = ("slice_key", "concurrency", "fingerprint", "document", "tables")
        statement = select(*(own[name] for name in names)).where(own.endpoint == self.endpoint)
        return [StoredEvidence(**row) for row in self._connection.execute(statement).mappings()]

    def save_evidence(self, changed: Sequence[StoredEvidence]) -> None:
        """Keep these, in place of what was kept of the same hypotheses."""
        own = tables.evidence.c
        key = (own.endpoint, own.slice_key, own.concurrency, own.fingerprint)
        if not changed:
            return
        named = [(each.slice_key, each.concurrency, each.fingerprint) for each in changed]
        same = bulk.one_of(self._connection, key[1:], named)
        self._connection.execute(delete(tables.evidence).where(own.endpoint == self.endpoint, same))
        names = [column.name for column in key]
        values = [
            dict(zip(names, (self.endpoint, each.slice_key, each.concurrency, each.fingerprint), strict=True))
            | {"document": dict(each.document), "tables": each.tables}
            for each in changed
        ]
        self._connection.execute(insert(tables.evidence), values)

    def open_blocks(self) -> dict[str, OpenBlock]:
        """The blocks that were begun and are in no evidence yet, by id."""
        own = tables.evidence_blocks.c
        found = self._connection.execute(select(own.block_id, own.runs).where(own.endpoint == self.endpoint))
        return {
            block_id: OpenBlock(tuple(RecordKey(*key) for key in kept["keys"]), datetime.fromisoformat(kept["newest"]))
            for block_id, kept in found
        }

    def save_open_blocks(self, begun: Mapping[str, OpenBlock], entered: Iterable[str]) -> None:
        """Keep blocks as they are now, and forget those that entered."""
        own = tables.evidence_blocks
        gone = sorted({*begun, *entered})
        for start in range(0, len(gone), KEYS_AT_ONCE):
            part = gone[start : start + KEYS_AT_ONCE]
            self._connection.execute(delete(own).where(own.c.endpoint == self.endpoint, own.c.block_id.in_(part)))
        values = [
            {
                "endpoint": self.endpoint,
                "block_id": block_id,
                "runs": {
                    "keys": [list(key) for key in kept.runs],
                    "newest": kept.newest.isoformat(),
                },
            }
            for block_id, kept in sorted(begun.items())
        ]
        if values:
            self._connection.execute(insert(own), values)

    def begin_anew(self) -> None:
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
        own, values = tables.evidence_endpoints, {"fold_id": fold_id, "document": dict(document)}
        if self._before is None:
            self._connection.execute(insert(own), values | {"endpoint": self.endpoint})
        else:
            same = (own.c.endpoint == self.endpoint, own.c.fold_id == self._before.fold_id)
            if self._connection.execute(update(own).where(*same).values(values)).rowcount != 1:
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
        return writes.append_decisions(self._connection, decisions, fold_id)

    def _read_progress(self) -> EndpointProgress | None:
        own = tables.evidence_endpoints
        statement = select(own.c.fold_id, own.c.document).where(own.c.endpoint == self.endpoint).with_for_update()
        row = self._connection.execute(statement).first()
        if row is None:
            return None
        return EndpointProgress(int(row.fold_id), row.document, read_cursors(self._connection, self.endpoint))

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

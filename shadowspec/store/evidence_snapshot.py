"""An endpoint's folded evidence as one moment shows it, read without the lock of those who fold."""

from __future__ import annotations

from sqlalchemy import ColumnElement, Connection, and_, select

from shadowspec.store import tables
from shadowspec.store.ledger import read_watermark
from shadowspec.store.queries import read_fingerprints, read_latest_decisions
from shadowspec.types import EndpointProgress, EvidenceSnapshot, Span, StoredEvidence


def read_snapshot(connection: Connection, endpoint: str) -> EvidenceSnapshot:
    """The evidence, and what it takes to read it."""
    return EvidenceSnapshot(
        endpoint=endpoint,
        progress=_read_progress(connection, endpoint),
        evidence=tuple(_read_evidence(connection, tables.evidence.c.endpoint == endpoint)),
        watermark=read_watermark(connection, endpoint),
        fingerprints=read_fingerprints(connection),
        latest_decisions=tuple(read_latest_decisions(connection, endpoint)),
    )


def read_slice_evidence(connection: Connection, endpoint: str, slice_key: str) -> list[StoredEvidence]:
    """The evidence of one slice at every load and of every config, sorted."""
    own = tables.evidence.c
    found = _read_evidence(connection, and_(own.endpoint == endpoint, own.slice_key == slice_key))
    return sorted(found, key=lambda each: (each.concurrency, each.fingerprint))


def _read_evidence(connection: Connection, condition: ColumnElement[bool]) -> list[StoredEvidence]:
    names = ("slice_key", "concurrency", "fingerprint", "document", "tables")
    found = connection.execute(select(*(tables.evidence.c[name] for name in names)).where(condition)).mappings()
    return [StoredEvidence(**row) for row in found]


def _read_progress(connection: Connection, endpoint: str) -> EndpointProgress | None:
    own = tables.evidence_endpoints.c
    row = connection.execute(select(own.fold_id, own.document).where(own.endpoint == endpoint)).first()
    if row is None:
        return None
    return EndpointProgress(int(row.fold_id), row.document, read_cursors(connection, endpoint))


def read_cursors(connection: Connection, endpoint: str) -> tuple[Span, ...]:
    """The ranges of offsets that are folded, sorted."""
    own = tables.evidence_cursors.c
    columns = (own.source, own.source_partition, own.start_offset, own.folded_offset)
    found = connection.execute(select(*columns).where(own.endpoint == endpoint))
    return tuple(sorted(Span(source, partition, int(start), int(stop)) for source, partition, start, stop in found))

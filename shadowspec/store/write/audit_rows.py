"""Audited runs in the database, and the states of their audits: each run is added once, in one transaction."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from sqlalchemy import Connection, delete, insert, select, update

from shadowspec.store import bulk, row_values
from shadowspec.store.column_types import RECORD_KEY
from shadowspec.store.table_definitions import audit_states, audits
from shadowspec.types import AuditedRun, AuditedUnit, BlockResult, Run, StoredAudit, StoredRecord

RUN_NAMES = ("fingerprint", "num_output_tokens", "num_accepted_tokens", "expected_accepted_tokens", "tolerance")
AUDIT_NAMES = (*RECORD_KEY, *RUN_NAMES, "endpoint", "slice_key", "event_time", "is_folded")


def insert_audits(connection: Connection, runs: Sequence[tuple[Run, BlockResult, StoredRecord]]) -> None:
    """Insert the audits of these runs' blocks; the runs must be new."""
    by_run = {(run.key, run.fingerprint): (result, record) for run, result, record in runs}
    values = {}
    for result in {id(result): result for _, result, _ in runs}.values():
        for audit in result.audits:
            block, record = by_run.get((audit.key, audit.fingerprint), (None, None))
            if block is result and record is not None:
                values[*audit.key, audit.fingerprint] = _audit_tuple(audit, result, record)
    bulk.insert_new(connection, audits, AUDIT_NAMES, [values[key] for key in sorted(values)])


def read_audit_states(connection: Connection, endpoints: Collection[str]) -> dict[str, list[StoredAudit]]:
    """The audit states of each of the endpoints, sorted by slice and config."""
    columns = audit_states.c
    audits: dict[str, list[StoredAudit]] = {endpoint: [] for endpoint in endpoints}
    statement = select(columns.endpoint, columns.slice_key, columns.fingerprint, columns.document)
    for endpoint, *values in connection.execute(statement.where(columns.endpoint.in_(sorted(audits)))):
        audits[endpoint].append(StoredAudit(*values))
    return {
        endpoint: sorted(states, key=lambda state: (state.slice_key, state.fingerprint))
        for endpoint, states in audits.items()
    }


class AuditSession:
    """An endpoint's audits within one transaction, which adds runs and stores the new states, or neither."""

    def __init__(self, connection: Connection, endpoint: str) -> None:
        self._connection, self._endpoint = connection, endpoint

    def take(self) -> list[AuditedUnit]:
        """The runs that no session took in yet, marked as taken in; by event time, ties by key and config.

        One statement marks and reads them: a run that is committed meanwhile is left for the next session.
        """
        columns = audits.c
        statement = update(audits).where(columns.endpoint == self._endpoint, columns.is_folded.is_(False))
        taken = statement.values(is_folded=True).returning(
            *(columns[name] for name in (*RECORD_KEY, *RUN_NAMES, "slice_key", "event_time"))
        )
        rows = self._connection.execute(taken).mappings().all()
        ordered = sorted(rows, key=lambda row: (row["event_time"], row_values.key_value(row), row["fingerprint"]))
        return [
            AuditedUnit(row["slice_key"], AuditedRun(row_values.key_value(row), *(row[name] for name in RUN_NAMES)))
            for row in ordered
        ]

    def states(self) -> list[StoredAudit]:
        return read_audit_states(self._connection, [self._endpoint])[self._endpoint]

    def save(self, changed: Sequence[StoredAudit]) -> None:
        """Store these, in place of the stored states of the same slices and configs."""
        if not changed:
            return
        columns = audit_states.c
        named = [(state.slice_key, state.fingerprint) for state in changed]
        same = bulk.one_of(self._connection, (columns.slice_key, columns.fingerprint), named)
        self._connection.execute(delete(audit_states).where(columns.endpoint == self._endpoint, same))
        values: list[dict[str, Any]] = [
            {"endpoint": self._endpoint, "slice_key": state.slice_key, "fingerprint": state.fingerprint}
            | {"document": dict(state.document)}
            for state in changed
        ]
        self._connection.execute(insert(audit_states), values)


def _audit_tuple(audited_run: AuditedRun, result: BlockResult, record: StoredRecord) -> tuple[Any, ...]:
    return (
        *audited_run.key,
        *(getattr(audited_run, name) for name in RUN_NAMES),
        *(result.block.endpoint, result.block.slice_key, row_values.event_time(result, record), False),
    )

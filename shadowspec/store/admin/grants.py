"""Least-privilege roles on Postgres: each kind of process gets exactly the rights that it needs.

Reads and writes go through the partitioned tables, whose rights cover every partition, future ones included.  A writer
creates months by a function that runs as the tables' owner.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from sqlalchemy import Connection, Engine, text

from shadowspec.errors import StoreError, UsageError
from shadowspec.store import session
from shadowspec.store.table_definitions import metadata
from shadowspec.types import RoleKind

PARTITION_FUNCTION = "shadowspec_create_partition(text, date)"


@dataclass(frozen=True, slots=True)
class Rights:
    """Privileges by table (with columns, where only those), sequences to draw from, functions to call."""

    tables: Mapping[str, str]
    sequences: tuple[str, ...] = ()
    functions: tuple[str, ...] = ()


_EVERYTHING = dict.fromkeys([*metadata.tables, "alembic_version"], "SELECT")
_VERDICT = "SELECT (decision_id, endpoint, slice_key, concurrency, fingerprint, verdict, reason_code)"

_GATE = Rights(
    _EVERYTHING
    | dict.fromkeys(("decisions", "test_snapshots", "rollouts", "folds"), "SELECT, INSERT")
    | dict.fromkeys(("overrides", "override_effects"), "SELECT, INSERT")
    | dict.fromkeys(
        ("evidence", "evidence_endpoints", "evidence_cursors", "evidence_keys", "evidence_blocks", "audit_states"),
        "SELECT, INSERT, UPDATE, DELETE",
    )
    | {"audits": "SELECT, UPDATE (is_folded)"}  # and it orders HOLD where an audit alarms
    | {
        "live_replicas": "SELECT, INSERT, DELETE",
        "live_windows": "SELECT, INSERT",
        "live_hours": "SELECT, INSERT, UPDATE",
    },  # DISABLE where the live guard does
    sequences=(
        "decisions_decision_id_seq",
        "rollouts_rollout_id_seq",
        "folds_fold_id_seq",
        "overrides_override_id_seq",
    ),
)

RIGHTS = {
    RoleKind.WRITER: Rights(
        {
            **dict.fromkeys(
                ("records", "runs", "blocks", "block_memory", "replays", "replay_configs", "audits"), "SELECT, INSERT"
            ),
            "fingerprints": "SELECT, INSERT",
            "backfill_blocks": "SELECT, INSERT",
            **dict.fromkeys(("cost_surfaces", "evaluations"), "SELECT, INSERT"),
            **dict.fromkeys(("ledger", "funnel_counts"), "SELECT, INSERT, UPDATE"),
            "attempts": "SELECT, INSERT, UPDATE, DELETE",
            **dict.fromkeys(
                ("rollups", "rollup_positions", "rollup_bins", "rollup_failures"), "SELECT, INSERT, UPDATE"
            ),
            "decisions": _VERDICT,  # decided slices are sampled less
            "alembic_version": "SELECT",
        },
        sequences=("rollups_rollup_id_seq", "cost_surfaces_surface_id_seq", "evaluations_evaluation_id_seq"),
        functions=(PARTITION_FUNCTION,),
    ),
    RoleKind.GATE: _GATE,
    RoleKind.READER: Rights(_EVERYTHING),
    RoleKind.OPERATOR: Rights(
        _EVERYTHING | dict.fromkeys(("overrides", "override_clearings"), "SELECT, INSERT"),
        sequences=("overrides_override_id_seq",),
    ),
    RoleKind.SCHEDULER: replace(
        _GATE,
        tables={**_GATE.tables, **dict.fromkeys(("schedule_periods", "report_deliveries"), "SELECT, INSERT, UPDATE")},
    ),
}


def grant(engine: Engine, kind: RoleKind, role: str) -> list[str]:
    """Give an existing role exactly the rights of its kind, and revoke its earlier rights on our tables.

    Returns the statements that it ran.

    Raises:
        UsageError: not Postgres, or the role owns the tables.
        StoreError: there is no such role, or this role may not grant.
    """
    if engine.dialect.name != "postgresql":
        raise UsageError("only Postgres has roles; protect a SQLite database by the permissions of its file")
    with session.write(engine) as connection:
        _check(connection, role)
        statements = _statements(engine, connection, RIGHTS[kind], engine.dialect.identifier_preparer.quote(role))
        for statement in statements:
            connection.exec_driver_sql(statement)
    return statements


def _check(connection: Connection, role: str) -> None:
    if connection.scalar(text("SELECT 1 FROM pg_roles WHERE rolname = :role"), {"role": role}) is None:
        raise StoreError(f"there is no role {role!r}; create it first, e.g. CREATE ROLE ... LOGIN")
    owner = connection.scalar(text("SELECT pg_get_userbyid(relowner) FROM pg_class WHERE oid = 'records'::regclass"))
    if owner == role:
        raise UsageError(f"role {role!r} owns the tables and may do everything; grant to another")


def _statements(engine: Engine, connection: Connection, rights: Rights, role: str) -> list[str]:
    quote = engine.dialect.identifier_preparer.quote
    schema = quote(connection.scalar(text("SELECT current_schema()")))
    database = quote(connection.scalar(text("SELECT current_database()")))
    sequences = ", ".join(sorted({name for kind in RIGHTS.values() for name in kind.sequences}))
    return [
        f"REVOKE ALL ON {', '.join(sorted(_EVERYTHING))} FROM {role}",
        f"REVOKE ALL ON SEQUENCE {sequences} FROM {role}",
        f"REVOKE ALL ON FUNCTION {PARTITION_FUNCTION} FROM {role}",
        f"GRANT CONNECT ON DATABASE {database} TO {role}",
        f"GRANT USAGE ON SCHEMA {schema} TO {role}",
        *(f"GRANT {privileges} ON {table} TO {role}" for table, privileges in sorted(rights.tables.items())),
        *(f"GRANT USAGE ON SEQUENCE {sequence} TO {role}" for sequence in rights.sequences),
        *(f"GRANT EXECUTE ON FUNCTION {function} TO {role}" for function in rights.functions),
    ]

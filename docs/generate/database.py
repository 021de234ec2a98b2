"""The tables of the database, from SQLAlchemy's metadata."""

from __future__ import annotations

from sqlalchemy import Column
from sqlalchemy.dialects import postgresql

from docs.generate.markdown import code
from shadowspec.store.table_definitions import metadata

# By table: what a row is, and what its number of rows grows with.
ROWS = {
    "records": (
        "A usable request of a sampled session: key, funnel counter, labels, hashed ids.",
        "sampled traffic",
    ),
    "fingerprints": (
        "A speculation config with everything that its figures depend on.",
        "configs",
    ),
    "blocks": ("Requests that went through both arms together.", "runs / concurrency"),
    "block_memory": (
        "Peak memory of each config in a block, or the size of the servers' KV caches.",
        "blocks x configs",
    ),
    "runs": (
        "A request measured with one config, both arms: counts, timings, parity, flags.",
        "measured requests x configs",
    ),
    "decisions": ("A decision of the gate. Append-only.", "gate runs"),
    "test_snapshots": ("A test behind a decision. Append-only.", "gate runs"),
    "overrides": ("An operator's order. Append-only.", "orders"),
    "override_clearings": ("Who ended an order. Append-only.", "orders"),
    "override_effects": ("Whether production's counters show an order. Append-only.", "orders"),
    "rollouts": ("A change of an endpoint's rollout stage or depth at one load. Append-only.", "changes"),
    "ledger": ("Start and place of a consumer in a partition or file, and when it last moved.", "partitions"),
    "funnel_counts": ("Number of records of a partition by endpoint, counter and reason.", "partitions x endpoints"),
    "attempts": ("How often a record that may have ended the engine was tried by itself.", "engine failures"),
    "rollups": ("Sums of the runs of an hour.", "hours x slices x configs x loads"),
    "rollup_positions": ("Accepted tokens by position, of a rollup.", "rollups x positions"),
    "rollup_bins": ("A bin of a histogram of a rollup.", "rollups x bins"),
    "rollup_failures": ("A count of failures of a rollup.", "rollups x kinds"),
    "folds": ("Input of a step of a gate run: offsets, watermark, policy. Append-only.", "gate runs"),
    "evidence_endpoints": ("Counts of an endpoint's evidence.", "endpoints"),
    "evidence_cursors": ("A folded range of offsets.", "partitions"),
    "evidence": (
        "Folded evidence of a hypothesis: sums, and tables of log-capitals (80 kB).",
        "slices x configs x loads",
    ),
    "evidence_keys": ("A session that is open or may not reopen yet.", "sessions of a day or two"),
    "evidence_blocks": ("A block that is not whole below the ledger.", "open blocks"),
    "cost_surfaces": ("Profiled cost of a pair's steps on a device. Append-only.", "profiles"),
    "evaluations": ("A task of a harness, answered with and without speculation. Append-only.", "evaluated tasks"),
    "schedule_periods": ("When a scheduled job was due, and the time that its report covers.", "jobs x times"),
    "report_deliveries": (
        "Outcome of a report's delivery to one receiver, never its content.",
        "jobs x receivers x times",
    ),
    "replay_configs": ("A config with which responses were replayed.", "configs"),
    "replays": ("Expected counts of a logged response with one config and K.", "replayed responses x configs x K"),
    "backfill_blocks": ("A part of a file whose responses were replayed.", "replayed files"),
    "audits": ("A replayed output of the engine.", "`audit_share` of runs"),
    "audit_states": ("State of the audit of a slice and config.", "slices x configs"),
    "live_replicas": ("Newest counters of a production engine.", "replicas"),
    "live_windows": ("Counts of a production engine between two readings.", "replicas x readings"),
    "live_hours": ("Sums of the windows that ended in an hour.", "replicas x hours"),
}
_SHORT = {"timestamp with time zone": "timestamptz", "double precision": "float8", "character varying": "varchar"}


def columns() -> str:
    """Every table: what a row is, what makes it grow, and its columns by type, those of the primary key in bold."""
    parts = []
    for owner in metadata.tables.values():
        by_type: dict[str, list[str]] = {}
        for column in owner.columns:
            by_type.setdefault(_type(column), []).append(_name(column))
        lists = "; ".join(f"{kind}: {', '.join(names)}" for kind, names in by_type.items())
        row, grows_with = ROWS[owner.name]
        parts.append(f"## {owner.name}\n\n{row} ({grows_with})\n\n{lists}.\n\n")
    return "".join(parts)


def _name(column: Column) -> str:
    """Its name, that it may be NULL, and the table that a foreign key refers to."""
    name = f"**{code(column.name)}**" if column.primary_key else code(column.name) + "?" * bool(column.nullable)
    return name + "".join(f" of `{key.column.table.name}`" for key in column.foreign_keys)


def _type(column: Column) -> str:
    """As Postgres has it."""
    kind = column.type.compile(dialect=postgresql.dialect()).lower()
    for long, short in _SHORT.items():
        kind = kind.replace(long, short)
    return kind

"""Live windows added up by hour, replica and series; those that are stored are taken in.

A new table, filled from the windows that are there.  On Postgres nobody writes windows meanwhile: a reading waits.

Revision: 0018
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from itertools import groupby, zip_longest
from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None

COUNTS = (
    "num_drafts",
    "num_draft_tokens",
    "num_accepted_tokens",
    "num_output_tokens",
    "num_requests",
    "num_prompt_tokens",
    "num_cached_tokens",
)
PARTS = ("num_first_accepted_tokens", "num_first_drafts", "num_known_accepted_tokens", "num_known_drafts")
ROWS_AT_ONCE = 2_000

Row = dict[str, Any]


def upgrade() -> None:
    hours = op.create_table(
        "live_hours",
        sa.Column("endpoint", sa.Text, nullable=False),
        sa.Column("hour", sa.DateTime(timezone=True), nullable=False),
        sa.Column("replica", sa.Text, nullable=False),
        sa.Column("series", sa.Text, nullable=False),
        sa.Column("began_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("ended_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("drafted_at", sa.DateTime(timezone=True)),
        sa.Column("num_windows", sa.BigInteger, nullable=False),
        sa.Column("num_resets", sa.BigInteger, nullable=False),
        sa.Column("num_failed_scrapes", sa.BigInteger, nullable=False),
        *(sa.Column(name, sa.BigInteger) for name in COUNTS),
        sa.Column("requests_us", sa.BigInteger, nullable=False),
        sa.Column("output_tokens_us", sa.BigInteger, nullable=False),
        *(sa.Column(name, sa.BigInteger, nullable=False) for name in PARTS),
        sa.Column("num_accepted_tokens_per_pos", sa.JSON, nullable=False),
        sa.Column("latencies", sa.JSON, nullable=False),
        sa.PrimaryKeyConstraint("endpoint", "hour", "replica", "series", name="pk_live_hours"),
    )
    connection = op.get_bind()
    if connection.dialect.name == "postgresql":
        op.execute("LOCK TABLE live_windows IN SHARE MODE")
    batch: list[Row] = []
    for hour in _hours(connection):
        batch.append(hour)
        if len(batch) == ROWS_AT_ONCE:
            op.bulk_insert(hours, batch)
            batch = []
    if batch:
        op.bulk_insert(hours, batch)


def downgrade() -> None:
    op.drop_table("live_hours")


def _hours(connection: sa.Connection) -> Iterator[Row]:
    """The stored windows, summed; they come in the order of the key, one endpoint and replica after the other."""
    windows = sa.table(
        "live_windows",
        *(sa.column(name, sa.Text) for name in ("endpoint", "replica", "series")),
        *(sa.column(name, sa.DateTime(timezone=True)) for name in ("began_at", "ended_at")),
        sa.column("is_reset", sa.Boolean),
        *(sa.column(name, sa.BigInteger) for name in ("num_failed_scrapes", *COUNTS)),
        *(sa.column(name, sa.JSON) for name in ("num_accepted_tokens_per_pos", "latencies")),
    )
    ordered = sa.select(windows).order_by(windows.c.endpoint, windows.c.replica, windows.c.ended_at)
    rows = connection.execute(ordered.execution_options(yield_per=ROWS_AT_ONCE)).mappings()
    for (endpoint, replica, hour), group in groupby(map(_in_utc, rows), key=_place):
        by_series: dict[str, list[Row]] = {}
        for row in group:
            by_series.setdefault(row["series"], []).append(row)
        for series, item in by_series.items():
            key = {"endpoint": endpoint, "hour": hour, "replica": replica, "series": series}
            yield {**key, **_added_up(item)}


def _in_utc(row: Any) -> Row:
    """SQLite's times are UTC without a zone; Postgres returns them in the session's."""
    times = {name: row[name] for name in ("began_at", "ended_at")}
    return dict(row) | {
        name: at.replace(tzinfo=UTC) if at.tzinfo is None else at.astimezone(UTC) for name, at in times.items()
    }


def _place(row: Row) -> tuple[str, str, datetime]:
    return row["endpoint"], row["replica"], row["ended_at"].replace(minute=0, second=0, microsecond=0)


def _added_up(rows: Sequence[Row]) -> Row:
    """Windows of one hour and series, in the order of their ends."""
    first = [first_position for row in rows if (first_position := _first_position(row)) is not None]
    accepted = [(_accepted(row), row["num_drafts"]) for row in rows if row["num_drafts"]]
    known = [(number, drafts) for number, drafts in accepted if number is not None]
    positions = zip_longest(*(row["num_accepted_tokens_per_pos"] for row in rows), fillvalue=0)
    names = sorted({name for row in rows for name in row["latencies"]})
    return {
        "began_at": min(row["began_at"] for row in rows),
        "ended_at": rows[-1]["ended_at"],
        "drafted_at": min((row["began_at"] for row in rows if row["num_drafts"]), default=None),
        "num_windows": len(rows),
        "num_resets": sum(bool(row["is_reset"]) for row in rows),
        "num_failed_scrapes": sum(row["num_failed_scrapes"] for row in rows),
        **{name: _known_sum(row[name] for row in rows) for name in COUNTS},
        "requests_us": _covered_us(rows, "num_requests"),
        "output_tokens_us": _covered_us(rows, "num_output_tokens"),
        "num_first_accepted_tokens": sum(item[0] for item in first),
        "num_first_drafts": sum(item[1] for item in first),
        "num_known_accepted_tokens": sum(number for number, _ in known),
        "num_known_drafts": sum(drafts for _, drafts in known),
        "num_accepted_tokens_per_pos": [sum(position) for position in positions],
        "latencies": {
            name: _bins([row["latencies"][name] for row in rows if name in row["latencies"]]) for name in names
        },
    }


def _known_sum(values: Iterator[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _covered_us(rows: Sequence[Row], name: str) -> int:
    lengths = (row["ended_at"] - row["began_at"] for row in rows if row[name] is not None)
    return sum(each // timedelta(microseconds=1) for each in lengths)


def _bins(found: Sequence[Any]) -> list[list[Any]]:
    """Bounds and counts, added up where the bounds are the newest's."""
    bounds = found[-1][0]
    return [bounds, [sum(item) for item in zip(*(each[1] for each in found if each[0] == bounds), strict=True)]]


def _accepted(row: Row) -> int | None:
    """Accepted tokens: as counted, else the output tokens beyond those of prefill and of verification itself."""
    if row["num_accepted_tokens"] is not None:
        return int(row["num_accepted_tokens"])
    if row["num_drafts"] is None or row["num_output_tokens"] is None or row["num_requests"] is None:
        return None
    left = int(row["num_output_tokens"] - row["num_requests"] - row["num_drafts"])
    return left if left >= 0 else None


def _first_position(row: Row) -> tuple[int, int] | None:
    """Steps that accepted their first token, at most, and all that drafted."""
    if not row["num_drafts"]:
        return None
    if row["num_accepted_tokens_per_pos"]:
        return row["num_accepted_tokens_per_pos"][0], row["num_drafts"]
    accepted = _accepted(row)
    return None if accepted is None else (min(accepted, row["num_drafts"]), row["num_drafts"])

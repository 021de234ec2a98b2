"""Runs, newest first, a page at a time: for looking at single requests and for export to a file.

A page walks the index of one endpoint's event times and looks at `MAX_WALKED` runs at most, so its cost does not depend
on the number of runs or on how rare the requested ones are.  A page shows counts and timings of a run, no text.  Of a
hash, or a value that may name a file, it shows a prefix, which distinguishes two of them and identifies nobody.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Connection, RowMapping, and_, or_, select, tuple_

from shadowspec.store import row_values
from shadowspec.store import table_definitions as tables
from shadowspec.store.column_types import RECORD_KEY, RUN_KEY
from shadowspec.types import BlockMemory

MAX_WALKED = 20_000  # runs that one page looks at; some hundred milliseconds
PREFIX = 12  # characters of a hash

_runs, _records = tables.runs.c, tables.records.c

SHOWN = (
    *("event_time", "slice_key", "concurrency", "failure", "num_prompt_tokens", "num_output_tokens"),
    *("num_drafts", "num_draft_tokens", "num_accepted_tokens", "num_plain_steps", "num_cut_steps"),
    *("baseline_queue_ms", "baseline_prefill_ms", "baseline_decode_ms", "baseline_num_output_tokens"),
    *("baseline_longest_gap_ms", "speculative_longest_gap_ms"),
    *("speculative_queue_ms", "speculative_prefill_ms", "speculative_decode_ms", "speculative_draft_ms"),
    *("speculative_verify_ms", "speculative_other_ms", "speculative_num_output_tokens"),
    *("first_divergence", "divergence_gap", "z_sum", "z_tokens", "z_error", "is_repetition_loop", "finish_reason"),
    *("is_early_rejection", "is_beyond_draft_context", "contract", "baseline_validity", "speculative_validity"),
    *("intervention", "sampling_rate"),
    *("counts_source", "baseline_cached_tokens", "speculative_cached_tokens", "num_retries"),
)
SHORTENED = ("source", "fingerprint", "block_id")
COLUMNS = (*SHOWN, *SHORTENED, "source_partition", "source_offset", "source_item", "num_first_accepted_tokens")

Place = tuple[datetime, tuple[Any, ...]]


@dataclass(frozen=True, slots=True)
class RunPage:
    """Rows by column name, newest first; `next_place` is the beginning of the next page (None: this is the last)."""

    rows: tuple[dict[str, Any], ...]
    next_place: Place | None
    num_walked: int


@dataclass(frozen=True, slots=True)
class RunFilter:
    """Which runs of an endpoint; None matches any.  Times are event times, from `since` up to, but without, `until`."""

    endpoint: str
    slice_key: str | None = None
    concurrency: int | None = None
    fingerprint: str | None = None
    since: datetime | None = None
    until: datetime | None = None


def read_run_page(connection: Connection, wanted: RunFilter, after: Place | None = None, *, limit: int) -> RunPage:
    """Up to `limit` runs that match, from `after` on, of the next `MAX_WALKED` of the endpoint."""
    walked = (
        select(tables.runs)
        .where(*_match_bounds(wanted, after))
        .order_by(_runs.event_time.desc(), *(_runs[name].desc() for name in RUN_KEY))
        .limit(MAX_WALKED)
    )
    found_rows: list[dict[str, Any]] = []
    num_walked = 0
    last: Place | None = None
    with connection.execution_options(yield_per=min(limit, 1_000)).execute(walked) as rows:
        for row in rows.mappings():
            num_walked += 1
            last = row["event_time"], tuple(row[name] for name in RUN_KEY)
            if _matches(row, wanted):
                found_rows.append(_row(row))
                if len(found_rows) == limit:
                    break
    is_over = len(found_rows) < limit and num_walked < MAX_WALKED
    return RunPage(tuple(found_rows), None if is_over else last, num_walked)


def read_recent_labels(
    connection: Connection, endpoint: str, since: datetime | None = None, *, limit: int
) -> list[tuple[dict[str, Any], dict[str, str]]]:
    """The newest runs of an endpoint, each with all labels of its record, which rollups do not have."""
    newest = (
        select(tables.runs)
        .where(*_match_bounds(RunFilter(endpoint, since=since), None))
        .order_by(_runs.event_time.desc())
        .limit(limit)
        .subquery()
    )
    of_run = and_(*(_records[name] == newest.c[name] for name in RECORD_KEY))
    statement = select(newest, _records.labels).join(tables.records, of_run)
    return [(_row(row), dict(row["labels"])) for row in connection.execute(statement).mappings()]


def read_newest_memory(connection: Connection, wanted: RunFilter) -> BlockMemory | None:
    """The memory of the block of the newest run that matches, among the endpoint's newest `MAX_WALKED`."""
    walked = (
        select(_runs.block_id, _runs.fingerprint, _runs.slice_key, _runs.concurrency, _runs.event_time)
        .where(*_match_bounds(wanted, None))
        .order_by(_runs.event_time.desc())
        .limit(MAX_WALKED)
        .subquery()
    )
    rows = [
        walked.c[name] == value
        for name in ("slice_key", "concurrency", "fingerprint")
        if (value := getattr(wanted, name)) is not None
    ]
    newest = select(walked.c.block_id, walked.c.fingerprint).where(*rows).order_by(walked.c.event_time.desc()).limit(1)
    chosen, memory = newest.subquery(), tables.block_memory
    of_block = and_(memory.c.block_id == chosen.c.block_id, memory.c.fingerprint == chosen.c.fingerprint)
    row = connection.execute(select(memory).join(chosen, of_block)).mappings().first()
    return None if row is None else row_values.memory_value(row)


def _match_bounds(wanted: RunFilter, after: Place | None) -> list[ColumnElement[bool]]:
    where: list[ColumnElement[bool]] = [_runs.endpoint == wanted.endpoint]
    where += [] if wanted.since is None else [_runs.event_time >= wanted.since]
    where += [] if wanted.until is None else [_runs.event_time < wanted.until]
    if after is not None:
        time, key = after
        is_later_key = tuple_(*(_runs[name] for name in RUN_KEY)) < tuple_(*key)
        where += [_runs.event_time <= time, or_(_runs.event_time < time, is_later_key)]
    return where


def _matches(row: RowMapping, wanted: RunFilter) -> bool:
    pair = ("slice_key", "concurrency", "fingerprint")
    return all(getattr(wanted, name) in (None, row[name]) for name in pair)


def _row(row: RowMapping) -> dict[str, Any]:
    per_pos = row["num_accepted_tokens_per_pos"]
    values = {name: row[name] for name in COLUMNS if name not in (*SHORTENED, "num_first_accepted_tokens")}
    shortened = {name: row[name][:PREFIX] for name in SHORTENED}
    first = per_pos[0] if per_pos else 0
    return values | shortened | {"num_first_accepted_tokens": None if row["num_drafts"] is None else first}

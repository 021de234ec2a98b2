"""The store: one database, opened, used and closed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Self

from sqlalchemy import Connection, Engine

from shadowspec.store import locks, session
from shadowspec.store.admin import grants, retention, schema
from shadowspec.store.admin.month_partitions import Partitions
from shadowspec.store.evidence import live_rows
from shadowspec.store.evidence.evidence_rows import EvidenceRows, read_evidence, read_folds
from shadowspec.store.evidence.evidence_session import (
    EvidenceSession,
    append_decisions,
    read_slice_evidence,
    read_snapshot,
)
from shadowspec.store.read import (
    board_reads,
    change_reads,
    decision_reads,
    resume,
    rollup_reads,
    row_reads,
    run_pages,
    timing_reads,
)
from shadowspec.store.session import LONG_TIMEOUT_S, reading, writing
from shadowspec.store.write import (
    append_only_rows,
    audit_rows,
    batch_writes,
    ledger_rows,
    schedule_rows,
    stored_replays,
)
from shadowspec.types import RoleKind, WriteBatch, WriteOutcome

LOCK_TIMEOUT_S = 60.0  # a gate run over a full endpoint takes seconds; longer means that a holder hangs


class Store:
    """Owns the engine of one database.  Every method is one transaction; times come back in UTC.

    Every method raises ServiceUnavailableError if the database cannot be reached and StoreError if it refuses.
    """

    def __init__(
        self,
        engine: Engine,
        rehearsal: Connection | None = None,
        locked: Mapping[str, locks.RequireHeld] | None = None,
    ) -> None:
        self.engine = engine
        self._locked = locked or {}  # by endpoint whose lock is held
        self.database = engine if rehearsal is None else rehearsal
        self._partitions = Partitions(engine)

    @classmethod
    def open(cls, url: str) -> Self:
        """Open `sqlite:///FILE` or `postgresql+psycopg://…`, which must be at this code's revision.

        Raises:
            UsageError: the URL is of another kind.
            StoreError: the schema is missing, behind or ahead; the message says how to fix it.
            ServiceUnavailableError: the server cannot be reached.
        """
        parsed = session.parse_url(url)
        engine = session.create_engine(parsed)
        try:
            schema.require_head(parsed, engine)
        except BaseException:
            engine.dispose()
            raise
        return cls(engine)

    def close(self) -> None:
        self.engine.dispose()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # measurements

    def save_batch(self, batch: WriteBatch, consumer: str) -> WriteOutcome:
        """Write a batch (`batch_writes.save_batch`) after the partitions that its rows need are made."""
        records = [*batch.records, *(record for _, records in batch.blocks for record in records)]
        self._partitions.ensure(record.key.timestamp_ms for record in records)
        return self._save_batch(batch, consumer)

    _save_batch = writing(batch_writes.save_batch)
    save_fingerprints = writing(batch_writes.insert_fingerprints)
    append_costs = writing(append_only_rows.append_costs)
    endpoints = reading(row_reads.read_endpoints)
    records = reading(row_reads.read_records, timeout_s=LONG_TIMEOUT_S)
    blocks = reading(row_reads.read_blocks, timeout_s=LONG_TIMEOUT_S)
    runs = reading(row_reads.read_runs, timeout_s=LONG_TIMEOUT_S)
    fingerprints = reading(row_reads.read_fingerprints)
    costs = reading(append_only_rows.read_costs)

    # how far consumers have come

    record_attempt = writing(ledger_rows.record_attempt)
    clear_attempts = writing(ledger_rows.clear_attempts)
    forget_consumer = writing(ledger_rows.forget_consumer)
    attempts = reading(ledger_rows.read_attempts)
    funnel = reading(ledger_rows.read_funnel)
    ledger = reading(ledger_rows.read_ledger)
    ledger_entry = reading(ledger_rows.read_entry)
    watermark = reading(ledger_rows.read_watermark)
    finished_records = reading(resume.read_finished_records)
    unit_memories = reading(resume.read_unit_memories)
    recent_identities = reading(resume.read_recent_identities, timeout_s=LONG_TIMEOUT_S)
    recent_request_ids = reading(resume.read_recent_request_ids)

    # evidence

    evidence = reading(read_evidence, timeout_s=LONG_TIMEOUT_S)
    folded_evidence = reading(read_snapshot, timeout_s=LONG_TIMEOUT_S)
    slice_evidence = reading(read_slice_evidence)
    folds = reading(read_folds, timeout_s=LONG_TIMEOUT_S)

    @contextmanager
    def evidence_rows(self, endpoint: str) -> Iterator[EvidenceRows]:
        """The rows of an endpoint's evidence, for as long as a recomputation takes."""
        with session.read(self.database, timeout_s=LONG_TIMEOUT_S) as connection:
            yield EvidenceRows(connection, endpoint)

    @contextmanager
    def evidence_session(self, endpoint: str) -> Iterator[EvidenceSession]:
        """One transaction over an endpoint's evidence; it commits at the end, or leaves everything as it was."""
        with session.write(self.database, timeout_s=LONG_TIMEOUT_S) as connection:
            yield EvidenceSession(connection, endpoint)

    @contextmanager
    def rehearsal(self, endpoint: str) -> Iterator[Store]:
        """This store in one transaction that holds the endpoint's lock and sees its writes; it is rolled back."""
        with self.endpoint_lock(endpoint), session.write(self.engine, timeout_s=LONG_TIMEOUT_S) as connection:
            try:
                yield Store(self.engine, connection)
            finally:
                connection.rollback()

    # decisions

    append_decisions = writing(append_decisions)
    latest_decisions = reading(decision_reads.read_latest_decisions)
    current_verdicts = reading(decision_reads.read_verdicts)
    decision = reading(decision_reads.read_decision)
    decisions_at = reading(decision_reads.read_decisions_at)
    verdict_changes = reading(change_reads.read_verdict_changes)
    advice_changes = reading(change_reads.read_advice_changes)

    # operators' overrides, and rollouts

    add_override = writing(append_only_rows.add_override)
    clear_override = writing(append_only_rows.clear_override)
    append_rollouts = writing(append_only_rows.append_rollouts)
    add_effects = writing(append_only_rows.add_effects)
    overrides = reading(append_only_rows.read_overrides)
    rollouts = reading(append_only_rows.read_rollouts)
    rollout_history = reading(append_only_rows.read_rollout_history)

    # task sets

    append_evaluations = writing(append_only_rows.append_evaluations)
    evaluations = reading(append_only_rows.read_evaluations)

    # rollups

    rollups = reading(rollup_reads.read_rollups)
    traffic = reading(rollup_reads.read_traffic)
    failure_counts = reading(rollup_reads.read_failure_counts)
    histogram = reading(rollup_reads.read_histogram)
    group_sums = reading(rollup_reads.read_group_sums)
    rollup_hours = reading(rollup_reads.read_hours)

    # the board and the explorer

    pulse = reading(board_reads.read_pulse)
    named_endpoints = reading(board_reads.read_named_endpoints)
    looks = reading(board_reads.read_looks)
    position_counts = reading(board_reads.read_position_counts)
    histograms = reading(board_reads.read_histograms)
    run_page = reading(run_pages.read_run_page)
    newest_memory = reading(run_pages.read_newest_memory)
    labelled_runs = reading(run_pages.read_recent_labels)
    arrivals = reading(timing_reads.read_arrivals)
    block_times = reading(timing_reads.read_block_times)
    block_seconds = reading(timing_reads.read_block_seconds)

    # replays and audits

    save_replays = writing(stored_replays.insert_replays)
    save_backfilled = writing(stored_replays.insert_backfilled_block)
    replay_configs = reading(stored_replays.read_replay_configs)
    replay_sums = reading(stored_replays.read_replay_sums, timeout_s=LONG_TIMEOUT_S)
    backfilled_sums = reading(stored_replays.read_source_sums, timeout_s=LONG_TIMEOUT_S)
    finished_blocks = reading(stored_replays.read_finished_blocks)
    backfilled_blocks = reading(stored_replays.read_backfilled_blocks)
    loop_sums = reading(stored_replays.read_loop_sums, timeout_s=LONG_TIMEOUT_S)
    audit_states = reading(audit_rows.read_audit_states)

    @contextmanager
    def audit_session(self, endpoint: str) -> Iterator[audit_rows.AuditSession]:
        """One transaction over an endpoint's audits; it commits at the end, or leaves everything as it was."""
        with session.write(self.database, timeout_s=LONG_TIMEOUT_S) as connection:
            yield audit_rows.AuditSession(connection, endpoint)

    # live evidence

    live_replicas = reading(live_rows.read_replicas)
    live_windows = reading(live_rows.read_windows)
    live_hours = reading(live_rows.read_hours)

    @contextmanager
    def live_session(self, endpoint: str) -> Iterator[live_rows.LiveSession]:
        """One transaction over an endpoint's live evidence; it commits at the end, or leaves no change.

        Only one runs at a time, so it can continue from its reads.  It waits for no gate, and no gate waits for it.
        """
        with self.endpoint_lock(f"live evidence of {endpoint}"), session.write(self.engine) as connection:
            yield live_rows.LiveSession(connection, endpoint)

    # schedulers

    begin_periods = writing(schedule_rows.begin_periods)
    prepare_period = writing(schedule_rows.prepare_period)
    keep_delivery = writing(schedule_rows.keep_delivery)
    abandon_deliveries = writing(schedule_rows.abandon_deliveries)
    last_period = reading(schedule_rows.read_last_period)
    period = reading(schedule_rows.read_period)
    unprepared_periods = reading(schedule_rows.read_unprepared_periods)
    open_deliveries = reading(schedule_rows.read_open_deliveries)
    deliveries = reading(schedule_rows.read_deliveries)

    # administration

    def retain(
        self, max_age: timedelta, *, is_dry_run: bool = False, is_forced: bool = False, now: datetime | None = None
    ) -> retention.Removal:
        """Remove records, runs and blocks older than this; counts, sums and decisions stay.

        Raises:
            UsageError: undecided hypotheses need rows that would be removed, and it is not forced.
        """
        now = now or datetime.now(UTC)
        return retention.retain(self.engine, max_age, now=now, is_dry_run=is_dry_run, is_forced=is_forced)

    def grant(self, kind: RoleKind, role: str) -> list[str]:
        """Give an existing Postgres role exactly the rights of its kind; the statements that did it.

        Raises:
            UsageError: not Postgres, or the role owns the tables.
        """
        return grants.grant(self.engine, kind, role)

    @contextmanager
    def endpoint_lock(self, endpoint: str, timeout_s: float = LOCK_TIMEOUT_S) -> Iterator[locks.RequireHeld]:
        """Exclude every other holder of this endpoint's lock, in any process; re-entrant only through `locked`.

        Raises:
            StoreError: another holder kept it for longer than `timeout_s`, or it was lost while held.
        """
        if (require_held := self._locked.get(endpoint)) is not None:
            require_held()
            yield require_held
        elif self.database is not self.engine:  # the rehearsal holds it
            yield lambda: None
        else:
            with locks.endpoint_lock(self.engine, endpoint, timeout_s) as require_held:
                yield require_held

    @contextmanager
    def locked(self, endpoint: str) -> Iterator[Store]:
        """This store under the endpoint's lock, for this block only: its steps that take the lock share one.

        Each of them first asks whether the lock is still held.
        """
        with self.endpoint_lock(endpoint) as require_held:
            connection = self.database if isinstance(self.database, Connection) else None
            yield Store(self.engine, connection, {**self._locked, endpoint: require_held})

    def leadership(self, name: str) -> locks.Leadership:
        """The lock that makes one process the leader of the job `name`; not held yet."""
        return locks.Leadership(self.engine, name)

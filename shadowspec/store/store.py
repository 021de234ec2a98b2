"""The store: one database, opened, used and closed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import Self

from sqlalchemy import Engine

from shadowspec.store import (
    backfills,
    cost_surfaces,
    grants,
    ledger,
    locks,
    overrides,
    replays,
    retention,
    rollouts,
    schedules,
    schema,
    session,
    writes,
)
from shadowspec.store.audits import AuditSession
from shadowspec.store.evidence import EvidenceSession
from shadowspec.store.grants import RoleKind
from shadowspec.store.live import LiveSession
from shadowspec.store.partitions import Partitions
from shadowspec.store.reads import Reads
from shadowspec.store.retention import Removal
from shadowspec.types import (
    BackfilledBlock,
    Clearing,
    Decision,
    Delivery,
    FingerprintedConfig,
    Override,
    Period,
    ProfiledCosts,
    RecordKey,
    ReplayedRecord,
    Rollout,
    StoredRecord,
    WriteBatch,
    WriteOutcome,
)

STILL_AT_WORK = timedelta(minutes=10)  # a consumer that moved within it is taken to be running
LOCK_TIMEOUT_S = 60.0  # a gate run over a full endpoint takes seconds; longer means that a holder hangs


class Store(Reads):
    """Owns the engine of one database.  Every method is one transaction.

    Every method raises ServiceUnavailableError if the database cannot be reached and StoreError if it refuses.
    """

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self._partitions = Partitions(engine)

    @classmethod
    def open(cls, url: str) -> Self:
        """Open `sqlite:///FILE` or `postgresql+psycopg://…`, which must be at this code's revision.

        Raises:
            UsageError: the URL is none of these.
            StoreError: the schema is missing, behind or ahead; the message says what mends it.
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
        self._engine.dispose()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # writes

    def save_batch(self, batch: WriteBatch, consumer: str) -> WriteOutcome:
        """Write rows, rollups, funnel counts and the consumer's places in the ledger, all or nothing.

        Written again, a batch is refused by the ledger, or (without advances) changes nothing.

        Raises:
            FencedError: a partition does not stand where the batch expects it: another worker has moved it.
        """
        self._make_partitions([*batch.records, *(record for _, records in batch.blocks for record in records)])
        with session.write(self._engine) as connection:
            return writes.save_batch(connection, batch, consumer)

    def save_fingerprints(self, configs: Sequence[FingerprintedConfig]) -> None:
        """Keep the configs that are new; a run or decision can only name a fingerprint that is kept."""
        with session.write(self._engine) as connection:
            writes.insert_fingerprints(connection, configs)

    def append_costs(self, profiled: ProfiledCosts) -> None:
        """Append the costs that a profile measured."""
        with session.write(self._engine) as connection:
            cost_surfaces.append_costs(connection, profiled)

    def save_replays(self, replayed: Sequence[ReplayedRecord]) -> int:
        """Keep expected counts, apart from what the loop counts; how many rows were new.

        Written again, a record with the same config changes nothing.
        """
        with session.write(self._engine) as connection:
            return replays.insert_replays(connection, replayed)

    def save_backfilled(self, work: str, block: BackfilledBlock, replayed: Sequence[ReplayedRecord]) -> int:
        """Keep the expected counts of a block, and that it is finished; how many rows were new.

        Written again, it changes nothing.
        """
        with session.write(self._engine) as connection:
            return backfills.insert_block(connection, work, block, replayed)

    def record_attempt(self, keys: Sequence[RecordKey]) -> dict[RecordKey, int]:
        """Count one more attempt to measure each record alone, before it begins; the attempts so far."""
        with session.write(self._engine) as connection:
            ledger.add_attempts(connection, keys)
            return ledger.read_attempts(connection, keys)

    def clear_attempts(self, keys: Sequence[RecordKey]) -> None:
        """Count the attempts of these records from zero again: measured alone, they did no harm."""
        with session.write(self._engine) as connection:
            ledger.clear_attempts(connection, keys)

    def _make_partitions(self, records: Sequence[StoredRecord]) -> None:
        self._partitions.ensure(record.key.timestamp_ms for record in records)

    @contextmanager
    def evidence_session(self, endpoint: str) -> Iterator[EvidenceSession]:
        """One transaction over an endpoint's evidence; it commits at the end, or leaves everything as it was."""
        with session.write(self._engine, timeout_s=session.LONG_TIMEOUT_S) as connection:
            yield EvidenceSession(connection, endpoint)

    @contextmanager
    def evidence_rehearsal(self, endpoint: str) -> Iterator[Callable[[], EvidenceSession]]:
        """Makes sessions of one transaction, each of which sees what those before it did; all of it is undone."""
        with session.write(self._engine, timeout_s=session.LONG_TIMEOUT_S) as connection:
            try:
                yield lambda: EvidenceSession(connection, endpoint)
            finally:
                connection.rollback()

    @contextmanager
    def audit_session(self, endpoint: str) -> Iterator[AuditSession]:
        """One transaction over an endpoint's audits; it commits at the end, or leaves everything as it was."""
        with session.write(self._engine, timeout_s=session.LONG_TIMEOUT_S) as connection:
            yield AuditSession(connection, endpoint)

    @contextmanager
    def live_session(self, endpoint: str) -> Iterator[LiveSession]:
        """One transaction over an endpoint's live evidence; it commits at the end, or leaves everything as it was.

        One at a time: what is read in it is what it goes on from.  It waits for no gate, and no gate for it.
        """
        with self.endpoint_lock(f"live evidence of {endpoint}"), session.write(self._engine) as connection:
            yield LiveSession(connection, endpoint)

    def append_decisions(self, decisions: Sequence[Decision]) -> None:
        """Append one gate run: a row per decision, a snapshot per test.  Nothing is ever changed."""
        with session.write(self._engine) as connection:
            writes.append_decisions(connection, decisions)

    def add_override(self, override: Override) -> int:
        """Append an override, whose own id is ignored; the id that it got."""
        with session.write(self._engine) as connection:
            return overrides.add_override(connection, override)

    def clear_override(self, clearing: Clearing) -> None:
        """Append the end of an override.

        Raises:
            UsageError: there is no such override, or it was cleared before.
        """
        with session.write(self._engine) as connection:
            overrides.clear_override(connection, clearing)

    def append_rollouts(self, changed: Sequence[Rollout]) -> None:
        """Append one row per change of stage or depth."""
        with session.write(self._engine) as connection:
            rollouts.append_rollouts(connection, changed)

    # what schedulers do

    def begin_periods(self, periods: Sequence[Period]) -> int:
        """Keep the periods that are new; how many were."""
        with session.write(self._engine) as connection:
            return schedules.begin_periods(connection, periods)

    def prepare_period(self, period: Period, deliveries: Sequence[Delivery]) -> None:
        """Fix the time of which a period's report speaks, together with the deliveries that are to be made."""
        with session.write(self._engine) as connection:
            schedules.prepare_period(connection, period, deliveries)

    def keep_delivery(self, delivery: Delivery) -> None:
        """Keep the state of a delivery as it is now."""
        with session.write(self._engine) as connection:
            schedules.keep_delivery(connection, delivery)

    def abandon_deliveries(self, receivers: Sequence[str], error: str) -> int:
        """Give up what is open for receivers that are not among these; how many deliveries that were."""
        with session.write(self._engine) as connection:
            return schedules.abandon_deliveries(connection, receivers, error)

    # keeping house

    def retain(
        self, max_age: timedelta, *, is_dry_run: bool = False, is_forced: bool = False, now: datetime | None = None
    ) -> Removal:
        """Remove records, runs and blocks older than this; what was counted, added up and decided stays.

        Raises:
            UsageError: undecided hypotheses rest on what would be removed, and it is not forced.
        """
        now = now or datetime.now(UTC)
        return retention.retain(self._engine, max_age, now=now, is_dry_run=is_dry_run, is_forced=is_forced)

    def forget_consumer(self, consumer: str, *, is_forced: bool = False) -> int:
        """Let a consumer that was retired hold no watermark back; how many of its partitions did.

        What it has finished stays counted and folded.  If it comes back it holds the watermark again.

        Raises:
            UsageError: there is no such consumer, or it moved a moment ago and it is not forced.
        """
        moved_before = None if is_forced else datetime.now(UTC) - STILL_AT_WORK
        with session.write(self._engine) as connection:
            return ledger.forget_consumer(connection, consumer, moved_before=moved_before)

    def grant(self, kind: RoleKind, role: str) -> list[str]:
        """Give an existing Postgres role exactly the rights of its kind; the statements that did it.

        Raises:
            UsageError: not Postgres, or the role owns the tables.
        """
        return grants.grant(self._engine, kind, role)

    # exclusion

    @contextmanager
    def endpoint_lock(self, endpoint: str, timeout_s: float = LOCK_TIMEOUT_S) -> Iterator[None]:
        """Exclude every other holder of this endpoint's lock, in any process; not re-entrant.

        Raises:
            StoreError: another holder kept it for longer than `timeout_s`.
        """
        with locks.endpoint_lock(self._engine, endpoint, timeout_s):
            yield

    def leadership(self, name: str) -> locks.Leadership:
        """The lock that makes one process the leader in what `name` says; not held yet."""
        return locks.Leadership(self._engine, name)

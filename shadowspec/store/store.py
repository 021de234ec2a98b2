"""The store: one database, opened, used and closed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Self

from sqlalchemy import Engine

from shadowspec.store import locks, queries, schema, session, writes
from shadowspec.store.snapshots import TestSnapshot
from shadowspec.types import (
    BlockResult,
    Decision,
    FingerprintedConfig,
    FunnelCounter,
    RecordKey,
    Run,
    StoredBlock,
    StoredRecord,
)

LOCK_TIMEOUT_S = 60.0  # a gate run over a full endpoint takes seconds; longer means that a holder hangs


class Store:
    """Owns the engine of one database.  Every method is one transaction; times come back in UTC.

    Every method raises ServiceUnavailableError if the database cannot be reached and StoreError if it refuses.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

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

    def save_records(self, records: Sequence[StoredRecord]) -> int:
        """Keep the records whose keys are new; how many those were."""
        with session.write(self._engine) as connection:
            return writes.insert_records(connection, records)

    def save_fingerprints(self, configs: Sequence[FingerprintedConfig]) -> None:
        """Keep the configs that are new; a run or decision can only name a fingerprint that is kept."""
        with session.write(self._engine) as connection:
            writes.insert_fingerprints(connection, configs)

    def save_block(self, result: BlockResult, records: Sequence[StoredRecord]) -> int:
        """Keep a block with its records, runs and timings; how many runs were new."""
        with session.write(self._engine) as connection:
            return writes.insert_block(connection, result, records)

    def append_decisions(self, decisions: Sequence[Decision]) -> None:
        """Append one gate run: a row per decision, a snapshot per test.  Nothing is ever changed."""
        with session.write(self._engine) as connection:
            writes.append_decisions(connection, decisions)

    # reads

    def endpoints(self) -> list[str]:
        """Every endpoint seen, sorted."""
        with session.read(self._engine) as connection:
            return queries.read_endpoints(connection)

    def stored_record_keys(self, source: str) -> set[RecordKey]:
        """Keys of the records kept of one source."""
        with session.read(self._engine) as connection:
            return queries.read_record_keys(connection, source)

    def stored_block_ids(self, source: str | None = None) -> set[str]:
        """Ids of the blocks kept, or of those that hold a run of one source."""
        with session.read(self._engine) as connection:
            return queries.read_block_ids(connection, source)

    def records(self, endpoint: str) -> list[StoredRecord]:
        """The endpoint's records in the order of event time, ties by key."""
        with session.read(self._engine) as connection:
            return queries.read_records(connection, endpoint)

    def blocks(self, endpoint: str) -> list[StoredBlock]:
        """The endpoint's blocks in start order."""
        with session.read(self._engine) as connection:
            return queries.read_blocks(connection, endpoint)

    def runs(self, endpoint: str) -> list[Run]:
        """The endpoint's runs in the start order of their blocks, within a block by key and fingerprint."""
        with session.read(self._engine) as connection:
            return queries.read_runs(connection, endpoint)

    def fingerprints(self) -> dict[str, FingerprintedConfig]:
        """Every config measured, by fingerprint."""
        with session.read(self._engine) as connection:
            return queries.read_fingerprints(connection)

    def latest_decisions(self, endpoint: str | None = None) -> list[Decision]:
        """The last decision on every hypothesis (endpoint x slice x load x fingerprint), sorted by it."""
        with session.read(self._engine) as connection:
            return queries.read_latest_decisions(connection, endpoint)

    def snapshots(self, endpoint: str) -> list[TestSnapshot]:
        """Every test of every gate run, oldest first."""
        with session.read(self._engine) as connection:
            return queries.read_snapshots(connection, endpoint)

    def funnel(self) -> dict[tuple[str | None, FunnelCounter, str | None], int]:
        """Records by (endpoint, counter, reason); they add up to the records consumed."""
        with session.read(self._engine) as connection:
            return queries.read_funnel(connection)

    # exclusion

    @contextmanager
    def endpoint_lock(self, endpoint: str, timeout_s: float = LOCK_TIMEOUT_S) -> Iterator[None]:
        """Exclude every other holder of this endpoint's lock, in any process; not re-entrant.

        Raises:
            StoreError: another holder kept it for longer than `timeout_s`.
        """
        with locks.endpoint_lock(self._engine, endpoint, timeout_s):
            yield

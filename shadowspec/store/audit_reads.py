"""The reads behind replay beside the loop, and the audits that hold the two against each other."""

from __future__ import annotations

from collections.abc import Collection

from sqlalchemy import Engine

from shadowspec.store import audits, backfills, replays, session
from shadowspec.types import AcceptanceSums, BackfilledBlock, FingerprintedConfig, LoopSpan, StoredAudit


class AuditReads:
    """What can be asked of one database about replays and audits.  Times come back in UTC."""

    _engine: Engine

    def replay_configs(self) -> dict[str, FingerprintedConfig]:
        """Every config that logged responses were replayed with, by fingerprint."""
        with session.read(self._engine) as connection:
            return replays.read_replay_configs(connection)

    def replay_sums(self, endpoints: Collection[str]) -> dict[str, list[AcceptanceSums]]:
        """What the newest replays of each of the endpoints add up to, by slice and config; a unit is a session."""
        with session.read(self._engine, timeout_s=session.LONG_TIMEOUT_S) as connection:
            return replays.read_replay_sums(connection, endpoints)

    def backfilled_sums(
        self, sources: Collection[str], fingerprints: Collection[str], endpoints: Collection[str]
    ) -> dict[str, list[AcceptanceSums]]:
        """What the replays of these sources by these configs add up to, likewise."""
        with session.read(self._engine, timeout_s=session.LONG_TIMEOUT_S) as connection:
            return replays.read_source_sums(connection, sources, fingerprints, endpoints)

    def finished_blocks(self, work: str) -> dict[str, tuple[set[int], bool]]:
        """By source the numbers of the blocks that a backfill has finished, and whether these are all that it has."""
        with session.read(self._engine) as connection:
            return backfills.read_finished(connection, work)

    def backfilled_blocks(self, work: str, sources: Collection[str]) -> list[BackfilledBlock]:
        """The blocks of these sources that a backfill has finished."""
        with session.read(self._engine) as connection:
            return backfills.read_blocks(connection, work, sources)

    def loop_sums(self, spans: Collection[LoopSpan]) -> dict[str, list[AcceptanceSums]]:
        """What the loop counted in each of the spans, by their endpoints, which differ; likewise."""
        with session.read(self._engine, timeout_s=session.LONG_TIMEOUT_S) as connection:
            return replays.read_loop_sums(connection, spans)

    def audit_states(self, endpoints: Collection[str]) -> dict[str, list[StoredAudit]]:
        """How far the audits of each of the endpoints have come, by slice ("": the whole endpoint) and config."""
        with session.read(self._engine) as connection:
            return audits.read_states(connection, endpoints)

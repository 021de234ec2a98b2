"""The reads behind replay beside the loop, and the audits that hold the two against each other."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime

from sqlalchemy import Engine

from shadowspec.store import audits, replays, session
from shadowspec.types import AcceptanceSums, FingerprintedConfig, StoredAudit


class AuditReads:
    """What can be asked of one database about replays and audits.  Times come back in UTC."""

    _engine: Engine

    def replay_configs(self) -> dict[str, FingerprintedConfig]:
        """Every config that logged responses were replayed with, by fingerprint."""
        with session.read(self._engine) as connection:
            return replays.read_replay_configs(connection)

    def replay_sums(self, endpoint: str) -> list[AcceptanceSums]:
        """What the endpoint's replayed responses add up to, by slice and config; a unit is a session."""
        with session.read(self._engine, timeout_s=session.LONG_TIMEOUT_S) as connection:
            return replays.read_replay_sums(connection, endpoint)

    def loop_sums(
        self, endpoint: str, fingerprints: Collection[str], since: datetime, until: datetime
    ) -> list[AcceptanceSums]:
        """What the loop counted with these configs at event times from `since` to `until`, both included, likewise."""
        with session.read(self._engine, timeout_s=session.LONG_TIMEOUT_S) as connection:
            return replays.read_loop_sums(connection, endpoint, fingerprints, since, until)

    def audit_states(self, endpoint: str) -> list[StoredAudit]:
        """How far the endpoint's audits have come, by slice ("": the whole endpoint) and config."""
        with session.read(self._engine) as connection:
            return audits.read_states(connection, endpoint)

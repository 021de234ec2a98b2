"""What is kept: records, runs, decisions and their snapshots, in SQLite or Postgres by the same code.

Every write is one transaction and idempotent on the record's key (with the fingerprint added: on the run),
so that redelivery changes nothing.  No prompt text is stored.
"""

from shadowspec.store.schema import check, current, head, upgrade
from shadowspec.store.snapshots import TestSnapshot
from shadowspec.store.store import Store

__all__ = ["Store", "TestSnapshot", "check", "current", "head", "upgrade"]

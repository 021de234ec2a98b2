"""The database: SQLite or Postgres by the same code. Every write is one transaction, and idempotent by the record's
key.

In: batches of rows, decisions, overrides and jobs.
Out: rows, rollups and evidence.
Imports: metrics, types, errors.

A run's key is its record's with the fingerprint added, so redelivery changes nothing.  No prompt text is stored.
"""

from shadowspec.store.admin.retention import Removal
from shadowspec.store.admin.schema import check, current, head, upgrade
from shadowspec.store.histograms import Histogram, Quantile
from shadowspec.store.read.board_reads import LookPoint, Pulse
from shadowspec.store.read.change_reads import AdviceChange, VerdictChange
from shadowspec.store.read.rollup_reads import GroupSums
from shadowspec.store.read.run_pages import RunFilter, RunPage
from shadowspec.store.rollups import METRICS, SHARE_WINDOW, Rollup, RollupKey, RollupSums, Traffic
from shadowspec.store.store import Store
from shadowspec.types import RoleKind

__all__ = [
    "METRICS",
    "SHARE_WINDOW",
    "AdviceChange",
    "GroupSums",
    "Histogram",
    "LookPoint",
    "Pulse",
    "Quantile",
    "Removal",
    "RoleKind",
    "Rollup",
    "RollupKey",
    "RollupSums",
    "RunFilter",
    "RunPage",
    "Store",
    "Traffic",
    "VerdictChange",
    "check",
    "current",
    "head",
    "upgrade",
]

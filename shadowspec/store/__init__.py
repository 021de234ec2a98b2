"""What is kept: records, runs, decisions and their snapshots, in SQLite or Postgres by the same code.

Every write is one transaction and idempotent on the record's key (with the fingerprint added: on the run),
so that redelivery changes nothing.  No prompt text is stored.
"""

from shadowspec.store.board_reads import Input, LookPoint, Pulse
from shadowspec.store.changes import AdviceChange, VerdictChange
from shadowspec.store.grants import RoleKind
from shadowspec.store.histograms import Histogram, Quantile
from shadowspec.store.retention import Removal
from shadowspec.store.rollup_sums import GroupSums
from shadowspec.store.rollups import METRICS, SHARE_WINDOW, Rollup, RollupKey, RollupSums, Traffic
from shadowspec.store.run_pages import RunFilter, RunPage
from shadowspec.store.schema import check, current, head, upgrade
from shadowspec.store.session import with_password
from shadowspec.store.snapshots import TestSnapshot
from shadowspec.store.store import Store

__all__ = [
    "METRICS",
    "SHARE_WINDOW",
    "AdviceChange",
    "GroupSums",
    "Histogram",
    "Input",
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
    "TestSnapshot",
    "Traffic",
    "VerdictChange",
    "check",
    "current",
    "head",
    "upgrade",
    "with_password",
]

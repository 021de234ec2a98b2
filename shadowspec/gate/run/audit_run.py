"""Adds new audited runs to an endpoint's audits, and orders HOLD where an audit alarms.

An alarm means that the engine or the estimator is wrong, so neither may support an ENABLE.  The gate then
sets an override as an operator would, and every user of decisions obeys it.  The override stays until an operator
clears it.  The gate does not set it again for the same slice and config.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from shadowspec.gate.run.audit_difference import AuditState
from shadowspec.text import slice_title
from shadowspec.types import AUDITOR, AuditedRun, AuditedUnit, Override, OverrideRecord, StoredAudit, Verdict

Cell = tuple[str, str]  # slice ("": the whole endpoint) and fingerprint


class AuditTransaction(Protocol):
    """One transaction over an endpoint's audits."""

    def take(self) -> list[AuditedUnit]:
        """The runs that none took in yet, marked as taken in."""

    def states(self) -> list[StoredAudit]:
        """The state of each audit so far."""

    def save(self, changed: Sequence[StoredAudit]) -> None:
        """Store the audits' new states."""


class AuditStore(Protocol):
    """The audits' part of a store."""

    def audit_session(self, endpoint: str) -> AbstractContextManager[AuditTransaction]:
        """A transaction that commits at the end, or leaves nothing behind if an exception leaves it."""

    def overrides(self, endpoint: str | None = None) -> list[OverrideRecord]:
        """Every override ever set, with when and by whom it was cleared."""

    def add_override(self, override: Override) -> int:
        """Append an override; its id."""


@dataclass(frozen=True, slots=True)
class CellAudit:
    """The audit of one slice ("": the whole endpoint) and config."""

    slice_key: str
    fingerprint: str
    state: AuditState


def run_audits(store: AuditStore, endpoint: str, now: datetime) -> list[CellAudit]:
    """The endpoint's audits after all stored runs, in the order in which they began.

    1. Add the new runs; 2. order HOLD for each alarm for which none was ordered before.  The caller holds
    the endpoint's lock, as a gate run does.
    """
    with store.audit_session(endpoint) as session:
        before, new = session.states(), session.take()
        states = {(audit.slice_key, audit.fingerprint): AuditState.of(audit.document) for audit in before}
        changed = fold_units(states, new, now)
        session.save([StoredAudit(*cell, state.document()) for cell, state in changed.items()])
    audits = _in_order(states | changed)
    for order in _orders(endpoint, audits, store.overrides(endpoint) if _select_alarmed(audits) else (), now):
        store.add_override(order)
    return audits


def stored_audits(states: Iterable[StoredAudit]) -> list[CellAudit]:
    """Audits as the store keeps them, in the order in which they began."""
    return _in_order({(state.slice_key, state.fingerprint): AuditState.of(state.document) for state in states})


def fold_units(states: Mapping[Cell, AuditState], new: Sequence[AuditedUnit], now: datetime) -> dict[Cell, AuditState]:
    """The states that `new` units change: a unit testifies for its slice, and for the whole endpoint."""
    runs: dict[Cell, list[AuditedRun]] = defaultdict(list)
    for unit in new:
        for slice_key in dict.fromkeys(("", unit.slice_key)):
            runs[slice_key, unit.run.fingerprint].append(unit.run)
    changed: dict[Cell, AuditState] = {}
    for cell, run in runs.items():
        begun = len(states) + sum(name not in states for name in changed)
        changed[cell] = states.get(cell, AuditState(place=begun + 1)).fold(run, now)
    return changed


def alarm_words(audit: CellAudit) -> str:
    """One sentence that describes an alarm."""
    where = slice_title(audit.slice_key)
    return f"audit alarm: the engine accepts otherwise than replay expects, {_config_words(audit)} {where}"


def _config_words(audit: CellAudit) -> str:
    """The part of an alarm's sentence by which a stored order is known to be of this config."""
    return f"config {audit.fingerprint[:12]},"


def _select_alarmed(audits: Iterable[CellAudit]) -> list[CellAudit]:
    return [audit for audit in audits if audit.state.has_alarmed]


def _orders(
    endpoint: str, audits: Iterable[CellAudit], records: Iterable[OverrideRecord], now: datetime
) -> list[Override]:
    """The orders that alarms ask for and that were never set, cleared ones included."""
    said = [record.override for record in records if record.override.author == AUDITOR]
    return [
        Override(
            override_id=0,
            endpoint=endpoint,
            slice_key=audit.slice_key,
            concurrency=None,
            verdict=Verdict.HOLD,
            reason=alarm_words(audit),
            author=AUDITOR,
            created_at=now,
            expires_at=None,
        )
        for audit in _select_alarmed(audits)
        if not any(order.slice_key == audit.slice_key and _config_words(audit) in order.reason for order in said)
    ]


def _in_order(states: Mapping[Cell, AuditState]) -> list[CellAudit]:
    audits = [CellAudit(*cell, state) for cell, state in states.items()]
    return sorted(audits, key=lambda audit: audit.state.place)

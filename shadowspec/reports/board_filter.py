"""Which rows of a board are asked for, and in which order."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime

from shadowspec.reports.board import Board, BoardEndpoint, BoardRow
from shadowspec.types import Verdict

UNDECIDED = "undecided"
_VERDICT_ORDER = {Verdict.ENABLE: 0, Verdict.DISABLE: 1, Verdict.HOLD: 2, None: 3}


@dataclass(frozen=True, slots=True)
class BoardFilter:
    """What a row must be; what is empty asks for nothing.

    `verdicts` are the words, "undecided" for none; `models` names of configs, targets or drafts; `labels` the values
    allowed of each slice label; `search` any part of a name, label, config or reason.
    """

    search: str = ""
    endpoints: frozenset[str] = frozenset()
    verdicts: frozenset[str] = frozenset()
    models: frozenset[str] = frozenset()
    labels: Mapping[str, frozenset[str]] = field(default_factory=dict)

    @property
    def is_empty(self) -> bool:
        return not (self.search.strip() or self.endpoints or self.verdicts or self.models or any(self.labels.values()))

    def matches(self, row: BoardRow) -> bool:
        """Whether the row is all that is asked for."""
        if self.endpoints and row.endpoint not in self.endpoints:
            return False
        if self.verdicts and (UNDECIDED if row.verdict is None else row.verdict.value) not in self.verdicts:
            return False
        if self.models and not self.models & set(models_of(row)):
            return False
        own = row.labels
        if any(wanted and own.get(name) not in wanted for name, wanted in self.labels.items()):
            return False
        text = " ".join((row.endpoint, row.slice_key, *models_of(row), row.reason)).casefold()
        return all(word in text for word in self.search.casefold().split())


@dataclass(frozen=True, slots=True)
class Found:
    """What of a board matches: endpoints with the rows that do, and the names of those that match only below."""

    endpoints: tuple[BoardEndpoint, ...]
    opened: frozenset[str]
    num_rows: int


def found_in(board: Board, wanted: BoardFilter, sort: str) -> Found:
    """The endpoints of which any row matches, each with the rows that do (all of them where nothing is asked for)."""
    shown, opened, number = [], set(), 0
    for endpoint in board.endpoints:
        rows = tuple(row for row in endpoint.rows if wanted.matches(row))
        if rows or wanted.matches(endpoint.head):
            is_head = wanted.matches(endpoint.head)
            number += len(rows) + is_head
            shown.append(replace(endpoint, rows=rows))
            if not is_head:
                opened.add(endpoint.name)
    order = SORTS.get(sort, SORTS["verdict"])
    return Found(tuple(sorted(shown, key=lambda own: (order(own.head), own.name))), frozenset(opened), number)


def models_of(row: BoardRow) -> tuple[str, ...]:
    """The names under which a row's models are looked for: of the config, the target and the draft."""
    if row.config is None:
        return ()
    return tuple(name for name in (row.config.name, row.config.target, row.config.draft) if name)


def label_values(board: Board) -> dict[str, list[str]]:
    """Every slice label of the board with its values, sorted."""
    found: dict[str, set[str]] = {}
    for row in board.rows:
        for name, value in row.labels.items():
            found.setdefault(name, set()).add(value)
    return {name: sorted(values) for name, values in sorted(found.items())}


def _falling(value: float | None) -> float:
    """Large values first, what is not known last."""
    return math.inf if value is None else -value


def _oldest_first(at: datetime | None) -> float:
    return math.inf if at is None else at.timestamp()


SORTS: dict[str, Callable[[BoardRow], float]] = {
    "verdict": lambda row: _VERDICT_ORDER[row.verdict],
    "name": lambda _row: 0.0,
    "speedup": lambda row: _falling(None if row.speedup is None else row.speedup.lower),
    "acceptance": lambda row: _falling(None if row.acceptance is None else row.acceptance.lower),
    "tail": lambda row: _falling(None if row.tail is None else row.tail.estimate),
    "saving": lambda row: _falling(None if row.saving is None else row.saving.share),
    "evidence": lambda row: _oldest_first(row.evidence_at),
    "needed": lambda row: math.inf if row.clusters_needed is None else row.clusters_needed,
}

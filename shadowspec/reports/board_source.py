"""Reads what a board is built of, from a store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Protocol

from shadowspec.reports.board import BoardValues
from shadowspec.reports.board_sums import DAY_SUMS, TREND_DAYS
from shadowspec.store import GroupSums, Input
from shadowspec.store.rollup_sums import Step
from shadowspec.types import Decision, FingerprintedConfig, Rollout


class BoardStore(Protocol):
    """What a board needs of a store."""

    def named_endpoints(self) -> Sequence[str]:
        """Every endpoint that was counted or folded."""
        ...

    def latest_decisions(self, endpoint: str | None = None) -> Sequence[Decision]:
        """The last decision on every hypothesis."""
        ...

    def fingerprints(self) -> Mapping[str, FingerprintedConfig]:
        """Every config measured, by fingerprint."""
        ...

    def rollup_hours(self, endpoint: str) -> tuple[datetime, datetime] | None:
        """The first and the last hour of which the endpoint has a rollup."""
        ...

    def group_sums(
        self,
        endpoint: str,
        since: datetime | None = None,
        until: datetime | None = None,
        *,
        step: Step | None = None,
        slice_key: str | None = None,
        names: Sequence[str] = (),
    ) -> Sequence[GroupSums]:
        """What rollups add up to by slice, config and load, and by day; the sums of these names alone."""
        ...

    def inputs(self) -> Mapping[str, Input]:
        """How far the input of every endpoint has come."""
        ...

    def rollouts(self, endpoint: str | None = None) -> Sequence[Rollout]:
        """Where every endpoint stands at each load."""
        ...


def board_values(
    store: BoardStore, prices: Mapping[str, float | None], loads: Mapping[str, Mapping[int, float]]
) -> BoardValues:
    """Everything that a board needs; `prices` and `loads` are the configured endpoints'."""
    endpoints = sorted({*store.named_endpoints(), *loads})
    newest = [hours[1] for name in endpoints if (hours := store.rollup_hours(name)) is not None]
    newest_day = max(newest).astimezone(UTC).date() if newest else None
    days: list[GroupSums] = []
    if newest_day is not None:
        since = datetime(newest_day.year, newest_day.month, newest_day.day, tzinfo=UTC) - timedelta(days=TREND_DAYS - 1)
        days = [sums for name in endpoints for sums in store.group_sums(name, since, step="day", names=DAY_SUMS)]
    return BoardValues(
        endpoints=endpoints,
        decisions=store.latest_decisions(),
        configs=store.fingerprints(),
        days=days,
        inputs=store.inputs(),
        rollouts=store.rollouts(),
        newest_day=newest_day,
        prices=prices,
        loads=loads,
    )

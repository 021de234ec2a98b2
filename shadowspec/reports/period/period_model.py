"""The values of a report on a span of time: the changes in it, and the state at its end.

Everything is as it was at `until`, but for what is kept only as it is now: the funnel, which says so.  Undefined is
None.  No value here holds prompt text.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Final
from urllib.parse import urlencode

from shadowspec.errors import UsageError
from shadowspec.gate.verdict.hold_reasons import StillNeeded
from shadowspec.reports.content.changes import Change, ChangeKind, moves_traffic
from shadowspec.reports.figures.funnel import Funnel
from shadowspec.types import TestResult, Verdict

GATE_DONE = "done"


@dataclass(frozen=True, slots=True)
class PeriodRow:
    """One hypothesis at the end of the time.  `verdict` was in force, `measured_verdict` is the gate's."""

    endpoint: str
    slice_key: str
    concurrency: int
    config_name: str
    fingerprint: str
    engine: str  # what its latency was measured on
    verdict_engine: str  # what the verdict is for
    verdict: Verdict
    measured_verdict: Verdict
    is_overridden: bool
    reason_code: str
    reason: str
    since: datetime | None
    speedup: TestResult | None
    total_time: TestResult | None
    acceptance: TestResult | None
    num_blocks: int
    num_clusters: int
    traffic_share: float | None
    stage: str | None  # of the endpoint's rollout at this load, beside the config that is rolled out
    decision_id: int | None
    decided_at: datetime


@dataclass(frozen=True, slots=True)
class Need:
    """The evidence that one undecided hypothesis still needs.

    `needed` is the gate's estimate.  The rest is the plan's simulated futures, which are known only until the next gate
    run, and None after it: measured sessions and days until half (90%) of them are decided, and the shares that end in
    either verdict.
    """

    endpoint: str
    slice_key: str
    concurrency: int
    config_name: str
    reason_code: str
    reason: str
    needed: StillNeeded | None
    open_tests: tuple[tuple[str, str, int | None], ...]  # name, unit, units still needed (None: cannot be said)
    decision_id: int | None
    is_planned: bool = False
    clusters_median: float | None = None
    clusters_late: float | None = None
    days_median: float | None = None
    days_late: float | None = None
    enable_share: float | None = None
    disable_share: float | None = None


@dataclass(frozen=True, slots=True)
class SimulatedRate:
    """How often a simulation of the same policy gave any false ENABLE, over all worlds in which none is right."""

    num_false: int
    num_repetitions: int
    upper: float  # of the rate, 95%
    alpha: float  # what the policy promises
    num_worlds: int
    num_outdated: int  # worlds that have been changed since they were simulated
    worst_world: str
    worst_rate: float


@dataclass(frozen=True, slots=True)
class Quality:
    """What one endpoint's evidence was like.

    `num_measured` and `num_failed` are runs whose requests came within the time, by whole hours; the rest is of the
    last look at the endpoint before its end.  `watermark` is up to when traffic was known to be complete.
    """

    endpoint: str
    num_measured: int
    num_failed: int
    last_look: datetime | None
    newest_evidence: datetime | None
    watermark: datetime | None
    watermark_held_by: str | None
    num_late: int | None
    num_lost: int | None
    beyond_share: float | None  # requests too late in their session to be timed, of all
    missing_share: float | None
    max_missing: float | None
    simulated: SimulatedRate | None


@dataclass(frozen=True, slots=True)
class PeriodReport:
    """The whole report.  `since` is part of its time, `until` is not."""

    title: str
    data_note: str
    since: datetime
    until: datetime
    generated_at: datetime
    report_id: str  # the same however often it is made
    changes: tuple[Change, ...]  # by kind, each oldest first
    has_left_out: bool  # more changed than is listed
    board: tuple[PeriodRow, ...]
    needs: tuple[Need, ...]
    quality: tuple[Quality, ...]
    total_funnel: Funnel
    gate_outcome: str | None  # "done", or the class of what kept the scheduled gate from running
    dashboard_url: str | None = None

    def evidence_url(self, change: Change) -> str | None:
        """The address of a change's evidence in the dashboard; None where the dashboard has none."""
        if self.dashboard_url is None:
            return None
        selection = {
            "endpoint": change.endpoint,
            "slice": change.slice_key,
            "load": change.concurrency,
            "config": change.fingerprint and change.fingerprint[:12],
        }
        query = urlencode({name: value for name, value in selection.items() if value})
        return f"{self.dashboard_url.rstrip('/')}/evidence?{query}"

    @property
    def has_gate_failed(self) -> bool:
        """Whether a gate run was to go before the report and did not come to its end."""
        return self.gate_outcome not in (None, GATE_DONE)

    @property
    def tally(self) -> Mapping[Verdict, int]:
        """The number of hypotheses at each verdict."""
        return {verdict: sum(row.verdict is verdict for row in self.board) for verdict in Verdict}

    def num_of(self, *kinds: ChangeKind) -> int:
        """How many changes of these kinds there were."""
        return sum(change.kind in kinds for change in self.changes)

    @property
    def summary(self) -> str:
        """One line for a subject: what somebody should look at first, or that nothing changed."""
        parts = [
            f"{number} {noun}{'' if number == 1 else 's'}"
            for noun, number in (
                ("alarm", self.num_of(ChangeKind.ALARM)),
                ("override", self.num_of(ChangeKind.OVERRIDE_SET)),
                ("verdict change", self.num_of(ChangeKind.VERDICT)),
                ("rollout step", sum(moves_traffic(change) for change in self.changes)),
            )
            if number
        ]
        return ", ".join(parts) or "nothing changed"


DAY: Final = timedelta(days=1)
NAMED: Final = ("day", "week")


def last_whole(name: str, now: datetime, zone: tzinfo) -> tuple[datetime, datetime]:
    """The last whole day, or the last whole week from Monday on, of a time zone; in UTC, the end left out."""
    if name not in NAMED:
        raise UsageError(f"there is no span {name!r}: there are {', '.join(NAMED)}")
    today = now.astimezone(zone).replace(hour=0, minute=0, second=0, microsecond=0, tzinfo=None)
    end = today if name == "day" else today - DAY * today.weekday()
    start = end - (DAY if name == "day" else 7 * DAY)
    return _utc(start, zone), _utc(end, zone)


def moment_of(text: str, zone: tzinfo, what: str) -> datetime:
    """An ISO 8601 moment in UTC; without an offset it is of the zone.

    Raises:
        UsageError: it is written otherwise.
    """
    try:
        at = datetime.fromisoformat(text)
    except ValueError as error:
        raise UsageError(f"{what} must be a date or a time as 2026-03-02 or 2026-03-02T09:30Z, not {text!r}") from error
    return _utc(at, zone) if at.tzinfo is None else at.astimezone(UTC)


def _utc(local: datetime, zone: tzinfo) -> datetime:
    return local.replace(tzinfo=zone).astimezone(UTC)

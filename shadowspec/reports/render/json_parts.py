"""Parts that the JSON documents of reports and gate runs share: verdicts, tests, audits, and where records ended."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any, Self

from shadowspec.reports.figures.funnel import Funnel
from shadowspec.reports.figures.replay_rows import AuditRow
from shadowspec.types import Decision, Figure, FunnelCounter, TestResult, Verdict
from shadowspec.types.decision_documents import shown_details, shown_test_details
from shadowspec.types.public_documents import Labels, PublicValue, public, shows


@shows(TestResult, "num_units", "is_required", "dependence", "betting", "figures")
class TestPart(PublicValue, frozen=True, kw_only=True):
    """A test; `details` are figures for people, of which the gate's own are some."""

    __test__ = False  # a value, not a pytest class

    details: Mapping[str, Figure]

    @classmethod
    def of(cls, value: TestResult) -> Self:
        return public(cls, value, details=shown_test_details(value))


class ReportedTest(TestPart, frozen=True, kw_only=True):
    """A test of a reported decision."""

    num_units: int


class ReportedDecision(PublicValue, frozen=True, kw_only=True):
    """A decision without its place, which the hypothesis has; `details` are its figures, each by its name."""

    verdict: Verdict
    reason_code: str
    reason: str
    num_clusters: int
    num_blocks: int
    clusters_needed: int | None
    recording_only: bool
    decided_at: datetime
    tests: Sequence[ReportedTest]
    details: Mapping[str, Figure]

    @classmethod
    def of(cls, value: Decision) -> Self:
        return public(cls, value, details=shown_details(value))


class AuditPart(PublicValue, frozen=True, kw_only=True):
    """The audit of loop against replay for one slice and config; of its state only what it says."""

    slice: Labels
    config: Annotated[str, "config_name"]
    fingerprint: str
    num_units: int
    num_refused: int
    difference: float | None
    log10_threshold: float
    alarmed_at: datetime | None
    log10_capital: Annotated[float, "log10_peak"]
    level: float  # of both directions
    is_alarm: Annotated[bool, "has_alarmed"]

    @classmethod
    def of(cls, value: AuditRow, **given: Any) -> Self:
        return public(cls, value, value.state, level=2.0 * value.state.level, **given)


class FunnelPart(PublicValue, frozen=True, kw_only=True):
    """Where records ended: all counters, and the reasons of those that have any."""

    num_records: int
    counters: Mapping[FunnelCounter, int]
    reasons: Mapping[FunnelCounter, Mapping[str, int]]

    @classmethod
    def of(cls, value: Funnel) -> Self:
        return public(
            cls,
            value,
            counters={row.counter: row.num_records for row in value.rows},
            reasons={row.counter: dict(row.reasons) for row in value.rows if row.reasons},
        )

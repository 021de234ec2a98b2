"""The report on a span of time as one JSON document; an undefined figure is null."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Annotated, Self

from msgspec import UNSET, UnsetType

from shadowspec.reports.content.changes import Change
from shadowspec.reports.period.period_model import Need, PeriodReport, PeriodRow, Quality
from shadowspec.reports.render.json_parts import FunnelPart
from shadowspec.types import Verdict
from shadowspec.types.codec import encode
from shadowspec.types.public_documents import PublicDocument, PublicValue, public, shows


@shows(Change, "who")
class ChangePart(PublicValue, frozen=True, kw_only=True):
    """One change; `evidence_url` leads to its evidence where the dashboard has an address."""

    evidence_url: str | UnsetType = UNSET


class IntervalPart(PublicValue, frozen=True, kw_only=True):
    """A test's interval: the decision has the rest."""

    estimate: float | None
    lower: float | None
    upper: float | None
    threshold: float | None
    num_units: int
    unit: str


@shows(PeriodRow)
class RowPart(PublicValue, frozen=True, kw_only=True):
    """One hypothesis at the end of the time."""

    speedup: IntervalPart | None
    total_time: IntervalPart | None
    acceptance: IntervalPart | None


class OpenTest(PublicValue, frozen=True, kw_only=True):
    """A test that has not passed; null: how many more units it needs cannot be said."""

    name: str
    unit: str
    units_needed: int | None

    @classmethod
    def of(cls, value: tuple[str, str, int | None]) -> Self:
        return cls(name=value[0], unit=value[1], units_needed=value[2])


@shows(Need)
class NeedPart(PublicValue, frozen=True, kw_only=True):
    """The evidence that an undecided hypothesis still needs, and the shares of simulated outcomes."""

    clusters_needed: Annotated[int | None, "needed.sessions"]
    seconds_needed: Annotated[float | None, "needed.seconds"]
    open_tests: Sequence[OpenTest]


class PeriodDocument(PublicDocument, frozen=True, kw_only=True):
    """The whole report: the state at its end with the names that readers rely on, without what draws its pages."""

    report_id: str
    title: str
    data_note: str
    since: datetime
    until: datetime
    generated_at: datetime
    summary: str
    gate_outcome: str | None
    has_left_out: bool
    verdicts: Annotated[Mapping[Verdict, int], "tally"]
    changes: Sequence[ChangePart]
    board: Sequence[RowPart]
    undecided: Annotated[Sequence[NeedPart], "needs"]
    evidence: Annotated[Sequence[Quality], "quality"]
    funnel: Annotated[FunnelPart, "total_funnel"]


def render_period_json(report: PeriodReport) -> str:
    """The whole report."""
    urls = [(change, report.evidence_url(change)) for change in report.changes]
    changes = [public(ChangePart, change, evidence_url=UNSET if url is None else url) for change, url in urls]
    return encode(public(PeriodDocument, report, changes=changes)).decode()

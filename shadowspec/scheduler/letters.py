"""What is delivered: a report with the keys that tell a repeat of it."""

from __future__ import annotations

from dataclasses import dataclass

from shadowspec.reports.period.model import PeriodReport
from shadowspec.types import Delivery


@dataclass(frozen=True, slots=True)
class Letter:
    """One report on its way to one receiver."""

    delivery: Delivery
    report: PeriodReport

    @property
    def subject(self) -> str:
        """One line: which endpoints it is about stands in the report."""
        return f"ShadowSpec {self.delivery.job}: {self.report.summary}"

    @property
    def file_stem(self) -> str:
        """The same for every repeat, and in the order of time."""
        return f"{self.delivery.job}-{self.delivery.due_at:%Y%m%dT%H%M%SZ}"

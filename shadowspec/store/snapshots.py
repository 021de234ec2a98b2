"""One test of one hypothesis as one gate run left it: a point of the sequence that reports draw."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from shadowspec.types import TestResult, Verdict


@dataclass(frozen=True, slots=True)
class TestSnapshot:
    """A test result with the hypothesis and the look that it belongs to."""

    __test__ = False  # a value, not a pytest class

    endpoint: str
    slice_key: str
    concurrency: int
    fingerprint: str
    decided_at: datetime  # aware, UTC
    verdict: Verdict  # of the whole hypothesis at that look
    result: TestResult

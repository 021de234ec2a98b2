"""What the gate concluded, as a report draws it: intervals from test results, paths from the gate's own series."""

from __future__ import annotations

from shadowspec.reports.model import Interval
from shadowspec.types import Decision


def interval(decision: Decision | None, test_name: str) -> Interval | None:
    """The named test's estimate and bounds as the gate reported them; None where it was not run."""
    tests = decision.tests if decision else ()
    test = next((each for each in tests if each.name == test_name), None)
    if test is None:
        return None
    return Interval(test.estimate, test.lower, test.upper, test.threshold, test.num_units, test.unit)

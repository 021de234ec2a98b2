"""What the gate concluded, as a report draws it: intervals from test results, paths from the gate's own series."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from shadowspec.gate.policy import GatePolicy
from shadowspec.gate.sequences import SequencePoint
from shadowspec.gating import EndpointEvidence, HypothesisId, endpoint_sequences, hypothesis_id
from shadowspec.reports.model import Interval
from shadowspec.types import Decision

DRAWN_TESTS = ("speedup", "acceptance", "tail")


def interval(decision: Decision | None, test_name: str) -> Interval | None:
    """The named test's estimate and bounds as the gate reported them; None where it was not run."""
    tests = decision.tests if decision else ()
    test = next((each for each in tests if each.name == test_name), None)
    if test is None:
        return None
    return Interval(test.estimate, test.lower, test.upper, test.threshold, test.num_units, test.unit)


def sequences(
    evidence: EndpointEvidence, policy: GatePolicy | None, decisions: Sequence[Decision]
) -> dict[HypothesisId, Mapping[str, tuple[SequencePoint, ...]]]:
    """The path of each drawn test up to the units that the standing decision rests on.

    Units enter in an order fixed by event times, so that what a decision saw is the beginning of what is there
    once every cluster is closed.
    """
    if policy is None or not decisions:
        return {}
    paths = endpoint_sequences(evidence, policy, decisions, input_ended=True)
    seen = {hypothesis_id(d): {test.name: test.num_units for test in d.tests} for d in decisions}
    return {
        key: {
            name: tuple(point for point in by_test[name] if point.num_units <= seen[key].get(name, 0))
            for name in DRAWN_TESTS
            if name in by_test
        }
        for key, by_test in paths.items()
    }

"""What stands under a decision's reason."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from shadowspec.reports.notes import decision_notes
from shadowspec.types import Decision, Verdict
from tests.gate.worlds import CONFIG, ENDPOINT, START

Value = float | int | str | None


def noted(details: Mapping[str, Value], verdict: Verdict = Verdict.ENABLE) -> list[str]:
    plain = Decision(ENDPOINT, "", 4, CONFIG.config, CONFIG.fingerprint, verdict, "", "", (), 0, 0, None, START)
    return decision_notes(replace(plain, details=details))


@pytest.mark.parametrize(
    ("details", "said"),
    [
        ({"num_restarts": 2, "level": 0.00125}, "Run 3 of its tests, on evidence of its own, at level 0.0013."),
        ({"drift_speedup_units": 1_200}, "Watched for drift over 1,200 blocks since ENABLE, without an alarm."),
        ({"drift_advice": "speedup"}, "Advice: speedup has come down from where it stood at ENABLE."),
        ({"is_named": 0}, "Another config has a better lower bound of speedup here and is the one named."),
        (
            {"is_shown_under_parent": 1, "covering_verdict": "ENABLE"},
            "It has no level of its own, so the verdict on the whole endpoint, ENABLE, covers it.",
        ),
        (
            {"mix_speedup_lower": 1.1, "mix_speedup_upper": 1.4, "mix_speedup_known_share": 0.8},
            "Under the current traffic the slices' own bounds give a speedup of [1.10\u00d7, 1.40\u00d7]; "
            "80.0% of the traffic has such a bound.",
        ),
        ({"change_of_acceptance": "from 0.6 to 0.5"}, "Acceptance since ENABLE: from 0.6 to 0.5."),
    ],
)
def test_each_detail_is_said(details: dict[str, Value], said: str) -> None:
    assert noted(details) == [said]


@pytest.mark.parametrize(
    "details",
    [
        {},
        {"num_restarts": 0, "level": 0.0025, "is_named": 1, "is_shown_under_parent": 0, "drift_speedup_units": 0},
        {"mix_speedup_lower": 0.5, "mix_speedup_upper": 2.0, "mix_speedup_known_share": 0.0},
        {"num_restarts": 1, "level": 0.0025, "superseded_by": "two"},
    ],
)
def test_nothing_is_said_of_the_ordinary(details: dict[str, Value]) -> None:
    assert noted(details) == []


def test_detectors_are_not_spoken_of_after_their_alarm() -> None:
    assert noted({"drift_speedup_units": 80, "drift_advice": "speedup", "is_named": 0}, Verdict.DISABLE) == []

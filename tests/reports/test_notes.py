"""What stands under a decision's reason."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from shadowspec.gate.verdict.current_verdict import for_what_serves
from shadowspec.reports.content.notes import TRIAL_NOTE, decision_notes
from shadowspec.reports.report import (
    build_report,
    render_html,
    render_json,
    render_markdown,
    terminal_tables,
    verdict_tables,
)
from shadowspec.types import (
    CachedPrompts,
    Composition,
    Decision,
    DetectorFigures,
    DriftFigures,
    EvidenceSummary,
    MixChange,
    RateChange,
    SliceCounts,
    SliceCover,
    Supersession,
    Trial,
    Verdict,
    WeightedBounds,
)
from tests.builders.pages import Page
from tests.builders.printed_reports import printed
from tests.builders.report_worlds import POLICY, judged, world
from tests.gate.worlds import CONFIG, ENDPOINT, GRAPH, START
from tests.reports.worlds import NOW

CHANGED = Composition(
    is_named=True, mix_change=MixChange(0.1, False, {"acceptance": RateChange(0.0, -0.1, "from 0.6 to 0.5")})
)


def drift(num_units: int, advice: str | None = None) -> DriftFigures:
    return DriftFigures(4.6, advice, {"speedup": DetectorFigures(num_units, 0.1)})


def covered(cover: SliceCover) -> Composition:
    return Composition(is_named=True, cover=cover)


def bounded(bounds: WeightedBounds) -> Composition:
    return Composition(is_named=True, bounds={"speedup": bounds})


def noted(changes: Mapping[str, Any], verdict: Verdict = Verdict.ENABLE) -> list[str]:
    plain = Decision(ENDPOINT, "", 4, CONFIG.config, CONFIG.fingerprint, verdict, "", "", (), 0, 0, None, START)
    return decision_notes(replace(plain, **changes))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"run": Trial(0.01, 0.00125, GRAPH, 2)}, "Run 3 of its tests, on separate evidence, at level 0.0013."),
        ({"drift": drift(1_200)}, "The gate has watched 1,200 blocks since ENABLE for drift, without an alarm."),
        ({"drift": drift(0, "speedup")}, "Advice: speedup is lower than at ENABLE."),
        (
            {"composition": Composition(is_named=False)},
            "Another config has a better lower bound of speedup here and is the one named.",
        ),
        (
            {"composition": covered(SliceCover(0.1, True, Verdict.ENABLE))},
            "It has no level, so that the verdict on the whole endpoint (ENABLE) covers it.",
        ),
        (
            {"composition": bounded(WeightedBounds(1.1, 1.4, 0.8))},
            "Under the current traffic, the slices' bounds give a speedup of [1.10\u00d7, 1.40\u00d7]; "
            "80.0% of the traffic has such a bound.",
        ),
        (
            {"evidence": EvidenceSummary(counts=SliceCounts(num_arrived=200, num_beyond=30))},
            "15.0% of its requests are never timed, because they come after timed_positions in their session. "
            "The verdict assumes that they are like the others.",
        ),
        (
            {"evidence": EvidenceSummary(counts=SliceCounts(num_compared_prompts=1_000, num_other_prompts=0))},
            "Production's server counts another length of 0.0% of the 1,000 prompts that it counted.",
        ),
        (
            {"evidence": EvidenceSummary(counts=SliceCounts(cached=CachedPrompts(100, 1_000, 700, 500, 250)))},
            "Of the prompt tokens of 100 requests, production's prefix cache held 70.0%, the baseline's 50.0% and the "
            "speculative one's 25.0%.",
        ),
        ({"composition": CHANGED}, "Acceptance since ENABLE: from 0.6 to 0.5."),
    ],
)
def test_each_detail_is_said(changes: dict[str, Any], said: str) -> None:
    assert noted(changes) == [said]


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {
            "run": Trial(0.005, 0.0025, GRAPH),
            "composition": covered(SliceCover(0.1, False, Verdict.ENABLE)),
            "drift": drift(0),
        },
        {"composition": bounded(WeightedBounds(0.5, 2.0, 0.0))},
        {"run": Trial(0.01, 0.0025, GRAPH, 1), "supersession": Supersession("two", Verdict.ENABLE)},
    ],
)
def test_nothing_is_said_of_the_ordinary(changes: dict[str, Any]) -> None:
    assert noted(changes) == []


def test_detectors_are_not_spoken_of_after_their_alarm() -> None:
    assert noted({"drift": drift(80, "speedup"), "composition": Composition(False)}, Verdict.DISABLE) == []


def test_every_form_marks_the_verdicts_of_a_trial_policy() -> None:
    source = judged(world())
    policy = replace(POLICY, recording_only=True)
    source.decisions = for_what_serves(source.latest_decisions(), policy)
    report = build_report(source, {"editor": policy}, NOW, data_note="Made up.")
    decisions = [h.decision for h in report.hypotheses if h.decision is not None]
    # Once under the heading, and once with each verdict.
    assert Page(render_html(report)).text.count(TRIAL_NOTE) == 1 + len(decisions)
    assert render_markdown(report).replace("\\", "").count(TRIAL_NOTE) == 1 + len(decisions)
    (endpoint,) = json.loads(render_json(report))["endpoints"]
    shown = [each["decision"] for each in endpoint["hypotheses"] if each["decision"] is not None]
    assert [each["recording_only"] for each in shown] == [True] * len(decisions)
    for tables in (terminal_tables(report), verdict_tables(decisions)):
        assert printed(tables).count("(trial)") == len(decisions)
        assert printed(tables).count(TRIAL_NOTE) == 1

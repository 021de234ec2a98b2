"""A report shows what stands: an operator's order before the gate's word, with who, why and until when."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from functools import cache, partial
from typing import Any

import pytest

from shadowspec.gate.verdict.figure_texts import acceptance_title, title_of
from shadowspec.reports.content.notes import alerts, detector_lines, order_note
from shadowspec.reports.report import (
    Report,
    build_report,
    render_html,
    render_json,
    render_markdown,
    tables_of_tests,
    terminal_tables,
    verdict_tables,
)
from shadowspec.reports.report.report_model import ReportedHypothesis
from shadowspec.text import DASH
from shadowspec.types import (
    Clearing,
    Composition,
    Decision,
    DetectorFigures,
    DriftFigures,
    MixChange,
    Override,
    OverrideRecord,
    RateChange,
    TestResult,
    Verdict,
)
from shadowspec.types.codec import to_builtins
from tests.builders.pages import Page
from tests.builders.printed_reports import printed
from tests.builders.report_worlds import CHAT, CODE, POLICY, judged, world
from tests.reports.worlds import NOW, MemorySource
from tests.store.examples import in_traffic

SINCE = NOW - timedelta(minutes=30)
UNTIL = NOW + timedelta(hours=12)
ORDER = Override(7, "editor", "prompt_class=code", None, Verdict.DISABLE, "it writes <b>", "ada|x", SINCE, UNTIL)
WHO = "Override 7 by ada|x: it writes <b>. Keep speculation off; `shadowspec override clear 7` ends the override."
TERM = "in force since 2026-03-02 09:00 UTC, until 2026-03-02 21:30 UTC"


@cache
def source() -> MemorySource:
    return judged(world())


def report(*orders: Override | OverrideRecord, of: MemorySource | None = None) -> Report:
    records = [order if isinstance(order, OverrideRecord) else OverrideRecord(order, None) for order in orders]
    ordered = replace(of or source(), orders=records)
    return build_report(ordered, {"editor": POLICY}, NOW, data_note="Made up.")


def the(slice_key: str, of: Report) -> ReportedHypothesis:
    (found,) = (h for h in of.hypotheses if h.slice_key == slice_key)
    return found


def test_an_override_is_laid_over_what_it_covers_and_nothing_else() -> None:
    plain, ordered = report(), report(ORDER)
    before, after = the(CODE, plain), the(CODE, ordered)
    assert (before.verdict, before.override) == (Verdict.ENABLE, None)
    assert (after.verdict, after.override, after.reason) == (Verdict.DISABLE, ORDER, WHO)
    assert before.decision is not None
    assert after.decision is not None
    assert after.decision.verdict is Verdict.DISABLE
    assert (after.decision.tests, after.sequences) == (before.decision.tests, before.sequences)
    for slice_key in ("", CHAT):
        assert the(slice_key, ordered) == the(slice_key, plain)


@pytest.mark.representative("gone0")
@pytest.mark.parametrize(
    "gone",
    [
        OverrideRecord(replace(ORDER, expires_at=NOW), None),
        OverrideRecord(ORDER, Clearing(7, "mended", "grace", NOW)),
        OverrideRecord(replace(ORDER, endpoint="other"), None),
    ],
)
def test_what_is_over_or_elsewhere_changes_no_verdict(gone: OverrideRecord) -> None:
    assert report(gone).hypotheses == report().hypotheses


def test_every_format_says_the_verdict_the_order_and_what_was_measured() -> None:
    ordered = report(ORDER)
    page = Page(render_html(ordered)).text
    assert "DISABLE (override)" in page
    for text in (page, printed(terminal_tables(ordered))):
        assert WHO in text
        assert f"The override is {TERM}." in text
        assert "Measured verdict: ENABLE. " in text
        assert f"Override 7 by ada|x: it writes <b>. DISABLE on prompt_class=code, every load, {TERM}." in text
    markdown = render_markdown(ordered)
    assert "| **DISABLE \\(override\\)** |" in markdown
    assert (
        "Override 7 by ada\\|x: it writes &lt;b&gt;. Keep speculation off; \\`shadowspec override clear 7\\`"
        in markdown
    )
    assert "ends the override. The override is in force since 2026-03-02 09:00 UTC" in markdown
    assert "Measured verdict: ENABLE. " in markdown
    document = json.loads(render_json(ordered))["endpoints"][0]
    (hypothesis,) = (
        each for each in document["hypotheses"] if each["slice"] == the(CODE, ordered).decision.slice_labels
    )  # type: ignore[union-attr]
    assert (hypothesis["verdict"], hypothesis["measured_verdict"], hypothesis["decision"]["verdict"]) == (
        "DISABLE",
        "ENABLE",
        "DISABLE",
    )
    assert hypothesis["override"] == {
        "override_id": 7,
        "slice": {"prompt_class": "code"},
        "load": None,
        "verdict": "DISABLE",
        "reason": "it writes <b>",
        "author": "ada|x",
        "created_at": to_builtins(SINCE),
        "expires_at": to_builtins(UNTIL),
    }
    assert document["overrides"] == [hypothesis["override"]]
    assert {each["measured_verdict"] for each in document["hypotheses"]} == {"ENABLE", "HOLD"}


def test_the_first_row_shows_what_stands() -> None:
    whole = Page(render_html(report(replace(ORDER, slice_key=""))))
    assert whole.text.index("DISABLE (override)") < whole.text.index("Speedup, with bounds")


def test_what_was_not_judged_stands_by_its_order_too() -> None:
    unjudged = report(replace(ORDER, slice_key="", concurrency=4, expires_at=None), of=world())
    for h in unjudged.hypotheses:
        assert (h.verdict, h.decision, h.reason) == (Verdict.DISABLE, None, WHO)
    reported = "DISABLE on whole endpoint, load 4, in force since 2026-03-02 09:00 UTC, until it is cleared."
    assert reported in Page(render_html(unjudged)).text
    assert "DISABLE" in printed(terminal_tables(unjudged))
    hypothesis = json.loads(render_json(unjudged))["endpoints"][0]["hypotheses"][0]
    assert (hypothesis["verdict"], hypothesis["measured_verdict"], hypothesis["decision"]) == ("DISABLE", None, None)


def test_an_order_on_an_endpoint_without_rows_is_told() -> None:
    elsewhere = report(replace(ORDER, endpoint="quiet"), of=MemorySource())
    assert order_note(replace(ORDER, endpoint="quiet")) in Page(render_html(elsewhere)).text
    assert [endpoint.name for endpoint in elsewhere.endpoints] == ["editor", "quiet"]


def decided(verdict: Verdict, reason_code: str = "all_tests_pass", **changes: Any) -> Decision:
    decision = the("", report()).decision
    assert decision is not None
    return replace(decision, verdict=verdict, reason_code=reason_code, **changes)


SHIFT = "the prompt mix has moved (prompt_class=code from 60% to 30%); from 1.3 to 1.2"
LIMITED = DriftFigures(4.6, None, {"speedup": DetectorFigures(84, 4.71), "acceptance": DetectorFigures(90, 1.2)})


def mixed(log10: float, *, has_shifted: bool = False, speedup: str = "no shift") -> Composition:
    rates = {"speedup": RateChange(-0.1, 0.0, speedup)}
    return Composition(is_named=True, mix_change=MixChange(log10, has_shifted, rates))


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (partial(decided, Verdict.ENABLE), []),
        (partial(decided, Verdict.ENABLE, composition=mixed(0.3)), []),
        (
            partial(decided, Verdict.DISABLE, "drift", drift=LIMITED),
            [
                "Drift alarm: a proven limit no longer holds. "
                "Drift of speedup: 10^4.71, fires at 10^4.60 after 84 units."
            ],
        ),
        (partial(decided, Verdict.HOLD, "drift"), ["Drift alarm: a proven limit no longer holds."]),
        (
            partial(decided, Verdict.ENABLE, drift=DriftFigures(4.6, "acceptance")),
            ["Advice: acceptance is lower than at ENABLE."],
        ),
        (
            partial(decided, Verdict.ENABLE, composition=mixed(2.5, has_shifted=True, speedup=SHIFT)),
            [f"Speedup since ENABLE: {SHIFT}."],
        ),
    ],
)
def test_the_terminal_says_what_alarms_and_keeps_quiet_otherwise(make: Callable[[], Decision], said: list[str]) -> None:
    decision = make()  # not when the tests are collected: a report takes a second
    assert alerts(decision) == said
    text = printed(verdict_tables([decision]))
    assert all(line in text for line in said)
    assert ("alarm" in text, "since ENABLE: " in text) == (
        any("alarm" in line for line in said),
        any("since ENABLE: " in line for line in said),
    )


def test_the_table_of_tests_shows_every_test_and_each_detector() -> None:
    enabled = decided(Verdict.ENABLE, drift=LIMITED, composition=mixed(-0.2))
    assert [line.title for line in detector_lines(enabled)] == [
        "Drift of speedup",
        "Drift of acceptance",
        "Shift of the prompt mix",
    ]
    text = printed(tables_of_tests([enabled]))
    for title in (
        "Speedup",
        "First token accepted",
        "Slowed requests",
        "Memory",
        "10^4.71, fires at 10^4.60",
        "10^-0.20",
    ):
        assert title in text
    assert detector_lines(decided(Verdict.HOLD)) == []
    fresh = detector_lines(
        decided(Verdict.ENABLE, drift=DriftFigures(None, None, {"speedup": DetectorFigures(0, None)}))
    )
    assert [line.text for line in fresh] == ["0 after 0 units"]


@pytest.mark.representative("DISABLE-0.05-True", "HOLD-0.5-False")
@pytest.mark.parametrize(
    ("slice_verdict", "share", "is_reported"),
    [
        (Verdict.DISABLE, 0.05, True),
        (Verdict.DISABLE, None, True),
        (Verdict.DISABLE, 0.049, False),
        (Verdict.HOLD, 0.5, False),
    ],
)
def test_an_enabled_endpoint_names_the_slices_that_check_does_not_pass(
    slice_verdict: Verdict, share: float | None, is_reported: bool
) -> None:
    whole, code = the("", report()).decision, the(CODE, report()).decision
    assert whole is not None
    assert code is not None
    enabled = replace(whole, verdict=Verdict.ENABLE)
    slow = in_traffic(replace(code, verdict=slice_verdict), share)
    reported = f"DISABLE means prompt_class=code, sampling_regime=greedy ({'5.0%' if share else DASH} of the traffic)"
    assert (reported in printed(verdict_tables([enabled, slow]))) == is_reported
    page = Page(render_html(report(of=replace(source(), decisions=[enabled, slow])))).text
    assert (f"{reported}: `check` does not pass the endpoint as a whole." in page) == is_reported


def test_acceptance_is_named_after_what_was_counted() -> None:
    named = [{"metric": f"{kind}_acceptance_rate"} for kind in ("first_position", "draft")]
    first, drafts = (
        TestResult("acceptance", "open", 0.6, 0.5, 0.7, 0.4, 0.05, "cluster", 9, 5, figures=each) for each in named
    )
    assert acceptance_title([None, first]) == title_of(first) == "First token accepted"
    assert title_of(drafts) == "Drafted tokens accepted"
    assert acceptance_title([first, drafts]) == "Accepted"


def test_the_table_of_verdicts_shows_total_times_beside_the_geometric_mean() -> None:
    tests = tuple(
        TestResult(name, "pass", estimate, 1.1, 1.5, 1.05, 0.05, "block", 90, 20)
        for name, estimate in (("speedup", 1.32), ("total_time", 1.28))
    )
    text = printed(verdict_tables([replace(decided(Verdict.ENABLE), tests=tests)]))
    assert "geometric mean" in text
    assert re.search(r"total times 1.28\u00d7.*\n.*\[1.10\u00d7, 1.50\u00d7\]", text)
    few = replace(tests[1], estimate=None, lower=0.0, upper=None)
    text = printed(verdict_tables([replace(decided(Verdict.ENABLE), tests=(tests[0], few))]))
    assert "total times" not in text

"""The first screen: at most 25 lines at any width, what needs attention first, and nothing left out in silence."""

from __future__ import annotations

from dataclasses import replace

import pytest
from rich.cells import cell_len

from shadowspec.gate.policy import DAY_S
from shadowspec.gate.verdict.figure_texts import figures_text, interval_text
from shadowspec.gate.verdict.reasons import REASONS
from shadowspec.reports.content.endpoint_rows import decision_row, endpoint_rows
from shadowspec.reports.content.screen_rows import FirstScreen, evidence_text, screen_table
from shadowspec.reports.render.first_screen import MAX_LINES, draw_screen
from shadowspec.text import times
from shadowspec.types import Decision, EvidenceSummary, OverriddenVerdict, ReasonCode, SliceCounts, TestResult, Verdict
from tests.builders.board_values import decision

SPEEDUP = TestResult("speedup", "open", 1.204, 0.98, 1.41, 1.05, 0.01, "block", 30, 16)
ACCEPTANCE = TestResult("acceptance", "pass", 0.667, 0.59, 0.725, 0.4, 0.01, "cluster", 30, 16)
TAIL = TestResult("tail", "open", 0.023, 0.0, 0.35, 0.1, 0.01, "block", 30, 16)
REASON = (
    "The share of slowed requests is 2.3% [0.0%, 35.0%], not yet proven to be below 10.0%. "
    "Send about 132 more sessions. It rests on traffic of 2026-01-05 00:00 to 2026-01-05 00:06 UTC."
)


def held(endpoint: str = "chat", reason: str = REASON, **changes: object) -> Decision:
    return replace(decision(endpoint, reason=reason, tests=(SPEEDUP, ACCEPTANCE, TAIL)), **changes)  # type: ignore[arg-type]


def fleet(number: int) -> list[Decision]:
    """Endpoints of which every seventh has drifted, and every fifth is on."""
    decisions = []
    for place in range(number):
        code, verdict = "too_few_units", Verdict.HOLD
        if place % 7 == 3:
            code, verdict = "drift", Verdict.DISABLE
        elif place % 5 == 0:
            code, verdict = "all_tests_pass", Verdict.ENABLE
        decisions.append(held(f"endpoint-{place:02d}", reason_code=code, verdict=verdict))
    return decisions


def drawn(screen: FirstScreen, width: int = 100, *, is_whole: bool = False) -> list[str]:
    return [line.plain for line in draw_screen(screen, width, is_whole=is_whole)]


def screen_of(*decisions: Decision, **parts: str) -> FirstScreen:
    return FirstScreen(endpoint_rows(decisions), **parts)


def test_one_endpoint_is_a_row_with_limits_and_the_reason_without_its_scope() -> None:
    lines = drawn(screen_of(held(clusters_needed=132)))
    assert lines[0].split() == ["verdict", "speedup", "accepted", "slowed", "evidence"]
    assert lines[1].split("  ")[-1].strip() == "below 10.0%"
    assert [part.strip() for part in lines[2].split("  ") if part] == [
        "chat",
        "HOLD",
        "1.20\u00d7 [0.98, 1.41]",
        "67% [59%, 72%]",
        "2.3% [0%, 35%]",
        "100 of ~232 sessions",
    ]
    said = " ".join(" ".join(lines[4:]).split())
    assert said.startswith("What to do next The share of slowed requests is 2.3%")
    assert said.endswith("Send about 132 more sessions. That takes 31.7 hours at this rate.")
    assert "rests on traffic" not in said


@pytest.mark.parametrize("number", [1, 2, 6, 12, 50])
@pytest.mark.parametrize("width", [30, 60, 80, 100, 200])
def test_it_has_at_most_25_lines_that_fit_the_terminal(number: int, width: int) -> None:
    screen = screen_of(*fleet(number), headline="A headline", more="More: --verbose shows the rest.")
    lines = drawn(screen, width)
    assert all(cell_len(line) <= min(width, 100) for line in lines)
    assert len(lines) <= MAX_LINES
    assert lines[-1].endswith("rest.")


def test_on_a_narrow_terminal_six_endpoints_are_six_lines_and_two_keep_all_figures() -> None:
    parts = {"headline": "Six endpoints.", "more": "More: --verbose shows the rest."}
    lines = drawn(screen_of(*fleet(6), **parts), 60)
    rows = [line for line in lines if line.startswith("endpoint-")]
    assert sorted(row.split()[0] for row in rows) == [f"endpoint-{place:02d}" for place in range(6)]
    assert rows[0].split("  ") == ["endpoint-03", "DISABLE", "1.20\u00d7 [0.98, 1.41]", "100 sessions"]
    assert "above 1.05\u00d7" in lines[3]
    assert drawn(screen_of(*fleet(6), **parts), 40)[4].split("  ") == rows[0].split("  ")[:3], "no room for evidence"
    assert drawn(screen_of(*fleet(6), **parts), 30)[3].split("  ") == rows[0].split("  ")[:2], "nor for the speedup"
    few = drawn(screen_of(*fleet(2), **parts), 60)
    assert sum(line.strip().startswith("slowed") for line in few) == 2


def test_of_many_endpoints_those_that_need_attention_come_first_and_the_others_are_counted() -> None:
    screen = screen_of(*fleet(50))
    names = [row.name for row in screen.rows]
    assert len(names) == 50
    assert names[:7] == [f"endpoint-{place:02d}" for place in range(3, 50, 7)], "alarms"
    lines = drawn(screen)
    shown = [name for name in names if any(line.startswith(name) for line in lines)]
    assert shown == names[: len(shown)]
    assert len(shown) >= 9
    (rest,) = (line for line in lines if " not shown: " in line)
    assert rest.startswith(f"{50 - len(shown)} more endpoints not shown: ")
    assert sum(int(part) for part in rest.replace(",", "").split() if part.isdigit()) == 2 * (50 - len(shown))
    whole = drawn(screen, is_whole=True)
    assert all(any(line.startswith(name) for line in whole) for name in names)
    assert not any("not shown" in line for line in whole)


def test_reasons_give_way_to_next_steps_from_the_last_row_on() -> None:
    lines = drawn(screen_of(*(held(f"endpoint-{place}") for place in range(8))))
    reasons = [line.startswith("  endpoint-") and "The share of slowed" in line for line in lines]
    steps = [line.startswith("  endpoint-") for line in lines]
    assert sum(steps) == 8
    assert 0 < sum(reasons) < 8
    assert reasons.index(True) == steps.index(True)


def test_an_only_endpoint_has_a_row_for_each_candidate_and_load() -> None:
    other = replace(decision().config, name="suffix-k8")
    rows = endpoint_rows([held(), held(config=other, fingerprint="other"), held(config=other, concurrency=16)])
    assert [row.name for row in rows] == ["draft-k4, load 4", "suffix-k8, load 16", "suffix-k8, load 4"]


def test_verdicts_of_slices_and_candidates_that_differ_are_said() -> None:
    slices = [held(slice_key=f"a={place}", verdict=Verdict.DISABLE) for place in range(2)]
    other = replace(decision().config, name="suffix-k8")
    slow = held("chat", verdict=Verdict.DISABLE, config=other, fingerprint="other")
    (row, _) = endpoint_rows([held(), *slices, slow, held("else")])
    assert "Other verdicts among its other candidates and loads: 1 DISABLE." in row.action
    assert "Other verdicts among its slices: 2 DISABLE." in row.action
    assert "Other verdicts" not in endpoint_rows([held(), held(slice_key="a=1", verdict=Verdict.DISABLE)])[0].action


@pytest.mark.parametrize("code", ReasonCode)
def test_every_reason_code_has_a_row_with_a_reason_and_a_step(code: ReasonCode) -> None:
    for verdict in code.verdicts:
        row = decision_row(held(verdict=Verdict(verdict), reason_code=code), name="chat")
        assert row.action.endswith(".")
        assert row.step.endswith(".")
        assert row.step[0].isupper() or row.step[0] == "`"
        assert code.value not in row.action + row.step or "_" not in code.value
    assert REASONS[code].step


def test_overrides_and_trials_are_marked() -> None:
    order = OverriddenVerdict(3, None, Verdict.ENABLE, "fast")
    ordered = held(override=order, reason="Override 3 by ann: a test.", reason_code="override")
    assert decision_row(ordered, name="chat").verdict == "HOLD (override)"
    assert decision_row(held(recording_only=True), name="chat").verdict == "HOLD (trial)"


@pytest.mark.parametrize(
    ("changes", "span_s", "said"),
    [
        ({"clusters_needed": 40}, None, "100 of ~140 sessions"),
        ({}, None, "100 sessions"),
        (
            {
                "reason_code": "too_few_clusters",
                "clusters_needed": 17,
                "evidence": EvidenceSummary(counts=SliceCounts(num_closed_clusters=3)),
            },
            None,
            "3 of 20 sessions",
        ),
        ({"reason_code": "min_span", "evidence": EvidenceSummary(num_days=2)}, 7 * DAY_S, "2 of 7 days"),
        ({"reason_code": "min_span", "evidence": EvidenceSummary(num_days=2)}, None, "100 sessions"),
        (
            {"reason_code": "min_span", "evidence": EvidenceSummary(num_days=8, span_s=6.5 * DAY_S)},
            7 * DAY_S,
            "6.5 days of 7 days",
        ),
    ],
)
def test_evidence_is_shown_beside_what_is_needed(changes: dict[str, object], span_s: float | None, said: str) -> None:
    assert evidence_text(held(**changes), span_s) == said


def test_names_from_traffic_are_literal_and_cut() -> None:
    name = "[bold]" + "x" * 80 + "\x1b[31m"
    lines = drawn(screen_of(held(name), held("b")))
    assert any(line.startswith("[bold]xxxx") and "\u2026" in line for line in lines)
    assert "\x1b" not in "".join(lines)


def test_limits_that_differ_between_endpoints_are_not_shown_as_one() -> None:
    strict = held("strict", tests=(replace(SPEEDUP, threshold=1.2), ACCEPTANCE, TAIL))
    lines = drawn(screen_of(held(), strict))
    assert "above 1.05" not in lines[1]
    assert "above 40.0%" in lines[1]


def test_a_mean_of_clipped_requests_says_so_on_every_row_and_below() -> None:
    """The clip of 0.334 shows a speedup of 0.45x as 0.72x."""
    far = replace(SPEEDUP, estimate=0.716, lower=0.716, upper=0.799, figures={"clipped_share": 0.6})
    few = replace(far, figures={"clipped_share": 0.2})
    screen = screen_of(replace(held(), tests=(far, ACCEPTANCE, TAIL)))
    lines = drawn(screen)
    assert "0.72\u00d7* [0.72, 0.80]" in lines[2]
    said = " ".join(" ".join(lines).split())
    assert "* Clipped: a quarter of the requests or more lie beyond the largest ratio that counts" in said
    (row,) = screen_table(screen.rows, {}).rows
    assert (row[2].text, row[2].notes) == ("0.72\u00d7", ("[0.72, 0.80] clipped",)), "a report has room for the word"
    assert figures_text(far) == "0.72\u00d7 [0.72\u00d7, 0.80\u00d7] clipped"
    assert interval_text(far, times) == figures_text(far)
    assert "lipped" not in " ".join(drawn(screen_of(replace(held(), tests=(few, ACCEPTANCE, TAIL)))))
    assert figures_text(few) == "0.72\u00d7 [0.72\u00d7, 0.80\u00d7]"

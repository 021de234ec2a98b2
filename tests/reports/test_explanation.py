"""A decision explained: one screen, with each test's evidence beside what it needed, the level, and what comes next."""

from __future__ import annotations

import io
import math
import re
from dataclasses import replace

import pytest
from rich.console import Console

from shadowspec.gate.run.run_units import Crossing
from shadowspec.gate.verdict.trial_levels import restart_level, reused_share
from shadowspec.reports.content.explanation import QUESTION, UNKNOWN_CROSSING, explained
from shadowspec.reports.report import explanation_tables
from shadowspec.types import Decision, LevelGraph, Trial, Verdict
from tests.builders.hypothesis_evidence import HYPOTHESIS, POLICY, correlated, draw_runs, evidence_of, look
from tests.builders.watched_gate import Gate, enabled
from tests.builders.watched_gate import draw_runs as watched_runs
from tests.gate.worlds import START

WIDTH, SCREEN = 100, 40
WORLDS = {
    Verdict.ENABLE: draw_runs(400),
    Verdict.DISABLE: draw_runs(400, speedup=0.9, slowed_share=0.4),
    Verdict.HOLD: draw_runs(60),
}


def judged(verdict: Verdict, slice_key: str) -> Decision:
    hypothesis = replace(HYPOTHESIS, slice_key=slice_key)
    return look(evidence_of(WORLDS[verdict]), hypothesis=hypothesis)


def printed(decision: Decision, *, verbose: bool = False) -> str:
    console = Console(width=WIDTH, color_system=None, file=io.StringIO())
    crossings = {test.name: Crossing(41, START) for test in decision.tests if test.outcome != "open"}
    for drawn in explanation_tables(decision, POLICY, crossings, has_all_figures=verbose):
        console.print(drawn)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def text_of(decision: Decision, lead: str, **known: object) -> str:
    (text,) = (line.text for line in explained(decision, **known) if line.lead == lead)  # type: ignore[arg-type]
    return text


@pytest.mark.parametrize("slice_key", ["", "prompt_class=code"])
@pytest.mark.parametrize("verdict", WORLDS)
def test_a_decision_of_an_endpoint_or_a_slice_is_one_screen(verdict: Verdict, slice_key: str) -> None:
    decision = judged(verdict, slice_key)
    assert decision.verdict is verdict
    shown = printed(decision)
    lines, words = shown.rstrip().splitlines(), " ".join(shown.split())
    assert len(lines) <= SCREEN
    assert max(map(len, lines)) <= WIDTH
    assert decision.reason in words
    assert ("whole endpoint, draft-k4" in words) is (not slice_key)
    for test in decision.tests:
        if test.is_required:
            assert QUESTION[test.name].split("{")[0].strip() in words
        if test.is_required and test.betting is not None:
            log10 = test.betting.log10_capital_fail if test.outcome == "fail" else test.betting.log10_capital_pass
            level = test.betting.fail_alpha if test.outcome == "fail" else test.alpha
            assert f"10^{round(log10, 1) + 0.0:.1f}".replace("-", "\u2212") in words
            assert f"needed 10^{-math.log10(level):.1f}" in words
    for lead in ("Level:", "Independence:", "Traffic:", "Next:"):
        assert lead in words
    assert len(printed(decision, verbose=True).splitlines()) > len(lines)


def test_when_a_test_crossed_is_said_and_where_its_rows_are_gone() -> None:
    decision = judged(Verdict.ENABLE, "")
    lead = "Speedup, passes"
    assert "crossed" not in text_of(decision, lead)
    found = text_of(decision, lead, crossings={"speedup": Crossing(41, START)})
    assert found.endswith(f"crossed at block 41 of 100, {START:%Y-%m-%d %H:%M} UTC")
    assert text_of(decision, lead, crossings={}).endswith(UNKNOWN_CROSSING)
    (line,) = (each for each in explained(judged(Verdict.HOLD, ""), crossings={}) if each.lead == "Speedup, open")
    assert "crossed" not in line.text


@pytest.mark.parametrize(
    "run",
    [
        Trial(0.05, 0.045, LevelGraph(0.05, 1, 0)),
        Trial(0.025 / 2, 0.9 * 0.025 / 2, LevelGraph(0.05, 2, 6, 0.05)),
        Trial(0.025 / 7, 0.9 * 0.025 / 7, LevelGraph(0.05, 1, 7, 0.05), in_slot=True),
        Trial(0.025 / 7, 0.9 * (0.025 / 7 + 0.025 / 7), LevelGraph(0.05, 1, 7, 0.05), in_slot=True),
        Trial(0.05, restart_level(0.05, 3), LevelGraph(0.05, 1, 0), num_restarts=3),
        Trial(0.025 / 7, restart_level(0.025 / 7, 2, 0.05), LevelGraph(0.05, 1, 7, 0.05), num_restarts=4, num_before=2,
              in_slot=True),
        Trial(reused_share(LevelGraph(0.05, 1, 7, 0.05), 2), 0.9 * reused_share(LevelGraph(0.05, 1, 7, 0.05), 2),
              LevelGraph(0.05, 1, 7, 0.05), reuse=2),
    ],
)  # fmt: skip
def test_the_factors_of_a_level_make_the_level(run: Trial) -> None:
    assert run.level is not None
    text = text_of(replace(judged(Verdict.ENABLE, ""), run=run), "Level")
    level, _, rest = text.partition(" = ")
    made_of = rest.split(": ")[0].replace("that enabled hypotheses passed on", "")
    made_of = re.sub(r"([\d.]+)%", r"(\1/100)", made_of).replace("(pi ", "(math.pi*").replace("^", "**")
    value = eval(made_of.replace(" x ", "*"), {"math": math})
    assert value == pytest.approx(run.level, rel=0.02)
    assert float(level.rstrip("%")) / 100 == pytest.approx(run.level, rel=0.02)
    assert (f"restart {run.num_restarts - run.num_before}" in text) is (run.num_restarts > run.num_before)


def test_both_levels_and_the_checks_of_independence_are_shown_with_their_limits() -> None:
    decision = judged(Verdict.ENABLE, "")
    assert "bounds are shown at 1.25%, and the opposite bound disables at 0.312%" in text_of(decision, "Level")
    speedup = decision.find_test("speedup")
    assert speedup is not None
    assert speedup.dependence is not None
    text = text_of(decision, "Independence")
    assert f"limit {0.45 - 1.645 / math.sqrt(speedup.num_units):.2f}" in text
    assert "times the required agreement, limit 1" in text
    few = look(evidence_of(draw_runs(20)))
    assert "Speedup 5 blocks, too few to judge" in text_of(few, "Independence")


def test_what_would_disable_too_is_named() -> None:
    decision = judged(Verdict.DISABLE, "")
    assert decision.reason_code == "slowdown"
    assert text_of(decision, "Also") == "Slowed requests would disable it by itself"
    assert [line for line in explained(judged(Verdict.ENABLE, "")) if line.lead == "Also"] == []


def test_days_and_span_are_shown_beside_those_that_are_needed() -> None:
    decision = judged(Verdict.ENABLE, "")
    week = replace(POLICY, min_span_s=7 * 86_400.0)
    assert text_of(decision, "Traffic", policy=week).endswith("needed 7 days over 7 days")
    assert text_of(decision, "Traffic", policy=POLICY).endswith("this policy needs no span")


def test_what_comes_next_is_an_amount_of_evidence_a_limit_or_an_alarm() -> None:
    held = judged(Verdict.HOLD, "")
    assert re.fullmatch(
        r"about \d+ more sessions \(.*\); [A-Z].* needs \d+ more \w+; traffic on 7 days \(1 so far\)",
        text_of(held, "Next", policy=replace(POLICY, min_span_s=7 * 86_400.0)),
    )
    waits = look(evidence_of(correlated(400, 0.5, seed=1)[:240]))
    assert "about 160 more sessions" in text_of(waits, "Next")
    alike = look(evidence_of(correlated(240, 0.9)))
    assert alike.reason_code == "dependent"
    assert "Speedup counts, or merges its units, after about 40 more blocks" in text_of(alike, "Next")
    watched = enabled().look(watched_runs(10, 1))
    assert re.search(r"a limit of the speedup above 1\.\d+\u00d7 holds it; an alarm ends it; nearest is Drift of",
                     text_of(watched, "Next"))  # fmt: skip
    gate = Gate()
    slow = gate.look(watched_runs(100, 0, speedup=0.9))
    assert slow.verdict is Verdict.DISABLE
    assert "new evidence that refutes it, begins a run: Against DISABLE: speedup" in text_of(
        gate.look(watched_runs(10, 1, speedup=0.9)), "Next"
    )
    assert text_of(slow, "Next").endswith("begins a run")
    assert "an alarm of a detector ends it" in text_of(judged(Verdict.ENABLE, ""), "Next")
    faulty = replace(slow, reason_code="parity_fault")
    assert text_of(faulty, "Next").startswith("only another fingerprint ends it")

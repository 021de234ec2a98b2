"""What CI systems read: JUnit valid by the common schemas; commands and Markdown that no text breaks out of."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lxml import etree

from shadowspec.planning.demand import Demand
from shadowspec.reports.content.screen_rows import check_screen
from shadowspec.reports.render.first_screen import draw_screen
from shadowspec.rollout.check.answer import Answer, answer_document, refusal
from shadowspec.rollout.check.github import MAX_ANNOTATIONS, MAX_SUMMARY_ROWS, step_annotations, step_summary
from shadowspec.rollout.check.judge import judge
from shadowspec.rollout.check.junit import junit_xml
from shadowspec.rollout.check.outcome import OnHold, Outcome
from shadowspec.rollout.check.plain_text import answer_lines
from shadowspec.types import Decision
from shadowspec.types.codec import to_builtins
from tests.rollout.check.worlds import (
    CHAT,
    CODE,
    ENGINE,
    HOUR,
    NOW,
    check_input,
    config,
    decision,
    fingerprint,
    question,
    traffic,
)

SCHEMAS = [
    etree.XMLSchema(etree.parse(Path(__file__).parents[2] / "data" / "junit" / name))
    for name in ("junit-10.xsd", "JUnit.xsd")
]
# Labels as they may come from traffic; "," and "=" part labels in a slice's key.
LABEL = st.text(min_size=1).filter(lambda text: not {",", "="} & set(text))


def answer(*decisions: Decision, weights: dict[str, float] | None = None, **asked: Any) -> Answer:
    what = check_input(decisions) if weights is None else check_input(decisions, traffic(weights))
    return judge(question(**asked), what, NOW)


def cases(found: Answer) -> dict[str, Any]:
    """The test cases of the report by name, once every schema has accepted it."""
    document = etree.fromstring(junit_xml(found).encode("utf-8"))
    for schema in SCHEMAS:
        schema.assertValid(document)
    (suite,) = document
    listed = suite.findall("testcase")
    counted = {name: int(suite.get(name)) for name in ("tests", "failures", "errors", "skipped")}
    kinds = [child.tag for case in listed for child in case]
    assert counted == {
        "tests": len(listed),
        "failures": kinds.count("failure"),
        "errors": kinds.count("error"),
        "skipped": kinds.count("skipped"),
    }
    return {case.get("name"): case for case in listed}


def kind(case: Any) -> str:
    return case[0].tag if len(case) else "passed"


def test_junit_says_failure_skipped_error_and_passed() -> None:
    small = "prompt_class=maths,sampling_regime=greedy"
    decisions = decision(), decision("HOLD", CODE), decision("DISABLE", CHAT), decision("DISABLE", small)
    listed = cases(answer(*decisions, weights={CODE: 60.0, CHAT: 38.0, small: 2.0}))
    assert {name: kind(case) for name, case in listed.items()} == {
        "whole endpoint": "passed",
        "prompt_class=code, sampling_regime=greedy": "skipped",
        "prompt_class=chat, sampling_regime=high": "failure",
        "prompt_class=maths, sampling_regime=greedy": "skipped",
    }
    failure = listed["prompt_class=chat, sampling_regime=high"][0]
    assert (failure.get("type"), failure.get("message")) == ("DISABLE", "disable for a reason")
    (held,) = cases(answer(decision("HOLD"))).values()
    assert kind(held) == "skipped"
    (stale,) = cases(answer(decision(), max_age=HOUR)).values()
    assert (kind(stale), stale[0].get("type")) == ("error", "UNUSABLE")
    (refused,) = cases(refusal(question(), "nothing there", NOW)).values()
    assert (kind(refused), refused[0].get("message")) == ("error", "nothing there")


def test_every_form_names_the_engine_that_latency_was_measured_on() -> None:
    found = answer(decision("DISABLE"))
    (suite,) = etree.fromstring(junit_xml(found).encode("utf-8"))
    (named,) = (each.get("value") for each in suite.iter("property") if each.get("name") == "engines")
    assert named == ENGINE
    assert f"measured with {ENGINE}" in "\n".join(answer_lines(found))
    assert f"measured with {ENGINE}" in step_summary(found)
    assert f"measured with {ENGINE}" in step_annotations(found, OnHold.FAIL)[0]
    assert f"measured with {ENGINE}" in step_annotations(answer(decision()), OnHold.FAIL)[0]
    document = answer_document(found, OnHold.FAIL)
    assert [*document.engines] == [document.findings[0].loads[0].engine] == [ENGINE]


@given(LABEL, st.text(), st.sampled_from(["ENABLE", "HOLD", "DISABLE"]))
def test_no_text_breaks_a_report(label: str, reason: str, verdict: str) -> None:
    key = f"tier={label}"
    found = answer(decision(), decision(verdict, key, reason=reason))
    assert len(cases(found)) == 2
    assert len(cases(refusal(question(), reason, NOW))) == 1
    for line in (*answer_lines(found), *step_annotations(found, OnHold.FAIL)):
        assert len(line.splitlines()) <= 1
        assert not re.search("[\x00-\x1f\x7f]", line)
    rows = [line for line in step_summary(found).splitlines() if line.startswith("| ")]
    assert [len(re.findall(r"(?<!\\)(?:\\\\)*\|", row)) for row in rows] == [10] * 4
    assert "<" not in "".join(rows)


def data(text: str) -> str:
    """What GitHub's runner makes of a command's message."""
    return text.replace("%0A", "\n").replace("%0D", "\r").replace("%25", "%")


def test_annotations_are_escaped_as_the_runner_undoes_it() -> None:
    found = answer(decision("DISABLE", reason="100%25 of a, b: c"))
    (line,) = step_annotations(found, OnHold.FAIL)
    head, _, message = line.removeprefix("::").partition("::")
    assert data(message).startswith("100%25 of a, b: c (speedup 0.80\u00d7 [0.60\u00d7, 0.95\u00d7]")
    command, _, title = head.partition(" title=")
    assert command == "error"
    assert not {":", ","} & set(title)
    assert data(title.replace("%3A", ":").replace("%2C", ",")) == "shadowspec: chat, whole endpoint DISABLE"


@pytest.mark.parametrize(("on_hold", "level"), [("fail", "error"), ("warn", "warning"), ("pass", "notice")])
def test_hold_is_annotated_as_loudly_as_it_counts(on_hold: str, level: str) -> None:
    (line,) = step_annotations(answer(decision("HOLD")), OnHold(on_hold))
    assert line.startswith(f"::{level} title=")


def test_enable_is_a_notice_and_a_refusal_an_error() -> None:
    named = answer(replace(decision(), serving_engine="vllm"))
    assert step_annotations(named, OnHold.FAIL)[0].startswith("::notice title=shadowspec%3A chat ENABLE::")
    assert step_annotations(refusal(question(), "gone", NOW), OnHold.PASS) == ["::error title=shadowspec%3A chat::gone"]


def test_an_enable_for_an_engine_that_serves_nobody_is_a_warning_in_every_output() -> None:
    engine = "shadowspec-torch/0.1.0 torch/2.13.0"
    configs = {fingerprint("draft"): config(engine=engine)}
    inputs = check_input([decision(engine=engine)], configs=configs)
    found = judge(question(expected_engine="shadowspec-torch"), inputs, NOW)
    (unnamed,) = step_annotations(found, OnHold.FAIL)
    assert unnamed.startswith(
        "::warning title=shadowspec%3A chat ENABLE::ENABLE chat: speculation with draft is proven "
    )
    assert "; for shadowspec-torch, which measured: the endpoint names no serving_engine)" in unnamed
    said = "the verdict is for shadowspec-torch, which measured: the endpoint names no serving_engine"
    assert said in answer_lines(found)
    assert answer_lines(found)[0] == "ENABLE chat: speculation with draft is proven for shadowspec-torch only"
    assert said in step_summary(found).replace("\\", "")
    assert '<property name="verdict_engine" value="shadowspec-torch" />' in junit_xml(found)
    document = answer_document(found, OnHold.FAIL)
    assert (document.serving_engine, document.verdict_engine) == (None, "shadowspec-torch")
    served = answer(replace(decision(), serving_engine="vllm"))
    assert answer_lines(served)[0] == "ENABLE chat: speculation with draft is proven here"
    assert "the verdict is for vllm" in answer_lines(served)


@pytest.mark.parametrize(("slices", "annotations"), [(9, 9), (10, 10), (11, 10), (200, 10)])
def test_at_most_ten_annotations_the_worst_first(slices: int, annotations: int) -> None:
    every = [decision("DISABLE" if i == 3 else "HOLD", f"tier={i:03},tenant=a") for i in range(slices)]
    lines = step_annotations(judge(question(slice_labels={"tenant": "a"}), check_input(every), NOW), OnHold.WARN)
    assert len(lines) == annotations <= MAX_ANNOTATIONS
    assert lines[0].startswith("::error ")
    if slices > MAX_ANNOTATIONS:
        assert lines[-1].endswith(f"::{slices - 9} more slices; the step's summary lists all")


def test_the_summary_stays_within_what_github_takes() -> None:
    slices = [f"tier={'long label ' * 8}{i}" for i in range(MAX_SUMMARY_ROWS + 40)]
    text = step_summary(answer(decision(), *(decision("HOLD", key, reason="r" * 300) for key in slices)))
    assert len(text.encode("utf-8")) < 1024 * 1024
    assert "41 more slices with less traffic" in text


def test_the_document_is_plain_and_undefined_is_null() -> None:
    document = to_builtins(answer_document(answer(decision(tests=())), OnHold.FAIL))
    (finding,) = document["findings"]
    assert finding["speedup"] is None
    assert document["load"] is None
    assert document["exit_code"] == 0


BUSY = Demand(NOW - HOUR, NOW, {0: 50, 4: 196, 16: 40}, {8: {4: 196}})


def screen(found: Answer) -> list[str]:
    return [line.plain for line in draw_screen(check_screen(found), 100)]


@pytest.mark.parametrize(
    ("demand", "asked", "says"),
    [
        (BUSY, {}, "ENABLE is for 55.1% of production's requests: on up to 4, not measured above. Add load 16."),
        (None, {}, "ENABLE is for 1 to 4 requests at once; production's load is not measured."),
        (BUSY, {"concurrency": 4}, "ENABLE is for load 4 only."),
        (replace(BUSY, readings={0: 50, 3: 196}), {}, None),
        (None, {"slice_labels": {"prompt_class": "code"}}, None),
    ],
)  # fmt: skip
def test_the_first_screen_says_in_one_line_where_an_enable_covers_a_part_of_the_loads(
    demand: Demand | None, asked: dict[str, Any], says: str | None
) -> None:
    found = judge(question(**asked), check_input([decision(), decision("ENABLE", CODE)], demand=demand), NOW)
    assert found.outcome is Outcome.ENABLE
    assert [line for line in screen(found) if line.startswith("ENABLE is for")] == ([says] if says else [])


def test_a_disable_says_nothing_of_what_enable_would_cover() -> None:
    assert not any("ENABLE is for" in line for line in screen(answer(decision("DISABLE"))))


def test_a_slice_that_is_its_whole_endpoint_is_shown_once() -> None:
    whole = decision("DISABLE"), decision("DISABLE", CODE)
    found = answer(*whole)
    for text in (screen(found), answer_lines(found), [step_summary(found)], [junit_xml(found)]):
        assert not any(CODE.split(",")[0] in line for line in text)
    assert "(whole endpoint)" in screen(found)[0]
    assert len(answer(*whole, weights={CODE: 60.0, CHAT: 40.0}).findings) == 2, "another slice has traffic too"
    assert len(answer(decision("HOLD"), decision("DISABLE", CODE)).findings) == 2, "its verdict is another"
    assert len(answer(*whole, slice_labels={"prompt_class": "code"}).findings) == 1, "it was asked for"


def test_names_stay_as_they_are_written() -> None:
    """A sentence begins with a capital, and a name keeps its first letter."""
    now = replace(config(revision="b"), details={})
    rows = [*traffic({CODE: 10.0}), *traffic({CODE: 10.0}, revision="b", age=HOUR)]
    found = judge(
        question(), check_input([decision()], rows, configs={each.fingerprint: each for each in (config(), now)}), NOW
    )
    lines = " ".join(screen(found))
    assert "The candidate draft is measured with fingerprint" in lines
    assert "Draft" not in lines
    assert "Chat" not in lines

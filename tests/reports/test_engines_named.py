"""Every form of a report says on which engine the latency of each hypothesis and prediction was measured."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from shadowspec.gate.policy import GatePolicy
from shadowspec.gate.verdict.current_verdict import for_what_serves
from shadowspec.reports.figures.frontiers import frontiers
from shadowspec.reports.figures.predictions import NOT_PROFILED_SERVER, prediction_summary, predictions
from shadowspec.reports.report import (
    build_report,
    render_html,
    render_json,
    render_markdown,
    terminal_tables,
    verdict_tables,
)
from shadowspec.servers.engines import with_engine_rules
from shadowspec.types import SERVED_BACKEND, CostKey, FingerprintedConfig, ProfiledCosts
from tests.builders.pages import Page
from tests.builders.printed_reports import printed
from tests.builders.profiled_worlds import CODE, profiled
from tests.builders.profiled_worlds import world as predicted_world
from tests.builders.report_worlds import POLICY, judged, world
from tests.reports.worlds import NOW, config

ENGINE = config().engine
VLLM = "vllm/0.32.0"


def on_server(engine: str = VLLM, name: str = "draft-k4", k: int = 4) -> FingerprintedConfig:
    """The same pair as a server's."""
    fingerprinted = config(name, k)
    served = replace(fingerprinted.config, backend=SERVED_BACKEND)
    return replace(fingerprinted, config=served, engine=engine, device="2x H100", fingerprint=f"{engine}-{name}")


def server_costs(engine: str = VLLM) -> ProfiledCosts:
    """Its steps take twice what ours take with drafts, and the same without."""
    points = tuple(
        replace(each, verify_ms=each.verify_ms * (2.0 if each.num_speculative_tokens else 1.0))
        for each in profiled().points
    )
    return ProfiledCosts(CostKey.of(on_server(engine), is_greedy=True), NOW, points)


def test_every_form_names_the_engine_of_each_hypothesis() -> None:
    report = build_report(judged(world()), {"editor": POLICY}, NOW, data_note="Made up.")
    assert {h.engine for h in report.hypotheses} == {ENGINE}
    assert Page(render_html(report)).text.count(f"latency measured on {ENGINE}") == len(report.hypotheses)
    assert render_markdown(report).replace("\\", "").count(f"latency measured on {ENGINE}") == len(report.hypotheses)
    said = "shadowspec-torch, which measured: the endpoint names no serving_engine"
    num_decided = sum(h.decision is not None for h in report.hypotheses)
    assert Page(render_html(report)).text.count(f"the verdict is for {said}") == num_decided
    assert render_markdown(report).replace("\\", "").count(f"the verdict is for {said}") == num_decided
    (endpoint,) = json.loads(render_json(report))["endpoints"]
    assert {each["verdict_engine"] for each in endpoint["hypotheses"]} == {"shadowspec-torch"}
    assert {each["engine"] for each in endpoint["hypotheses"]} == {ENGINE}
    decisions = [h.decision for h in report.hypotheses if h.decision is not None]
    for tables in (terminal_tables(report), verdict_tables(decisions)):
        assert printed(tables).count(f"latency measured on {ENGINE}") == 1, "once for all of an endpoint"
        assert printed(tables).count(f"verdicts are for {said}") == 1


def test_a_table_of_several_engines_says_which_lines_are_whose() -> None:
    report = build_report(judged(world()), {"editor": POLICY}, NOW, data_note="Made up.")
    decision = next(h.decision for h in report.hypotheses if h.decision is not None)
    other = replace(decision, concurrency=decision.concurrency + 1, engine=VLLM)
    text = printed(verdict_tables([decision, other]))
    assert f"latency measured on {ENGINE} ({decision.config.name}, load {decision.concurrency})" in text
    assert f"latency measured on {VLLM} ({decision.config.name}, load {decision.concurrency + 1})" in text


def test_a_hold_for_the_engine_that_serves_is_shown_with_its_reason() -> None:
    source = judged(world())
    policy = replace(POLICY, serving_engine="vllm")
    source.decisions = for_what_serves(source.latest_decisions(), policy)
    report = build_report(source, {"editor": policy}, NOW, data_note="Made up.")
    assert f"Latency was measured on {ENGINE}, and vllm serves." in Page(render_html(report)).text
    (endpoint,) = json.loads(render_json(report))["endpoints"]
    assert endpoint["policy"]["serving_engine"] == "vllm"


def test_acceptance_of_one_engine_predicts_every_server_that_runs_the_pair() -> None:
    costs, there = profiled(), server_costs()
    paired = on_server()
    other = replace(paired, config=replace(paired.config, draft="another"))
    of_other = [ProfiledCosts(CostKey.of(other, is_greedy=kind), NOW, there.points) for kind in (True, False)]
    source = predicted_world(costs, there, *of_other)
    (endpoint,) = build_report(source, {"editor": GatePolicy(window_s=0.0)}, NOW, data_note="Made up.").endpoints
    here, served = (each for each in endpoint.predictions if each.cell.slice_key == CODE)
    assert (here.engine, served.engine, served.device) == (ENGINE, VLLM, "2x H100")
    assert here.speedup is not None
    assert served.speedup is not None
    assert served.speedup < here.speedup
    assert (served.measured_speedup, served.error) == (None, None), "nothing was timed there"
    assert here.error is not None
    assert served.predicted_device.baseline_tokens == here.predicted_device.baseline_tokens
    said = prediction_summary(endpoint.predictions)
    assert f"predicted on {ENGINE}; median absolute error" in said
    assert f"1 of 1 cell predicted on {VLLM}." in said


def test_a_prediction_for_another_engine_says_where_that_drafts_by_another_rule() -> None:
    source = predicted_world(profiled(), server_costs())
    (endpoint,) = build_report(source, {"editor": GatePolicy(window_s=0.0)}, NOW, data_note="Made up.").endpoints
    said = f"draft_sampling = request, while {VLLM}'s rule is temperature: acceptance does not carry over"
    assert prediction_summary(endpoint.predictions).count(said) == 1
    here = [each for each in endpoint.predictions if each.engine == ENGINE]
    assert "carry over" not in prediction_summary(here)
    by_rule = [replace(each, config=with_engine_rules(each.config, VLLM)) for each in endpoint.predictions]
    assert "carry over" not in prediction_summary(by_rule)


def test_a_prediction_is_held_against_what_was_timed_on_the_engine_that_it_speaks_of() -> None:
    ours, theirs = config(), on_server()
    source = predicted_world()
    cells = [
        each.cell
        for each in build_report(source, {"editor": GatePolicy(window_s=0.0)}, NOW, data_note="")
        .endpoints[0]
        .predictions
        if each.cell.slice_key == CODE
    ]
    (cell,) = cells
    timed = replace(cell, fingerprint=theirs.fingerprint, ratio_of_total_times=0.8)
    configs = {ours.fingerprint: ours, theirs.fingerprint: theirs}
    costs = {profiled_costs.key: profiled_costs for profiled_costs in (profiled(), server_costs())}
    here, carried, own_of_server = predictions([cell, timed], configs, costs)
    assert (here.engine, carried.engine, own_of_server.engine) == (ENGINE, VLLM, VLLM)
    assert here.measured_speedup == cell.ratio_of_total_times
    for each in (carried, own_of_server):
        assert each.speedup is not None
        assert each.measured_speedup == 0.8
        assert each.error == pytest.approx(each.speedup / 0.8 - 1.0)
    at_another_load = replace(timed, concurrency=cell.concurrency + 1)
    assert predictions([cell, at_another_load], configs, costs)[1].measured_speedup is None
    assert predictions([timed], configs, {})[0].reason == NOT_PROFILED_SERVER


def test_the_frontier_speaks_of_the_engine_profiled_last_and_names_it() -> None:
    ours, theirs = config(), on_server()
    (endpoint,) = build_report(predicted_world(), {"editor": GatePolicy(window_s=0.0)}, NOW, data_note="").endpoints
    cell = next(each.cell for each in endpoint.predictions if each.cell.slice_key == CODE)
    costs, there = profiled(), server_costs()
    later = replace(there, profiled_at=NOW.replace(year=NOW.year + 1))
    (found,) = frontiers([cell], {ours.fingerprint: ours}, {costs.key: costs, there.key: later})
    assert (found.engine, found.device) == (VLLM, "2x H100")
    earlier = replace(there, profiled_at=NOW.replace(year=NOW.year - 1))
    (found,) = frontiers([cell], {ours.fingerprint: ours}, {costs.key: costs, there.key: earlier})
    assert found.engine == ENGINE
    timed = replace(cell, fingerprint=theirs.fingerprint, mean_acceptance_length=1.5)
    configs = {ours.fingerprint: ours, theirs.fingerprint: theirs}
    (found,) = frontiers([cell, timed], configs, {there.key: later})
    gains = {each.drafting.length.estimate for choice in found.choices for each in choice.gains}
    assert gains == {1.5}, "what was measured there speaks for itself"

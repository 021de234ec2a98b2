"""Predictions stand beside what was measured, say why there is none, and reach every form of the report."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from datetime import timedelta

import pytest

from shadowspec import metrics
from shadowspec.gate.policy import GatePolicy
from shadowspec.planning.cost_model import CostSurface, Drafts
from shadowspec.planning.frontier import Length, Work
from shadowspec.reports.figures.cells import MeasuredCell, cells_of_groups
from shadowspec.reports.figures.frontiers import frontiers, list_replayed_lengths
from shadowspec.reports.figures.predictions import BY_TEXT, NOT_PROFILED, PLAIN_STEPS, median_error, predictions
from shadowspec.reports.report import Report, build_report, render_html, render_json, render_markdown
from shadowspec.store import GroupSums, RollupSums
from shadowspec.store.rollups import SUM_NAMES, additions
from shadowspec.types import (
    AcceptanceSums,
    Arm,
    Block,
    BlockResult,
    CostKey,
    Place,
    ProfiledCosts,
    StepCost,
    VerifyRule,
)
from tests.builders.profiled_worlds import CHAT, CODE, profiled, world
from tests.reports.worlds import NOW, MemorySource, config


def report_of(source: MemorySource) -> Report:
    return build_report(source, {"editor": GatePolicy(window_s=0.0)}, NOW, data_note="Made up.")


def test_a_cell_is_predicted_from_its_own_length_and_its_pairs_costs() -> None:
    costs = profiled()
    (endpoint,) = report_of(world(costs)).endpoints
    by_slice = {each.cell.slice_key: each for each in endpoint.predictions}
    assert set(by_slice) == {CODE, CHAT}  # the whole endpoint is a mixture of them
    code = by_slice[CODE]
    pooled = next(h.acceptance for h in endpoint.hypotheses if h.slice_key == CODE)
    assert pooled is not None
    length, requests = pooled.mean_acceptance_length, pooled.num_requests
    assert length is not None
    output = pooled.counts.num_output_tokens / requests
    place = Place(4, 4, 90)
    surface = CostSurface(costs.points)
    assert code.speedup == pytest.approx(
        surface.end_to_end_ms(1.0, place.baseline, output) / surface.end_to_end_ms(length, place, output)
    )
    assert code.break_even_length == pytest.approx(surface.break_even_length(place.grown(output / 2)))
    assert code.cell.ratio_of_total_times == pytest.approx(1.4, abs=0.1)
    assert code.error == pytest.approx(code.speedup / code.cell.ratio_of_total_times - 1.0)
    chat = by_slice[CHAT]  # sampled requests cost more to verify, and theirs were not profiled
    assert (chat.speedup, chat.break_even_length, chat.error, chat.reason) == (None, None, None, NOT_PROFILED)
    assert median_error(endpoint.predictions) == pytest.approx(abs(code.error))


def test_what_lies_beyond_the_profile_is_said_and_not_guessed() -> None:
    (endpoint,) = report_of(world(profiled(contexts=(512, 1024)))).endpoints
    code = next(each for each in endpoint.predictions if each.cell.slice_key == CODE)
    assert code.speedup is None
    assert code.reason is not None
    assert "is outside the profiled range (512 to 1024)" in code.reason
    assert endpoint.frontiers == ()
    assert median_error(endpoint.predictions) is None


def test_another_devices_costs_predict_nothing() -> None:
    source = world(profiled())
    (costs,) = source.profiles.values()
    elsewhere = CostKey.of(config(device="another"), is_greedy=True)
    source.profiles = {elsewhere: ProfiledCosts(elsewhere, NOW, costs.points)}
    (endpoint,) = report_of(source).endpoints
    assert {each.reason for each in endpoint.predictions} == {NOT_PROFILED}


def test_the_frontier_takes_each_configs_busiest_load_and_every_config() -> None:
    both = [config("draft-k2", 2), config("draft-k8", 8)]
    work = Work(90.0, 36.0)

    def cell(fingerprint: str, load: int, requests: int, length: float) -> MeasuredCell:
        return MeasuredCell(CODE, load, fingerprint, requests, 0, length, work, 1.2)

    cells = [
        cell(both[0].fingerprint, 1, 10, 1.1),  # few requests: noise
        cell(both[0].fingerprint, 4, 400, 2.2),
        cell(both[1].fingerprint, 4, 300, 3.0),
    ]
    costs = profiled()
    (found,) = frontiers(cells, {each.fingerprint: each for each in both}, {costs.key: costs})
    assert [choice.concurrency for choice in found.choices] == [1, 4, 16]
    for choice in found.choices:
        assert {(each.drafting.name, each.drafting.length.estimate) for each in choice.gains} == {
            ("draft-k2", 2.2),
            ("draft-k8", 3.0),
        }
    assert len(predictions(cells, {each.fingerprint: each for each in both}, {costs.key: costs})) == 3


def test_every_form_of_the_report_tells_them() -> None:
    report = report_of(world(profiled()))
    page, text, document = render_html(report), render_markdown(report), json.loads(render_json(report))
    for form in (page, text):
        assert "Predicted by the cost model" in form
        assert "1 of 2 cells predicted on " in form
        assert "not profiled: run" in form
        assert "load 4: draft-k4 at K 4, " in form
    assert "Predicted speedup by load for every number of speculative tokens" in page
    (endpoint,) = document["endpoints"]
    predicted = next(each for each in endpoint["predictions"] if each["why_not"] is None)
    assert predicted["predicted_speedup"] / predicted["measured_speedup"] - 1 == pytest.approx(
        predicted["relative_error"]
    )
    (frontier,) = endpoint["frontier"]
    assert [each["concurrency"] for each in frontier["loads"]] == [1, 4, 16]
    assert frontier["loads"][0]["best"]["num_speculative_tokens"] == 4


def test_without_costs_there_is_no_section() -> None:
    report = report_of(world())
    assert "Predicted by the cost model" not in render_html(report)
    assert "Predicted by the cost model" not in render_markdown(report)


def test_an_adaptive_depth_has_no_costs_of_a_fixed_one() -> None:
    fingerprinted = config()
    adaptive = replace(fingerprinted, config=replace(fingerprinted.config, draft_confidence_threshold=0.4))
    cell = MeasuredCell(CODE, 4, fingerprinted.fingerprint, 100, 0, 2.5, Work(90.0, 36.0), 1.2)
    costs = {profiled().key: profiled()}
    assert predictions([cell], {fingerprinted.fingerprint: fingerprinted}, costs)[0].speedup is not None
    assert predictions([cell], {fingerprinted.fingerprint: adaptive}, costs)[0].reason == BY_TEXT
    assert frontiers([cell], {fingerprinted.fingerprint: adaptive}, costs) == []


def sums_of(units: list[tuple[float, float]], fingerprint: str) -> AcceptanceSums:
    """Accepted tokens and drafts of each session."""
    return AcceptanceSums(
        slice_key=CODE, fingerprint=fingerprint, num_requests=len(units), num_units=len(units),
        num_drafts=sum(drafts for _, drafts in units), num_draft_tokens=8 * sum(drafts for _, drafts in units),
        num_accepted_tokens=sum(accepted for accepted, _ in units), num_first_accepted_tokens=0.0,
        drafts_squares=sum(drafts**2 for _, drafts in units),
        accepted_drafts=sum(accepted * drafts for accepted, drafts in units),
        accepted_squares=sum(accepted**2 for accepted, _ in units), first_event=NOW, last_event=NOW,
    )  # fmt: skip


def test_replay_brings_depths_that_were_never_measured_and_bounds() -> None:
    measured, deeper = config("draft-k4", 4), config("draft-k8", 8)
    units = [(20.0, 10.0), (24.0, 9.0), (15.0, 11.0), (30.0, 12.0)]
    sums = [sums_of(units, measured.fingerprint), sums_of([(5.0, 2.0)], deeper.fingerprint)]
    ways = list_replayed_lengths(sums, {each.fingerprint: each for each in (measured, deeper)})
    (_, _, four), (_, _, eight) = ways
    assert four.estimate == pytest.approx(1.0 + 89 / 42)
    residuals = [accepted - 89 / 42 * drafts for accepted, drafts in units]
    half = 3.182446 * math.sqrt(4 / 3 * sum(each**2 for each in residuals)) / 42  # Student's t, 3 degrees, 97.5%
    assert (four.lower, four.upper) == pytest.approx((four.estimate - half, four.estimate + half))
    assert (eight.estimate, eight.lower) == (3.5, None)  # one session has no spread
    cell = MeasuredCell(CODE, 4, measured.fingerprint, 100, 0, 2.0, Work(90.0, 36.0), 1.2)
    costs = {profiled().key: profiled()}
    (plain,) = frontiers([cell], {measured.fingerprint: measured}, costs)
    (found,) = frontiers([cell], {measured.fingerprint: measured}, costs, ways)
    assert [len(choice.gains) for choice in plain.choices] == [1, 1, 1]
    for choice in found.choices:
        assert [each.drafting.num_speculative_tokens for each in choice.gains] == [4, 8]
        assert choice.gains[0].drafting.length == four  # in place of the loop's
        assert choice.gains[0].lower is not None


def test_what_was_replayed_of_a_slice_without_measurements_has_no_frontier() -> None:
    fingerprinted = config()
    ways = [("prompt_class=maths", fingerprinted, Length(3.0))]
    assert frontiers([], {fingerprinted.fingerprint: fingerprinted}, {profiled().key: profiled()}, ways) == []


@pytest.mark.parametrize(
    ("changed", "num_plain_steps", "reason"),
    [
        ({"proposer": "ngram", "draft": None}, 5, NOT_PROFILED),
        ({"proposer": "eagle3"}, 0, NOT_PROFILED),
        ({"draft_confidence_threshold": 0.4}, 0, BY_TEXT),
        ({}, 1, PLAIN_STEPS),  # the draft's context ended before the request did
    ],
)
def test_what_cannot_be_predicted_says_why(
    changed: dict[str, str | float | None], num_plain_steps: int, reason: str
) -> None:
    fingerprinted = config()
    other = replace(fingerprinted, config=replace(fingerprinted.config, **changed))  # type: ignore[arg-type]
    cell = MeasuredCell(CODE, 4, fingerprinted.fingerprint, 100, num_plain_steps, 2.5, Work(90.0, 36.0), 1.2)
    costs = {profiled().key: profiled()}
    assert predictions([cell], {fingerprinted.fingerprint: other}, costs)[0].reason == reason
    assert frontiers([cell], {fingerprinted.fingerprint: other}, costs) == []


def at(load: int, fingerprint: str) -> MeasuredCell:
    return MeasuredCell(CODE, load, fingerprint, 100, 0, 2.5, Work(90.0, 36.0), 1.2)


def test_a_way_beyond_its_profile_takes_no_other_with_it() -> None:
    shallow, deep, single = (
        config("draft-k4", 4),
        config("draft-k16", 16),
        config("draft-k1", 1),
    )  # 2 to 8 were profiled
    known = {each.fingerprint: each for each in (shallow, deep, single)}
    (found,) = frontiers([at(4, name) for name in known], known, {profiled().key: profiled()})
    assert {each.drafting.name for choice in found.choices for each in choice.gains} == {"draft-k4"}


def test_ways_without_a_load_in_common_have_no_frontier() -> None:
    one, other = config("draft-k4", 4), config("other-k4", 4)
    other = replace(other, details={**other.details, "draft_weights": "another"})
    costs = profiled()
    elsewhere = CostKey.of(other, is_greedy=True)
    higher = tuple(replace(point, concurrency=point.concurrency * 64) for point in costs.points)
    known = {each.fingerprint: each for each in (one, other)}
    both = {costs.key: costs, elsewhere: ProfiledCosts(elsewhere, NOW, higher)}
    assert frontiers([at(4, name) for name in known], known, both) == []


def test_a_frontier_is_of_the_device_that_was_profiled_last() -> None:
    here, there = config("draft-k4", 4), replace(config("draft-k4", 4, device="another"), fingerprint="there")
    old = profiled()
    new = ProfiledCosts(CostKey.of(there, is_greedy=True), NOW + timedelta(days=1), old.points)
    known = {each.fingerprint: each for each in (here, there)}
    (found,) = frontiers([at(4, name) for name in known], known, {old.key: old, new.key: new})
    assert [len(choice.gains) for choice in found.choices] == [1, 1, 1]  # not both under one name


def test_ways_of_one_name_are_told_apart() -> None:
    rejection = config("draft-k4", 4)
    one_hot = replace(
        rejection, config=replace(rejection.config, verify_rule=VerifyRule.GREEDY_DRAFT), fingerprint="one-hot"
    )
    other = CostKey.of(one_hot, is_greedy=True)
    costs = {profiled().key: profiled(), other: ProfiledCosts(other, NOW, profiled().points)}
    known = {each.fingerprint: each for each in (rejection, one_hot)}
    (found,) = frontiers([at(4, name) for name in known], known, costs)
    assert [each.drafting.name for each in found.choices[0].gains] == ["draft-k4 greedy_draft", "draft-k4 rejection"]


@pytest.mark.parametrize("proposer", ["ngram", "suffix", "medusa", "mlp_speculator", "eagle3"])
def test_every_proposer_that_was_profiled_is_predicted(proposer: str) -> None:
    """With the costs of its own kind alone; a lookup's steps cost what its drafts and the load make of them."""
    fingerprinted = config()
    other = replace(fingerprinted, config=replace(fingerprinted.config, proposer=proposer), fingerprint="other")
    key = CostKey.of(other, is_greedy=True)
    is_lookup = proposer in ("ngram", "suffix")
    drafts, plain, drafted = 60, 40 if is_lookup else 0, 180 if is_lookup else 240
    cell = MeasuredCell(
        CODE, 4, "other", 10, plain, 2.5, Work(90.0, 36.0), 1.2, num_drafts=drafts, num_drafted_tokens=drafted
    )
    costs = {profiled().key: profiled(), key: ProfiledCosts(key, NOW, with_depth_1(profiled().points))}
    (found,) = predictions([cell], {"other": other}, costs)
    length = 1.0 + 1.5 * drafts / (drafts + plain)
    assert cell.tokens_per_step == pytest.approx(length)
    surface = CostSurface(costs[key].points)
    pattern = Drafts(0.6, 3.0) if is_lookup else None
    plain_ms = surface.end_to_end_ms(1.0, Place(4, 4, 90.0).baseline, 36.0)
    assert found.speedup == pytest.approx(plain_ms / surface.end_to_end_ms(length, Place(4, 4, 90.0), 36.0, pattern))
    assert found.target_passes_saved == pytest.approx(35.0 - 35.0 / length)
    (frontier,) = frontiers([cell], {"other": other}, costs)
    assert [choice.gains[0].drafting.drafts for choice in frontier.choices] == [pattern] * 3
    by_load = {choice.concurrency: choice.gains[0].speedup for choice in frontier.choices}
    assert by_load[4] == pytest.approx(found.speedup)
    replayed = [(CODE, replace(other, fingerprint="replayed"), Length(9.0))]
    (again,) = frontiers([cell], {"other": other}, costs, replayed)
    # Replay does not say how often a lookup drafts, so that nothing can be made of its tokens per step.
    assert len(again.choices[0].gains) == (1 if is_lookup else 2)


def with_depth_1(points: tuple[StepCost, ...]) -> tuple[StepCost, ...]:
    shallow = [replace(each, num_speculative_tokens=1, draft_ms=1.0) for each in points if each.place[1] == 2]
    return (*points, *shallow)


def test_a_lookup_that_never_drafted_is_not_predicted() -> None:
    fingerprinted = config()
    other = replace(fingerprinted, config=replace(fingerprinted.config, proposer="ngram"), fingerprint="other")
    key = CostKey.of(other, is_greedy=True)
    cell = MeasuredCell(CODE, 4, "other", 10, 40, None, Work(90.0, 36.0), 0.9)
    costs = {key: ProfiledCosts(key, NOW, with_depth_1(profiled().points))}
    assert predictions([cell], {"other": other}, costs)[0].reason == "nothing was drafted"
    assert frontiers([cell], {"other": other}, costs) == []


def test_device_time_and_cost_stand_beside_what_was_measured() -> None:
    source = world(profiled())
    (endpoint,) = build_report(
        source, {"editor": GatePolicy(window_s=0.0, device_price_per_hour=7.2)}, NOW, data_note="Made up."
    ).endpoints
    code = next(each for each in endpoint.predictions if each.reason is None)
    runs = [run for run in source.measured_runs["editor"] if f"-{CODE}-" in run.block_id]
    arms = {arm: [getattr(run, arm.value) for run in runs if run.baseline is not None] for arm in Arm}
    for arm, entries in arms.items():
        tokens = sum(each.num_output_tokens for each in entries)
        expected = (
            sum(each.prefill_ms + each.decode_ms for each in entries) / 4 / tokens
        )  # a quarter of the device each
        assert code.cell.device.ms_per_token(arm) == pytest.approx(expected)
    work = code.cell.work
    assert work is not None
    assert code.cell.mean_acceptance_length is not None
    surface, place = CostSurface(profiled().points), Place(4, 4, work.num_prompt_tokens)
    predicted = {
        Arm.BASELINE: surface.end_to_end_ms(1.0, place.baseline, work.num_output_tokens),
        Arm.SPECULATIVE: surface.end_to_end_ms(code.cell.mean_acceptance_length, place, work.num_output_tokens),
    }
    for arm, total in predicted.items():
        assert code.predicted_device.ms_per_token(arm) == pytest.approx(total / 4 / work.num_output_tokens)
    ours, theirs = (each.ms_per_token(Arm.SPECULATIVE) for each in (code.predicted_device, code.measured_device))
    assert ours is not None
    assert theirs is not None
    assert code.cost_error == pytest.approx(ours / theirs - 1.0)
    counts = [run.counts for run in runs if run.counts is not None]
    assert code.cell.target_passes_saved == pytest.approx(
        sum(metrics.target_passes_saved(each) for each in counts) / len(counts)
    )

    report = build_report(
        source, {"editor": GatePolicy(window_s=0.0, device_price_per_hour=7.2)}, NOW, data_note="Made up."
    )
    document = json.loads(render_json(report))["endpoints"][0]
    rows = next(each for each in document["predictions"] if each["why_not"] is None)
    assert rows["price_per_hour"] == 7.2
    assert rows["predicted_cost"]["speculative"]["device_ms_per_token"] == pytest.approx(ours)
    # 7.2 an hour is 0.002 a second: a million tokens at so many ms each take so many thousand seconds
    assert rows["predicted_cost"]["speculative"]["cost_per_million_tokens"] == pytest.approx(2 * ours)
    assert rows["measured_cost"]["speculative"]["cost_per_million_tokens"] == pytest.approx(2 * theirs)
    assert rows["cost_relative_error"] == pytest.approx(code.cost_error)
    assert rows["measured_target_passes_saved"] == pytest.approx(code.cell.target_passes_saved)
    assert rows["predicted_target_passes_saved"] == pytest.approx(
        (work.num_output_tokens - 1) * (1 - 1 / code.cell.mean_acceptance_length)
    )
    gain = document["frontier"][0]["loads"][1]["gains"][0]
    assert gain["cost"]["speculative"]["cost_per_million_tokens"] == pytest.approx(2 * ours)
    assert gain["target_passes_saved"] == pytest.approx(rows["predicted_target_passes_saved"])
    plain = code.predicted_device.ms_per_token(Arm.BASELINE)
    assert plain is not None
    for form in (render_html(report), render_markdown(report)):
        assert f"{2 * ours:.2f} ({2 * plain:.2f})" in form.replace("\\", "")
        assert "at 7.20 per device-hour" in form
    unpriced = render_markdown(report_of(source))
    assert f"{1000 * ours:,.2f} s (" in unpriced.replace("\\", "")
    assert "no price is set" in unpriced


def test_the_stores_cells_are_those_of_the_runs() -> None:
    """The dashboard makes cells of rollups, the report of runs."""
    source = world(profiled())
    (endpoint,) = report_of(source).endpoints
    results = {
        each.block_id: BlockResult(
            Block(each.block_id, each.sequence, "editor", each.slice_key, each.concurrency, (), (), each.first_arm),
            each.started_at, (), each.memory,
        )
        for each in source.measured_blocks["editor"]
    }  # fmt: skip
    record_of = {record.key: record for record in source.records("editor")}
    runs = [(run, results[run.block_id], record_of[run.key]) for run in source.measured_runs["editor"]]
    totals: dict[str, list[float]] = {}
    for key, addition in additions(runs).items():
        before = totals.setdefault(key.slice_key, [0.0] * len(SUM_NAMES))
        totals[key.slice_key] = [value + more for value, more in zip(before, addition.sums, strict=True)]
    groups = [
        GroupSums("editor", name, config().fingerprint, 4, None, RollupSums(**dict(zip(SUM_NAMES, total, strict=True))))  # type: ignore[arg-type]
        for name, total in totals.items()
    ]
    assert len(groups) == 2
    for cell in cells_of_groups(groups):
        other = next(each.cell for each in endpoint.predictions if each.cell.slice_key == cell.slice_key)
        for name in ("num_drafts", "num_drafted_tokens", "num_plain_steps", "target_passes_saved", "tokens_per_step"):
            assert getattr(cell, name) == pytest.approx(getattr(other, name)), name
        for arm in Arm:
            assert cell.device.ms_per_token(arm) == pytest.approx(other.device.ms_per_token(arm))


def test_the_operators_price_goes_before_the_policys() -> None:
    policies = {"editor": GatePolicy(window_s=0.0, device_price_per_hour=7.2)}
    reports = [
        build_report(world(profiled()), policies, NOW, data_note="Made up.", price_per_hour=price)
        for price in (None, 3.6)
    ]
    default_price, operators = (each.endpoints[0].price_per_hour for each in reports)
    assert (default_price, operators) == (7.2, 3.6)
    assert "at 3.60 per device-hour" in render_markdown(reports[1])
    assert report_of(world(profiled())).endpoints[0].price_per_hour is None

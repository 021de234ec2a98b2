"""Curves come from the production fold, so that each ends at the figures of the decision that it is drawn for."""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import timedelta

import numpy as np
import pytest
from msgspec import structs

from shadowspec.gate.policy import GatePolicy
from shadowspec.gate.run import fold_spans as spans
from shadowspec.gate.run.gate_run import run_endpoint_gate
from shadowspec.gate.run.memory_store import MemoryRows
from shadowspec.gate.run.unit_curves import DRAWN_TESTS, Curves, endpoint_curves
from shadowspec.gate.verdict.trial_levels import is_superseded
from shadowspec.store import Store
from shadowspec.types import Decision, FunnelCounter, RecordKey, Run, Verdict
from tests.builders.changing_configs import OTHER, changing, with_fingerprint
from tests.gate.feeding import Feed
from tests.gate.oracle import endpoint_sequences
from tests.gate.worlds import CONFIG, ENDPOINT, START, World, noisy_run, record_of, run_of

POLICY = GatePolicy(window_s=0.0, max_hypotheses=3, min_span_s=0.0, drift_run_length=1_000)
SLICES = ("prompt_class=code", "prompt_class=sql")
WHOLE = ("", 4, CONFIG.fingerprint)


def gate(store: Store, policy: GatePolicy = POLICY, *, hours: int = 0, ended: bool | None = None) -> list[Decision]:
    return run_endpoint_gate(store, ENDPOINT, policy, input_ended=ended, now=START + timedelta(hours=hours)).decisions


def curves_of(store: Store) -> Curves:
    evidence = store.evidence(ENDPOINT)
    rows = MemoryRows(evidence.records, evidence.blocks, evidence.runs)
    return endpoint_curves(ENDPOINT, evidence.folds, rows, evidence.latest_decisions)


def assert_every_curve_ends_at_its_decision(store: Store) -> Curves:
    """Estimate and bounds, of every drawn test of every latest decision that has units."""
    curves = curves_of(store)
    for decision in store.latest_decisions(ENDPOINT):
        key = decision.slice_key, decision.concurrency, decision.fingerprint
        drawn = [test for test in decision.tests if test.name in DRAWN_TESTS and test.num_units]
        assert set(curves.get(key, {})) == {test.name for test in drawn}
        for test in drawn:
            last = curves[key][test.name][-1]
            assert last.num_units == test.num_units
            assert last.estimate == pytest.approx(test.estimate, rel=1e-12)
            assert (last.lower, last.upper) == (test.lower, test.upper)
    return curves


@pytest.mark.representative("sqlite")
def test_a_curve_passes_the_bounds_of_every_look_before_it_and_ends_at_the_last_ones(store: Store) -> None:
    feed = Feed(store, World(60, slices=SLICES, make_run=noisy_run(slowed_share=0.02)).evidence())
    seen = []
    for start, stop in ((0, 2), (2, 12), (12, 40), (40, 60)):
        feed.write_blocks(start, stop, is_last=stop == 60)
        seen.append(gate(store))
        curves = assert_every_curve_ends_at_its_decision(store)
    for decisions in seen:
        for decision in decisions:
            by_units = {point.num_units: point for point in curves[decision.slice_key, *WHOLE[1:]]["speedup"]}
            test = next(test for test in decision.tests if test.name == "speedup")
            if test.num_units and test.alpha == seen[-1][0].tests[0].alpha:
                point = by_units[test.num_units]
                assert (point.lower, point.upper) == (test.lower, test.upper)


@pytest.mark.representative("sqlite")
def test_a_curve_ends_at_bounds_that_have_the_lost_requests_in_them(store: Store) -> None:
    feed = Feed(store, World(60, slices=SLICES, make_run=noisy_run()).evidence())
    feed.write_blocks(0, 60)
    lost = [
        structs.replace(
            record_of(i, at_s=1_000.0 + i, session=f"lost{i}", counter=FunnelCounter.SHED), key=RecordKey("file", 2, i)
        )
        for i in range(12)
    ]
    feed.write(lost, set(), is_last=True)
    assert gate(store)[0].evidence.counts.num_lost == 12
    assert_every_curve_ends_at_its_decision(store)


@pytest.mark.all
@pytest.mark.representative("sqlite")
def test_the_oracle_draws_the_same_curve_of_rows_that_come_in_order(store: Store) -> None:
    feed = Feed(store, World(50, slices=SLICES, make_run=noisy_run(slowed_share=0.02)).evidence())
    rows = feed.write_blocks(0, 50, is_last=True)
    decisions = gate(store)
    drawn, curves = endpoint_sequences(rows, POLICY, decisions, input_ended=True), curves_of(store)
    for key, by_test in curves.items():
        for name, points in by_test.items():
            expected = {point.num_units: point for point in drawn[key][name]}
            for point in points:
                other = expected[point.num_units]
                assert point.estimate == pytest.approx(other.estimate)
                assert (point.lower, point.upper) == pytest.approx((other.lower, other.upper))


@pytest.mark.representative("sqlite")
def test_records_out_of_order_are_in_a_curve_as_they_were_in_the_evidence(store: Store) -> None:
    """Behind the watermark come requests of sessions that had entered, which the decision left out, and sessions that
    opened before others which are still open.
    """
    world = World(60, untimed=0, make_run=noisy_run(acceptance=0.5)).evidence()
    late = {run.key for run in world.runs if run.block_id == world.blocks[40].block_id}
    first = [record for record in world.records if record.key.partition == 0][: len(late)]
    moved = iter(first)
    records = [
        structs.replace(
            record, session_hash=stored_record.session_hash, event_time=stored_record.event_time + timedelta(seconds=30)
        )
        if record.key in late and (stored_record := next(moved)).event_time
        else record
        for record in world.records
    ]
    early = {run.key for run in world.runs if run.block_id == world.blocks[41].block_id}
    records = [
        structs.replace(record, event_time=START + timedelta(minutes=30)) if record.key in early else record
        for record in records
    ]
    feed = Feed(store, replace(world, records=records))
    feed.write_blocks(0, 40)
    gate(store)
    rows = feed.write_blocks(40, 60)
    (whole, _) = gate(store, hours=1)
    assert whole.evidence.counts.num_left_out == 4
    assert_every_curve_ends_at_its_decision(store)
    at_once = endpoint_sequences(rows, POLICY, [whole], input_ended=False)[WHOLE]["acceptance"][-1]
    acceptance = next(test for test in whole.tests if test.name == "acceptance")
    assert at_once.estimate != pytest.approx(acceptance.estimate, rel=1e-6), "folding all of it at once reads more"


@pytest.mark.representative("sqlite")
def test_tests_that_restarted_have_curves_of_the_units_that_count(store: Store) -> None:
    shocks = np.random.default_rng(5).standard_normal(200)
    draw = noisy_run()

    def make(rng: np.random.Generator, index: int, block_id: str) -> Run:
        sequence = int(block_id[1:])
        shared = sum(0.9 ** (sequence - i) * shocks[i] for i in range(max(0, sequence - 30), sequence + 1))
        run = draw(rng, index, block_id)
        return run if sequence >= 150 else run_of(index, block_id, log_speedup=math.log(1.3) + 0.05 * float(shared))

    feed, merged = Feed(store, World(200, make_run=make).evidence()), set()
    for hours, (start, stop) in enumerate(((0, 30), (30, 120), (120, 160), (160, 200))):
        feed.write_blocks(start, stop)
        decided = gate(store, replace(POLICY, margin=0.05 if hours < 3 else 0.06), hours=hours)
        merged |= {test.state and test.state.merged_units for test in decided[0].tests}
        assert_every_curve_ends_at_its_decision(store)
    assert 4 in merged


@pytest.mark.all
@pytest.mark.representative("sqlite")
def test_runs_that_follow_each_other_have_curves_of_their_units_alone(store: Store) -> None:
    """An ENABLE, its detectors, an alarm that ends the run, and the run after it."""
    make = changing((120, noisy_run()), (330, noisy_run(speedup=1.0)), (400, noisy_run()))
    feed, ended = Feed(store, World(400, make_run=make).evidence()), 0
    for hours, (start, stop) in enumerate(((0, 120), (120, 140), (140, 330), (330, 350))):
        feed.write_blocks(start, stop)
        whole = gate(store, hours=hours, ended=True)[0]
        curves = assert_every_curve_ends_at_its_decision(store)
        ended += whole.ends_run
    assert ended == 1
    assert whole.run.num_restarts == 1
    assert curves[WHOLE]["speedup"][-1].num_units == whole.num_blocks < 30


@pytest.mark.representative("sqlite")
def test_a_superseded_fingerprint_keeps_the_curve_of_its_last_verdict(store: Store) -> None:
    make = changing((80, noisy_run()), (120, with_fingerprint(noisy_run(), OTHER.fingerprint)))
    feed = Feed(store, World(120, make_run=make).evidence(), (CONFIG, OTHER))
    feed.write_blocks(0, 80)
    assert gate(store, ended=True)[0].verdict is Verdict.ENABLE
    feed.write_blocks(80, 120)
    gate(store, hours=1, ended=True)
    assert any(is_superseded(row) for row in store.latest_decisions(ENDPOINT))
    assert_every_curve_ends_at_its_decision(store)


@pytest.mark.representative("sqlite")
def test_a_curve_stops_at_what_its_decision_had_seen(store: Store) -> None:
    feed = Feed(store, World(40, slices=SLICES, make_run=noisy_run(slowed_share=0.02)).evidence())
    feed.write_blocks(0, 30)
    first = gate(store)
    feed.write_blocks(30, 40)
    gate(store, hours=1)
    evidence = store.evidence(ENDPOINT)
    curves = endpoint_curves(
        ENDPOINT, evidence.folds, MemoryRows(evidence.records, evidence.blocks, evidence.runs), first
    )
    for decision in first:
        for test in decision.tests:
            if test.name in DRAWN_TESTS:
                last = curves[decision.slice_key, *WHOLE[1:]][test.name][-1]
                assert (last.num_units, last.lower, last.upper) == (test.num_units, test.lower, test.upper)


@pytest.mark.representative("sqlite")
def test_clusters_beyond_the_largest_number_are_in_no_curve(store: Store) -> None:
    feed, policy = Feed(store, World(60, make_run=noisy_run(speedup=1.05)).evidence()), replace(POLICY, max_clusters=90)
    for hours, (start, stop) in enumerate(((0, 20), (20, 60))):
        feed.write_blocks(start, stop)
        whole = gate(store, policy, hours=hours, ended=True)[0]
        curves = assert_every_curve_ends_at_its_decision(store)
    assert whole.evidence.num_capped_clusters == 150
    assert curves[WHOLE]["acceptance"][-1].num_units == 90


@pytest.mark.representative("sqlite")
def test_evidence_that_began_anew_has_curves_from_there(store: Store) -> None:
    feed = Feed(store, World(40, make_run=noisy_run()).evidence())
    feed.write_blocks(0, 30)
    gate(store)
    feed.write_blocks(30, 40)
    gate(store, replace(POLICY, cluster_idle_s=900.0), hours=1)
    assert len(store.folds(ENDPOINT)) == 1
    assert_every_curve_ends_at_its_decision(store)


@pytest.mark.all
@pytest.mark.representative("sqlite")
def test_a_fold_in_parts_is_taken_in_again_part_by_part(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spans.next_plan, "__defaults__", (60,))
    feed = Feed(store, World(40, slices=SLICES, make_run=noisy_run()).evidence())
    feed.write_blocks(0, 40, is_last=True)
    gate(store)
    assert len(store.folds(ENDPOINT)) > 2
    assert_every_curve_ends_at_its_decision(store)


@pytest.mark.representative("sqlite")
def test_decisions_whose_rows_are_gone_have_no_curve(store: Store) -> None:
    feed = Feed(store, World(20, make_run=noisy_run()).evidence())
    feed.write_blocks(0, 20)
    gate(store)
    evidence = store.evidence(ENDPOINT)
    rows = MemoryRows(evidence.records, evidence.blocks, evidence.runs[4:])
    assert endpoint_curves(ENDPOINT, evidence.folds, rows, evidence.latest_decisions) == {}
    assert endpoint_curves(ENDPOINT, [], rows, evidence.latest_decisions) == {}

"""A report repeats what was stored and decided: nothing counted twice, nothing lost, nothing decided anew."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shadowspec import store as stores
from shadowspec.gate.run.gate_run import run_endpoint_gate
from shadowspec.reports.content.notes import decision_notes
from shadowspec.reports.report import Report, build_report, render_json, render_markdown
from shadowspec.store import Store
from shadowspec.types import Block, BlockResult, FunnelCounter, RecordKey, StoredRecord, Verdict
from tests.builders.report_worlds import CHAT, CODE, POLICY, judged, world
from tests.reports.worlds import NOW, MemorySource, add_slice, config
from tests.store.saving import save_block, save_records


def report_of(source: object) -> Report:
    return build_report(source, {"editor": POLICY}, NOW, data_note="Made up.")


def test_the_endpoint_pools_its_slices() -> None:
    (endpoint,) = report_of(judged(world())).endpoints
    whole, *slices = endpoint.hypotheses
    assert whole.slice_key == ""
    assert [h.slice_key for h in slices] == [CODE, CHAT]  # busiest first
    assert whole.num_requests == sum(h.num_requests for h in slices) == 70 * 4 - 1 + 6 * 4 - 1
    assert whole.num_blocks == sum(h.num_blocks for h in slices) == 76
    assert whole.num_short_blocks == 2
    assert whole.acceptance
    steps = sum(h.acceptance.counts.num_drafts for h in slices if h.acceptance)
    assert whole.acceptance.counts.num_drafts == steps


@pytest.mark.representative("loads1-True", "loads2-False")
@pytest.mark.parametrize(("loads", "is_left_over"), [({"editor": [4, 8]}, False), ({"editor": [8]}, True), ({}, False)])
def test_a_load_that_left_the_configuration_is_told(loads: dict[str, list[int]], is_left_over: bool) -> None:
    report = build_report(judged(world()), {"editor": POLICY}, NOW, data_note="Made up.", loads=loads)
    said = [decision_notes(h.decision) for h in report.endpoints[0].hypotheses if h.decision]
    assert len(said) == 3
    assert all(any("Load 4 is no longer configured" in note for note in notes) == is_left_over for notes in said)
    assert ("Load 4 is no longer configured" in render_markdown(report)) == is_left_over


def test_verdicts_and_intervals_are_the_gates_own() -> None:
    source = judged(world())
    (endpoint,) = report_of(source).endpoints
    decisions = {d.slice_key: d for d in source.decisions}
    assert {d.verdict for d in source.decisions} == {Verdict.ENABLE, Verdict.HOLD}
    for h in endpoint.hypotheses:
        decision = decisions[h.slice_key]
        assert h.decision is decision
        speedup = next(test for test in decision.tests if test.name == "speedup")
        assert h.speedup
        assert (h.speedup.estimate, h.speedup.lower, h.speedup.upper) == (
            speedup.estimate,
            speedup.lower,
            speedup.upper,
        )


def test_a_drawn_path_ends_where_the_decision_stands() -> None:
    (endpoint,) = report_of(judged(world())).endpoints
    for h in endpoint.hypotheses:
        assert set(h.sequences) == {"speedup", "acceptance", "tail"}
        for name, points in h.sequences.items():
            test, last = h.test(name), points[-1]
            assert test
            assert last.num_units == test.num_units
            assert (last.estimate, last.lower, last.upper) == pytest.approx((test.estimate, test.lower, test.upper))


def test_a_drawn_path_stops_at_what_the_decision_had_seen() -> None:
    source = judged(world())
    seen = {test.name: test.num_units for test in source.decisions[0].tests}
    add_slice(source, "editor", CODE, num_blocks=20, speedup=1.4, rate=0.7, seed=9)
    whole = report_of(source).endpoints[0].hypotheses[0]
    assert whole.num_blocks == 96
    assert all(points[-1].num_units <= seen[name] for name, points in whole.sequences.items())
    assert whole.sequences["speedup"][-1].num_units > seen["speedup"] / 2


def test_failed_requests_are_counted_and_have_no_figures() -> None:
    (endpoint,) = report_of(world(failures=3)).endpoints
    whole = endpoint.hypotheses[0]
    assert whole.num_failed == 3
    assert whole.latency
    assert whole.latency.num_requests == whole.num_requests - 3


def test_each_config_and_load_is_its_own_hypothesis() -> None:
    source = world()
    add_slice(source, "editor", CODE, num_blocks=3, speedup=1, rate=0.5, n_max=8, fingerprinted=config("other-k2", k=2))
    keys = [(h.config_name, h.concurrency, h.slice_key) for h in report_of(source).hypotheses]
    assert keys == [
        ("draft-k4", 4, ""),
        ("draft-k4", 4, CODE),
        ("draft-k4", 4, CHAT),
        ("other-k2", 8, ""),
        ("other-k2", 8, CODE),
    ]


REASONS = st.sampled_from([None, "not_timed", "image_content"])
ENDPOINTS = st.sampled_from([None, "editor", "chat"])


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(ENDPOINTS, st.sampled_from(FunnelCounter), REASONS), max_size=40))
def test_the_funnel_adds_up_to_the_records_read(ends: list[tuple[str | None, FunnelCounter, str | None]]) -> None:
    source = MemorySource(
        unread=[
            StoredRecord(RecordKey("file", 0, line), counter, reason, endpoint)
            for line, (endpoint, counter, reason) in enumerate(ends, start=1)
        ]
    )
    report = build_report(source, {}, NOW, data_note="Made up.")
    assert report.total_funnel.num_records == len(ends)
    assert sum(funnel.num_records for funnel in report.funnels) == len(ends)
    for funnel in (*report.funnels, report.total_funnel):
        assert [row.counter for row in funnel.rows] == list(FunnelCounter)
        counted_ends = [end for end in ends if funnel is report.total_funnel or end[0] == funnel.endpoint]
        assert sum(row.num_records for row in funnel.rows) == funnel.num_records == len(counted_ends)
        for row in funnel.rows:
            assert row.num_records == sum(counter is row.counter for _, counter, _ in counted_ends)
            assert sum(count for _, count in row.reasons) == sum(
                c is row.counter and bool(r) for _, c, r in counted_ends
            )


def test_an_empty_store_makes_an_empty_report() -> None:
    report = build_report(MemorySource(), {}, NOW, data_note="Nothing.")
    assert report.endpoints == ()
    assert report.hypotheses == ()
    assert report.last_measured is None
    assert report.total_funnel.num_records == 0


def test_a_configured_endpoint_without_rows_is_shown() -> None:
    report = build_report(MemorySource(), {"quiet": POLICY}, NOW, data_note="Nothing.")
    assert [e.name for e in report.endpoints] == ["quiet"]
    assert report.endpoints[0].hypotheses == ()


def test_an_unknown_dtype_leaves_near_ties_unknown() -> None:
    source = MemorySource()
    add_slice(source, "editor", CODE, num_blocks=2, speedup=1, rate=0.5, fingerprinted=config("odd", dtype="float8"))
    parity = report_of(source).hypotheses[0].parity
    assert parity
    assert parity.num_faults is None


@pytest.fixture
def sqlite_store(tmp_path: Path) -> Iterator[Store]:
    url = f"sqlite:///{tmp_path / 'shadowspec.db'}"
    stores.upgrade(url)
    with Store.open(url) as opened:
        yield opened


def test_the_store_gives_the_same_report_as_a_source_in_memory(sqlite_store: Store) -> None:
    source = world()
    sqlite_store.save_fingerprints(list(source.configs.values()))
    for stored in source.blocks("editor"):
        runs = tuple(run for run in source.runs("editor") if run.block_id == stored.block_id)
        block = Block(
            stored.block_id, stored.sequence, "editor", stored.slice_key, stored.concurrency, (), (), stored.first_arm
        )
        run_keys = {run.key for run in runs}
        records = [record for record in source.records("editor") if record.key in run_keys]
        save_block(sqlite_store, BlockResult(block, stored.started_at, runs, stored.memory), records)
    save_records(sqlite_store, list(source.records("editor")))
    source.decisions = run_endpoint_gate(sqlite_store, "editor", POLICY, input_ended=True, now=NOW).decisions
    source.folded = {"editor": sqlite_store.folds("editor")}
    assert render_json(report_of(sqlite_store)) == render_json(report_of(source))


def test_times_are_the_evidences_own() -> None:
    source = world()
    late = datetime(2026, 3, 2, 9, 0, tzinfo=UTC)
    blocks = source.measured_blocks["editor"]
    blocks[-1] = replace(blocks[-1], started_at=late)
    report = report_of(source)
    assert report.last_measured == late
    assert report.endpoints[0].first_measured == min(block.started_at for block in blocks)

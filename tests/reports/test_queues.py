"""Derived queues: whose time a request takes, what the clock does, what is said where nothing can be derived."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from datetime import timedelta

import pytest
from msgspec import structs

from shadowspec.gate.policy import GatePolicy
from shadowspec.planning.queueing import replay_queue
from shadowspec.reports.queues import (
    BUSY,
    MAX_ARRIVALS,
    MIN_ARRIVALS,
    MIN_SERVED,
    OVERLOADED,
    QueueCell,
    newest_arrivals,
    queue_basis,
    queue_cells,
    queue_cells_text,
    timed_requests,
)
from shadowspec.reports.report import build_report, render_html, render_json, render_markdown
from shadowspec.types import ArrivedRequest, FunnelCounter, RecordKey, ServedRequest, StoredRecord
from tests.reports.worlds import NOW, MemorySource, add_slice, config

CODE, CHAT, MATHS = "prompt_class=code", "prompt_class=chat", "prompt_class=maths"
CONFIG = config()


def key(number: int) -> RecordKey:
    return RecordKey("topic", 0, number)


def arrivals(
    number: int, *, gap_ms: float = 100.0, slices: tuple[str, ...] = (CODE,), weight: float = 1.0
) -> list[ArrivedRequest]:
    """Evenly spaced, the slices in turns."""
    return [
        ArrivedRequest(key(place), slices[place % len(slices)], NOW + timedelta(milliseconds=gap_ms * place), weight)
        for place in range(number)
    ]


def timed(
    some: list[ArrivedRequest], baseline_ms: float = 40.0, speculative_ms: float = 20.0, load: int = 2
) -> list[ServedRequest]:
    return [
        ServedRequest(item.key, item.slice_key, load, CONFIG.fingerprint, baseline_ms, speculative_ms) for item in some
    ]


def cell_of(arrived_requests: list[ArrivedRequest], found: list[ServedRequest]) -> QueueCell:
    (cell,) = queue_cells(arrived_requests, found, {CONFIG.fingerprint: CONFIG})
    return cell


@pytest.mark.parametrize(
    ("factor", "said"),
    [
        (1.0, "as recorded"),
        (0.512, "0.512\u00d7"),
        (12.34, "12.3\u00d7"),
        (787.2, "787\u00d7"),
        (1260.4, "1,260\u00d7"),
    ],
)
def test_the_traffic_is_said_in_figures_that_are_read_at_a_glance(factor: float, said: str) -> None:
    cell = cell_of(arrivals(MIN_ARRIVALS), timed(arrivals(MIN_ARRIVALS)))
    assert queue_cells_text(cell, replace(cell.rows[0], traffic=factor))[3] == said


def test_a_timed_request_takes_its_own_time_and_another_one_that_of_its_slice() -> None:
    arrived = arrivals(400, slices=(CODE, CHAT))
    code, chat = (
        [each for each in arrived if each.slice_key == CODE],
        [each for each in arrived if each.slice_key == CHAT],
    )
    cell = cell_of(arrived, [*timed(code[:50], 40.0, 20.0), *timed(chat[:80], 10.0, 30.0)])
    recorded = cell.rows[0]
    assert (cell.num_arrivals, cell.num_timed, cell.num_borrowed, cell.thinning) == (400, 130, 0, 1.0)
    # 200 requests of either slice, 399 gaps of 100 ms, two slots
    assert recorded.baseline.utilisation == pytest.approx((40.0 + 10.0) / 2 / 100.0 / 2)
    assert recorded.speculative.utilisation == pytest.approx((20.0 + 30.0) / 2 / 100.0 / 2)


def test_both_arms_take_the_times_of_one_request() -> None:
    """Drawn apart, the arms' difference would be the draw's: here one arm takes half of what the other takes."""
    arrived, draw = arrivals(600), random.Random(3)
    found = [
        ServedRequest(each.key, CODE, 1, CONFIG.fingerprint, 2.0 * length, length)
        for each in arrived[:60]
        if (length := draw.uniform(5.0, 60.0))
    ]
    cell = cell_of(arrived, found)
    assert cell.rows[0].baseline.utilisation == pytest.approx(2.0 * cell.rows[0].speculative.utilisation, rel=1e-12)
    assert cell == cell_of(arrived, draw.sample(found, len(found)))  # whatever the order in which the store gives them


def test_the_queue_is_that_of_the_replay_at_the_load_of_the_measurement() -> None:
    arrived, draw = arrivals(300, gap_ms=12.0), random.Random(5)
    found = [
        ServedRequest(each.key, CODE, 3, CONFIG.fingerprint, draw.expovariate(1 / 30), draw.expovariate(1 / 20))
        for each in arrived
    ]
    recorded = cell_of(arrived, found).rows[0]
    for arm, name in ((recorded.baseline, "baseline_ms"), (recorded.speculative, "speculative_ms")):
        expected = replay_queue([12.0 * place for place in range(300)], [getattr(each, name) for each in found], 3)
        assert (arm.mean_queue_ms, arm.p95_queue_ms, arm.p99_queue_ms) == pytest.approx(
            (expected.mean_ms, expected.quantile_ms(0.95), expected.quantile_ms(0.99))
        )
        assert arm.waiting_share == expected.waiting_share
        assert arm.mean_response_ms == pytest.approx(expected.mean_ms + expected.mean_service_ms)
    assert recorded.baseline.mean_response_ms is not None
    assert recorded.speculative.mean_response_ms is not None
    assert recorded.response_speedup == pytest.approx(
        recorded.baseline.mean_response_ms / recorded.speculative.mean_response_ms
    )


def test_other_speeds_are_those_at_which_the_baseline_is_busy() -> None:
    arrived = arrivals(400)
    cell = cell_of(arrived, timed(arrived[:100], 40.0, 50.0))
    recorded, *others = cell.rows
    assert recorded.traffic == 1.0
    assert [row.baseline.utilisation for row in others] == pytest.approx(BUSY)
    assert [row.traffic for row in others] == pytest.approx([busy / recorded.baseline.utilisation for busy in BUSY])
    *_, most = others
    assert most.speculative.utilisation == pytest.approx(0.95 * 50 / 40)
    assert most.speculative.is_overloaded
    assert (most.speculative.mean_queue_ms, most.speculative.p99_queue_ms, most.response_speedup) == (None, None, None)
    assert OVERLOADED in queue_cells_text(cell, most)
    assert OVERLOADED not in queue_cells_text(cell, others[0])


def test_a_slice_of_which_nothing_was_timed_borrows_and_it_is_said() -> None:
    arrived = arrivals(300, slices=(CODE, MATHS))
    cell = cell_of(arrived, timed([each for each in arrived if each.slice_key == CODE]))
    assert cell.num_borrowed == 150
    assert "150 of these from any slice" in queue_basis(cell)
    assert "150 took the time of a timed request" in queue_basis(cell)
    whole = cell_of(arrived, timed(arrived))
    assert whole.num_borrowed == 0
    assert "took the time" not in queue_basis(whole)


def test_where_sessions_were_sampled_the_clock_runs_faster() -> None:
    arrived = arrivals(200)
    every, quarter = cell_of(arrived, timed(arrived)), cell_of(arrivals(200, weight=4.0), timed(arrived))
    assert quarter.thinning == pytest.approx(4.0)
    assert quarter.rows[0].baseline.utilisation == pytest.approx(4.0 * every.rows[0].baseline.utilisation)
    assert [row.baseline.utilisation for row in quarter.rows[1:]] == pytest.approx(BUSY)
    assert quarter.rows[1].traffic == pytest.approx(every.rows[1].traffic / 4.0)
    assert "one of 4.00 requests was recorded" in queue_basis(quarter)
    assert "was recorded, so" not in queue_basis(every)
    # Slices that are decided are sampled at less: all of their requests are kept, some of their sessions drawn.
    decided = [each._replace(weight=8.0 if place % 4 == 0 else 0.0) for place, each in enumerate(arrived)]
    assert cell_of(decided, timed(arrived)).thinning == pytest.approx(2.0)


def record(number: int, counter: FunnelCounter, reason: str | None, rate: float | None = 0.25) -> StoredRecord:
    return StoredRecord(
        key(number), counter, reason, "editor", CODE, event_time=NOW + timedelta(seconds=number), sampling_rate=rate
    )


def test_usable_requests_arrive_whatever_became_of_them() -> None:
    kept = [
        record(3, FunnelCounter.MEASURED, None),
        record(1, FunnelCounter.SAMPLED_OUT, "not_timed"),
        record(2, FunnelCounter.SAMPLED_OUT, "not_sampled"),
        record(0, FunnelCounter.SHED, "queue_full", None),
        record(4, FunnelCounter.FAILED, "out_of_memory", 1.0),
    ]
    others = [
        record(5, FunnelCounter.DUPLICATE, "seen_before"),
        record(6, FunnelCounter.EXPIRED, "older_than_max_age"),
        record(7, FunnelCounter.UNSUPPORTED, "image_content"),
        structs.replace(kept[0], key=key(8), event_time=None),
        structs.replace(kept[0], key=key(9), slice_key=None),
    ]
    found = newest_arrivals([*kept, *others])
    assert [(item.key, item.weight) for item in found] == [
        (key(0), 1.0), (key(1), 4.0), (key(2), 0.0), (key(3), 4.0), (key(4), 1.0),
    ]  # fmt: skip
    many = [record(number, FunnelCounter.MEASURED, None) for number in range(MAX_ARRIVALS + 5)]
    newest = newest_arrivals(many)
    assert (len(newest), newest[0].key, newest[-1].key) == (MAX_ARRIVALS, key(5), key(MAX_ARRIVALS + 4))


@pytest.mark.parametrize(
    ("number", "num_timed", "gap_ms", "reason"),
    [
        (MIN_ARRIVALS - 1, 60, 100.0, "99 recorded arrivals, of 100 that are needed"),
        (400, MIN_SERVED - 1, 100.0, "29 timed requests, of 30 that are needed"),
        (400, 60, 0.0, "all requests were recorded at one moment"),
    ],
)
def test_too_little_is_said_and_not_guessed(number: int, num_timed: int, gap_ms: float, reason: str) -> None:
    arrived = arrivals(number, gap_ms=gap_ms)
    cell = cell_of(arrived, timed(arrived[:num_timed]))
    assert (cell.rows, cell.reason) == ((), reason)
    assert f"nothing is derived: {reason}" in queue_basis(cell)


def test_every_load_and_config_has_its_own_queue() -> None:
    arrived, other = arrivals(200), config("draft-k8", 8)
    both = {each.fingerprint: each for each in (CONFIG, other)}
    elsewhere = [each._replace(fingerprint=other.fingerprint) for each in timed(arrived, 40.0, 10.0, load=4)]
    unknown = [each._replace(fingerprint="forgotten") for each in timed(arrived)]
    older = [each._replace(key=key(900 + place)) for place, each in enumerate(timed(arrived, load=16))]
    cells = queue_cells(arrived, [*elsewhere, *timed(arrived), *timed(arrived, load=4), *unknown, *older], both)
    assert [(each.config.name, each.concurrency) for each in cells] == [
        ("draft-k4", 2), ("draft-k4", 4), ("draft-k8", 4),
    ]  # fmt: skip
    assert cells[0].rows[0].baseline.utilisation == pytest.approx(2 * cells[1].rows[0].baseline.utilisation)


def world() -> MemorySource:
    source = MemorySource()
    add_slice(source, "editor", "prompt_class=code,sampling_regime=greedy", num_blocks=20, speedup=1.4, rate=0.7)
    add_slice(source, "search", "prompt_class=chat,sampling_regime=low", num_blocks=3, speedup=1.4, rate=0.7, seed=9)
    return source


def test_every_form_of_the_report_tells_them_as_derived() -> None:
    report = build_report(
        world(), {"editor": GatePolicy(), "search": GatePolicy()}, NOW, data_note="Made up.", loads={}
    )
    page, text, document = render_html(report), render_markdown(report), json.loads(render_json(report))
    for form in (page, text):
        assert "Derived queue times" in form
        assert "Derived, not measured" in form
        assert "No verdict uses it" in form
        assert "recorded arrivals, of 100 that are needed" in form  # of the small endpoint
    by_name = {endpoint["endpoint"]: endpoint["derived_queues"] for endpoint in document["endpoints"]}
    (editor,), (search,) = by_name["editor"], by_name["search"]
    assert (editor["source"], editor["why_not"], len(editor["rows"])) == ("derived", None, 1 + len(BUSY))
    assert (search["rows"], search["source"]) == ([], "derived")
    assert editor["num_arrivals"] == len(world().rows["editor"])
    most = editor["rows"][-1]
    assert most["baseline"]["utilisation"] == pytest.approx(0.95)
    assert most["speculative"]["utilisation"] == pytest.approx(0.95 / 1.4, rel=0.1)
    assert most["speculative"]["mean_queue_ms"] < most["baseline"]["mean_queue_ms"]


def test_the_reports_rows_are_those_of_its_runs() -> None:
    source = world()
    (endpoint, _) = build_report(source, {}, NOW, data_note="Made up.").endpoints
    cells = queue_cells(
        newest_arrivals(source.rows["editor"]),
        timed_requests(source.measured_runs["editor"], source.measured_blocks["editor"]),
        source.configs,
    )
    assert endpoint.queues == tuple(cells)
    run = next(measured for measured in source.measured_runs["editor"] if measured.baseline is not None)
    (first, *_) = timed_requests([run], source.measured_blocks["editor"])
    assert run.baseline is not None
    assert first.baseline_ms == run.baseline.prefill_ms + run.baseline.decode_ms


def test_without_enough_there_is_no_section() -> None:
    source = MemorySource()
    add_slice(source, "search", "prompt_class=chat,sampling_regime=low", num_blocks=3, speedup=1.4, rate=0.7)
    report = build_report(source, {}, NOW, data_note="Made up.")
    assert "Derived queue times" not in render_markdown(report)
    assert 'id="queues"' not in render_html(report)

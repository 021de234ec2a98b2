"""The board: what a row says, which row speaks for an endpoint, and which rows are found."""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import timedelta

from shadowspec.planning.demand import Demand
from shadowspec.reports.figures.token_costs import DeviceTime
from shadowspec.reports.pages.board import (
    BoardFilter,
    build_board,
    expected_at,
    find_rows,
    label_values,
)
from shadowspec.reports.pages.board_values import TREND_DAYS, Saving
from shadowspec.types import Arm, EvidenceSummary, Override, Supersession, Verdict
from tests.builders.board_values import CONFIG, DAY, board, decision, sums, values
from tests.reports.worlds import NOW
from tests.store.examples import in_traffic


def test_the_weightiest_load_speaks_for_the_endpoint_and_slices_stand_below_by_traffic() -> None:
    rows = [
        decision(concurrency=4, verdict=Verdict.ENABLE),
        decision(concurrency=16, verdict=Verdict.HOLD),
        in_traffic(decision(slice_key="prompt_class=chat"), 0.2),
        in_traffic(decision(slice_key="prompt_class=code"), 0.8),
    ]
    (endpoint,) = board(*rows).endpoints
    assert endpoint.head.verdict is Verdict.HOLD
    assert endpoint.loads is not None
    assert endpoint.loads.words == "on up to 4, undecided from 5 to 16, not measured above"
    assert [(row.slice_key, row.concurrency) for row in endpoint.rows] == [
        ("", 4),
        ("prompt_class=code", 4),
        ("prompt_class=chat", 4),
    ]
    assert board(*rows).tallies() == {Verdict.ENABLE: 0, Verdict.DISABLE: 0, Verdict.HOLD: 1, None: 0}


def test_a_schedule_speaks_by_a_load_at_which_it_is_on() -> None:
    rows = [decision(concurrency=4, verdict=Verdict.ENABLE), decision(concurrency=16, verdict=Verdict.DISABLE)]
    (endpoint,) = board(*rows).endpoints
    assert (endpoint.head.concurrency, endpoint.head.verdict) == (4, Verdict.ENABLE)
    assert endpoint.loads is not None
    assert endpoint.loads.words == "on up to 4, off above"


def test_production_s_demand_chooses_the_load_that_speaks() -> None:
    rows = [decision(concurrency=4, verdict=Verdict.ENABLE), decision(concurrency=16, verdict=Verdict.HOLD)]
    for number, load in ((3, 4), (9, 16)):
        demand = Demand(NOW - timedelta(hours=1), NOW, {number: 5}, {9: {number: 5}})
        (endpoint,) = build_board(replace(values(rows), demands={"chat": demand}), (), NOW).endpoints
        assert endpoint.head.concurrency == load


def test_a_row_repeats_the_gate_and_an_override_stands_before_it() -> None:
    row = board(decision(verdict=Verdict.ENABLE, clusters_needed=3)).endpoints[0].head
    assert row.speedup is not None
    assert (row.speedup.estimate, row.speedup.lower, row.speedup.upper, row.speedup.threshold) == (1.3, 1.1, 1.5, 1.05)
    assert row.parity_outcome == "open"
    order = Override(7, "chat", "", None, Verdict.DISABLE, "it answers nonsense", "ada", NOW - timedelta(hours=1))
    row = board(decision(verdict=Verdict.ENABLE, clusters_needed=3), overrides=(order,)).endpoints[0].head
    assert (row.verdict, row.since, row.clusters_needed) == (Verdict.DISABLE, order.created_at, None)
    assert "it answers nonsense" in row.reason
    assert row.current.measured is not None
    assert row.current.measured.verdict is Verdict.ENABLE
    unmeasured = build_board(values([]), (order,), NOW).endpoints[0].head
    assert (unmeasured.verdict, unmeasured.current.measured) == (Verdict.DISABLE, None)
    assert "it answers nonsense" in unmeasured.reason


def test_a_superseded_fingerprint_has_no_row() -> None:
    old = replace(
        decision(verdict=Verdict.DISABLE, supersession=Supersession("new", Verdict.DISABLE)), fingerprint="old"
    )
    assert [row.fingerprint for row in board(decision(), old).rows] == [CONFIG.fingerprint]


def test_what_is_needed_is_expected_at_the_pace_so_far() -> None:
    assert expected_at(decision(clusters_needed=50), NOW) == NOW + timedelta(hours=12)
    assert expected_at(decision(), NOW) is None
    assert expected_at(decision(clusters_needed=50, evidence=EvidenceSummary()), NOW) is None


def test_evidence_is_as_old_as_its_newest_event_whenever_it_was_measured() -> None:
    old = EvidenceSummary(newest_evidence=NOW - timedelta(days=900))
    (row,) = board(decision(evidence=old)).rows
    assert row.evidence_at == NOW - timedelta(days=900)


def test_trend_and_saving_are_pooled_over_the_slices() -> None:
    figures = {
        "num_runs": 2, "timed_weight": 2.0, "weighted_drafts": 10.0, "weighted_first_accepted_tokens": 6.0,
        "baseline_prefill_ms": 100.0, "baseline_decode_ms": 700.0, "baseline_num_output_tokens": 100,
        "speculative_prefill_ms": 100.0, "speculative_decode_ms": 300.0, "speculative_num_output_tokens": 100,
    }  # fmt: skip
    days = [
        sums("chat", "a=1", 0, weighted_log_speedup=2 * math.log(2.0), **figures),
        sums("chat", "a=2", 0, weighted_log_speedup=0.0, **figures),
        sums("chat", "a=2", 8, weighted_log_speedup=0.0, **{**figures, "baseline_decode_ms": 1e9}),
    ]
    found = build_board(values([], days, price=3.6), (), NOW)
    row = next(row for row in found.rows if not row.slice_key)
    assert [day.day for day in row.trend] == [DAY - timedelta(days=back) for back in range(TREND_DAYS - 1, -1, -1)]
    assert row.trend[-1].speedup is not None
    assert math.isclose(row.trend[-1].speedup, math.sqrt(2.0))
    assert row.trend[-1].first_position_acceptance_rate == 0.6
    assert row.trend[-2].speedup is None
    assert row.saving is not None
    time = row.saving.time  # 800 ms at load 4 over 100 tokens, of the last 7 days alone
    assert (time.ms_per_token(Arm.BASELINE), time.ms_per_token(Arm.SPECULATIVE)) == (2.0, 1.0)
    assert row.saving.share == 0.5
    assert row.saving.per_million_tokens is not None
    assert math.isclose(row.saving.per_million_tokens, 1.0)  # a second of a device at 3.6 an hour, a thousand times
    costlier = DeviceTime(baseline_ms=2.0, speculative_ms=3.0, baseline_tokens=1, speculative_tokens=1)
    assert Saving(costlier, None).per_million_tokens is None
    assert Saving(costlier, None).share == -0.5


def test_endpoints_are_found_by_owner_and_by_what_they_ask_for() -> None:
    judged = [
        decision("chat", verdict=Verdict.DISABLE, reason_code="parity_fault"),
        decision("sql", verdict=Verdict.HOLD, reason_code="too_few_units"),
        decision("mail", verdict=Verdict.HOLD, reason_code="undecidable"),
        decision("code", verdict=Verdict.DISABLE, reason_code="slowdown"),
    ]
    given = replace(values(judged), owners={"chat": "Search team", "sql": "data"})
    found = build_board(given, (), NOW)

    def names(sort: str = "name", **wanted: frozenset[str]) -> list[str]:
        return [endpoint.name for endpoint in find_rows(found, BoardFilter(**wanted), sort).endpoints]  # type: ignore[arg-type]

    assert names(owners=frozenset({"Search team"})) == ["chat"]
    assert names(severities=frozenset({"act now", "to do"})) == ["chat", "mail"]
    assert names("severity") == ["chat", "mail", "sql", "code"]
    assert [row.severity for row in found.rows] == ["act now", "decided", "to do", "waiting"]
    assert find_rows(found, BoardFilter(search="search TEAM"), "name").num_rows == 1


def test_filters_keep_an_endpoint_for_any_row_that_matches() -> None:
    found = board(
        decision(verdict=Verdict.ENABLE),
        decision(slice_key="prompt_class=code,tier=pro", verdict=Verdict.DISABLE),
        decision("sql", verdict=Verdict.HOLD, lower=0.9),
    )
    assert label_values(found) == {"prompt_class": ["code"], "tier": ["pro"]}
    whole = find_rows(found, BoardFilter(), "name")
    assert [endpoint.name for endpoint in whole.endpoints] == ["chat", "sql"]
    assert (whole.num_rows, whole.opened) == (3, frozenset())
    below = find_rows(found, BoardFilter(labels={"tier": frozenset({"pro"})}), "name")
    assert [(endpoint.name, len(endpoint.rows)) for endpoint in below.endpoints] == [("chat", 1)]
    assert (below.opened, below.num_rows) == ({"chat"}, 1)
    assert [
        endpoint.name for endpoint in find_rows(found, BoardFilter(verdicts=frozenset({"HOLD"})), "name").endpoints
    ] == ["sql"]
    assert find_rows(found, BoardFilter(search="SQL draft"), "name").num_rows == 1
    assert not find_rows(found, BoardFilter(models=frozenset({"another"})), "name").endpoints
    assert find_rows(found, BoardFilter(endpoints=frozenset({"sql"})), "name").num_rows == 1
    assert find_rows(found, BoardFilter(search="Search TEAM"), "name").num_rows == 0, "nobody is named"
    by_speedup = find_rows(found, BoardFilter(), "speedup")
    assert [endpoint.name for endpoint in by_speedup.endpoints] == ["chat", "sql"]
    assert [endpoint.name for endpoint in find_rows(found, BoardFilter(), "no such order").endpoints] == ["chat", "sql"]

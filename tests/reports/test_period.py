"""A report on a span of time: all that happened in it, nothing that did not, and the same whenever it is made."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shadowspec.errors import UsageError
from shadowspec.gate.policy import GatePolicy
from shadowspec.reports.content.changes import Change, ChangeKind
from shadowspec.reports.period.period_build import PeriodSettings, build_period_report
from shadowspec.reports.period.period_content import RENDERERS
from shadowspec.reports.period.period_model import PeriodReport, SimulatedRate, last_whole, moment_of
from shadowspec.simulate.policies import rate_of
from shadowspec.simulate.results import read_results
from shadowspec.simulate.worlds import ALONE
from shadowspec.store import Store, upgrade
from shadowspec.types import Clearing, Decision, DriftFigures, Stage, TestResult, Verdict
from tests.builders.pages import EVIL, Page
from tests.builders.workspace import require_valid_document
from tests.store import examples

NOON = examples.NOON
HOUR = timedelta(hours=1)
CODE = "prompt_class=code"
NOTE = "Made up."


@pytest.fixture
def history(new_database: Callable[[str], str]) -> Iterator[Store]:
    with Store.open(new_database("sqlite")) as store:
        yield fill(store)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    url = f"sqlite:///{tmp_path_factory.mktemp('period') / 'shadowspec.db'}"
    upgrade(url)
    with Store.open(url) as store:
        yield fill(store)


def decided(hours: float, verdict: Verdict, slice_key: str = "", **changes: Any) -> Decision:
    return replace(examples.decision(verdict), slice_key=slice_key, decided_at=NOON + hours * HOUR, **changes)


def fill(store: Store) -> Store:
    """Twelve hours in which everything happens once."""
    store.save_fingerprints([examples.config(), examples.config("new")])
    for decision in (
        decided(0, Verdict.HOLD),
        decided(2, Verdict.ENABLE, reason="it is faster"),
        decided(4, Verdict.ENABLE, reason="it is faster", drift=DriftFigures(4.6, "speedup")),
        decided(5, Verdict.DISABLE, reason_code="drift", reason="speedup no longer holds 1.2"),
        decided(7, Verdict.DISABLE, reason_code="slowdown", reason="it is slower"),
        decided(3, Verdict.HOLD, CODE, clusters_needed=40),
        decided(8, Verdict.HOLD, fingerprint="new"),
    ):
        store.append_decisions([decision])
    override = replace(examples.override(slice_key=CODE), created_at=NOON + 4 * HOUR)
    override_id = store.add_override(override)
    store.clear_override(Clearing(override_id, "mended", "grace", NOON + 9 * HOUR))
    store.add_override(
        replace(examples.override(endpoint="other"), created_at=NOON + HOUR, expires_at=NOON + 6 * HOUR, author="grace")
    )
    moved = [(Stage.SHADOW, 1.0), (Stage.PARTIAL, 3.0), (Stage.SHADOW, 5.5)]
    store.append_rollouts([replace(examples.rollout(stage), decided_at=NOON + at * HOUR) for stage, at in moved])
    return store


def report_of(store: Store, since: float, until: float, now: float = 100) -> PeriodReport:
    period_settings = PeriodSettings(data_note=NOTE)
    return build_period_report(store, period_settings, NOON + since * HOUR, NOON + until * HOUR, NOON + now * HOUR)


def test_a_fault_that_revokes_enable_is_an_alarm(store: Store) -> None:
    store.save_fingerprints([examples.config()])
    for decision in (decided(2, Verdict.ENABLE), decided(5, Verdict.DISABLE, reason_code="parity_fault")):
        store.append_decisions([decision])
    assert ("alarm", 5, "ENABLE is revoked: now DISABLE") in list_changes(report_of(store, 0, 12).changes)


def list_changes(changes: tuple[Change, ...]) -> list[tuple[str, float, str]]:
    return [(change.kind.value, (change.at - NOON) / HOUR, change.what) for change in changes]


def test_an_endpoint_that_is_first_seen_in_shadow_is_no_step(history: Store) -> None:
    assert "rollout step" not in report_of(history, 0.5, 2).summary
    assert "2 rollout steps" in report_of(history, 2, 6).summary


def test_everything_that_happened_is_told_once(history: Store) -> None:
    assert list_changes(report_of(history, 0, 12).changes) == [
        ("alarm", 5, "drift alarm: now DISABLE"),
        ("override_set", 1, "DISABLE until 2026-01-02 18:00 UTC"),
        ("override_set", 4, "DISABLE until it is cleared"),
        ("verdict", 2, "HOLD to ENABLE"),
        ("verdict", 5, "ENABLE to DISABLE"),
        ("alarm_cleared", 7, "no longer alarmed: DISABLE"),
        ("override_cleared", 9, "override 1 cleared by grace: mended"),
        ("override_expired", 6, "override 2 has expired"),
        ("rollout", 1, "shadow, 10% of the enabled traffic, at most 2 tokens deep"),
        ("rollout", 3, "shadow to partial, 10% of the enabled traffic, at most 2 tokens deep"),
        ("rollout", 5.5, "partial to shadow, 10% of the enabled traffic, at most 2 tokens deep"),
        ("fingerprint", 0, "ngram-4 is measured now"),
        ("fingerprint", 8, "ngram-4 is new now, and was fp"),
        ("advice", 4, "speedup has come down"),
        ("new", 0, "first verdict: HOLD"),
        ("new", 3, "first verdict: HOLD"),
        ("new", 8, "first verdict: HOLD"),
    ]


@settings(max_examples=12, deadline=None)
@given(cuts=st.sets(st.floats(0.1, 11.9), min_size=1, max_size=4))
def test_spans_that_follow_each_other_tell_everything_once(cuts: set[float], shared: Store) -> None:
    edges = [0.0, *sorted(cuts), 12.0]
    parts = [report_of(shared, since, until) for since, until in itertools.pairwise(edges)]
    assert sorted(each for part in parts for each in list_changes(part.changes)) == sorted(
        list_changes(report_of(shared, 0, 12).changes)
    )


def test_nothing_is_told_twice_at_the_edges(history: Store) -> None:
    assert list_changes(report_of(history, 2, 3).changes)[:1] == [("verdict", 2, "HOLD to ENABLE")]
    assert [
        list_change for list_change in list_changes(report_of(history, 1.5, 2).changes) if list_change[0] == "verdict"
    ] == []
    assert report_of(history, 10, 11).changes == ()
    assert report_of(history, 10, 11).summary == "nothing changed"


def test_the_board_is_as_things_stood(history: Store) -> None:
    def board(until: float) -> list[tuple[str, str, str, bool]]:
        rows = report_of(history, 0, until).board
        return [(row.slice_key, row.fingerprint, row.verdict.value, row.is_overridden) for row in rows]

    assert board(0) == []
    assert board(1) == [("", "fp", "HOLD", False)]
    assert board(3.5) == [("", "fp", "ENABLE", False), (CODE, "fp", "HOLD", False)]
    assert board(4.5) == [("", "fp", "ENABLE", False), (CODE, "fp", "DISABLE", True)], "the order is not cleared yet"
    assert board(8) == [("", "fp", "DISABLE", False), (CODE, "fp", "DISABLE", True)]
    assert board(12) == [("", "new", "HOLD", False)], "its fingerprint has been replaced"
    (row,) = [period_row for period_row in report_of(history, 0, 4).board if not period_row.slice_key]
    assert row.stage == "partial"
    assert row.decision_id == 2


def test_a_past_report_comes_out_the_same_whenever_it_is_made(history: Store) -> None:
    first = report_of(history, 0, 6)
    history.append_decisions([decided(20, Verdict.ENABLE)])
    history.add_override(replace(examples.override(), created_at=NOON + 30 * HOUR))
    later = report_of(history, 0, 6, now=200)
    assert replace(later, generated_at=first.generated_at) == first
    assert later.report_id != report_of(history, 0, 7).report_id


def test_what_is_undecided_says_what_it_wants(history: Store) -> None:
    (code,) = report_of(history, 0, 8).needs
    (whole,) = report_of(history, 0, 12).needs
    assert (code.needed and code.needed.sessions, code.is_planned, code.days_median) == (40, False, None)
    assert code.open_tests == (("speedup", "window", None),)
    assert whole.needed is not None
    assert whole.needed.sessions == 11


@pytest.mark.parametrize("form", ["html", "md", "json"])
def test_every_format_tells_all_of_it(form: str, history: Store) -> None:
    report = report_of(history, 0, 12)
    text = RENDERERS[form](report)
    shown = Page(text).text if form == "html" else text
    for change in report.changes:
        assert change.what in shown.replace("\\", "")
    assert report.report_id in shown
    assert NOTE in shown
    assert "not simulated" in shown or form == "json"
    assert {row.engine for row in report.board} == {"unknown"}, "the made-up decisions keep none"
    reported = {
        "html": "latency measured on unknown; for unknown",
        "md": "latency measured on unknown; for unknown",
        "json": '"engine":"unknown",',
    }
    assert reported[form] in shown
    assert '"verdict_engine":"unknown"' in shown or form != "json"
    if form == "json":
        assert json.loads(text)["verdicts"] == {"ENABLE": 0, "DISABLE": 0, "HOLD": 1}


def test_the_json_names_of_changes_and_bounds_are_kept(history: Store) -> None:
    report = report_of(history, 0, 12)
    test = TestResult("speedup", "open", 1.1, None, 1.4, 1.05, 0.05, "block", 10, 5)
    report = replace(report, board=(replace(report.board[0], speedup=test, acceptance=None),))
    require_valid_document(["report", "--since", "--json"], RENDERERS["json"](report))
    document = json.loads(RENDERERS["json"](report))
    bounds = {"estimate": 1.1, "lower": None, "upper": 1.4, "threshold": 1.05, "num_units": 10, "unit": "block"}
    (row,) = document["board"]
    assert (row["speedup"], row["acceptance"]) == (bounds, None)
    assert set(document["changes"][0]) == {
        *("at", "kind", "endpoint", "slice", "load", "what", "why", "before", "after"),
        *("config_name", "fingerprint", "decision_id"),
    }


def test_a_report_on_nothing_says_so(new_database: Callable[[str], str]) -> None:
    with Store.open(new_database("sqlite")) as store:
        period_settings = PeriodSettings(policies={"chat": GatePolicy(window_s=0.0)}, data_note=NOTE)
        report = build_period_report(store, period_settings, NOON, NOON + HOUR, NOON, gate_outcome="chat: InputError")
    for render in (RENDERERS["html"], RENDERERS["md"]):
        text = render(report)
        assert "Nothing was decided by then." in text
        assert "No record has been read." in text
        assert "The gate run before this report failed" in text
        assert "chat" in text


def test_names_from_traffic_are_text_and_never_markup(new_database: Callable[[str], str]) -> None:
    with Store.open(new_database("sqlite")) as store:
        store.save_fingerprints([examples.config()])
        store.append_decisions([decided(0, Verdict.HOLD, reason=EVIL, endpoint=EVIL, slice_key=f"tier={EVIL}")])
        store.add_override(replace(examples.override(endpoint=EVIL), created_at=NOON, reason="x", author=EVIL))
        report = report_of(store, 0, 1)
    page = Page(RENDERERS["html"](report))
    assert [tag for tag, _ in page.tags].count("script") == 0
    assert not any("src" in attributes or "href" in attributes for _, attributes in page.tags)
    assert page.text.count("<script>alert(1)</script>") > 4
    assert "<script" not in RENDERERS["md"](report)


def test_the_simulated_rate_is_that_of_no_laxer_policy() -> None:
    results = read_results(Path("kernels/benchmarks/results/simulation.json"))
    default = rate_of(GatePolicy(window_s=0.0), results)
    assert isinstance(default, SimulatedRate)
    assert 0 <= default.num_false <= default.num_repetitions
    assert (
        default.num_false / default.num_repetitions <= default.upper < default.alpha == GatePolicy(window_s=0.0).alpha
    )
    alone = rate_of(ALONE, results)
    assert alone is not None
    assert alone.num_worlds < default.num_worlds, "worlds that wait for a week say nothing of a policy that does not"
    assert rate_of(replace(ALONE, margin=0.01), results) is None
    assert rate_of(GatePolicy(window_s=0.0), {}) is None


def test_spans_by_name_are_whole_days_and_weeks_of_the_zone() -> None:
    zone = ZoneInfo("Europe/Berlin")
    monday_after_the_change = datetime(2026, 3, 30, 6, tzinfo=UTC)
    day = last_whole("day", monday_after_the_change, zone)
    assert day == (datetime(2026, 3, 28, 23, tzinfo=UTC), datetime(2026, 3, 29, 22, tzinfo=UTC)), "it had 23 hours"
    week = last_whole("week", monday_after_the_change, zone)
    assert week == (datetime(2026, 3, 22, 23, tzinfo=UTC), datetime(2026, 3, 29, 22, tzinfo=UTC))
    assert moment_of("2026-03-02", zone, "--since") == datetime(2026, 3, 1, 23, tzinfo=UTC)
    assert moment_of("2026-03-02T09:30Z", zone, "--since") == datetime(2026, 3, 2, 9, 30, tzinfo=UTC)
    with pytest.raises(UsageError, match="--since must be a date"):
        moment_of("soon", zone, "--since")
    assert ChangeKind("alarm") is ChangeKind.ALARM

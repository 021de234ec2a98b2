"""Production's policy over days of traffic, from the file to every output: an hour is a unit, and has its blocks."""

from __future__ import annotations

from datetime import timedelta

import pytest

from shadowspec.store import Store
from tests.builders.workspace import NOON, Workspace, record, write_traffic

DAYS, PER_HOUR = 3, 8
NUM_RECORDS = DAYS * 24 * PER_HOUR


@pytest.fixture
def measured(workspace: Workspace) -> Workspace:
    """Three days of traffic, each request of a session of its own, measured under the default window."""
    workspace.replace_in_config("min_span_s = 0.0\nwindow_s = 0.0  # units are blocks\n", "min_span_s = 172800\n")
    traffic = [
        record(number) | {"timestamp": (NOON + timedelta(seconds=3_600.0 / PER_HOUR * number)).isoformat()}
        for number in range(NUM_RECORDS)
    ]
    path = write_traffic(workspace.folder / "traffic.jsonl", traffic)
    workspace.migrate()
    done = workspace.run("run", str(path), "--json")
    assert done.code == 0, done.err
    return workspace


def test_days_of_traffic_give_a_unit_an_hour_in_every_output(measured: Workspace) -> None:
    gate = measured.run("gate", "--json")
    assert gate.code == 0, gate.err
    with Store.open("sqlite:///shadow.db") as store:
        records = store.records("letters")
        (whole,) = [decision for decision in store.latest_decisions("letters") if not decision.slice_key]
        runs = store.runs("letters")
        with store.evidence_session("letters") as session:
            blocks = [block for block, _ in session.blocks({run.block_id for run in runs}).values()]
    assert len(records) == NUM_RECORDS
    passed = sum(each.reason == "window_budget" for each in records)
    assert passed + len(runs) == NUM_RECORDS
    assert NUM_RECORDS / 6 < len(runs) < NUM_RECORDS / 2, "two of eight requests an hour, and more in the first hours"
    represented = sum(block.stands_for * sum(run.block_id == block.block_id for run in runs) for block in blocks)
    assert represented == pytest.approx(NUM_RECORDS, rel=0.25)
    units = {test.name: (test.unit, test.num_units) for test in whole.tests if test.betting is not None}
    hours = len({int(each.event_time.timestamp() // 3_600) for each in records if each.event_time is not None})
    for name in ("speedup", "acceptance", "tail"):
        unit, number = units[name]
        assert unit == "window"
        assert hours - 24 - 12 <= number <= hours - 24, "the first day sets the size of a full hour"
    explained = measured.run("gate", "--explain", str(whole.decision_id), "--verbose")
    assert explained.code == 0, explained.err
    assert "same" in explained.out
    for command in (("plan",), ("report", "--out", "report.html"), ("check", "--endpoint", "letters")):
        done = measured.run(*command)
        assert done.code in (0, 1, 3), (command, done.err)


def test_a_trial_of_the_same_rows_has_blocks_as_units(measured: Workspace) -> None:
    """The policy that flips begins the evidence again, from the rows that are there, and back."""
    for setting, unit in (("recording_only = true\n", "block"), ("", "window")):
        text = (measured.folder / "shadowspec.toml").read_text(encoding="utf-8").replace("recording_only = true\n", "")
        text = text.replace("[gate]\n", f"[gate]\n{setting}")
        (measured.folder / "shadowspec.toml").write_text(text, encoding="utf-8")
        assert measured.run("gate").code == 0
        with Store.open("sqlite:///shadow.db") as store:
            decisions = [decision for decision in store.latest_decisions("letters") if not decision.slice_key]
        assert {decision.recording_only for decision in decisions} == {bool(setting)}
        assert {t.unit for decision in decisions for t in decision.tests if t.name == "speedup"} == {unit}

"""Since which of its units a test has crossed is what a gate that looks after each unit finds."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from datetime import datetime, timedelta

import pytest

from shadowspec.gate.policy import GatePolicy
from shadowspec.gate.run.recompute import LostRowsError, explain
from shadowspec.gate.run.run_units import Crossing
from shadowspec.store import Store
from shadowspec.types import Decision, Verdict
from tests.builders.folding import POLICY, gate
from tests.gate.feeding import Feed
from tests.gate.oracle import EndpointEvidence
from tests.gate.worlds import START, World, noisy_run

ONE = replace(POLICY, max_hypotheses=1)


def block_ends(rows: EndpointEvidence) -> list[datetime]:
    """The event time of each block's newest measured request, in order."""
    at = {record.key: record.event_time for record in rows.records}
    ends: dict[str, list[datetime]] = defaultdict(list)
    for run in rows.runs:
        event = at[run.key]
        assert event is not None
        ends[run.block_id].append(event)
    return sorted(max(times) for times in ends.values())


def crossings_of(store: Store, decision: Decision) -> dict[str, Crossing]:
    assert decision.decision_id is not None
    explanation = explain(store, decision.decision_id)
    assert explanation.differences == ()
    return dict(explanation.crossings)


@pytest.mark.representative("sqlite-ENABLE", "sqlite-DISABLE")
@pytest.mark.parametrize(
    ("speedup", "verdict"),
    [pytest.param(1.3, Verdict.ENABLE, id="ENABLE"), pytest.param(0.85, Verdict.DISABLE, id="DISABLE")],
)
def test_it_is_the_unit_from_which_on_every_look_finds_it(store: Store, speedup: float, verdict: Verdict) -> None:
    feed = Feed(store, World(70, make_run=noisy_run(speedup=speedup)).evidence())
    outcomes: dict[str, dict[int, str]] = defaultdict(dict)
    for place in range(70):
        feed.write_blocks(place, place + 1, is_last=place == 69)
        if place < 20:
            continue
        decision = gate(store, ONE)[0]
        for test in decision.tests:
            outcomes[test.name][test.num_units] = test.outcome
    assert decision.verdict is verdict
    ends, found = block_ends(feed.so_far()), crossings_of(store, decision)
    assert set(found) == {test.name for test in decision.tests if test.outcome != "open" and test.betting is not None}
    for name in ("speedup", "tail"):
        if name not in found:
            continue
        crossing, crossed = found[name], decision.find_test(name)
        assert crossed is not None
        since = {units: outcome for units, outcome in outcomes[name].items() if units >= crossing.unit}
        assert set(since.values()) == {crossed.outcome}
        assert outcomes[name].get(crossing.unit - 1, "open") != crossed.outcome
        assert crossing.at == ends[crossing.unit - 1]
    assert 1 < found["speedup"].unit < 70


@pytest.mark.representative("sqlite")
def test_a_slices_own_units_are_counted(store: Store) -> None:
    slices = ("prompt_class=code", "prompt_class=sql")
    feed = Feed(store, World(160, slices=slices, make_run=noisy_run()).evidence())
    feed.write_blocks(0, 160, is_last=True)
    decisions = gate(store)
    assert [decision.slice_key for decision in decisions] == ["", *slices]
    for decision in decisions:
        found = crossings_of(store, decision)["speedup"]
        assert 1 < found.unit < decision.num_blocks
    whole, part = (crossings_of(store, decision)["speedup"] for decision in decisions[:2])
    assert part.unit < 80
    assert part.at != whole.at


@pytest.mark.representative("sqlite")
def test_windows_are_units_that_end_with_their_newest_block(store: Store) -> None:
    """An hour has one block; the windows of the first day only set the size of a full one."""
    policy: GatePolicy = replace(ONE, window_s=3_600.0, min_span_s=86_400.0)
    feed = Feed(store, World(140, gap_s=900.0, make_run=noisy_run(noise=0.02)).evidence())
    feed.write_blocks(0, 140, is_last=True)
    decision = gate(store, policy)[0]
    speedup = decision.find_test("speedup")
    assert speedup is not None
    assert (speedup.unit, speedup.outcome) == ("window", "pass")
    found, ends = crossings_of(store, decision)["speedup"], block_ends(feed.so_far())
    assert found.at == ends[len(ends) - speedup.num_units + found.unit - 1]


@pytest.mark.representative("sqlite")
def test_a_decision_whose_rows_are_gone_is_what_is_left(store: Store) -> None:
    feed = Feed(store, World(40, make_run=noisy_run()).evidence())
    feed.write_blocks(0, 40, is_last=True)
    decision = gate(store, ONE)[0]
    assert store.retain(timedelta(days=1), now=START + timedelta(days=400)).num_runs > 0
    assert decision.decision_id is not None
    with pytest.raises(LostRowsError, match="runs are left") as lost:
        explain(store, decision.decision_id)
    assert lost.value.decision == decision

"""A rehearsal decides what a gate run would decide and leaves nothing behind; a plan reads what the last run folded."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

import pytest
import sqlalchemy

from shadowspec.errors import NoDataError
from shadowspec.gate.policy import GatePolicy
from shadowspec.gate.run import fold_spans as spans
from shadowspec.gate.run.gate_run import run_endpoint_gate
from shadowspec.planning.plans import plan_endpoint, plan_stored
from shadowspec.rollout.endpoint_run import run_endpoint
from shadowspec.rollout.rollout_policy import RolloutPolicy
from shadowspec.store import Store
from shadowspec.store.table_definitions import metadata
from shadowspec.types import Decision
from tests.gate.feeding import Feed, assert_same_decisions
from tests.gate.oracle import endpoint_looks
from tests.gate.worlds import CONFIG, ENDPOINT, START, World, noisy_run

POLICY = GatePolicy(window_s=0.0, max_hypotheses=3, min_span_s=0.0)
SLICES = ("prompt_class=code", "prompt_class=sql")


def everything(url: str) -> dict[str, int]:
    """Rows by table."""
    engine = sqlalchemy.create_engine(url)
    with engine.connect() as connection:
        counts = {
            name: int(connection.scalar(sqlalchemy.select(sqlalchemy.func.count()).select_from(table)) or 0)
            for name, table in metadata.tables.items()
        }
    engine.dispose()
    return counts


def rehearse(store: Store, policy: GatePolicy, now: datetime) -> list[Decision]:
    with store.rehearsal(ENDPOINT) as undone:
        return run_endpoint(undone, ENDPOINT, policy, RolloutPolicy(), now=now).decisions


@pytest.mark.representative("sqlite")
def test_a_rehearsal_decides_the_same_and_keeps_nothing(
    store: Store, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of new rows that take several folds, on evidence that was folded before."""
    feed = Feed(store, World(60, slices=SLICES, make_run=noisy_run()).evidence())
    feed.write_blocks(0, 20)
    run_endpoint_gate(store, ENDPOINT, POLICY, now=START)
    feed.write_blocks(20, 60)
    monkeypatch.setattr(spans.next_plan, "__defaults__", (100,))
    before = everything(database_url)
    now = START + timedelta(hours=1)
    rehearsed = rehearse(store, POLICY, now)
    assert everything(database_url) == before
    again = rehearse(store, POLICY, now)
    assert_same_decisions(again, rehearsed)
    assert_same_decisions(run_endpoint_gate(store, ENDPOINT, POLICY, now=now).decisions, rehearsed)
    assert everything(database_url) != before


def test_a_policy_is_tried_before_it_is_in_force(store: Store, database_url: str) -> None:
    """Also one that makes other clusters, for which everything is folded anew."""
    feed = Feed(store, World(60, make_run=noisy_run()).evidence())
    feed.write_blocks(0, 60, is_last=True)
    first = run_endpoint_gate(store, ENDPOINT, replace(POLICY, entry_clusters=10_000), now=START).decisions
    before = everything(database_url)
    tried = rehearse(store, replace(POLICY, max_requests_per_cluster=2), START)
    assert everything(database_url) == before
    assert {decision.reason_code for decision in first} == {"too_few_clusters"}
    assert "too_few_clusters" not in {decision.reason_code for decision in tried}


@pytest.mark.representative("sqlite")
def test_a_plan_of_what_was_folded_is_that_of_all_rows(store: Store) -> None:
    with pytest.raises(NoDataError, match="run `shadowspec gate` first"):
        plan_stored(store, ENDPOINT, POLICY, sample_rate=1.0, capacity_per_s=None)
    feed = Feed(store, World(30, slices=SLICES, make_run=noisy_run()).evidence())
    for start in (0, 10, 20):
        feed.write_blocks(start, start + 10)
        decisions = run_endpoint_gate(store, ENDPOINT, POLICY, now=START).decisions
    looks = endpoint_looks(feed.so_far(), POLICY, {CONFIG.fingerprint: CONFIG}, [4], decisions, input_ended=False)
    expected = plan_endpoint(ENDPOINT, looks, POLICY, sample_rate=1.0, capacity_per_s=0.01)
    found = plan_stored(store, ENDPOINT, POLICY, sample_rate=1.0, capacity_per_s=0.01)
    assert [hypothesis.tests for hypothesis in found.hypotheses] == [
        hypothesis.tests for hypothesis in expected.hypotheses
    ]
    assert found.slices == expected.slices
    assert any(hypothesis.is_open for hypothesis in found.hypotheses)
    with pytest.raises(NoDataError, match="makes other clusters"):
        plan_stored(store, ENDPOINT, replace(POLICY, cluster_idle_s=60.0), sample_rate=1.0, capacity_per_s=None)

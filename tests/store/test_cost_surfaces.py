"""Cost surfaces and evaluations read back as they were stored; of cost surfaces the newest of a kind counts."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from sqlalchemy import update

from shadowspec.errors import InputError
from shadowspec.store import Store
from shadowspec.store.table_definitions import cost_surfaces
from shadowspec.types import CostKey, ProfiledCosts, StepCost
from tests.store import examples


def points(step_ms: float) -> tuple[StepCost, ...]:
    return tuple(
        StepCost(load, depth, 64, prefill_ms=1.5, draft_ms=0.25 * depth, verify_ms=step_ms, other_ms=0.125)
        for load in (1, 4)
        for depth in (0, 2)
    )


def test_the_newest_of_each_kind_reads_back(store: Store) -> None:
    assert store.costs() == {}
    greedy = CostKey.of(examples.config(), is_greedy=True)
    sampled = replace(greedy, is_greedy=False)
    old = ProfiledCosts(greedy, examples.NOON, points(3.0))
    new = ProfiledCosts(greedy, examples.NOON + timedelta(days=1), points(2.0))
    other = ProfiledCosts(sampled, examples.NOON, points(4.0))
    for costs in (old, other, new):
        store.append_costs(costs)
    assert store.costs() == {greedy: new, sampled: other}


def test_points_of_another_version_are_refused_and_say_what_to_do(store: Store) -> None:
    store.append_costs(ProfiledCosts(CostKey.of(examples.config(), is_greedy=True), examples.NOON, points(3.0)))
    with store.engine.begin() as connection:
        connection.execute(update(cost_surfaces).values(points={"version": 2, "points": []}))
    with pytest.raises(InputError, match=r"a stored cost surface is of version 2.*: profile it again"):
        store.costs()


def test_every_evaluation_of_an_endpoint_reads_back_in_its_order(store: Store) -> None:
    store.save_fingerprints([examples.config()])
    first, again = examples.evaluation(), replace(examples.evaluation(), task="another task")
    store.append_evaluations([first, replace(first, endpoint="code"), again])
    assert store.evaluations("chat") == [first, again]
    assert store.folded_evidence("chat").evaluations == (first, again)


def test_what_a_surface_is_of_leaves_the_depth_out() -> None:
    config = examples.config()
    deeper = replace(
        config, config=replace(config.config, name="other", num_speculative_tokens=9), fingerprint="f" * 64
    )
    assert CostKey.of(config, is_greedy=True) == CostKey.of(deeper, is_greedy=True)
    for changed in (
        replace(config, device="another"),
        replace(config, dtype="bfloat16"),
        replace(config, engine="shadowspec-torch/9"),
        replace(config, details={**config.details, "draft_weights": "0" * 16}),
    ):
        assert CostKey.of(changed, is_greedy=True) != CostKey.of(config, is_greedy=True)

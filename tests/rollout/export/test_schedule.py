"""From decisions at measured loads to a depth at every batch size."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shadowspec.rollout.export.load_schedule import endpoint_schedule, slice_schedules, with_share
from shadowspec.servers.engines.export_parts import BatchRange, Export
from shadowspec.types import Decision, Override, Rollout, Stage, Verdict
from tests.rollout.export.worlds import NOW, config, decision, judged
from tests.store.examples import in_traffic


def depths(decisions: list[Decision], up_to: int) -> list[int]:
    schedule = endpoint_schedule("chat", judged(decisions))
    return [schedule.num_speculative_tokens(size) for size in range(1, up_to + 1)]


def test_nothing_is_on_above_the_largest_measured_load() -> None:
    schedule = endpoint_schedule("chat", judged([decision(load=4, number=9)]))
    assert schedule.ranges == (BatchRange(1, 4, 4, (9,)), BatchRange(5, None, 0))
    assert schedule.decision_ids == (9,)


def test_a_batch_size_between_two_loads_is_on_only_if_both_are() -> None:
    on, off = Verdict.ENABLE, Verdict.HOLD
    assert depths([decision(on, load=2), decision(on, load=5)], 7) == [4, 4, 4, 4, 4, 0, 0]
    assert depths([decision(off, load=2), decision(on, load=5)], 7) == [0, 0, 0, 0, 4, 0, 0]
    assert depths([decision(on, load=2), decision(off, load=5)], 7) == [4, 4, 0, 0, 0, 0, 0]


def test_the_larger_load_says_how_deep() -> None:
    assert depths([decision(load=1, of=config(6)), decision(load=4, of=config(2))], 5) == [6, 2, 2, 2, 0]


def test_of_several_depths_the_one_with_the_best_lower_bound() -> None:
    assert depths([decision(of=config(2), lower=1.3), decision(of=config(6), lower=1.2)], 1) == [2]
    assert depths([decision(of=config(2), lower=1.1), decision(of=config(6), lower=1.2)], 1) == [6]
    assert depths([decision(of=config(2), lower=None), decision(of=config(6), lower=1.2)], 1) == [6]


def test_a_server_runs_one_draft() -> None:
    first = [decision(load=load, of=config(4, name="a", draft="org/a"), lower=1.1) for load in (1, 8)]
    second = [decision(load=8, of=config(6, name="b", draft="org/b"), lower=1.9)]
    schedule = endpoint_schedule("chat", judged([*first, *second]))
    assert schedule.config is not None
    assert schedule.config.draft == "org/a", "on at more loads"
    assert {each.num_speculative_tokens for each in schedule.ranges} == {4, 0}


def test_a_disabled_slice_switches_its_load_off_for_a_whole_server() -> None:
    whole = [decision(load=load) for load in (2, 4)]
    harmed = decision(Verdict.DISABLE, load=4, slice_key="prompt_class=creative")
    assert depths([*whole, harmed], 4) == [4, 4, 0, 0]
    held = decision(Verdict.HOLD, load=4, slice_key="prompt_class=creative")
    assert depths([*whole, held], 4) == [4, 4, 4, 4], "the endpoint's own hypothesis covers it"
    elsewhere = decision(Verdict.DISABLE, load=4, slice_key="prompt_class=creative", of=config(4, name="another draft"))
    assert depths([*whole, elsewhere], 4) == [4, 4, 4, 4]
    small = in_traffic(harmed, 0.001)
    assert depths([*whole, small], 4) == [4, 4, 0, 0], "the server would speculate on it, however small it is"


def test_slices_stand_by_themselves() -> None:
    currents = judged([
        decision(Verdict.HOLD),
        decision(slice_key="prompt_class=code"),
        decision(Verdict.DISABLE, slice_key="prompt_class=chat"),
        decision(slice_key="prompt_class=code", endpoint="other"),
    ])  # fmt: skip
    assert not endpoint_schedule("chat", currents).is_on
    schedules = {each.slice_key: each for each in slice_schedules("chat", currents)}
    assert {key: each.is_on for key, each in schedules.items()} == {
        "prompt_class=chat": False,
        "prompt_class=code": True,
    }


def test_an_endpoint_without_decisions_is_off() -> None:
    schedule = endpoint_schedule("chat", [])
    assert schedule.ranges == (BatchRange(1, None, 0),)
    assert not schedule.is_on


def test_what_a_whole_server_runs_says_how_much_of_the_traffic_a_partial_rollout_lets_through() -> None:
    rollout = Rollout("chat", 4, Stage.PARTIAL, "fp-draft_model-4", NOW, NOW, "advanced", "", share=0.1)
    rollout = replace(rollout, depth_caps={"": 4})
    partial = endpoint_schedule("chat", judged([decision()], rollouts=[rollout]))
    assert partial.is_on
    assert any("10.0% of the traffic" in remark for remark in with_share(Export("", ("other",)), partial).remarks)
    whole = endpoint_schedule("chat", judged([decision()], rollouts=[replace(rollout, stage=Stage.BROAD, share=1.0)]))
    off = endpoint_schedule("chat", judged([decision(Verdict.HOLD)], rollouts=[rollout]))
    assert {with_share(Export(""), schedule).remarks for schedule in (whole, off)} == {()}


def order(slice_key: str, *, load: int | None = None, verdict: Verdict = Verdict.DISABLE, number: int = 7) -> Override:
    return Override(number, "chat", slice_key, load, verdict, "incident", "ops", NOW)


def depths_under(orders: list[Override], decisions: list[Decision], up_to: int) -> list[int]:
    schedule = endpoint_schedule("chat", judged(decisions), overrides=orders)
    return [schedule.num_speculative_tokens(size) for size in range(1, up_to + 1)]


@pytest.mark.parametrize("verdict", [Verdict.DISABLE, Verdict.HOLD])
def test_an_order_on_a_slice_that_nobody_decided_switches_a_whole_server_off(verdict: Verdict) -> None:
    whole = [decision(load=load) for load in (2, 4)]
    assert depths_under([order("tier=gold", verdict=verdict)], whole, 4) == [0, 0, 0, 0]
    assert depths_under([order("tier=gold", verdict=verdict, load=4)], whole, 4) == [4, 4, 0, 0]
    elsewhere = replace(order("tier=gold"), endpoint="other")
    assert depths_under([elsewhere], whole, 4) == [4, 4, 4, 4]


def test_an_order_for_a_load_that_was_not_measured_reaches_to_the_loads_beside_it() -> None:
    whole = [decision(load=load) for load in (2, 6)]
    assert depths_under([order("tier=gold", load=4)], whole, 7) == [4, 4, 0, 0, 0, 4, 0]
    assert depths_under([order("", load=4)], whole, 7) == [4, 4, 0, 0, 0, 4, 0]
    assert depths_under([order("tier=gold", load=9)], whole, 7) == [4, 4, 4, 4, 4, 4, 0]


def test_a_slice_schedule_heeds_the_orders_that_cover_it() -> None:
    served_decisions = judged([decision(load=load, slice_key="prompt_class=code") for load in (2, 6)])

    def depths_of_slice(given: Override) -> list[int]:
        (schedule,) = slice_schedules("chat", served_decisions, overrides=[given])
        return [schedule.num_speculative_tokens(size) for size in range(1, 7)]

    assert depths_of_slice(order("prompt_class=code", load=4)) == [4, 4, 0, 0, 0, 4]
    assert depths_of_slice(order("prompt_class=chat")) == [4] * 6
    assert depths_of_slice(order("prompt_class=code")) == [0] * 6

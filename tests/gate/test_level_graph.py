"""Levels by the graph, held against the algorithm of Bretz, Maurer, Brannath and Posch (2009) done step by step.

The product says what a first run may use from look to look; here every order in which the hypotheses of small graphs
can come to ENABLE is gone through.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np
import pytest

from shadowspec.gate.policy import GatePolicy
from shadowspec.gate.verdict.trial_levels import FIRST_RUN, HypothesisId, assign_trials, restart_level, spent_part
from shadowspec.types import Decision, Trial, Verdict
from tests.builders.decisions import configs, decision
from tests.gate.bretz import Graph, Node

ALPHA = 0.05
CONFIGS = configs("one", "two")
SIZES = list(itertools.product((1, 2), range(4)))  # endpoints, slots


class Gate:
    """An endpoint's gate reduced to its levels: looks at which some of the hypotheses come to ENABLE."""

    def __init__(self, policy: GatePolicy, keys: Sequence[HypothesisId], num_slices: int | None = None) -> None:
        self.policy, self.keys, self.rows = policy, list(keys), dict[HypothesisId, Decision]()
        self.num_slices = num_slices or len({slice_key for slice_key, *_ in keys if slice_key})
        self.in_traffic: set[str] | None = None  # None: every slice

    def look(self, *enabled: HypothesisId, ended: Iterable[HypothesisId] = ()) -> dict[HypothesisId, Trial | None]:
        """The runs at the next look, at which these come to ENABLE, one after the other, and those end."""
        passed: list[tuple[str, int, str]] = []
        for key in (None, *enabled):
            if key is not None:
                passed.append((key[0], key[1], "draft-k4"))
            in_traffic = {key[0] for key in self.keys} if self.in_traffic is None else self.in_traffic
            rows = list(self.rows.values())
            trials = assign_trials(self.keys, CONFIGS, rows, self.policy, self.num_slices, passed, in_traffic)
        for key, trial in trials.items():
            was_enabled = key in self.rows and self.rows[key].verdict is Verdict.ENABLE and not self.rows[key].ends_run
            verdict = Verdict.ENABLE if was_enabled or key in enabled else Verdict.HOLD
            row = decision(key[2], trial, slice_key=key[0], verdict=verdict, ends_run=key in ended)
            self.rows[key] = replace(row, concurrency=key[1])
        return trials


def declared(num_endpoints: int, num_slots: int) -> tuple[GatePolicy, dict[HypothesisId, Node]]:
    """A policy of so many hypotheses, and the node of each of them."""
    endpoints = {("", 4 + number, "one"): ("endpoint", number) for number in range(num_endpoints)}
    slots = {(f"s{number}", 4, "one"): ("slot", number) for number in range(num_slots)}
    return GatePolicy(window_s=0.0, alpha=ALPHA, max_hypotheses=num_endpoints + num_slots), endpoints | slots


def orders(keys: Iterable[HypothesisId]) -> Iterator[tuple[HypothesisId, ...]]:
    """Every order in which some of these may come to ENABLE."""
    every = list(keys)
    return itertools.chain.from_iterable(itertools.permutations(every, size) for size in range(len(every) + 1))


def levels_after(policy: GatePolicy, keys: Sequence[HypothesisId], order: Sequence[HypothesisId]) -> list[float]:
    """The levels of `keys` once those of `order` have come to ENABLE, each at a look of its own."""
    gate = Gate(policy, keys, num_slices=3)  # no slice is the whole endpoint
    gate.look()
    for key in order:
        gate.look(key)
    return [trial.level for trial in gate.look().values() if trial is not None and trial.level is not None]


@pytest.mark.parametrize(("num_endpoints", "num_slots"), SIZES)
def test_levels_are_those_of_the_algorithm_after_every_order_of_rejections(num_endpoints: int, num_slots: int) -> None:
    policy, nodes = declared(num_endpoints, num_slots)
    keys = list(nodes)
    for order in orders(keys):
        naive, expected = Graph(num_endpoints, num_slots), dict[HypothesisId, float]()
        for key in order:
            expected[key] = float(naive.weights[nodes[key]])  # what it had when it was rejected stays its own
            naive.reject(nodes[key])
        expected |= {key: float(naive.weights[node]) for key, node in nodes.items() if key not in expected}
        found = levels_after(policy, keys, order)
        assert found == pytest.approx([FIRST_RUN * ALPHA * expected[key] for key in keys]), order


@pytest.mark.parametrize(("num_endpoints", "num_slots"), SIZES)
def test_several_that_pass_at_one_look_leave_what_they_leave_one_by_one(num_endpoints: int, num_slots: int) -> None:
    policy, nodes = declared(num_endpoints, num_slots)
    keys = list(nodes)
    for order in orders(keys):
        gate = Gate(policy, keys, num_slices=3)
        gate.look()
        at_once = gate.look(*order)
        later = gate.look()
        one_by_one = dict(zip(keys, levels_after(policy, keys, order), strict=True))
        for key in set(keys) - set(order):
            for trial in (at_once[key], later[key]):
                assert trial is not None
                assert trial.level == pytest.approx(one_by_one[key])


@pytest.mark.parametrize(("num_endpoints", "num_slots"), SIZES)
def test_true_nulls_share_no_more_than_alpha_before_the_first_false_rejection(
    num_endpoints: int, num_slots: int
) -> None:
    """For every mixture of true and false nulls: the largest level that each true one can have, summed (Bonferroni)."""
    policy, nodes = declared(num_endpoints, num_slots)
    keys = list(nodes)
    for true in itertools.chain.from_iterable(itertools.combinations(keys, size) for size in range(1, len(keys) + 1)):
        largest = dict.fromkeys(true, 0.0)
        for order in orders(key for key in keys if key not in true):
            found = dict(zip(keys, levels_after(policy, keys, order), strict=True))
            largest = {key: max(level, found[key]) for key, level in largest.items()}
        assert sum(largest.values()) <= FIRST_RUN * ALPHA * (1.0 + 1e-9), true
        if len(true) == len(keys):
            assert sum(largest.values()) == pytest.approx(FIRST_RUN * ALPHA), "none of it is wasted at the start"


@pytest.mark.parametrize(("num_endpoints", "num_slots"), [(1, 0), (2, 0), (1, 3), (2, 2)])
def test_the_family_wise_error_is_at_most_alpha(num_endpoints: int, num_slots: int) -> None:
    """Uniform p-values of true nulls, tiny ones of false nulls; whoever's lies below its level comes to ENABLE."""
    rng, num_runs = np.random.default_rng(5), 300
    policy, nodes = declared(num_endpoints, num_slots)
    policy, keys = replace(policy, alpha=0.3), list(nodes)
    memo: dict[frozenset[HypothesisId], dict[HypothesisId, float]] = {}
    highest = 0.0
    for num_true in range(1, len(keys) + 1):
        for true in itertools.combinations(keys, num_true):
            false_runs = 0
            for p_values in rng.random((num_runs, len(keys))):
                p = {key: p_value if key in true else 1e-9 for key, p_value in zip(keys, p_values, strict=True)}
                rejected: frozenset[HypothesisId] = frozenset()
                while True:
                    if rejected not in memo:
                        memo[rejected] = dict(zip(keys, levels_after(policy, keys, sorted(rejected)), strict=True))
                    new = {key for key in keys if key not in rejected and p[key] <= memo[rejected][key]}
                    if not new:
                        break
                    rejected |= new
                false_runs += not rejected.isdisjoint(true)
            error = false_runs / num_runs
            highest = max(highest, error)
            assert error <= 0.9 * 0.3 + 3.0 * math.sqrt(0.27 * 0.73 / num_runs), true
    assert highest > 0.15, "the mixtures come near alpha: this test could fail"


# What the graph does not say by itself.

ENDPOINT, CODE, SQL, CHAT = ((slice_key, 4, "one") for slice_key in ("", "a", "b", "c"))


def level_of(trial: Trial | None) -> float:
    assert trial is not None
    assert trial.level is not None
    return trial.level


def test_restarts_use_the_reserve_whatever_others_pass_on() -> None:
    gate = Gate(GatePolicy(window_s=0.0, alpha=ALPHA, max_hypotheses=4), [ENDPOINT, CODE, SQL, CHAT])
    slot = 0.025 / 3
    gate.look(ended=[CODE])
    assert level_of(gate.look(ended=[CODE])[CODE]) == pytest.approx(restart_level(slot, 1, 0.05))
    trials = gate.look(ENDPOINT, SQL)
    assert level_of(trials[CODE]) == pytest.approx(restart_level(slot, 2, 0.05))
    assert level_of(gate.look(CODE)[CODE]) == pytest.approx(restart_level(slot, 2, 0.05))
    raised = 0.9 * (slot + (0.025 + slot) / 2)
    assert level_of(gate.look()[CHAT]) == pytest.approx(raised), "a restart that comes to ENABLE passes nothing on"


def test_what_a_first_run_has_passed_on_stays_passed_on_though_the_run_ends() -> None:
    gate = Gate(GatePolicy(window_s=0.0, alpha=ALPHA, max_hypotheses=3), [ENDPOINT, CODE, SQL])
    gate.look(ENDPOINT)
    raised = 0.9 * (0.0125 + 0.0125)
    assert level_of(gate.look(ended=[ENDPOINT])[CODE]) == pytest.approx(raised)
    for num_restarts in (1, 2, 3):
        trials = gate.look(ended=[ENDPOINT])
        assert level_of(trials[ENDPOINT]) == pytest.approx(restart_level(0.025, num_restarts))
        assert level_of(trials[CODE]) == pytest.approx(raised)


def test_a_slice_that_is_the_whole_endpoint_has_its_level_and_is_counted_once() -> None:
    gate = Gate(GatePolicy(window_s=0.0, alpha=ALPHA, max_hypotheses=3), [ENDPOINT, CODE])
    trials = gate.look()
    assert [level_of(trials[key]) for key in (ENDPOINT, CODE)] == pytest.approx([0.9 * 0.025] * 2)
    assert trials[CODE] == trials[ENDPOINT], "the same run of the same hypothesis"
    # A second slice: each has a slot of its own, and the two slots are all that there are.
    gate.keys, gate.num_slices = [ENDPOINT, CODE, SQL], 2
    trials = gate.look()
    assert [level_of(trial) for trial in trials.values()] == pytest.approx([0.9 * 0.025, *[0.9 * 0.0125] * 2])
    gate.keys, gate.num_slices = [ENDPOINT, CODE, SQL, CHAT], 3
    assert gate.look()[CHAT] is None


def test_a_slice_that_came_to_enable_as_the_whole_endpoint_stays_and_passes_its_slot_on() -> None:
    gate = Gate(GatePolicy(window_s=0.0, alpha=ALPHA, max_hypotheses=3), [ENDPOINT, CODE])
    gate.look(ENDPOINT, CODE)
    gate.keys, gate.num_slices = [ENDPOINT, CODE, SQL], 2
    trials = gate.look()
    assert level_of(trials[CODE]) == pytest.approx(0.9 * 0.025), "the level at which it was decided"
    assert level_of(trials[SQL]) == pytest.approx(0.9 * (0.0125 + 0.025 + 0.0125)), "both have passed theirs on"


def test_a_slice_that_came_to_enable_as_the_whole_endpoint_stays_where_no_slot_is_left() -> None:
    gate = Gate(GatePolicy(window_s=0.0, alpha=ALPHA, max_hypotheses=1), [ENDPOINT, CODE])
    gate.look(ENDPOINT, CODE)
    gate.keys, gate.num_slices = [ENDPOINT, CODE, SQL], 2
    trials = gate.look()
    assert level_of(trials[CODE]) == pytest.approx(0.9 * ALPHA)
    assert trials[SQL] is None
    undecided = Gate(GatePolicy(window_s=0.0, alpha=ALPHA, max_hypotheses=1), [ENDPOINT, CODE])
    undecided.look()
    undecided.keys, undecided.num_slices = [ENDPOINT, CODE, SQL], 2
    trial = undecided.look()[CODE]
    assert trial is not None
    assert trial.level is None, "it is another hypothesis now, which was not declared"


def test_candidates_and_loads_that_come_after_the_first_look_take_slots() -> None:
    gate = Gate(GatePolicy(window_s=0.0, alpha=ALPHA, max_hypotheses=4), [ENDPOINT], num_slices=2)
    gate.look()
    other_load = ("", 8, "one")
    gate.keys = [ENDPOINT, other_load, CODE]
    trials = gate.look()
    slot = 0.025 / 3
    assert [level_of(trial) for trial in trials.values()] == pytest.approx([0.9 * 0.025, 0.9 * slot, 0.9 * slot])
    trials = gate.look(other_load)
    assert level_of(trials[CODE]) == pytest.approx(0.9 * (slot + slot / 2)), "it passes on as a slot does"
    assert level_of(trials[ENDPOINT]) == pytest.approx(0.9 * 0.025), "nothing goes back to the endpoint"


def test_a_slice_that_is_the_whole_endpoint_passes_nothing_on_beside_it() -> None:
    other_load = ("", 8, "one")
    gate = Gate(GatePolicy(window_s=0.0, alpha=ALPHA, max_hypotheses=3), [ENDPOINT, CODE])
    gate.look()
    gate.keys = [ENDPOINT, CODE, other_load]
    assert level_of(gate.look(ENDPOINT, CODE)[other_load]) == pytest.approx(0.9 * (0.0125 + 0.025 / 2))


def test_a_change_of_policy_does_not_change_the_graph() -> None:
    gate = Gate(GatePolicy(window_s=0.0, alpha=ALPHA, max_hypotheses=3), [ENDPOINT, CODE])
    before = gate.look()
    gate.policy = GatePolicy(window_s=0.0, alpha=0.2, max_hypotheses=50)
    gate.num_slices = 2
    gate.keys = [ENDPOINT, CODE, SQL, CHAT]
    after = gate.look()
    assert after[ENDPOINT] == before[ENDPOINT]
    assert level_of(after[SQL]) == pytest.approx(0.9 * 0.0125)
    assert after[CHAT] is None


def test_slices_that_follow_each_other_without_end_all_have_levels() -> None:
    """One is in the traffic at a time; the slots are two, and every later slice takes the place of one that left."""
    gate = Gate(GatePolicy(alpha=ALPHA, max_hypotheses=3), [ENDPOINT], num_slices=2)
    gate.look()
    shares = []
    for number in range(20):
        key = f"s{number:02d}", 4, "one"
        gate.keys, gate.in_traffic = [*gate.keys, key], {key[0]}
        trial = gate.look()[key]
        assert trial is not None
        assert trial.level == pytest.approx(FIRST_RUN * trial.share)
        assert trial.reuse == max(number - 1, 0)
        shares.append(trial.share)
    reserve = 0.05 * 0.025
    assert shares == pytest.approx([0.0125, 0.0125, *(reserve * spent_part(index) for index in range(1, 19))])
    gate.in_traffic = set(gate.in_traffic or ()) | {"s00", "s05"}
    trials = gate.look()
    assert [level_of(trials[f"s{number:02d}", 4, "one"]) for number in range(20)] == pytest.approx(
        [FIRST_RUN * share for share in shares]
    ), "who returns has the level that it had"


def test_no_place_is_free_while_those_who_hold_them_have_traffic() -> None:
    gate = Gate(GatePolicy(alpha=ALPHA, max_hypotheses=3), [ENDPOINT, CODE, SQL, CHAT])
    assert gate.look()[CHAT] is None
    gate.in_traffic = {"a", "b"}
    assert gate.look()[CHAT] is None, "nor for a slice that has left the traffic itself"
    gate.in_traffic = {"a", "c"}
    trial = gate.look()[CHAT]
    assert (level_of(trial), trial and trial.reuse) == (pytest.approx(0.9 * 0.05 * 0.025 * spent_part(1)), 1)
    gate.keys, gate.in_traffic = [*gate.keys, ("d", 4, "one")], {"b", "c", "d"}
    assert gate.look()["d", 4, "one"] is None, "both places are taken, by slices with traffic"


def test_a_slice_in_the_place_of_another_restarts_within_its_part_and_passes_nothing_on() -> None:
    gate = Gate(GatePolicy(alpha=ALPHA, max_hypotheses=3), [ENDPOINT, CODE, SQL, CHAT])
    gate.look()
    gate.in_traffic = {"a", "c"}
    share = 0.05 * 0.025 * spent_part(1)
    before = gate.look(CHAT)
    after = gate.look(ended=[CHAT])
    assert level_of(after[CODE]) == level_of(before[CODE])
    assert level_of(gate.look()[CHAT]) == pytest.approx(restart_level(share, 1))

"""Runs of a hypothesis: a new fingerprint or an alarm starts afresh at half the level, and alpha is never overspent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shadowspec.gate.policy import GatePolicy
from shadowspec.gate.verdict.trial_levels import (
    MAX_RESTARTS,
    RETURN_AFTER,
    HypothesisName,
    Seen,
    assign_shares,
    current_fingerprint,
    is_superseded,
    latest_by_name,
    level_of_run,
    name_of,
    next_trial,
    supersede,
)
from shadowspec.types import Decision, EvidenceSummary, Trial, Verdict
from tests.gate.worlds import CONFIG, ENDPOINT, START

SHARE = 0.05 / 8


def decision(
    fingerprint: str,
    run: Trial | None,
    *,
    slice_key: str = "a",
    name: str = "draft-k4",
    verdict: Verdict = Verdict.HOLD,
    ends_run: bool = False,
    num_blocks: int = 50,
    num_clusters: int = 200,
) -> Decision:
    config = replace(CONFIG.config, name=name)
    return Decision(
        ENDPOINT, slice_key, 4, config, fingerprint, verdict, "", "", (), num_clusters, num_blocks, None, START,
        run=run, ends_run=ends_run,
    )  # fmt: skip


def trial(
    num_restarts: int = 0,
    start_blocks: int = 0,
    start_clusters: int = 0,
    start_lost: int = 0,
    supersedes: str | None = None,
) -> Trial:
    level = level_of_run(SHARE, num_restarts)
    return Trial(SHARE, level, num_restarts, start_blocks, start_clusters, start_lost, supersedes)


def test_the_first_run_uses_half_of_its_share_and_each_restart_half_of_the_run_before() -> None:
    run = next_trial(None, None, "one", SHARE)
    levels = [run.level]
    for _ in range(4):
        row = decision("one", run, ends_run=True)
        run = next_trial(row, row, "one", SHARE)
        levels.append(run.level)
    assert levels == [SHARE / 2, SHARE / 4, SHARE / 8, SHARE / 16, SHARE / 32]


def test_a_run_that_has_not_ended_goes_on() -> None:
    row = decision("one", trial(2, 40, 160))
    assert next_trial(row, row, "one", 1.0) == trial(2, 40, 160)


def test_an_ended_run_is_followed_by_one_without_evidence() -> None:
    row = decision("one", trial(1, 40, 160, 5), ends_run=True, num_blocks=30, num_clusters=100)
    row = replace(row, evidence=EvidenceSummary(num_lost=3))
    assert next_trial(row, row, "one", 1.0) == trial(2, 70, 260, 8)
    assert next_trial(row, None, "two", 1.0) == trial(2, 0, 0, 8, supersedes="one")


def test_a_new_fingerprint_restarts_within_the_share_of_its_name() -> None:
    row = decision("one", trial(), verdict=Verdict.ENABLE)
    run = next_trial(row, None, "two", 1.0)
    assert run == trial(1, 0, 0, supersedes="one")
    assert run.level == SHARE / 4


def test_a_fingerprint_that_returns_does_not_count_its_old_evidence_again() -> None:
    one = supersede(decision("one", trial(), num_blocks=50, num_clusters=200), "two", START)
    two = decision("two", trial(1, supersedes="one"))
    assert next_trial(two, one, "one", 1.0) == trial(2, 50, 200, supersedes="two")


def test_the_superseded_verdict_is_out_of_force_and_still_shown() -> None:
    later = START + timedelta(hours=1)
    old = decision("one", trial(), verdict=Verdict.ENABLE)
    row = supersede(old, "two" * 20, later)
    assert (row.verdict, row.reason_code, row.decided_at) == (Verdict.HOLD, "changed_fingerprint", later)
    assert row.reason == "ENABLE was superseded: draft-k4 now has fingerprint twotwotwotwo"
    assert (row.supersession.verdict, row.supersession.by) == ("ENABLE", "two" * 20)
    assert (row.tests, row.num_blocks) == (old.tests, old.num_blocks)
    assert is_superseded(row)
    assert row.ends_run
    assert not is_superseded(old)


def test_the_latest_run_of_a_name_is_its_most_restarted() -> None:
    rows = [
        decision("two", trial(1, supersedes="one")),
        decision("one", trial(), ends_run=True),
        decision("other", trial(), name="ngram"),
        decision("unentered", None, slice_key="b"),
    ]
    for order in (rows, rows[::-1]):
        latest = latest_by_name(order)
        assert {key: row.fingerprint for key, row in latest.items()} == {
            ("a", 4, "draft-k4"): "two",
            ("a", 4, "ngram"): "other",
        }
    assert name_of(rows[0]) == ("a", 4, "draft-k4")


def test_no_level_is_left_after_very_many_restarts() -> None:
    assert level_of_run(SHARE, MAX_RESTARTS) == SHARE * 2.0 ** -(MAX_RESTARTS + 1)
    assert level_of_run(SHARE, MAX_RESTARTS + 1) is None


def seen(first_min: float, last_min: float) -> Seen:
    return Seen(START + timedelta(minutes=first_min), START + timedelta(minutes=last_min))


def test_the_fingerprint_that_appeared_last_is_current() -> None:
    assert current_fingerprint({}) is None
    assert current_fingerprint({"one": seen(0, 50)}) == "one"
    assert current_fingerprint({"one": seen(0, 50), "two": seen(40, 60)}) == "two"


def test_workers_restarted_one_by_one_do_not_flip_it() -> None:
    for minute in range(50, 100):
        both = {"one": seen(0, minute), "two": seen(40, minute - minute % 3)}
        assert current_fingerprint(both) == "two"


def test_a_rollback_makes_the_old_one_current_again() -> None:
    limit = 60 + RETURN_AFTER / timedelta(minutes=1)
    assert current_fingerprint({"one": seen(0, limit), "two": seen(40, 60)}) == "two"
    assert current_fingerprint({"one": seen(0, limit + 1), "two": seen(40, 60)}) == "one"


@dataclass
class History:
    """An endpoint's gate reduced to its levels: what is given, to whom, look after look."""

    rows: dict[tuple[HypothesisName, str], Decision] = field(default_factory=dict)
    given: dict[tuple[HypothesisName, int], float] = field(default_factory=dict)

    def look(self, asked: Sequence[tuple[str, str]], alarmed: set[str], policy: GatePolicy) -> None:
        latest = latest_by_name(self.rows.values())
        names: list[HypothesisName] = [(slice_key, 4, "draft-k4") for slice_key, _ in asked]
        held = {name: row.run.share for name, row in latest.items() if row.run}
        shares = assign_shares(names, held, policy)
        for name, (slice_key, fingerprint) in zip(names, asked, strict=True):
            share = shares[name]
            if share is None:
                continue
            run = next_trial(latest.get(name), self.rows.get((name, fingerprint)), fingerprint, share)
            if run.level is not None:
                earlier = self.given.setdefault((name, run.num_restarts), run.level)
                assert earlier == run.level, "a level once given is fixed"
            row = decision(fingerprint, run, slice_key=slice_key, ends_run=slice_key in alarmed)
            self.rows[name, fingerprint] = row
            old = latest.get(name)
            if old is not None and old.fingerprint != fingerprint:
                self.rows[name, old.fingerprint] = supersede(old, fingerprint, START)


looks = st.lists(
    st.tuples(
        st.dictionaries(st.sampled_from("abcdef"), st.sampled_from(["one", "two", "three"]), max_size=6),
        st.sets(st.sampled_from("abcdef")),
        st.integers(1, 8),
    ),
    max_size=25,
)


@settings(max_examples=60, deadline=None)
@given(looks)
def test_all_levels_ever_given_sum_to_no_more_than_alpha(history: list[tuple[dict[str, str], set[str], int]]) -> None:
    """Whatever enters, alarms, changes or rolls back, and whatever max_hypotheses says from look to look."""
    gate = History()
    for asked, alarmed, max_hypotheses in history:
        gate.look(list(asked.items()), alarmed, GatePolicy(max_hypotheses=max_hypotheses))
    assert sum(gate.given.values()) <= 0.05 * (1 + 1e-9)


def test_restarts_without_end_come_near_the_share_and_never_above_it() -> None:
    gate = History()
    for index in range(100):
        gate.look([("a", f"fingerprint{index}")], {"a"} if index % 3 else set(), GatePolicy(max_hypotheses=1))
    assert sum(gate.given.values()) == pytest.approx(0.05)
    assert sum(gate.given.values()) <= 0.05
    assert max(restarts for _, restarts in gate.given) == MAX_RESTARTS

"""Runs of a hypothesis: a new fingerprint or an alarm starts afresh at a reserved level; alpha is never overspent."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shadowspec.gate.policy import GatePolicy
from shadowspec.gate.stats.betting import log_capital_path
from shadowspec.gate.verdict.trial_levels import (
    FIRST_RUN,
    RETURN_AFTER,
    HypothesisName,
    Seen,
    assign_trials,
    current_fingerprint,
    is_superseded,
    latest_by_name,
    name_of,
    next_trial,
    restart_level,
    spent_part,
    supersede,
    with_level,
)
from shadowspec.types import (
    Decision,
    EvidenceSummary,
    LevelGraph,
    SliceCounts,
    Trial,
    Verdict,
)
from tests.builders.decisions import configs, decision
from tests.gate.worlds import START

GRAPH = LevelGraph(alpha=0.05, num_endpoints=1, num_slots=7)
SHARE = 0.025 / 7
NAME = ("a", 4, "draft-k4")
FINGERPRINTS = ("one", "two", "three")


def next_run(latest: Decision | None, same: Decision | None, fingerprint: str) -> Trial:
    """The run that a look belongs to, with its level; a slice's, none of which has come to ENABLE."""
    return with_level(next_trial(latest, same, fingerprint, Trial(SHARE, None, GRAPH, in_slot=True)), NAME, {})


def trial(
    num_restarts: int = 0,
    start_blocks: int = 0,
    start_clusters: int = 0,
    start_lost: int = 0,
    supersedes: str | None = None,
) -> Trial:
    level = restart_level(SHARE, num_restarts) if num_restarts else FIRST_RUN * SHARE
    places = start_blocks, start_clusters, start_lost
    return Trial(SHARE, level, GRAPH, num_restarts, *places, supersedes, in_slot=True)


def test_the_first_run_uses_most_of_its_part_and_restarts_the_rest_by_their_squares() -> None:
    run = next_run(None, None, "one")
    levels = [run.level]
    for _ in range(4):
        row = decision("one", run, ends_run=True)
        run = next_run(row, row, "one")
        levels.append(run.level)
    rest = [0.6 / (math.pi * index) ** 2 for index in range(1, 5)]
    assert levels == pytest.approx([SHARE * part for part in (0.9, *rest)])


def test_a_run_that_has_not_ended_goes_on() -> None:
    row = decision("one", trial(2, 40, 160))
    assert next_run(row, row, "one") == trial(2, 40, 160)


def test_an_ended_run_is_followed_by_one_without_evidence() -> None:
    row = decision("one", trial(1, 40, 160, 5), ends_run=True, num_blocks=30, num_clusters=100)
    row = replace(row, evidence=EvidenceSummary(counts=SliceCounts(num_lost=3)))
    assert next_run(row, row, "one") == trial(2, 70, 260, 8)
    assert next_run(row, None, "two") == trial(2, 0, 0, 8, supersedes="one")


def test_a_new_fingerprint_restarts_within_the_share_of_its_name() -> None:
    row = decision("one", trial(), verdict=Verdict.ENABLE)
    run = next_run(row, None, "two")
    assert run == replace(trial(1, 0, 0, supersedes="one"), has_passed=True)
    assert run.level == pytest.approx(0.1 * SHARE * 6.0 / math.pi**2)


def test_a_fingerprint_that_returns_does_not_count_its_old_evidence_again() -> None:
    one = supersede(decision("one", trial(), num_blocks=50, num_clusters=200), "two", START)
    two = decision("two", trial(1, supersedes="one"))
    assert next_run(two, one, "one") == trial(2, 50, 200, supersedes="two")


def test_the_superseded_verdict_is_out_of_force_and_still_shown() -> None:
    later = START + timedelta(hours=1)
    old = decision("one", trial(), verdict=Verdict.ENABLE)
    row = supersede(old, "two" * 20, later)
    assert (row.verdict, row.reason_code, row.decided_at) == (Verdict.HOLD, "changed_fingerprint", later)
    assert row.reason == (
        "ENABLE was superseded: the fingerprint of draft-k4 is twotwotwotwo now. "
        "200 sessions of the old one do not count for it. "
        "Send traffic."
    )
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


def test_every_restart_has_a_level_and_all_of_them_stay_within_the_reserve() -> None:
    first = Trial(SHARE, None, GRAPH, in_slot=True)
    for number in (1, 31, 5_200):
        assert with_level(replace(first, num_restarts=number), NAME, {}).level == restart_level(SHARE, number) > 0.0
    spent = math.fsum(map(spent_part, range(1, 100_001)))
    assert 0.99999 < spent < 1.0
    assert spent + 6.0 / math.pi**2 / 100_000 >= 1.0, "what is left after n of them is less than 1 / n of all"


def median_blocks(level: float) -> float:
    """Blocks of four requests until speedup and tail pass at `level`: truth 1.3x, .1 of noise, 2% slowed."""
    rng, policy = np.random.default_rng(5), GatePolicy(window_s=0.0)
    counts = []
    for _ in range(150):
        logs = rng.normal(math.log(1.3), 0.1, (700, 4))
        slowed = rng.random((700, 4)) < 0.02
        speeds = np.where(slowed, -math.log(1.25), logs).clip(-policy.log_speedup_clip, policy.log_speedup_clip)
        margin, share = math.log1p(policy.margin), policy.tail_share
        paths = [
            log_capital_path((speeds.mean(axis=1) - margin) / (policy.log_speedup_clip + margin)),
            log_capital_path((share - slowed.mean(axis=1)) / (1.0 - share)),
        ]
        counts.append(1 + int(np.argmax(np.logical_and.reduce([path >= -math.log(level) for path in paths]))))
    return float(np.median(counts))


def test_a_year_of_releases_is_served() -> None:
    """The blocks to ENABLE after the k-th release of an endpoint with 8 declared hypotheses grow by the logarithm of k.

    Levels that halve took 259 and 345 blocks at the 20th and 30th release, and left none after it.
    """
    share = LevelGraph(alpha=0.05, num_endpoints=1, num_slots=7).endpoint_share
    blocks = {number: median_blocks(restart_level(share, number)) for number in (20, 30, 520)}
    assert blocks[20] == pytest.approx(164, abs=8)
    assert blocks[30] == pytest.approx(175, abs=8)
    assert blocks[520] < 270, "ten years of weekly releases"


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


def test_neither_a_clock_that_is_ahead_nor_a_partition_that_is_behind_is_a_return() -> None:
    def measured(until_min: float, event_min: float) -> Seen:
        return replace(seen(0, until_min), last_event=START + timedelta(minutes=event_min))

    newer = replace(seen(40, 60), last_event=START + timedelta(minutes=60))
    for old in (measured(180, 60), measured(60, 180), measured(180, 120)):
        assert current_fingerprint({"one": old, "two": newer}) == "two"
    assert current_fingerprint({"one": measured(180, 121), "two": newer}) == "one"


@dataclass
class History:
    """An endpoint's gate reduced to its levels: what is given, to whom, look after look.  Nothing comes to ENABLE."""

    rows: dict[tuple[HypothesisName, str], Decision] = field(default_factory=dict)
    given: dict[tuple[HypothesisName, int], float] = field(default_factory=dict)
    slices: set[str] = field(default_factory=set)

    def look(self, asked: Sequence[tuple[str, str]], alarmed: set[str], policy: GatePolicy) -> None:
        """A look at (slice, fingerprint)."""
        latest = latest_by_name(self.rows.values())
        self.slices |= {slice_key for slice_key, _ in asked if slice_key}
        keys = [(slice_key, 4, fingerprint) for slice_key, fingerprint in asked]
        rows, in_traffic = list(self.rows.values()), {slice_key for slice_key, _ in asked}
        trials = assign_trials(keys, configs(*FINGERPRINTS), rows, policy, len(self.slices), in_traffic=in_traffic)
        for (slice_key, _, fingerprint), run in trials.items():
            name: HypothesisName = (slice_key, 4, "draft-k4")
            old = latest.get(name)
            if run is None:
                assert old is None, "what has a part keeps it"
                self.rows[name, fingerprint] = decision(fingerprint, None, slice_key=slice_key)
                continue
            is_twin = slice_key and not run.in_slot  # the whole endpoint by another name
            if run.level is not None and not is_twin:
                earlier = self.given.setdefault((name, run.num_restarts), run.level)
                assert earlier == run.level, "a level once given is fixed"
            ends = slice_key in alarmed
            self.rows[name, fingerprint] = decision(fingerprint, run, slice_key=slice_key, ends_run=ends)
            if old is not None and old.fingerprint != fingerprint:
                self.rows[name, old.fingerprint] = supersede(old, fingerprint, START)


SLICES = ["", *"abcdef"]
looks = st.lists(
    st.tuples(
        st.dictionaries(st.sampled_from(SLICES), st.sampled_from(FINGERPRINTS), max_size=6),
        st.sets(st.sampled_from(SLICES)),
        st.integers(1, 8),
    ),
    max_size=25,
)


@settings(max_examples=200, deadline=None)
@given(looks)
def test_all_levels_ever_given_sum_to_no_more_than_alpha(history: list[tuple[dict[str, str], set[str], int]]) -> None:
    """Whatever enters, alarms, changes or rolls back, and whatever max_hypotheses says."""
    gate = History()
    for asked, alarmed, max_hypotheses in history:
        gate.look(sorted(asked.items()), alarmed, GatePolicy(window_s=0.0, max_hypotheses=max_hypotheses))
    assert sum(gate.given.values()) <= 0.05 * (1 + 1e-9)


def test_restarts_without_end_come_near_the_share_and_never_above_it() -> None:
    gate = History()
    for index in range(100):
        asked = [("", FINGERPRINTS[index % 3])]
        gate.look(asked, {""} if index % 2 else set(), GatePolicy(window_s=0.0, max_hypotheses=1))
    assert 0.0499 < sum(gate.given.values()) <= 0.05
    assert max(restarts for _, restarts in gate.given) > 90, "each of them has a level"


def test_each_hypothesis_gets_its_part_until_none_is_left() -> None:
    shares = [0.025, 0.0125, 0.0125]
    gate = History()
    gate.look([(each, "one") for each in ("", *"abcd")], set(), GatePolicy(window_s=0.0, max_hypotheses=3))
    runs = [row.run for row in gate.rows.values() if row.run is not None]
    assert [run.share for run in runs] == pytest.approx(shares)
    assert [run.level for run in runs] == pytest.approx([0.9 * share for share in shares])

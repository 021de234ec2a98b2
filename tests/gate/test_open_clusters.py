"""Clusters look after look are those of all records at once, whatever the looks."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import replace
from datetime import datetime, timedelta

from hypothesis import given, settings
from hypothesis import strategies as st

from shadowspec.gate.evidence.clusters import ClusterProgress, step
from shadowspec.gate.evidence.units import Cluster, own_key
from shadowspec.gate.policy import GatePolicy
from shadowspec.gate.run.memory_store import MemoryKeys
from shadowspec.types import ARRIVING, StoredRecord
from tests.gate.oracle import fold_clusters
from tests.gate.worlds import START, key_of, record_of

# Times in steps of 20 s, so that idling (5 steps), ageing (15) and reopening (8) all happen in 40 steps.
BRISK = GatePolicy(
    cluster_idle_s=100.0,
    cluster_max_age_s=300.0,
    cluster_reopen_after_s=160.0,
    max_requests_per_cluster=4,
    entry_clusters=2,
    dominant_key_share=1.0,
)
STEPS = st.integers(0, 40)
ARRIVALS = st.lists(st.tuples(STEPS, st.sampled_from("abc"), st.sampled_from("xy")), max_size=60)


def records_of(arrivals: list[tuple[int, str, str]]) -> list[StoredRecord]:
    return [
        record_of(index, at_s=20.0 * moment, session=session, slice_key=f"prompt_class={name}")
        for index, (moment, session, name) in enumerate(sorted(arrivals))
    ]


class Looks:
    """Folds records look by look; begins anew where keys must be cut, as whoever keeps the records does."""

    def __init__(self, policy: GatePolicy) -> None:
        self.policy = policy
        self.table, self.progress = MemoryKeys(), ClusterProgress()
        self.seen: list[tuple[list[StoredRecord], datetime | None]] = []
        self.entered: list[Cluster] = []

    def look(self, records: list[StoredRecord], closed_by: datetime | None) -> None:
        self.seen.append((records, closed_by))
        self._step(*self.seen[-1])

    def _step(self, records: list[StoredRecord], closed_by: datetime | None) -> None:
        result = step(self.table, self.progress, records, self.policy, closed_by, self._counts)
        self.progress = result.progress
        self.entered += result.entered
        if result.new_dominant:
            kept = ClusterProgress(entries=result.progress.entries, dominant=result.progress.dominant)
            self.table, self.progress, self.entered = MemoryKeys(), kept, []
            self._step([record for stored_records, _ in self.seen for record in stored_records], closed_by)

    def _counts(self, slice_key: str, until: datetime) -> Counter[str]:
        every = (record for records, _ in self.seen for record in records)
        return Counter(
            own_key(r)
            for r in every
            if r.slice_key == slice_key and r.counter in ARRIVING and r.event_time and r.event_time <= until
        )


def at(moment: int) -> datetime:
    return START + timedelta(seconds=20.0 * moment)


@settings(max_examples=300, deadline=None)
@given(ARRIVALS, st.lists(STEPS, max_size=5), st.booleans(), st.sampled_from([1.0, 0.3]))
def test_looks_let_in_what_one_look_at_the_end_lets_in(arrivals, moments, ends: bool, share: float) -> None:
    policy = replace(BRISK, dominant_key_share=share)
    records = records_of(arrivals)
    looks = Looks(policy)
    for first, last in itertools.pairwise([-1, *sorted(moments)]):
        looks.look([r for r in records if r.event_time and at(first) < r.event_time <= at(last)], at(last))
        so_far = [r for r in records if r.event_time and r.event_time <= at(last)]
        expected = fold_clusters(so_far, policy, input_ended=False, watermark=at(last))
        assert tuple(looks.entered) == expected.clusters
        assert looks.progress.entries == expected.entries
    last = max([-1, *moments])
    looks.look([r for r in records if r.event_time and r.event_time > at(last)], None if ends else at(40))
    expected = fold_clusters(records, policy, input_ended=ends, watermark=at(40))
    assert tuple(looks.entered) == expected.clusters
    assert looks.progress.entries == expected.entries
    for slice_key in ("", "prompt_class=x", "prompt_class=y"):
        assert looks.progress.closed_in(slice_key) == len(expected.of_slice(slice_key))
        late = sum(number for name, number in expected.num_late.items() if slice_key in ("", name))
        assert looks.progress.late_in(slice_key) == late
        assert looks.progress.left_out_in(slice_key) == 0, "nothing came out of order"
        members = sum(len(cluster.members) for cluster in expected.of_slice(slice_key))
        assert looks.progress.members_in(slice_key) == members
        cut = sum(number for name, number in expected.dominant_keys.items() if slice_key in ("", name))
        assert looks.progress.dominant_in(slice_key) == cut


@settings(max_examples=200, deadline=None)
@given(ARRIVALS, st.lists(st.integers(0, 60), max_size=4), st.randoms(use_true_random=False))
def test_records_that_come_behind_the_watermark_count_once_or_are_late(arrivals, cuts, random) -> None:
    records = records_of(arrivals)
    random.shuffle(records)
    looks = Looks(BRISK)
    places = sorted({0, *(min(cut, len(records)) for cut in cuts), len(records)})
    newest = START
    for start, stop in itertools.pairwise(places):
        part = records[start:stop]
        newest = max([newest, *(r.event_time for r in part if r.event_time)])
        looks.look(part, newest)
    looks.look([], None)
    members = [key for cluster in looks.entered for key in cluster.members]
    assert len(members) == len(set(members))
    assert len(members) + looks.progress.late_in("") == len(records)


def test_a_record_behind_the_watermark_joins_a_cluster_that_waits_and_is_late_for_one_that_entered() -> None:
    looks = Looks(BRISK)
    looks.look([record_of(0, at_s=0.0, session="a"), record_of(1, at_s=110.0, session="b")], at(6))
    assert [cluster.members for cluster in looks.entered] == [(key_of(0),)]
    looks.look([record_of(2, at_s=50.0, session="a"), record_of(3, at_s=105.0, session="b")], at(20))
    assert [cluster.members for cluster in looks.entered[1:]] == [(key_of(3), key_of(1))]
    assert (looks.progress.late_in(""), looks.progress.left_out_in("")) == (1, 1)
    assert looks.progress.members_in("") == 3


def test_of_the_late_only_those_before_their_clusters_closing_were_left_out() -> None:
    """A session's ninth turn is late by the rules; a turn before its eighth that comes after it entered is not."""
    looks = Looks(BRISK)
    looks.look([record_of(i, at_s=20.0 * i, session="a") for i in range(5)], at(5))
    assert len(looks.entered[0].members) == BRISK.max_requests_per_cluster
    assert (looks.progress.late_in(""), looks.progress.left_out_in("")) == (1, 0)
    looks.look([record_of(5, at_s=61.0, session="a"), record_of(6, at_s=60.0, session="a")], at(6))
    assert (looks.progress.late_in(""), looks.progress.left_out_in("")) == (3, 0), "the closing itself is not before it"
    looks.look([record_of(7, at_s=59.0, session="a")], at(6))
    assert (looks.progress.late_in(""), looks.progress.left_out_in("")) == (4, 1)
    assert looks.progress.left_out_in("prompt_class=code") == 1
    assert looks.progress.left_out_in("prompt_class=sql") == 0


def test_a_full_cluster_waits_for_the_watermark_to_reach_what_filled_it() -> None:
    """Until then an earlier record of the same key may still come, and belong to it."""
    looks = Looks(BRISK)
    looks.look([record_of(i, at_s=100.0 + i, session="a") for i in range(4)], at(5))
    assert looks.entered == []
    looks.look([record_of(9, at_s=101.5, session="a")], at(6))
    assert [cluster.members for cluster in looks.entered] == [(key_of(0), key_of(1), key_of(9), key_of(2))]
    assert looks.progress.late_in("") == 1


def test_keys_are_forgotten_once_they_may_begin_anew() -> None:
    looks = Looks(BRISK)
    looks.look([record_of(0, at_s=0.0, session="a")], at(6))
    looks.look([], at(12))
    assert [each.key for each in looks.table.take([("prompt_class=code", "session:a")])] == ["session:a"]
    looks.look([record_of(1, at_s=300.0, session="b")], at(25))
    looks.look([], at(33))
    assert looks.table.take([("prompt_class=code", "session:b")]) == []

"""Which records make which cluster, and when a cluster enters: from keys and event times alone."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from shadowspec.errors import InputError
from shadowspec.gate.evidence.units import block_units
from shadowspec.gate.policy import GatePolicy
from shadowspec.types import Arm, FunnelCounter, RecordKey, Run, StoredBlock, StoredRecord
from tests.gate.oracle import cluster_units, fold_clusters
from tests.gate.worlds import MeasuredRun, block_of, key_of, record_of, run_of

POLICY = GatePolicy(
    window_s=0.0, cluster_idle_s=100.0, cluster_max_age_s=1_000.0, cluster_reopen_after_s=500.0, entry_clusters=2
)


def keys(records: list[StoredRecord], policy: GatePolicy = POLICY, *, input_ended: bool = False) -> list[str]:
    return [cluster.key for cluster in fold_clusters(records, policy, input_ended=input_ended).clusters]


def test_clusters_enter_in_the_order_of_their_first_event_and_wait_for_every_earlier_one() -> None:
    long = [record_of(index, at_s=index * 90.0, session="long") for index in range(6)]
    short = [record_of(10, at_s=10.0, session="short"), record_of(11, at_s=20.0, session="short")]
    assert keys(long + short) == [], "the short session closed first, but the long one opened before it"
    later = record_of(20, at_s=5 * 90.0 + 100.5, session="other")
    assert keys([*long, *short, later]) == ["session:long", "session:short"]


def test_ties_of_first_events_are_broken_by_key() -> None:
    records = [record_of(index, at_s=0.0, session=name) for index, name in enumerate("cab")]
    assert keys(records, input_ended=True) == ["session:a", "session:b", "session:c"]


def test_a_full_cluster_closes_at_once_and_what_comes_later_is_late() -> None:
    records = [record_of(index, at_s=float(index), session="busy") for index in range(11)]
    folding = fold_clusters(records, POLICY, input_ended=False)
    assert [cluster.members for cluster in folding.clusters] == [tuple(key_of(index) for index in range(8))]
    assert dict(folding.num_late) == {"prompt_class=code": 3}


def test_idle_and_old_clusters_close_by_the_watermark_alone() -> None:
    idle = [record_of(0, at_s=0.0, session="a")]
    assert keys([*idle, record_of(1, at_s=100.0, session="b")]) == []
    assert keys([*idle, record_of(1, at_s=100.5, session="b")]) == ["session:a"]
    policy = replace(POLICY, max_requests_per_cluster=100)
    steady = [record_of(index, at_s=index * 90.0, session="a") for index in range(12)]
    assert keys(steady[:12], policy) == [], "990 s: not yet older than 1,000 s"
    folding = fold_clusters([*steady, record_of(12, at_s=1_080.0, session="a")], policy, input_ended=False)
    assert len(folding.clusters[0].members) == 12
    assert folding.num_late["prompt_class=code"] == 1


def test_a_key_reopens_as_a_new_cluster_only_after_the_pause() -> None:
    records = [record_of(0, at_s=0.0, session="a"), record_of(1, at_s=599.0, session="a")]
    folding = fold_clusters(records, POLICY, input_ended=True)  # closed at 100 s, so late until 600 s
    assert [len(cluster.members) for cluster in folding.clusters] == [1]
    assert folding.num_late["prompt_class=code"] == 1
    records.append(record_of(2, at_s=600.0, session="a"))
    folding = fold_clusters(records, POLICY, input_ended=True)
    assert [cluster.members for cluster in folding.clusters] == [(key_of(0),), (key_of(2),)]


def test_a_cluster_is_of_one_unit_as_the_tap_numbered_it() -> None:
    """A user who comes back the next day is another unit, although less than the pause has passed."""
    records = [
        structs.replace(record_of(index, at_s=at_s, session=None, user="u"), unit_key=f"user:u#{number}")
        for index, (at_s, number) in enumerate([(0.0, 7), (90.0, 7), (95.0, 8), (150.0, 8), (300.0, 8)])
    ]
    folding = fold_clusters(records, POLICY, input_ended=True)
    assert [(cluster.key, len(cluster.members)) for cluster in folding.clusters] == [("user:u#7", 2), ("user:u#8", 2)]
    assert folding.num_late["prompt_class=code"] == 1, "idle, and of a unit that has its cluster"


def test_the_end_of_a_finite_input_closes_every_cluster() -> None:
    records = [record_of(0, at_s=0.0, session="a")]
    assert keys(records) == []
    assert keys(records, input_ended=True) == ["session:a"]


def test_a_session_is_a_cluster_in_each_slice_and_a_record_without_session_falls_to_user_then_time() -> None:
    records = [
        record_of(0, at_s=0.0, session="a"),
        record_of(1, at_s=1.0, session="a", slice_key="prompt_class=chat"),
        record_of(2, at_s=2.0, session=None, user="u"),
        record_of(3, at_s=3.0, session=None),
        record_of(4, at_s=4.0, session=None),
        record_of(5, at_s=601.0, session=None),
    ]
    folding = fold_clusters(records, POLICY, input_ended=True)
    assert [(cluster.slice_key[13:], len(cluster.members)) for cluster in folding.clusters] == [
        ("code", 1),
        ("chat", 1),
        ("code", 1),
        ("code", 2),
        ("code", 1),
    ]
    assert len(folding.of_slice("prompt_class=chat")) == 1
    assert len(folding.of_slice("")) == 5


def test_a_dominant_key_is_cut_into_time_blocks_and_a_small_one_never() -> None:
    others = [record_of(index, at_s=float(index), session=f"s{index}") for index in range(40)]
    bot = [record_of(100 + index, at_s=50.0 + index * 10.0, session="bot") for index in range(180)]
    policy = replace(POLICY, cluster_reopen_after_s=1_000.0)
    folding = fold_clusters(others + bot, replace(policy, entry_clusters=1), input_ended=True)
    assert dict(folding.dominant_keys) == {}, "judged at entry, at 100 s, when it had 6 records"
    folding = fold_clusters(others + bot, replace(policy, entry_clusters=41), input_ended=True)
    cut = [cluster for cluster in folding.clusters if cluster.key.startswith("session:bot@")]
    assert dict(folding.dominant_keys) == {"prompt_class=code": 1}
    assert [len(cluster.members) for cluster in cut] == [8, 8, 8, 5], "half an hour of 10-minute blocks"
    assert len(folding.clusters) == 44


def test_a_slice_enters_with_its_entry_clusters() -> None:
    records = [
        record_of(0, at_s=0.0, session="a"),
        record_of(1, at_s=1.0, session="b", slice_key="prompt_class=chat"),
        record_of(2, at_s=2.0, session="c"),
    ]
    entries = fold_clusters(records, POLICY, input_ended=True).entries
    assert {slice_key: entry.position for slice_key, entry in entries.items()} == {"": 1, "prompt_class=code": 2}


def test_unusable_records_make_no_cluster_and_usable_ones_need_an_event_time() -> None:
    bad = record_of(0, at_s=0.0, session="a", counter=FunnelCounter.UNSUPPORTED)
    assert keys([bad], input_ended=True) == []
    with pytest.raises(InputError, match=r"file\[0\]@1/0 .* no event time"):
        keys([structs.replace(record_of(0, at_s=0.0, session="a"), event_time=None)])
    with pytest.raises(InputError, match="no slice"):
        keys([structs.replace(record_of(0, at_s=0.0, session="a"), slice_key=None)])


# Times in steps of 20 s, so that idling (5 steps), ageing (15) and reopening (8) all happen in 40 steps.
BRISK = replace(POLICY, max_requests_per_cluster=4, cluster_max_age_s=300.0, cluster_reopen_after_s=160.0)
STEPS = st.integers(0, 40)
ARRIVALS = st.lists(st.tuples(STEPS, st.sampled_from("abc"), st.sampled_from("xy")), max_size=60)


def records_of(arrivals: list[tuple[int, str, str]]) -> list[StoredRecord]:
    return [
        record_of(index, at_s=20.0 * step, session=session, slice_key=f"prompt_class={name}")
        for index, (step, session, name) in enumerate(arrivals)
    ]


@settings(deadline=None)
@given(ARRIVALS, st.randoms(use_true_random=False))
def test_folding_does_not_depend_on_the_order_of_rows_or_on_outcomes(arrivals, random) -> None:
    records = records_of(arrivals)
    shuffled = [
        structs.replace(record, counter=random.choice((FunnelCounter.MEASURED, FunnelCounter.FAILED)))
        for record in records
    ]
    random.shuffle(shuffled)
    assert fold_clusters(records, BRISK, input_ended=False) == fold_clusters(shuffled, BRISK, input_ended=False)


@settings(max_examples=200, deadline=None)
@given(ARRIVALS, STEPS)
def test_what_is_in_evidence_never_changes_as_time_goes_on(arrivals, now: int) -> None:
    """A look at an earlier watermark saw a prefix of what a later look sees: each unit is folded once."""
    policy = replace(BRISK, dominant_key_share=1.0)
    earlier = fold_clusters(records_of([a for a in sorted(arrivals) if a[0] <= now]), policy, input_ended=False)
    later = fold_clusters(records_of(sorted(arrivals)), policy, input_ended=False)
    assert later.clusters[: len(earlier.clusters)] == earlier.clusters
    assert {name: later.entries[name] for name in earlier.entries} == dict(earlier.entries)


@settings(deadline=None)
@given(ARRIVALS)
def test_every_record_is_in_one_cluster_waiting_or_late(arrivals) -> None:
    folding = fold_clusters(records_of(arrivals), replace(BRISK, dominant_key_share=1.0), input_ended=True)
    members = [key for cluster in folding.clusters for key in cluster.members]
    assert len(members) == len(set(members))
    assert len(members) + sum(folding.num_late.values()) == len(arrivals)
    assert max((len(cluster.members) for cluster in folding.clusters), default=1) <= BRISK.max_requests_per_cluster


def test_units_hold_at_least_one_run_and_blocks_come_in_start_order() -> None:
    records = [record_of(index, at_s=float(index), session=f"s{index}") for index in range(4)]
    clusters = fold_clusters(records, POLICY, input_ended=True).clusters
    runs = {key_of(index): MeasuredRun(run_of(index, f"b{block:05d}"), True) for index, block in ((0, 2), (2, 1))}
    assert [unit.cluster.key for unit in cluster_units(clusters, runs, 10)] == ["session:s0", "session:s2"]
    assert len(cluster_units(clusters, runs, 1)) == 1
    units = block_units([block_of(2), block_of(0), block_of(1)], runs)
    assert [unit.block.sequence for unit in units] == [1, 2], "an empty block is no unit"


def test_a_block_cannot_hold_more_than_its_full_size() -> None:
    runs = {key_of(index): MeasuredRun(run_of(index, "b00000"), True) for index in range(3)}
    with pytest.raises(InputError, match=r"b00000 .* holds 3 runs, n_max 2"):
        block_units([block_of(0, n_max=2)], runs)


def test_blocks_of_a_second_input_follow_those_of_the_first() -> None:
    """`sequence` begins anew with every input; the order is that in which blocks started."""
    noon = datetime(2026, 1, 1, 12, tzinfo=UTC)

    def stored(name: str, sequence: int, minutes: int) -> StoredBlock:
        started_at = noon + timedelta(minutes=minutes)
        return StoredBlock(name, sequence, "e", "", 1, 1, Arm.BASELINE, started_at, {})

    blocks = [stored("second-file", 0, 10), stored("first-file-late", 1, 5), stored("first-file-early", 0, 0)]
    runs = {
        key: MeasuredRun(Run(key, "f", block.block_id, failure="out_of_memory"), is_greedy=True)
        for key, block in ((RecordKey("s", 0, index), block) for index, block in enumerate(blocks))
    }
    order = [unit.block.block_id for unit in block_units(blocks, runs)]
    assert order == ["first-file-early", "first-file-late", "second-file"]

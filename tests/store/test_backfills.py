"""Blocks of files and the rows of their records: written together, once, and added up as one process would."""

from __future__ import annotations

import uuid
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shadowspec import metrics
from shadowspec.engine.replay.pooling import CounterPool
from shadowspec.errors import StoreError
from shadowspec.reports.figures.frontiers import length_of
from shadowspec.store import Store
from shadowspec.store.write import stored_replays
from shadowspec.types import ExpectedCounts, FingerprintedConfig, RecordKey, ReplayedRecord
from tests.store import examples
from tests.store.examples import backfilled

NOW = datetime(2026, 3, 15, 12, tzinfo=UTC)
KEEP = timedelta(days=90)


def config(depth: int) -> FingerprintedConfig:
    fingerprinted = examples.config(f"fp-{depth}")
    return replace(fingerprinted, config=replace(fingerprinted.config, num_speculative_tokens=depth))


def test_a_block_comes_back_as_it_was_written(store: Store) -> None:
    empty = backfilled(1, is_last=True, num_replayed=0, funnel={}, last_event=None)
    assert store.save_backfilled("work", backfilled(0), [examples.replayed(1), examples.replayed(2)]) == 2
    assert store.save_backfilled("work", empty, []) == 0
    assert store.save_backfilled("work", backfilled(0, "another"), [examples.replayed(3)]) == 1
    assert store.backfilled_blocks("work", {"file"}) == [backfilled(0), empty]
    assert store.backfilled_blocks("work", {"file", "another", "none"}) == [
        backfilled(0, "another"),
        backfilled(0),
        empty,
    ]
    assert store.backfilled_blocks("work", set()) == store.backfilled_blocks("other", {"file"}) == []
    assert sum(sums.num_requests for sums in store.replay_sums(["chat"])["chat"]) == 3


def test_what_is_there_stays_as_it_is(store: Store) -> None:
    records = [examples.replayed(1), examples.replayed(2)]
    store.save_backfilled("work", backfilled(0), records)
    other = replace(records[0], slice_key="a=c")
    assert store.save_backfilled("work", backfilled(0, num_records=99, funnel={}), [other, *records]) == 0
    assert store.backfilled_blocks("work", {"file"}) == [backfilled(0)]
    assert [sums.slice_key for sums in store.replay_sums(["chat"])["chat"]] == ["a=b"]
    assert store.save_backfilled("another work", backfilled(0), [*records, examples.replayed(3)]) == 1
    assert store.backfilled_blocks("another work", {"file"}) == [backfilled(0)]


def test_neither_is_there_without_the_other(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object) -> None:
        raise StoreError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(
            stored_replays.bulk, "insert_new", lambda *item: fail() if item[1].name == "backfill_blocks" else []
        )
        with pytest.raises(StoreError):
            store.save_backfilled("work", backfilled(0), [examples.replayed(1)])
    real = stored_replays.bulk.insert_new
    with monkeypatch.context() as patch:
        patch.setattr(
            stored_replays.bulk,
            "insert_new",
            lambda *item: fail() if item[1].name == "backfill_blocks" else real(*item),
        )
        with pytest.raises(StoreError):
            store.save_backfilled("work", backfilled(0), [examples.replayed(1)])
    assert store.replay_sums(["chat"]) == {"chat": []}
    assert store.replay_configs() == {}
    assert store.finished_blocks("work") == {}
    assert store.save_backfilled("work", backfilled(0), [examples.replayed(1)]) == 1


def test_a_file_is_finished_when_all_blocks_up_to_the_last_are(store: Store) -> None:
    for source, numbers, last in (
        ("whole", (0, 1, 2), 2),
        ("single", (0,), 0),
        ("with a gap", (0, 2), 2),
        ("without its first", (1,), 1),
        ("without its last", (0, 1), None),
    ):
        for number in numbers:
            store.save_backfilled("work", backfilled(number, source, is_last=number == last), [])
    store.save_backfilled("other", backfilled(1, "with a gap"), [])
    assert store.finished_blocks("work") == {
        "whole": ({0, 1, 2}, True),
        "single": ({0}, True),
        "with a gap": ({0, 2}, False),
        "without its first": ({1}, False),
        "without its last": ({0, 1}, False),
    }
    assert store.finished_blocks("other") == {"with a gap": ({1}, False)}
    assert store.finished_blocks("none") == {}


def test_old_blocks_go_with_their_rows(store: Store) -> None:
    """Else what was removed of them would never be replayed again; a block without responses has nothing to lose."""
    old, young = NOW - timedelta(days=200), NOW - timedelta(days=3)
    for number, time in enumerate((old, young)):
        record = replace(examples.replayed(number), event_time=time)
        store.save_backfilled("work", backfilled(number, last_event=time), [record])
    store.save_backfilled("work", backfilled(2, is_last=True, last_event=None), [])
    assert store.finished_blocks("work")["file"] == ({0, 1, 2}, True)
    store.retain(KEEP, now=NOW)
    assert store.finished_blocks("work")["file"] == ({1, 2}, False)
    assert [sums.num_requests for sums in store.replay_sums(["chat"])["chat"]] == [1]


def test_of_what_is_asked_for_alone(store: Store) -> None:
    """Endpoints may share a config, and files of other work lie beside."""
    shared = replace(examples.replayed(1), endpoint="sql")
    other_file = replace(examples.replayed(2), key=RecordKey("other", 0, 2))
    other_config = examples.replayed(3, examples.config("g"))
    store.save_replays([shared, other_file, other_config, examples.replayed(4)])
    whole, acceptance_sums = store.backfilled_sums({"file"}, {"fp"}, ["chat"])["chat"]
    assert (whole.slice_key, acceptance_sums.slice_key, whole.num_requests, acceptance_sums.num_requests) == (
        "",
        "a=b",
        1,
        1,
    )
    both = store.backfilled_sums({"file", "other"}, {"fp", "g"}, ["chat", "sql", "none"])
    assert {name: sum(each.num_requests for each in sums) for name, sums in both.items()} == {
        "chat": 6,
        "sql": 2,
        "none": 0,
    }
    assert store.backfilled_sums(set(), {"fp"}, ["chat"]) == store.backfilled_sums({"file"}, set(), ["chat"])
    assert store.backfilled_sums({"file"}, {"fp"}, []) == {}


DEPTHS = (1, 3)


def rounded(value: float) -> float:
    return round(value, 6)  # Postgres refuses products that underflow


responses = st.tuples(
    st.sampled_from(["session:a", "session:b", "user:c"]),
    st.sampled_from(["a=b", "a=c"]),
    st.tuples(st.floats(0.0, 30.0).map(rounded), st.floats(1.0, 40.0).map(rounded)),
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=25)
@given(st.lists(responses, min_size=1, max_size=12))
def test_rows_add_up_to_what_one_process_pools(store: Store, drawn: list[tuple[str, str, tuple[float, float]]]) -> None:
    """Sessions lie in several slices; of the whole endpoint each is one unit."""
    pools: dict[str, CounterPool] = {}
    records: list[ReplayedRecord] = []
    source = uuid.uuid4().hex
    for line, (unit, slice_key, (accepted, drafts)) in enumerate(drawn):
        counts = [expected_at(depth, accepted, drafts) for depth in DEPTHS]
        for name in ("", slice_key):
            pools.setdefault(name, CounterPool(DEPTHS)).add(unit, counts)
        pairs = tuple(zip(map(config, DEPTHS), counts, strict=True))
        records.append(ReplayedRecord(RecordKey(source, 0, line), "chat", slice_key, unit, examples.NOON, pairs))
    store.save_backfilled("work", backfilled(0, source), records)
    fingerprints = {f"fp-{depth}" for depth in DEPTHS}
    sums = store.backfilled_sums({source}, fingerprints, ["chat"])["chat"]
    places = {f"fp-{depth}": place for place, depth in enumerate(DEPTHS)}
    assert [(acceptance_sums.slice_key, acceptance_sums.fingerprint) for acceptance_sums in sums] == [
        (name, fingerprint) for name in sorted(pools) for fingerprint in places
    ]
    for acceptance_sums in sums:
        place = places[acceptance_sums.fingerprint]
        pooled = pools[acceptance_sums.slice_key].pool()[place]
        counts = pooled.counts
        assert (acceptance_sums.num_requests, acceptance_sums.num_units) == (pooled.num_requests, pooled.num_units)
        assert acceptance_sums.num_drafts == pytest.approx(counts.num_drafts)
        assert acceptance_sums.num_draft_tokens == pytest.approx(counts.num_draft_tokens)
        assert acceptance_sums.num_accepted_tokens == pytest.approx(counts.num_accepted_tokens)
        assert acceptance_sums.num_accepted_tokens_per_pos[0] == pytest.approx(counts.num_accepted_tokens_per_pos[0])
        length = length_of(acceptance_sums, DEPTHS[place])
        assert length is not None
        assert length.estimate == pytest.approx(metrics.mean_acceptance_length(counts))
        if pooled.lower is None or pooled.upper is None:
            assert acceptance_sums.num_units < 2
            continue
        assert length.lower == pytest.approx(pooled.lower, rel=1e-4)
        assert length.upper == pytest.approx(pooled.upper, rel=1e-4)


def expected_at(depth: int, accepted: float, drafts: float) -> ExpectedCounts:
    """Of one response: what is accepted, spread evenly over as many positions as are drafted."""
    each = accepted / depth
    histogram = (drafts, *(0.0,) * (depth - 1), each)
    return ExpectedCounts(drafts + each, depth * (drafts + each), accepted, (each,) * depth, histogram, 8, 20)

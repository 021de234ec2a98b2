"""The reads behind the board and the evidence page say what the rows say, on both dialects."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from shadowspec.metrics import pool_counts
from shadowspec.store import METRICS, Store, session
from shadowspec.store.histograms import Histogram
from shadowspec.store.write.append_only_rows import append_rollouts
from shadowspec.types import Advance, Clearing, PartitionId, Verdict, WriteBatch
from tests.store.examples import NOON, block, config, decision, override, record, rollout
from tests.store.saving import save_block


def test_the_pulse_moves_with_everything_that_a_page_shows(store: Store) -> None:
    seen = [store.pulse()]
    assert (seen[0].decision_id, seen[0].moved_at, seen[0].num_records) == (None, None, 0)

    def moved() -> None:
        seen.append(store.pulse())
        assert seen[-1] != seen[-2]
        assert store.pulse() == seen[-1]

    store.save_fingerprints([config()])
    save_block(store, block("b1", range(4)), [record(line) for line in range(4)])
    moved()
    assert seen[-1].num_records == 4
    store.append_decisions([decision()])
    moved()
    assert seen[-1].decided_at == NOON
    number = store.add_override(override())
    moved()
    store.clear_override(Clearing(number, "mended", "ada", NOON))
    moved()
    with session.write(store.engine) as connection:
        append_rollouts(connection, [rollout()])
    moved()


def test_endpoints_are_those_that_were_counted(store: Store) -> None:
    file = PartitionId("file")
    funnel = {
        (stored_record.endpoint, stored_record.counter, stored_record.reason): 1
        for stored_record in [record(0), record(1, endpoint="sql")]
    }
    store.save_batch(WriteBatch(advances=(Advance(file, None, 2, 2, funnel, NOON, is_ended=True),)), "c")
    topic = PartitionId("topic", 3)
    later = NOON + timedelta(hours=1)
    funnel = {("sql", record(0).counter, None): 1}
    store.save_batch(WriteBatch(advances=(Advance(topic, None, 9, 1, funnel, later),)), "c")
    assert store.named_endpoints() == ["chat", "sql"]


def test_looks_are_those_of_one_hypothesis_oldest_first(store: Store) -> None:
    store.save_fingerprints([config(), config("other")])
    store.append_decisions([decision(), decision(fingerprint="other"), decision(endpoint="sql")])
    later = replace(decision(Verdict.ENABLE), decided_at=NOON + timedelta(hours=1))
    store.append_decisions([later])
    looks = store.looks("chat", "", 4, "fp", ["speedup", "tail"])
    assert [(look.decided_at, look.verdict, look.name) for look in looks] == [
        (NOON, Verdict.HOLD, "speedup"),
        (NOON + timedelta(hours=1), Verdict.ENABLE, "speedup"),
    ]
    assert (looks[0].estimate, looks[0].lower, looks[0].upper, looks[0].threshold) == (0.1, -0.2, 0.4, 0.05)
    assert store.looks("chat", "", 4, "fp", ["tail"]) == []


def test_counts_and_histograms_add_up_to_the_runs(store: Store) -> None:
    store.save_fingerprints([config()])
    assert store.position_counts("chat", None, 4, "fp") is None
    assert store.histograms("chat", None, 4, "fp") == {}
    for number in range(2):
        lines = range(4 * number, 4 * number + 4)
        save_block(store, block(f"b{number}", lines, sequence=number), [record(line) for line in lines])
    every = [run.counts for run in store.runs("chat") if run.counts is not None]
    assert len(every) == 8
    assert store.position_counts("chat", None, 4, "fp") == pool_counts(every)
    assert store.position_counts("chat", "", 4, "fp", NOON) == pool_counts(every)
    assert store.position_counts("chat", None, 4, "fp", NOON + timedelta(hours=1)) is None
    assert store.position_counts("chat", "other=slice", 4, "fp") is None
    found = store.histograms("chat", None, 4, "fp")
    assert set(found) == set(METRICS)
    for name, histogram in found.items():
        whole = store.histogram("chat", name)
        assert histogram == Histogram(dict(whole.num_runs), dict(whole.weights))
    assert store.histograms("chat", None, 8, "fp") == {}


def test_sums_that_are_not_named_are_not_read(store: Store) -> None:
    store.save_fingerprints([config()])
    save_block(store, block("b1", range(4)), [record(line) for line in range(4)])
    (whole,) = store.group_sums("chat", step="day")
    (some,) = store.group_sums("chat", step="day", names=("num_runs", "weight"))
    assert (some.sums.num_runs, some.sums.weight, some.start) == (whole.sums.num_runs, whole.sums.weight, whole.start)
    assert (some.sums.num_drafts, whole.sums.num_drafts) == (0, 8)

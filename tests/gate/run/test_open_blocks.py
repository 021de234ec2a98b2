"""Which blocks are in evidence depends on event times alone, however long each of them took to be measured."""

from __future__ import annotations

import random
from dataclasses import replace
from datetime import datetime, timedelta

import pytest
from msgspec import structs

from shadowspec.gate.evidence.units import take_blocks
from shadowspec.gate.policy import GatePolicy
from shadowspec.gate.run.gate_run import run_endpoint_gate
from shadowspec.gate.run.recompute import explain
from shadowspec.store import Store
from shadowspec.types import (
    Advance,
    Block,
    BlockResult,
    FunnelCounter,
    OpenBlock,
    PartitionId,
    RecordKey,
    Span,
    WriteBatch,
)
from tests.gate.oracle import EndpointEvidence, decide_endpoint
from tests.gate.worlds import CONFIG, ENDPOINT, MEMORY, START, block_of, record_of, run_of

POLICY = GatePolicy(window_s=0.0, max_hypotheses=2, min_span_s=0.0)


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


class Fleet:
    """Two workers, with a partition each; a block holds one request."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.places: dict[tuple[str, int], int] = {}
        self.rows = EndpointEvidence(ENDPOINT, [], [], [])
        store.save_fingerprints([CONFIG])

    def write(self, sequence: int, partition: int, *, is_behind: bool, consumer: str = "group") -> None:
        """The block `sequence` was measured, of a request at so many seconds."""
        stored = replace(block_of(sequence, n_max=4), memory={CONFIG.fingerprint: MEMORY})
        key = RecordKey("topic", partition, sequence)
        record = structs.replace(record_of(sequence, at_s=float(sequence), session=f"s{sequence}"), key=key)
        run = replace(run_of(sequence, stored.block_id), key=key)
        block = Block(
            *(stored.block_id, sequence, ENDPOINT, stored.slice_key, stored.concurrency, (), ()), stored.first_arm
        )
        result = BlockResult(block, stored.started_at, (run,), {CONFIG.fingerprint: MEMORY})
        advance = Advance(
            PartitionId("topic", partition),
            self.places.get((consumer, partition)),
            sequence + 1,
            1,
            {(ENDPOINT, record.counter, record.reason): 1},
            at(sequence),
            is_behind,
            first_offset=sequence,
        )
        self.store.save_batch(WriteBatch((), ((result, (record,)),), (advance,)), consumer)
        self.places[consumer, partition] = sequence + 1
        self.rows = EndpointEvidence(
            ENDPOINT,
            [*self.rows.records, record],
            [*self.rows.blocks, stored],
            [*self.rows.runs, run],
            self.store.watermark(ENDPOINT).time,
        )

    def pass_over(self, sequence: int, consumer: str) -> None:
        """A consumer reads a record of partition 0 that another one has stored."""
        before = self.places[consumer, 0]
        counted = {(ENDPOINT, FunnelCounter.MEASURED, None): 1}
        advance = Advance(PartitionId("topic"), before, sequence + 1, 1, counted, at(sequence))
        self.store.save_batch(WriteBatch((), (), (advance,)), consumer)
        self.places[consumer, 0] = sequence + 1

    def num_blocks(self, *, ended: bool = False) -> int:
        """Blocks in evidence after another look; all rows at once, and the decision's replay, have the same ones."""
        decided = run_endpoint_gate(self.store, ENDPOINT, POLICY, input_ended=ended).decisions[0]
        configs = {CONFIG.fingerprint: CONFIG}
        rows = replace(self.rows, watermark=self.store.watermark(ENDPOINT).time)
        at_once = decide_endpoint(
            rows, POLICY, configs, [4], [], input_ended=ended, now=decided.decided_at
        )  # fmt: skip
        assert at_once[0].num_blocks == decided.num_blocks
        assert explain(self.store, decided.decision_id or 0).differences == ()
        return decided.num_blocks


@pytest.mark.representative("postgres")
def test_a_fast_block_waits_for_the_slow_one_that_began_before_it(store: Store) -> None:
    """Blocks fold whole, in start order: what is in evidence must not tell how long a block took."""
    fleet = Fleet(store)
    fleet.write(1, 0, is_behind=True)  # its worker is at block 2, which takes long
    assert fleet.num_blocks() == 1
    fleet.write(3, 1, is_behind=True)
    fleet.write(4, 1, is_behind=True)
    assert fleet.num_blocks() == 1
    assert fleet.num_blocks() == 1, "a look without news lets nothing in"
    fleet.write(2, 0, is_behind=False)
    assert fleet.num_blocks() == 4
    fleet.write(6, 1, is_behind=True)
    fleet.write(5, 0, is_behind=True)
    assert fleet.num_blocks() == 5
    assert fleet.num_blocks(ended=True) == 6, "nothing follows an input that has ended"


def test_a_retired_consumer_is_named_and_can_be_forgotten(store: Store) -> None:
    fleet = Fleet(store)
    fleet.write(1, 0, is_behind=True, consumer="retired")
    fleet.write(5, 1, is_behind=False)
    assert fleet.num_blocks() == 1
    held_by = run_endpoint_gate(store, ENDPOINT, POLICY).decisions[0].evidence.watermark_held_by
    assert str(held_by).startswith("consumer 'retired' in topic[0] is at ")
    assert store.forget_consumer("retired", is_forced=True) == 1
    assert fleet.num_blocks() == 2
    assert run_endpoint_gate(store, ENDPOINT, POLICY).decisions[0].evidence.watermark_held_by is None


def test_blocks_enter_in_the_order_of_their_newest_events_whatever_they_take() -> None:
    rng = random.Random(5)
    for _ in range(50):
        runs = [replace(run_of(i, f"b{i // 2}"), key=RecordKey("topic", 0, i)) for i in range(60)]
        times = {run.key: at(i + rng.uniform(0.0, 8.0)) for i, run in enumerate(runs)}
        newest = {f"b{i // 2}": max(times[runs[i].key], times[runs[i + 1].key]) for i in range(0, 60, 2)}
        in_order = sorted(newest, key=newest.__getitem__)
        finished = {name: newest[name] + timedelta(seconds=rng.choice([1.0, 1.0, 30.0])) for name in newest}
        held: dict[str, OpenBlock] = {}
        entered: list[str] = []
        written: set[str] = set()
        for second in range(100):
            ready = {name for name, done in finished.items() if done <= at(second)}
            unfinished = [newest[name] for name in newest if name not in ready]
            closed_by = min(unfinished) - timedelta(microseconds=1) if unfinished else at(1_000)
            new = [run for run in runs if run.block_id in ready - written]
            written |= ready
            result = take_blocks(held, new, times, lambda _: 2, closed_by)
            held = {name: block for name, block in {**held, **result.begun}.items() if name not in result.entered}
            entered += sorted(result.entered, key=result.entered.__getitem__)
            assert entered == in_order[: len(entered)]
        assert len(entered) == 30
        assert not held


@pytest.mark.representative("postgres")
def test_a_consumer_that_began_behind_another_loses_nothing(store: Store) -> None:
    """One group begins in the midst of a topic, another reads it from the start: each record folds once."""
    fleet = Fleet(store)
    fleet.write(100, 0, is_behind=False, consumer="late group")
    assert fleet.num_blocks() == 1
    for sequence in (1, 2, 3):
        fleet.write(sequence, 0, is_behind=False, consumer="early group")
    assert fleet.num_blocks() == 4
    fleet.pass_over(100, "early group")
    assert fleet.num_blocks() == 4, "what both have finished is folded once"
    fleet.write(101, 0, is_behind=False, consumer="early group")
    fleet.pass_over(101, "late group")
    assert fleet.num_blocks() == 5
    with store.evidence_session(ENDPOINT) as session:
        assert session.progress is not None
        assert session.progress.cursors == (Span("topic", 0, 1, 102),)

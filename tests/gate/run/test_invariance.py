"""What disturbs a stream of rows, and does not change what the gate says of it.

Each property has an oracle: one gate that looks once, at the end, at rows that came in order.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from shadowspec.gate.evidence.hypothesis import HypothesisEvidence
from shadowspec.gate.evidence.windows import num_first_windows, window_start
from shadowspec.gate.policy import GatePolicy
from shadowspec.gate.run.gate_run import run_endpoint_gate
from shadowspec.gate.run.memory_store import MemoryStore
from shadowspec.gate.run.state import decode_evidence
from shadowspec.types import (
    Decision,
    RecordKey,
    Run,
    Span,
    StoredBlock,
    StoredRecord,
    Watermark,
    window_of,
)
from tests.gate.worlds import CONFIG, ENDPOINT, START, block_of, noisy_run, record_of

HOUR = timedelta(hours=1)
# Acceptance fails its floor: no test is restarted, as a look may do that would otherwise give a verdict.
WINDOWS = GatePolicy(max_hypotheses=2, min_span_s=86_400.0, entry_clusters=5, cluster_idle_s=600.0, floor=0.9)
BLOCKS = replace(WINDOWS, window_s=0.0)
LOOK_BACK = ("total_time", "tail")  # what they make of a unit depends on those before it
NUM_HOURS = 44  # of which the first day only sets the size of a window
GAP = timedelta(minutes=40)  # so that looks cut windows
NUM_BLOCKS = NUM_HOURS * 3 // 2
PER_BLOCK = 2


@dataclass(frozen=True)
class Measured:
    """A block with its records and runs; it is at the event time of its newest record."""

    block: StoredBlock
    records: tuple[StoredRecord, ...]
    runs: tuple[Run, ...]

    @property
    def newest(self) -> datetime:
        return max(record.event_time for record in self.records if record.event_time is not None)


def measured(number: int, at: datetime, *, partition: int = 0, offset: int | None = None) -> Measured:
    """Block `number`, with requests of sessions of their own."""
    rng = np.random.default_rng(number)
    block = replace(block_of(number, n_max=PER_BLOCK), started_at=at)
    records, runs = [], []
    for place in range(PER_BLOCK):
        key = RecordKey("file", partition, (number if offset is None else offset) * PER_BLOCK + place)
        index = number * PER_BLOCK + place
        record = record_of(index, at_s=0.0, session=f"s{index:06d}")
        records.append(structs.replace(record, key=key, event_time=at + timedelta(seconds=place)))
        runs.append(replace(noisy_run()(rng, index, block.block_id), key=key))
    return Measured(block, tuple(records), tuple(runs))


class Arrivals(MemoryStore):
    """Rows of any partitions, which come in any order of event time; the watermark is the newest event time so far."""

    def __init__(self) -> None:
        super().__init__(ENDPOINT, ("file", 0), [CONFIG])
        self._offsets: dict[tuple[str, int], set[int]] = defaultdict(set)
        self.known: datetime | None = None

    def arrive(self, blocks: Iterable[Measured], others: Iterable[StoredRecord] = ()) -> None:
        """Store these blocks, and records that were not measured."""
        new = list(blocks)
        records = [*others, *(record for each in new for record in each.records)]
        self._records |= {record.key: record for record in records}
        for each in new:
            self._blocks[each.block.block_id] = each.block
            self._sizes[each.block.block_id] += len(each.runs)
            self._runs |= {run.key: [run] for run in each.runs}
        self._keys = sorted(self._records)
        for record in records:
            self._offsets[record.key.source, record.key.partition].add(record.key.offset)
        times = [record.event_time for record in records if record.event_time is not None]
        self.known = max([*times, *([] if self.known is None else [self.known])], default=None)
        self.finish(0, Watermark(self.known, is_ended=False))

    def finished_spans(self) -> list[Span]:
        return [Span(*place, offset, offset + 1) for place, offsets in self._offsets.items() for offset in offsets]

    def first_offset(self, span: Span) -> int | None:
        return span.start

    def look(self, policy: GatePolicy, *, ended: bool = False) -> list[Decision]:
        """A gate run; its decisions, that on the whole endpoint first."""
        return run_endpoint_gate(self, ENDPOINT, policy, input_ended=ended, now=START).decisions

    def folded(self) -> HypothesisEvidence:
        """The evidence of the whole endpoint."""
        rows = [row for row in self.evidence() if not row.slice_key]
        return decode_evidence(rows[0]).evidence if rows else HypothesisEvidence()


def one_gate(policy: GatePolicy, blocks: Iterable[Measured]) -> HypothesisEvidence:
    """The evidence of one gate that looks once, at all of these, in the order of their event times."""
    store = Arrivals()
    store.arrive(blocks)
    store.look(policy, ended=True)
    return store.folded()


def assert_same_tests(one: HypothesisEvidence, other: HypothesisEvidence, *, in_any_order: bool = False) -> None:
    """The same units, values and capitals of every test; `in_any_order`: of those that look back, the same units."""
    assert one.tests.keys() == other.tests.keys()
    for name, mine in one.tests.items():
        theirs = other.tests[name]
        assert mine.num_units == theirs.num_units, name
        if in_any_order and name in LOOK_BACK:
            continue
        assert mine.observed_value == pytest.approx(theirs.observed_value), name
        assert np.allclose(mine.lower.logs, theirs.lower.logs), name
        assert np.allclose(mine.upper.logs, theirs.upper.logs), name


def in_time(looks: Sequence[Sequence[Measured]], window: timedelta = HOUR) -> list[Measured]:
    """The blocks that are not late, by the rule as the documentation has it.

    At each look the blocks of the windows enter that the newest event time has left.  A block is late if it comes to
    light when its window, or a later one, has entered.
    """
    waiting: list[Measured] = []
    counted: list[Measured] = []
    known, newest = None, -1
    for at, arrived in enumerate(looks):
        waiting += arrived
        known = max([each.newest for each in arrived] + ([] if known is None else [known]), default=None)
        is_last = at == len(looks) - 1
        ready = [each for each in waiting if is_last or (known and each.newest <= window_start(known, window))]
        waiting = [each for each in waiting if each not in ready]
        counted += [each for each in ready if window_of(each.newest, window) > newest]
        newest = max([newest, *(window_of(each.newest, window) for each in ready)])
    return counted


def watched(policy: GatePolicy, looks: Sequence[Sequence[Measured]]) -> tuple[HypothesisEvidence, Decision]:
    """The evidence and the last decision of a gate that looks as the rows come, and at the end of the input."""
    store = Arrivals()
    for at, arrived in enumerate(looks):
        store.arrive(arrived)
        decisions = store.look(policy, ended=at == len(looks) - 1)
    return store.folded(), decisions[0]


def arrivals_by_look(blocks: Sequence[Measured], delays: Mapping[int, int], every: int) -> list[list[Measured]]:
    """Blocks in order, `every` of them a look; block `i` comes `delays[i]` looks later."""
    num_looks = -(-len(blocks) // every)
    looks: list[list[Measured]] = [[] for _ in range(num_looks)]
    for number, block in enumerate(blocks):
        looks[min(number // every + delays.get(number, 0), num_looks - 1)].append(block)
    return looks


STREAM = [measured(number, START + number * GAP) for number in range(NUM_BLOCKS)]
DELAYS = st.dictionaries(st.integers(0, NUM_BLOCKS - 1), st.integers(1, 9), max_size=12)


@given(DELAYS, st.integers(1, 12))
def test_late_blocks_count_in_no_test_of_windows_and_their_share_is_shown(delays: dict[int, int], every: int) -> None:
    """Oracle: one gate over the blocks in time.  All others are counted as late, and nothing else."""
    looks = arrivals_by_look(STREAM, delays, every)
    counted = in_time(looks)
    evidence, last = watched(WINDOWS, looks)
    assert_same_tests(evidence, one_gate(WINDOWS, counted))
    num_late = NUM_BLOCKS - len(counted)
    assert last.evidence.num_late_blocks == num_late
    assert last.num_blocks == NUM_BLOCKS
    assert last.evidence.late_share == pytest.approx(num_late / NUM_BLOCKS)
    assert (last.reason_code == "late_data") == (num_late / NUM_BLOCKS > WINDOWS.max_missing)


@given(DELAYS, st.integers(1, 12))
def test_blocks_that_come_in_any_order_are_each_one_unit_of_a_recording(delays: dict[int, int], every: int) -> None:
    """Oracle: one gate over all blocks.

    A block is a unit of its own, which no other one completes: it is never late.
    """
    evidence, last = watched(BLOCKS, arrivals_by_look(STREAM, delays, every))
    assert_same_tests(evidence, one_gate(BLOCKS, STREAM), in_any_order=True)
    assert (last.num_blocks, last.evidence.num_late_blocks) == (NUM_BLOCKS, 0)


# Backfilled sources and clocks that jump.

EVERY = 6  # blocks between looks
BACKFILLED = st.lists(st.tuples(st.integers(1, NUM_BLOCKS // EVERY - 1), st.integers(1, 300)), max_size=9)  # look, age


@pytest.mark.parametrize("policy", [BLOCKS, WINDOWS], ids=["blocks", "windows"])
@given(backfilled=BACKFILLED)
def test_a_source_that_is_backfilled_beside_live_traffic_is_late_and_lengthens_no_span(
    policy: GatePolicy, backfilled: list[tuple[int, int]]
) -> None:
    """Oracle: one gate over the blocks in time; for blocks as units, over all.  The span is that of live traffic."""
    looks = arrivals_by_look(STREAM, {}, EVERY)
    for number, (look, age) in enumerate(backfilled):
        at = START + ((look + 1) * EVERY - 1 - age) * GAP + timedelta(minutes=20)
        looks[look].append(measured(NUM_BLOCKS + number, at, partition=1, offset=number))
    every = [each for arrived in looks for each in arrived]
    counted = in_time(looks) if policy.unit_window else every
    evidence, last = watched(policy, looks)
    assert_same_tests(evidence, one_gate(policy, counted), in_any_order=not policy.unit_window)
    assert last.num_blocks == len(every)
    assert last.evidence.num_late_blocks == len(every) - len(counted)
    assert last.evidence.span_s == (STREAM[-1].newest - START).total_seconds()
    assert (last.reason_code == "late_data") == (last.evidence.num_late_blocks > WINDOWS.max_missing * len(every))


JUMPS = st.dictionaries(st.integers(1, NUM_BLOCKS - 1), st.integers(-9, 9), max_size=4)


@pytest.mark.parametrize("policy", [BLOCKS, WINDOWS], ids=["blocks", "windows"])
@given(jumps=JUMPS, every=st.integers(1, 12))
def test_a_clock_that_jumps_within_a_partition_enters_no_unit_and_no_window_twice(
    policy: GatePolicy, jumps: dict[int, int], every: int
) -> None:
    """Oracle: one gate over the blocks in time, by their times as stated; for blocks as units, over all.

    What is known, and the newest window in evidence, only move forward.  The span lies between the first measured
    cluster in evidence and what is known.
    """
    ahead, jumped = 0, []
    for number in range(NUM_BLOCKS):
        ahead += jumps.get(number, 0)
        jumped.append(measured(number, START + number * GAP + ahead * HOUR))
    looks = arrivals_by_look(jumped, {}, every)
    counted = in_time(looks) if policy.unit_window else jumped
    store, newest, known, first = Arrivals(), -1, START, None
    for at, arrived in enumerate(looks):
        store.arrive(arrived)
        decisions = store.look(policy, ended=at == len(looks) - 1)
        assert store.known is not None
        assert store.known >= known
        known = store.known
        if decisions:
            evidence = store.folded()
            assert evidence.windows.until_s >= newest
            newest = evidence.windows.until_s
            first = first or evidence.first_event
            if first is not None:
                assert decisions[0].evidence.span_s <= (known - first).total_seconds()
    assert_same_tests(store.folded(), one_gate(policy, counted), in_any_order=not policy.unit_window)
    assert decisions[0].num_blocks == NUM_BLOCKS
    assert decisions[0].num_clusters == NUM_BLOCKS * PER_BLOCK
    assert decisions[0].evidence.num_late_blocks == NUM_BLOCKS - len(counted)


# The same call in two partitions.


@pytest.mark.parametrize("policy", [BLOCKS, WINDOWS], ids=["blocks", "windows"])
@given(twice=st.sets(st.integers(0, NUM_BLOCKS - 1)))
def test_a_call_that_two_partitions_bring_makes_no_further_cluster_and_no_further_window(
    policy: GatePolicy, twice: set[int]
) -> None:
    """Two processes cannot know of each other's calls, and both measure one.  Oracle: one gate over each call once.

    A window stays one unit of weight 1 at most.  A block is a unit of its own, whose values add exactly its own sums:
    a recording, whose units are blocks, is read by one process, which drops a call that comes again.
    """
    again = [
        replace(
            STREAM[number],
            block=replace(STREAM[number].block, block_id=f"again{number}"),
            records=tuple(structs.replace(row, key=row.key._replace(partition=1)) for row in STREAM[number].records),
            runs=tuple(
                replace(run, key=run.key._replace(partition=1), block_id=f"again{number}")
                for run in STREAM[number].runs
            ),
        )
        for number in sorted(twice)
    ]
    once, both = one_gate(policy, STREAM), one_gate(policy, [*STREAM, *again])
    assert both.counts.num_closed_clusters == once.counts.num_closed_clusters
    assert both.num_clusters == once.num_clusters
    assert both.runs.num_blocks == once.runs.num_blocks + len(again)
    if policy.unit_window is None:
        only = one_gate(policy, again).tests if again else {}
        for name in ("speedup", "parity_near_ties"):
            values = only[name].observed_value if again else 0.0
            assert both.tests[name].observed_value == pytest.approx(once.tests[name].observed_value + values), name
        assert both.tests["acceptance"].num_units == once.tests["acceptance"].num_units
        return
    assert num_first_windows(HOUR) + both.tests["speedup"].num_units == NUM_HOURS
    for name, test in both.tests.items():
        assert test.num_units == once.tests[name].num_units, name
        assert test.observed_weight <= test.num_units + 1e-9, name
    if len(twice) in (0, NUM_BLOCKS):
        assert_same_tests(both, once)

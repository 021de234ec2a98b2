"""What disturbs a stream of rows, and does not change what the gate says of it.

Each property has an oracle: one gate that looks once, at the end, at rows that came in order.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import structs

from shadowspec.errors import StoreError
from shadowspec.gate.evidence.hypothesis import HypothesisEvidence
from shadowspec.gate.evidence.windows import num_first_windows
from shadowspec.gate.policy import GatePolicy
from shadowspec.gate.run import fold_spans
from shadowspec.gate.run.gate_run import EndpointGateRun, run_endpoint_gate
from shadowspec.gate.run.memory_store import MemoryStore
from shadowspec.gate.run.recompute import compare, explain
from shadowspec.gate.run.state import decode_evidence
from shadowspec.rollout.endpoint_run import run_endpoint
from shadowspec.rollout.rollout_policy import RolloutPolicy
from shadowspec.store import Store
from shadowspec.types import (
    Clearing,
    Decision,
    RecordKey,
    Run,
    Span,
    StoredBlock,
    StoredRecord,
    Verdict,
    Watermark,
    window_of,
    window_start,
)
from tests.builders.databases import DIALECTS
from tests.gate.feeding import Feed
from tests.gate.oracle import EndpointEvidence
from tests.gate.worlds import CONFIG, ENDPOINT, START, block_of, noisy_run, record_of
from tests.store import examples

HOUR = timedelta(hours=1)
# Acceptance fails its floor: no test is restarted, as a look may do that would otherwise give a verdict.
WINDOWS = GatePolicy(max_hypotheses=2, min_span_s=86_400.0, entry_clusters=5, cluster_idle_s=600.0, floor=0.9)
BLOCKS = replace(WINDOWS, window_s=0.0)
ENABLING = replace(BLOCKS, floor=0.4, min_span_s=0.0)
ORDERED = (Verdict.HOLD, Verdict.DISABLE)  # what an override may order
POLICIES = pytest.mark.parametrize("policy", [BLOCKS, WINDOWS], ids=["blocks", "windows"])
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


pytestmark = pytest.mark.slow  # all of them together


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


@POLICIES
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


@POLICIES
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


@POLICIES
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


# Over a database: retention, two gates at once, overrides.


class Worker:
    """Writes the stream to a database, in order, as a worker does."""

    def __init__(self, store: Store) -> None:
        rows = [row for each in STREAM for row in each.records]
        runs = [run for each in STREAM for run in each.runs]
        self._feed = Feed(store, EndpointEvidence(ENDPOINT, rows, [each.block for each in STREAM], runs))
        self.store, self.num_written = store, 0

    def write(self, number: int) -> None:
        """Write the next blocks."""
        new = STREAM[self.num_written : self.num_written + number]
        if new:
            self._feed.write([row for each in new for row in each.records], {each.block.block_id for each in new})
        self.num_written += len(new)

    @property
    def newest(self) -> datetime:
        return STREAM[self.num_written - 1].newest

    def gate(self, policy: GatePolicy, *, ended: bool = False) -> list[Decision]:
        return run_endpoint_gate(self.store, ENDPOINT, policy, input_ended=ended, now=START).decisions

    def folded(self) -> HypothesisEvidence:
        with self.store.evidence_session(ENDPOINT) as session:
            (row,) = (row for row in session.evidence() if not row.slice_key)
        return decode_evidence(row).evidence


def assert_same_stores(one: Store, other: Store) -> None:
    """The same evidence to the last bit, the same progress, and the same figures of the latest decisions."""
    with one.evidence_session(ENDPOINT) as mine, other.evidence_session(ENDPOINT) as theirs:
        assert sorted(mine.evidence(), key=str) == sorted(theirs.evidence(), key=str)
        assert (mine.progress is None) == (theirs.progress is None)
        if mine.progress is not None and theirs.progress is not None:
            assert mine.progress.document == theirs.progress.document
            assert mine.progress.cursors == theirs.progress.cursors
        assert mine.num_folded() == theirs.num_folded()
    for first, second in zip(one.latest_decisions(ENDPOINT), other.latest_decisions(ENDPOINT), strict=True):
        assert compare(first, second)[0] == []


DATABASES = pytest.mark.parametrize("dialect", DIALECTS)
FEW = settings(max_examples=4, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
AGES = st.lists(st.none() | st.integers(4, 30), min_size=6, max_size=6)  # hours, after each look


@pytest.mark.representative("blocks-postgres", "windows-sqlite")
@DATABASES
@POLICIES
@FEW
@given(ages=AGES)
def test_retention_between_looks_changes_nothing_of_open_hypotheses(
    new_database: Callable[[str], str], dialect: str, policy: GatePolicy, ages: list[int | None]
) -> None:
    """Oracle: the same looks without retention."""
    with Store.open(new_database(dialect)) as one, Store.open(new_database(dialect)) as other:
        mine, theirs, cut = Worker(one), Worker(other), START
        for age in ages:
            for worker in (mine, theirs):
                worker.write(NUM_BLOCKS // len(ages))
                worker.gate(policy)
            if age is not None:
                one.retain(age * HOUR, now=mine.newest)
                cut = max(cut, mine.newest - age * HOUR)
        assert {row.event_time for row in one.records(ENDPOINT)} == {
            row.event_time for each in STREAM for row in each.records if row.event_time and row.event_time >= cut
        }
        assert_same_stores(one, other)
        assert (
            mine.gate(policy, ended=True)[0].num_blocks == theirs.gate(policy, ended=True)[0].num_blocks == NUM_BLOCKS
        )


@pytest.mark.representative("postgres")
@DATABASES
@FEW
@given(num_first=st.integers(12, 50), age=st.integers(4, 20))
def test_production_after_a_trial_begins_with_the_rows_that_retention_has_left(
    new_database: Callable[[str], str], dialect: str, num_first: int, age: int
) -> None:
    """Oracle: one gate over the blocks that are left whole and those that follow.  Decisions say how much is gone."""
    with Store.open(new_database(dialect)) as store:
        worker = Worker(store)
        worker.write(num_first)
        worker.gate(replace(WINDOWS, recording_only=True))
        cut = worker.newest - age * HOUR
        store.retain(age * HOUR, now=worker.newest)
        gone = [row for each in STREAM[:num_first] for row in each.records if (row.event_time or START) < cut]
        (decision, *_) = worker.gate(WINDOWS)
        assert decision.evidence.counts.num_removed_runs == len(gone)
        worker.write(NUM_BLOCKS)
        decisions = worker.gate(WINDOWS, ended=True)
        keys = {row.key for row in gone}
        left = [each for each in STREAM if not keys & {row.key for row in each.records}]
        assert_same_tests(worker.folded(), one_gate(WINDOWS, left))
        for each in decisions:
            assert each.evidence.counts.num_removed_runs == len(gone)
            assert explain(store, each.decision_id or 0).differences == ()


@FEW
@given(looks=st.lists(st.integers(1, 20), min_size=2, max_size=4), age_s=st.integers(1, 8_000))
def test_a_forced_removal_of_rows_that_still_wait_stops_no_later_look(
    new_database: Callable[[str], str], looks: list[int], age_s: int
) -> None:
    """The units that waited are gone; every other one is a unit once."""
    with Store.open(new_database("sqlite")) as store:
        worker = Worker(store)
        for number in looks:
            worker.write(number)
            worker.gate(WINDOWS)
            store.retain(timedelta(seconds=age_s), now=worker.newest, is_forced=True)
        worker.write(NUM_BLOCKS)
        decisions = worker.gate(WINDOWS, ended=True)
        num_waiting = 2 * len(looks)  # at a look, the blocks of the window that is not over
        assert NUM_BLOCKS - num_waiting <= decisions[0].num_blocks <= NUM_BLOCKS
        with store.evidence_session(ENDPOINT) as session:
            assert session.open_blocks() == {}


# Gates at once, each with transactions of few rows.

ACTIONS = st.lists(st.sampled_from(["write", "a", "b", "c"]), min_size=12, max_size=20)
AT_ONCE = 12  # offsets to a transaction


def in_turns(worker: Worker, policy: GatePolicy, actions: Iterable[str], gates: Mapping[str, str]) -> None:
    """Let gates make a transaction each in this order; `gates` says which of them acts for a name."""
    running: dict[str, EndpointGateRun] = {}
    for action in actions:
        if action == "write":
            worker.write(5)
            continue
        name = gates[action]
        run = running.setdefault(name, EndpointGateRun(ENDPOINT, policy, None, START))
        with worker.store.evidence_session(ENDPOINT) as session:
            run.step(session)
        if run.has_decided:
            del running[name]


@pytest.mark.representative("blocks-sqlite", "windows-postgres")
@DATABASES
@POLICIES
@FEW
@given(actions=ACTIONS)
def test_gates_that_take_turns_within_their_looks_give_what_one_gives(
    new_database: Callable[[str], str], dialect: str, policy: GatePolicy, actions: list[str]
) -> None:
    """Without the endpoint's lock.  Oracle: one gate that makes the same transactions."""
    with (
        pytest.MonkeyPatch.context() as patch,
        Store.open(new_database(dialect)) as one,
        Store.open(new_database(dialect)) as other,
    ):
        patch.setattr(fold_spans.next_plan, "__defaults__", (AT_ONCE,))
        mine, theirs = Worker(one), Worker(other)
        in_turns(mine, policy, actions, {name: name for name in "abc"})
        in_turns(theirs, policy, actions, dict.fromkeys("abc", "a"))
        assert_same_stores(one, other)
        for worker in (mine, theirs):
            worker.write(NUM_BLOCKS)
            worker.gate(policy, ended=True)
        assert_same_stores(one, other)
        with one.evidence_session(ENDPOINT) as session:
            assert session.num_folded() == (NUM_BLOCKS * PER_BLOCK, NUM_BLOCKS * PER_BLOCK)


@pytest.mark.representative("True-sqlite", "False-postgres")
@DATABASES
@pytest.mark.parametrize("has_lock", [True, False])
@FEW
@given(parts=st.lists(st.integers(6, 30), min_size=2, max_size=3), num_gates=st.integers(2, 3))
def test_gates_at_once_fold_each_unit_once(
    new_database: Callable[[str], str], dialect: str, has_lock: bool, parts: list[int], num_gates: int
) -> None:
    """Oracle: one gate.  Where a lock was lost, of gates that fold the same rows one succeeds, and the others fail."""
    url = new_database(dialect)
    with (
        pytest.MonkeyPatch.context() as patch,
        Store.open(url) as one,
        Store.open(new_database(dialect)) as other,
    ):
        patch.setattr(fold_spans.next_plan, "__defaults__", (AT_ONCE,))
        if not has_lock:
            patch.setattr(Store, "endpoint_lock", lambda *_: nullcontext())
        mine, theirs = Worker(one), Worker(other)
        for number in parts:
            for worker in (mine, theirs):
                worker.write(number)
            at_once(url, num_gates)
            mine.gate(WINDOWS)  # what gates that failed have left
            theirs.gate(WINDOWS)
        assert_same_stores(one, other)


def at_once(url: str, num_gates: int) -> None:
    """Gates in threads, begun together; one that lost a race says so."""
    start = threading.Barrier(num_gates)

    def gate() -> None:
        with Store.open(url) as store:
            start.wait()
            with suppress(StoreError):
                run_endpoint_gate(store, ENDPOINT, WINDOWS, now=START)

    threads = [threading.Thread(target=gate) for _ in range(num_gates)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


# Overrides.

ORDERS = st.lists(st.tuples(st.integers(0, 5), st.sampled_from(list(ORDERED)), st.booleans()), max_size=6)


@pytest.mark.parametrize(
    ("policy", "gives"), [(ENABLING, Verdict.ENABLE), (WINDOWS, Verdict.HOLD)], ids=["blocks", "windows"]
)
@FEW
@given(orders=ORDERS)
def test_overrides_change_no_evidence_no_level_and_no_verdict_of_the_gate(
    new_database: Callable[[str], str], policy: GatePolicy, gives: Verdict, orders: list[tuple[int, Verdict, bool]]
) -> None:
    """Set before a look, which may lie within a window, and cleared before the next one or never.

    Oracle: the same looks without any.
    """
    with Store.open(new_database("sqlite")) as one, Store.open(new_database("sqlite")) as other:
        mine, theirs = Worker(one), Worker(other)
        to_clear: list[int] = []
        for look in range(6):
            while to_clear:
                one.clear_override(Clearing(to_clear.pop(), "over", "ada", START))
            for at, verdict, is_cleared in orders:
                if at == look:
                    order = replace(examples.override(verdict, endpoint=ENDPOINT), created_at=START)
                    number = one.add_override(order)
                    to_clear += [number] * is_cleared
            for worker in (mine, theirs):
                worker.write(NUM_BLOCKS // 6)
                run_endpoint(worker.store, ENDPOINT, policy, RolloutPolicy(), input_ended=look == 5, now=START)
        assert_same_stores(one, other)
        for first, second in zip(one.latest_decisions(ENDPOINT), other.latest_decisions(ENDPOINT), strict=True):
            assert (first.verdict, first.reason, first.level) == (second.verdict, second.reason, second.level)
            assert first.verdict is gives

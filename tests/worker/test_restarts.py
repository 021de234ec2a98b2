"""Whatever is read again after a crash, everything is counted once and measured once.

A worker is driven step by step over records held in memory, and loses everything that is not in the database at
random moments: while blocks wait, while they are measured, between the write and the commit.
"""

from __future__ import annotations

import json
import random
from collections import Counter, defaultdict
from collections.abc import Collection, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from shadowspec.errors import FencedError
from shadowspec.store import Store
from shadowspec.store.admin import schema
from shadowspec.tap.admission import Admission
from shadowspec.tap.blocks import BlockFormer
from shadowspec.tap.endpoints import EndpointRule
from shadowspec.tap.hashing import KeyedHash
from shadowspec.tap.joining import Joiner
from shadowspec.tap.sources import RawRecord
from shadowspec.types import FunnelCounter, PartitionId, RecordKey
from shadowspec.worker.files import CONSUMER, FileRun, InProcess
from shadowspec.worker.pipeline import Pipeline
from shadowspec.worker.service import partition_past
from tests.builders.worker_pipeline import CONFIG, RULES, SECRET, TOKENIZERS, Letters, pipeline, raw_records
from tests.fakes import FakeEngine
from tests.faults.traffic import START_MS, expected

pytestmark = pytest.mark.slow  # all of them together


@pytest.mark.parametrize("keeps_messages", [True, False])
def test_a_poisoned_request_is_a_dead_letter_where_its_message_was_kept(keeps_messages: bool) -> None:
    letters = Letters()
    admission = Admission(RULES, TOKENIZERS, KeyedHash(SECRET))
    made = Pipeline(
        admission, BlockFormer(RULES), joiner=Joiner(timedelta(minutes=5)), dead_letters=letters,
        keeps_messages=keeps_messages,
    )  # fmt: skip
    partition, raws = next(iter(raw_records(60, 3, 1).items()))
    made.start(partition, None, {})
    broken = raws[-1].key._replace(offset=raws[-1].key.offset + 1)
    made.take_all([*raws, RawRecord(broken, b"{")], lambda _: None)
    made.end_waiting()
    malformed = list(letters.sent)
    block = made.ready.popleft()
    poisoned = block.requests[0].key
    made.finish(FakeEngine((CONFIG,)).measure(block), {poisoned: "engine_died"})
    assert [key for key, _, _ in malformed] == [broken]
    assert letters.sent[len(malformed) :] == ([(poisoned, "engine", "engine_died")] if keeps_messages else [])


@pytest.mark.parametrize("is_array", [True, False])
def test_a_message_of_many_broken_records_is_one_dead_letter(is_array: bool) -> None:
    letters = Letters()
    made, _ = pipeline(letters)
    partition, raws = next(iter(raw_records(6, 3, 1).items()))
    made.start(partition, None, {})
    records = [b"{", *[b"{}"] * 998]
    made.take(raws[-1]._replace(value=b"\n".join(records) if not is_array else b"[" + b",".join(records[1:]) + b"]"))
    ((key, stage, reasons),) = letters.sent
    assert (key, stage) == (raws[-1].key, "tap")
    assert reasons == ("unknown_format" if is_array else "not_json")


@pytest.fixture
def sqlite(tmp_path: Path) -> Store:
    url = f"sqlite:///{tmp_path / 'restarts.db'}"
    schema.upgrade(url)
    store = Store.open(url)
    store.save_fingerprints([CONFIG])
    return store


class World:
    """Partitions in memory, a database, and a worker that may end at any moment."""

    def __init__(
        self,
        placed: dict[PartitionId, list[RawRecord]],
        store: Store,
        draw: random.Random,
        rules: Sequence[EndpointRule] = RULES,
        elsewhere: Collection[str] = (),
        shed_rate: float = 0.0,
    ) -> None:
        """`elsewhere` are the endpoints of another worker, `shed_rate` the share of blocks that wait in vain."""
        self.placed, self.store, self.draw, self.rules = placed, store, draw, rules
        self.elsewhere, self.shed_rate = elsewhere, shed_rate
        self.group = f"group without {', '.join(elsewhere)}" if elsewhere else "group"
        self.engine = FakeEngine((CONFIG,))
        self.letters = Letters()
        self.num_crashes = 0
        self.begin()

    def begin(self) -> None:
        """A new process: nothing is known but what the database says."""
        self.pipeline, self.admission = pipeline(self.letters, self.rules, self.elsewhere)
        self.place: dict[PartitionId, int] = {}
        for partition in self.placed:
            self.assign(partition)

    def assign(self, partition: PartitionId) -> None:
        past = partition_past(self.store, self.group, partition, self.rules)
        for endpoint, remembered in past.endpoints.items():
            self.admission.restore(partition, endpoint, remembered.units, remembered.request_ids)
        self.pipeline.start(partition, past.entry, past.stored)
        position = past.resume_offset or 0
        offsets = [raw.key.offset for raw in self.placed[partition]]
        self.place[partition] = sum(offset < position for offset in offsets)

    def turn(self) -> None:
        """One random thing that the loop does."""
        action = self.draw.choices(["poll", "measure", "write", "rebalance"], [6, 5, 3, 0.3])[0]
        if action == "poll":
            partition = self.draw.choice(list(self.placed))
            place = self.place[partition]
            batch = self.placed[partition][place : place + self.draw.randint(1, 4)]
            for raw in batch:
                self.pipeline.take(raw)
            self.place[partition] = place + len(batch)
        elif action == "measure" and self.pipeline.ready:
            block = self.pipeline.ready.popleft()
            if self.draw.random() < self.shed_rate:
                self.pipeline.shed(block, "server_away")
            else:
                self.pipeline.finish(self.engine.measure(block))
        elif action == "write":
            self.write()
        elif action == "rebalance":
            partition = self.draw.choice(list(self.placed))
            self.pipeline.forget(partition)
            self.assign(partition)

    def write(self) -> None:
        batch = self.pipeline.outbox.batch()
        if batch is None:
            return None
        if self.draw.random() < 0.1:
            return self.crash()  # before the write
        self.store.save_batch(batch, self.group)
        if self.draw.random() < 0.1:
            return self.crash()  # between write and commit
        self.pipeline.outbox.settle()
        return None

    def crash(self) -> None:
        self.num_crashes += 1
        self.begin()

    def disturb(self) -> None:
        """Turns until everything is read, with crashes; then to the end without."""
        for _ in range(5_000):
            self.turn()
            if self.is_over():
                break
        assert self.num_crashes > 3
        self.finish()

    def check_ledger(self) -> None:
        """Every message is passed once, and each of its records is counted once."""
        ledger = {entry.partition: entry for entry in self.store.ledger(self.group)}
        for partition, item in self.placed.items():
            assert ledger[partition].num_messages == len(item)
        assert sum(self.store.funnel().values()) == sum(entry.num_records for entry in ledger.values())

    def is_over(self) -> bool:
        return all(self.place[partition] == len(item) for partition, item in self.placed.items())

    def finish(self) -> None:
        """No more crashes: read to the end, drain, write."""
        self.draw = random.Random(0)
        for partition, item in self.placed.items():
            for raw in item[self.place[partition] :]:
                self.pipeline.take(raw)
        self.pipeline.end_waiting()
        while self.pipeline.ready:
            self.pipeline.finish(self.engine.measure(self.pipeline.ready.popleft()))
        while (batch := self.pipeline.outbox.batch()) is not None:
            self.store.save_batch(batch, self.group)
            self.pipeline.outbox.settle()


def check(store: Store, placed: dict[PartitionId, list[RawRecord]]) -> Counter[FunnelCounter]:
    """Rows and funnel are those of one undisturbed pass; the funnel's sums."""
    delivered = [raw for item in placed.values() for raw in item]
    wanted = expected(delivered, RULES, TOKENIZERS, SECRET)
    assert store.funnel() == dict(wanted.funnel)
    runs = [run for rule in RULES for run in store.runs(rule.name)]
    assert Counter(run.key for run in runs) == Counter(wanted.measured)
    ledger = {entry.partition: entry for entry in store.ledger("group")}
    for partition, item in placed.items():
        assert ledger[partition].next_offset == item[-1].key.offset + 1
        assert ledger[partition].num_messages == len(item)
    rows = [record for rule in RULES for record in store.records(rule.name)]
    not_timed = sum(record.reason == "not_timed" for record in rows)
    assert not_timed == sum(n for (_, _, reason), n in wanted.funnel.items() if reason == "not_timed")
    positions = Counter((r.endpoint, r.unit_key, r.session_position) for r in rows)
    assert set(positions.values()) == {1}  # every place in a session once
    return Counter({FunnelCounter.MEASURED: len(wanted.measured)})


@pytest.mark.representative("1")
@pytest.mark.parametrize("seed", range(6))
def test_crashes_and_rebalances_lose_and_repeat_nothing(sqlite: Store, seed: int) -> None:
    placed = raw_records(700, seed, num_partitions=4)
    world = World(placed, sqlite, random.Random(seed))
    world.disturb()
    assert check(sqlite, placed)[FunnelCounter.MEASURED] > 100
    malformed = {raw for raw, stage, _ in world.letters.sent if stage == "tap"}
    wanted = expected([raw for item in placed.values() for raw in item], RULES, TOKENIZERS, SECRET)
    assert {(key.partition, key.offset) for key in malformed} == wanted.malformed


@pytest.mark.representative("0")
@pytest.mark.parametrize("seed", range(4))
def test_blocks_that_waited_in_vain_are_shed_once(sqlite: Store, seed: int) -> None:
    placed = raw_records(700, seed, num_partitions=4)
    world = World(placed, sqlite, random.Random(seed), shed_rate=0.5)
    world.disturb()
    world.check_ledger()
    wanted = expected([raw for item in placed.values() for raw in item], RULES, TOKENIZERS, SECRET)
    measured = Counter(run.key for rule in RULES for run in sqlite.runs(rule.name))
    shed = Counter(r.key for rule in RULES for r in sqlite.records(rule.name) if r.reason == "server_away")
    assert measured + shed == Counter(wanted.measured)
    assert min(shed.total(), measured.total()) > 20
    funnel = Counter[FunnelCounter]()
    for (_, counter, _), number in sqlite.funnel().items():
        funnel[counter] += number
    assert (funnel[FunnelCounter.SHED], funnel[FunnelCounter.MEASURED]) == (shed.total(), measured.total())


@pytest.mark.representative("0")
@pytest.mark.parametrize("seed", range(4))
def test_workers_of_one_endpoint_each_count_together_what_one_of_all_would(sqlite: Store, seed: int) -> None:
    placed = raw_records(500, seed, num_partitions=2)
    worlds = [World(placed, sqlite, random.Random(seed), elsewhere=[name]) for name in ("code", "chat")]
    for world in worlds:
        world.disturb()
        ledger = {entry.partition: entry for entry in sqlite.ledger(world.group)}
        assert {partition: entry.num_messages for partition, entry in ledger.items()} == {
            partition: len(item) for partition, item in placed.items()
        }
    wanted = expected([raw for item in placed.values() for raw in item], RULES, TOKENIZERS, SECRET)
    assert sqlite.funnel() == dict(wanted.funnel)
    assert Counter(run.key for rule in RULES for run in sqlite.runs(rule.name)) == Counter(wanted.measured)
    assert not worlds[1].letters.sent, "what belongs to no endpoint is the first one's"
    assert {(key.partition, key.offset) for key, _, _ in worlds[0].letters.sent} == wanted.malformed


@pytest.mark.representative("0")
@pytest.mark.parametrize("seed", range(4))
def test_crashes_neither_lose_turns_nor_measure_a_session_in_two_blocks(sqlite: Store, seed: int) -> None:
    turns = tuple(replace(rule, measures_conversations=True, timed_positions=3) for rule in RULES)
    placed = raw_records(700, seed, num_partitions=2)
    world = World(placed, sqlite, random.Random(seed), turns)
    world.disturb()
    world.check_ledger()
    records = {record.key: record for rule in turns for record in sqlite.records(rule.name)}
    funnel = Counter(counter for (_, counter, _), number in sqlite.funnel().items() for _ in range(number))
    rows = Counter(record.counter for record in records.values())
    for counter in (FunnelCounter.MEASURED, FunnelCounter.FAILED, FunnelCounter.SHED):
        assert rows[counter] == funnel[counter], "every row is counted, and every count has its row"
    blocks_of: dict[tuple[str | None, str | None], set[str]] = defaultdict(set)
    runs = [run for rule in turns for run in sqlite.runs(rule.name)]
    assert Counter(run.key for run in runs).most_common(1)[0][1] == 1
    for run in runs:
        record = records[run.key]
        assert record.counter in (FunnelCounter.MEASURED, FunnelCounter.FAILED)
        if record.session_hash is not None:
            blocks_of[record.endpoint, record.session_hash].add(run.block_id)
    assert {len(found) for found in blocks_of.values()} == {1}
    assert max(Counter(records[run.key].session_hash for run in runs).values()) == 3
    slices = {(record.endpoint, record.session_hash): set[str | None]() for record in records.values()}
    for record in records.values():
        slices[record.endpoint, record.session_hash].add(record.slice_key)
    assert {len(found) for (_, session), found in slices.items() if session is not None} == {1}


@pytest.mark.representative("0")
@pytest.mark.parametrize("seed", range(4))
def test_crashes_lose_nothing_where_a_window_has_a_budget(sqlite: Store, seed: int) -> None:
    """Every record is counted once, what is measured is measured once, and blocks represent what was passed over."""
    rules = tuple(replace(rule, window=timedelta(minutes=10), sample_rate=1.0, timed_positions=1) for rule in RULES)
    placed = raw_records(900, seed, num_partitions=2)
    world = World(placed, sqlite, random.Random(seed), rules)
    world.disturb()
    world.check_ledger()
    records = {record.key: record for rule in rules for record in sqlite.records(rule.name)}
    runs = [run for rule in rules for run in sqlite.runs(rule.name)]
    assert Counter(run.key for run in runs).most_common(1)[0][1] == 1
    passed = {key for key, record in records.items() if record.reason == "window_budget"}
    assert passed.isdisjoint(run.key for run in runs)
    assert passed, "there is more traffic than the windows' budgets"
    with sqlite.evidence_session("chat") as session:
        names = {run.block_id for run in sqlite.runs("chat")}
        weights = {name: block.stands_for for name, (block, _) in session.blocks(names).items()}
    assert max(weights.values()) > 1.0
    assert min(weights.values()) == 1.0


def test_a_worker_that_woke_up_too_late_is_fenced_and_counts_nothing(sqlite: Store) -> None:
    placed = raw_records(200, 3, num_partitions=1)
    (partition,) = placed
    late, other = World(placed, sqlite, random.Random(1)), World(placed, sqlite, random.Random(2))
    for raw in placed[partition][:50]:
        late.pipeline.take(raw)
    late.place[partition] = 50
    other.finish()
    before = sqlite.funnel()
    late.pipeline.end_waiting()
    while late.pipeline.ready:
        late.pipeline.finish(late.engine.measure(late.pipeline.ready.popleft()))
    batch = late.pipeline.outbox.batch()
    assert batch is not None
    assert batch.advances
    with pytest.raises(FencedError) as fenced:
        sqlite.save_batch(batch, "group")
    assert (fenced.value.source, fenced.value.partition) == ("topic", partition.partition)
    late.pipeline.forget(partition)
    rest = late.pipeline.outbox.without(partition)
    assert rest.blocks
    assert not rest.advances
    assert sqlite.save_batch(rest, "group").num_new_runs == 0
    assert late.pipeline.outbox.settle() == {}
    assert sqlite.funnel() == before
    check(sqlite, placed)


def event(offset: int, call: int, kind: str, seconds: float) -> RawRecord:
    """One event of a call, as KServe's logger writes it to Kafka."""
    body = (
        {"model": "chat-model", "prompt": "why is the sky blue", "max_tokens": 8, "temperature": 0.0}
        if kind == "request"
        else {"id": f"c{call}", "model": "chat-model", "choices": [{"index": 0, "text": "x", "finish_reason": "stop"}]}
    )
    headers = {
        "ce_specversion": "1.0", "ce_id": f"call-{call}", "ce_source": "predictor",
        "ce_type": f"org.kubeflow.serving.inference.{kind}", "content-type": "application/json",
        "ce_time": (datetime.fromtimestamp(START_MS / 1000, tz=UTC) + timedelta(seconds=seconds)).isoformat(),
    }  # fmt: skip
    key = RecordKey("topic", 0, offset, START_MS + int(1000 * seconds))
    return RawRecord(key, json.dumps(body).encode(), headers=tuple((k, v.encode()) for k, v in headers.items()))


@pytest.mark.representative("1", "5", "11")
@pytest.mark.parametrize("cut", range(1, 12))
def test_a_pair_that_a_restart_cuts_in_two_is_one_record(sqlite: Store, cut: int) -> None:
    calls = [event(0, 1, "request", 0), event(1, 2, "request", 1), event(2, 2, "response", 2),
             event(3, 3, "response", 3), event(4, 1, "response", 4), event(5, 3, "request", 5),
             event(6, 4, "request", 6), event(7, 4, "response", 400), event(8, 5, "request", 401),
             event(9, 5, "request", 402), event(10, 5, "response", 403), event(11, 6, "response", 404)]  # fmt: skip
    placed = {PartitionId("topic", 0): calls}
    world = World(placed, sqlite, random.Random(0))
    for raw in calls[:cut]:
        world.pipeline.take(raw)
    world.pipeline.drain()
    while world.pipeline.ready:
        world.pipeline.finish(world.engine.measure(world.pipeline.ready.popleft()))
    batch = world.pipeline.outbox.batch()
    if batch is not None:
        sqlite.save_batch(batch, "group")
    world.begin()
    world.finish()
    funnel = Counter({reason: count for (_, _, reason), count in sqlite.funnel().items()})
    # Calls 1, 2, 3 and 5 are whole, 4 is answered too late, 6 is an answer alone, and 5 asks twice.
    unusable = {"response_without_request": 2, "seen_before": 1}
    assert {reason: funnel[reason] for reason in unusable} == unusable
    assert sum(funnel.values()) == 5 + 3
    (entry,) = sqlite.ledger("group")
    assert (entry.next_offset, entry.num_messages, entry.num_records) == (12, 12, 8)


def test_the_ledger_goes_on_where_calls_never_stop_overlapping(sqlite: Store) -> None:
    events = [event(0, 0, "request", 0)]
    for call in range(1, 60):
        events += [event(2 * call - 1, call, "request", call), event(2 * call, call - 1, "response", call + 0.5)]
    world = World({PartitionId("topic", 0): events}, sqlite, random.Random(0))
    held = []
    for raw in events:
        world.pipeline.take(raw)
        world.pipeline.drain()
        while world.pipeline.ready:
            world.pipeline.finish(world.engine.measure(world.pipeline.ready.popleft()))
        batch = world.pipeline.outbox.batch()
        if batch is not None:
            sqlite.save_batch(batch, "group")
            world.pipeline.outbox.settle()
        held.append(world.pipeline.outbox.num_unfinished)
    assert max(held) <= 3
    world.begin()  # in the middle of the last call
    world.finish()
    assert sum(sqlite.funnel().values()) == 60


@pytest.mark.representative("17", "149")
@pytest.mark.parametrize("stop_at", [1, 17, 60, 149])
def test_a_file_goes_on_where_it_was_interrupted(sqlite: Store, stop_at: int) -> None:
    lines = [raw._replace(key=raw.key._replace(partition=0, offset=line, timestamp_ms=0))
             for line, raw in enumerate(raw_records(150, 5, 1)[PartitionId("topic", 0)], 1)]  # fmt: skip

    def read(count: int | None) -> FileRun:
        run = FileRun(pipeline()[0], InProcess(dict.fromkeys(TOKENIZERS, FakeEngine((CONFIG,)))), sqlite)

        def interrupted(records: Sequence[RawRecord]) -> object:
            for number, raw in enumerate(records):
                if number == count:
                    raise KeyboardInterrupt
                yield raw

        run.run(interrupted(lines))  # type: ignore[arg-type]
        return run

    with pytest.raises(KeyboardInterrupt):
        read(stop_at)
    (entry,) = sqlite.ledger(CONSUMER) or [None]
    assert entry is None or not entry.is_ended
    read(None)
    wanted = expected(lines, RULES, TOKENIZERS, SECRET)
    assert sqlite.funnel() == dict(wanted.funnel)
    assert {run.key for rule in RULES for run in sqlite.runs(rule.name)} == wanted.measured
    (entry,) = sqlite.ledger(CONSUMER)
    assert (entry.next_offset, entry.is_ended) == (151, True)
    before = sqlite.funnel(), [sqlite.runs(rule.name) for rule in RULES]
    assert read(None)._progress().requests_measured == 0
    assert (sqlite.funnel(), [sqlite.runs(rule.name) for rule in RULES]) == before

"""The loop: back-pressure, shedding, a database that is away, a fenced partition, and the drain."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path

import pytest

from shadowspec.errors import FencedError, ServiceUnavailableError, StoreError
from shadowspec.gate.policy import GatePolicy
from shadowspec.gate.run.gate_run import run_endpoint_gate
from shadowspec.store import Store
from shadowspec.store.admin import schema
from shadowspec.tap.admission import Admission
from shadowspec.tap.blocks import BlockFormer
from shadowspec.tap.endpoints import EndpointRule, Load, MatchRule
from shadowspec.tap.hashing import KeyedHash
from shadowspec.tap.joining import Joiner
from shadowspec.tap.kafka.consumer import CommitOutcome
from shadowspec.tap.kafka.partitions import Changes
from shadowspec.tap.sources import RawRecord
from shadowspec.types import (
    Advance,
    Block,
    Decision,
    FingerprintedConfig,
    FunnelCounter,
    PartitionId,
    RecordKey,
    Span,
    WriteBatch,
    WriteOutcome,
)
from shadowspec.types.settings import WorkerSettings
from shadowspec.worker.pipeline import Pipeline
from shadowspec.worker.recovery import BlockOutcome
from shadowspec.worker.service import Service, SliceRates, partition_past
from shadowspec.worker.supervisor import Supervisor
from shadowspec.worker.telemetry import Telemetry
from tests.fakes import FakeEngine, FakeTokenizer, endpoint_rule, fake_config
from tests.faults.traffic import START_MS, messages
from tests.services import PATIENCE_S

CONFIG = fake_config()
RULE = endpoint_rule(
    name="chat", served_models=("chat-model",), match=MatchRule(model="chat-model"), timed_positions=1, loads=(Load(4),)
)
PARTITION = PartitionId("topic", 0)
SETTINGS = WorkerSettings(
    max_unfinished_messages=10_000, flush_interval_s=0.0, refresh_rates_s=3600.0, drain_timeout_s=20.0
)


@dataclass
class Source:
    """One partition in memory; `shown` of its records can be polled (None: all).  Its end may be unknown yet."""

    records: list[RawRecord]
    partition: PartitionId = PARTITION
    shown: int | None = None
    is_end_known: bool = True
    place: int | None = None
    is_paused: bool = False
    committed: list[int] = field(default_factory=list)
    is_connected: bool = True
    num_pauses: int = 0

    def __post_init__(self) -> None:
        self.pending = Changes(assigned=(self.partition,))

    def poll(self, timeout_s: float) -> Sequence[RawRecord]:
        time.sleep(0.001)
        if self.is_paused or self.place is None:
            return ()
        shown = self.records[: self.shown]
        found = shown[self.place : self.place + 5]
        self.place += len(found)
        return found

    def changes(self) -> Changes:
        found, self.pending = self.pending, Changes()
        return found

    def start(self, partition: PartitionId, offset: int | None) -> None:
        self.place = offset or 0

    def pause_all(self) -> None:
        self.num_pauses += not self.is_paused
        self.is_paused = True

    def resume_all(self) -> None:
        self.is_paused = False

    def commit(self, offsets: Mapping[PartitionId, int]) -> CommitOutcome:
        self.committed += offsets.values()
        return CommitOutcome()

    def lag(self) -> Mapping[PartitionId, int]:
        return {} if self.place is None or not self.is_end_known else {self.partition: len(self.records) - self.place}

    def topic_of(self, source: str) -> str | None:
        return source


@dataclass
class Engines:
    """An engine in this process, with a queue of two; it measures while `is_running`."""

    is_running: bool = True
    queue: list[Block] = field(default_factory=list)
    is_ready: bool = True
    is_stranded: bool = False  # its servers are away, and another endpoint's are not
    ready_endpoints = frozenset({"chat"})

    @property
    def stranded_endpoints(self) -> frozenset[str]:
        return frozenset({"chat"} if self.is_stranded else ())

    waiting_endpoints = stranded_endpoints

    def withdraw(self, waits_s: Mapping[str, float]) -> Sequence[Block]:
        withdrawn = () if any(waits_s.values()) else tuple(self.queue)
        self.queue = [block for block in self.queue if block not in withdrawn]
        return withdrawn

    @property
    def groups(self) -> Engines:
        return self

    @property
    def is_done(self) -> bool:
        return self.is_stranded or not self.queue

    def offer(self, block: Block) -> bool:
        if len(self.queue) == 2:
            return False
        self.queue.append(block)
        return True

    take_from = Supervisor.take_from

    def step(self) -> Sequence[BlockOutcome]:
        if not self.is_running or not self.queue:
            return ()
        return [BlockOutcome(FakeEngine((CONFIG,)).measure(self.queue.pop(0)), {}, 0.01)]

    @property
    def in_flight(self) -> int:
        return len(self.queue)

    @property
    def num_queued(self) -> int:
        return len(self.queue)

    @property
    def configs_by_endpoint(self) -> Mapping[str, Sequence[FingerprintedConfig]]:
        return {"chat": (CONFIG,)}


class Letters:
    def send(self, raw: RawRecord, stage: str, reasons: Mapping[str, int]) -> None:
        """Kept nowhere: these tests count."""

    def flush(self) -> None:
        """Nothing is on its way."""


class Running:
    """A service in a thread."""

    def __init__(self, service: Service) -> None:
        self.service, self.error = service, None
        self._thread = threading.Thread(target=self._run, daemon=True)  # a test that fails does not end it
        self._thread.start()

    def _run(self) -> None:
        try:
            self.service.run()
        except Exception as error:
            self.error = error

    def end(self) -> None:
        self.service.stop()
        self._thread.join(30)
        assert not self._thread.is_alive()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    url = f"sqlite:///{tmp_path / 'service.db'}"
    schema.upgrade(url)
    with Store.open(url) as opened:
        yield opened


def service(
    source: Source, engines: Engines, store: Store, settings: WorkerSettings = SETTINGS, rule: EndpointRule = RULE
) -> Service:
    admission = Admission([rule], {"chat": FakeTokenizer()}, KeyedHash(b"x" * 16))
    pipeline = Pipeline(admission, BlockFormer([rule]), joiner=Joiner(timedelta(minutes=5)), dead_letters=Letters())
    return Service(
        source, pipeline, admission, engines, store, Letters(), SliceRates({"chat": (4,)}), [rule],
        consumer="g", settings=settings, telemetry=Telemetry(),
    )  # fmt: skip


def records(count: int, partition: int = 0) -> list[RawRecord]:
    return [
        RawRecord(RecordKey("topic", partition, offset, START_MS + offset), message.value)
        for offset, message in enumerate(messages(count, 4 + partition, ["chat-model"]))
    ]


def wait_for(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_it_drains_and_commits_what_it_wrote(store: Store) -> None:
    source = Source(records(120))
    running = Running(service(source, Engines(), store))
    wait_for(lambda: source.place == 120)
    running.end()
    assert running.error is None
    assert source.committed[-1] == 120
    assert source.committed == sorted(source.committed)
    (entry,) = store.ledger("g")
    assert (entry.next_offset, entry.num_messages) == (120, 120)
    assert store.funnel()["chat", FunnelCounter.MEASURED, None] == len(store.runs("chat")) > 20


def test_it_pauses_while_the_engine_is_behind_and_goes_on_polling(store: Store) -> None:
    source, engines = Source(records(200)), Engines(is_running=False)
    running = Running(service(source, engines, store))
    wait_for(lambda: source.is_paused)
    place = source.place
    time.sleep(0.2)
    assert source.place == place
    assert place is not None
    assert place < 200
    engines.is_running = True
    wait_for(lambda: source.place == 200)
    running.end()
    assert sum(store.funnel().values()) == store.ledger("g")[0].num_records
    assert not [key for key in store.funnel() if key[1] is FunnelCounter.SHED]


def test_it_sheds_instead_where_it_is_told_to(store: Store) -> None:
    source, engines = Source(records(200)), Engines(is_running=False)
    running = Running(service(source, engines, store, replace(SETTINGS, overload="shed")))
    wait_for(lambda: source.place == 200)
    engines.is_running = True
    running.end()
    funnel = store.funnel()
    assert funnel["chat", FunnelCounter.SHED, "queue_full"] > 10
    assert len(store.runs("chat")) == funnel["chat", FunnelCounter.MEASURED, None]
    shed = [record for record in store.records("chat") if record.counter is FunnelCounter.SHED]
    assert len(shed) == funnel["chat", FunnelCounter.SHED, "queue_full"]
    assert source.committed[-1] == 200


def test_an_endpoint_that_waits_pauses_nothing_and_holds_few_offsets(store: Store) -> None:
    """Its queue keeps two blocks; when half of what may be unfinished is behind them they are shed too."""
    source, engines = Source(records(400)), Engines(is_running=False, is_stranded=True)
    settings = replace(SETTINGS, max_unfinished_messages=60)
    running = Running(service(source, engines, store, settings))
    wait_for(lambda: source.place == 400)
    began = time.monotonic()
    running.end()
    assert time.monotonic() - began < SETTINGS.drain_timeout_s, "what waits is not waited for"
    assert source.committed[-1] > 400 - 60
    shed = store.funnel()["chat", FunnelCounter.SHED, "server_away"]
    assert shed > 10
    again = Source(records(400))
    running = Running(service(again, Engines(), store))
    wait_for(lambda: again.place == 400)
    running.end()
    assert sum(store.funnel().values()) == store.ledger("g")[0].num_records
    assert store.funnel()["chat", FunnelCounter.SHED, "server_away"] == shed
    assert store.funnel()["chat", FunnelCounter.MEASURED, None] == len(store.runs("chat")) > 0


def test_too_much_unfinished_pauses_too(store: Store) -> None:
    # Nothing is written before the drain.
    settings = replace(SETTINGS, max_unfinished_messages=20, flush_interval_s=3600.0)
    source = Source(records(200))
    running = Running(service(source, Engines(), store, settings))
    wait_for(lambda: source.is_paused)
    assert source.place is not None
    assert source.place < 60
    running.end()
    assert source.committed[-1] == source.place


def test_a_block_of_a_rare_slice_does_not_hold_the_ledger_until_everything_pauses(store: Store) -> None:
    """Long before the limit of unfinished messages the block that they wait for runs short."""
    settings = replace(SETTINGS, max_unfinished_messages=60)
    rule = replace(RULE, window=timedelta(hours=1), block_max_wait=timedelta(hours=1))
    source = Source(records(400))
    running = Running(service(source, Engines(), store, settings, rule))
    wait_for(lambda: source.place == 400)
    running.end()
    assert source.committed[-1] == 400


class Away(Store):
    """A store whose writes fail for a while, or for good."""

    failures: list[Exception]

    def save_batch(self, batch: WriteBatch, consumer: str) -> WriteOutcome:
        if self.failures:
            raise self.failures.pop(0)
        return super().save_batch(batch, consumer)


def away(store: Store, *failures: Exception) -> Away:
    found = Away(store.engine)
    found.failures = list(failures)
    return found


def test_a_database_that_comes_back_has_missed_nothing(store: Store) -> None:
    gone = [ServiceUnavailableError("away", is_retryable=True) for _ in range(3)]
    source = Source(records(60))
    running_service = service(source, Engines(), away(store, *gone))
    running = Running(running_service)
    wait_for(lambda: not running_service.conditions["database"]())
    wait_for(lambda: running_service.conditions["database"]() and source.place == 60)
    running.end()
    assert running.error is None
    assert store.ledger("g")[0].next_offset == 60


def test_a_database_that_refuses_ends_the_worker(store: Store) -> None:
    running = Running(service(Source(records(60)), Engines(), away(store, StoreError("no"))))
    wait_for(lambda: running.error is not None)
    assert isinstance(running.error, StoreError)
    assert store.funnel() == {}


def test_a_fenced_partition_is_read_again_from_where_the_other_worker_left_it(store: Store) -> None:
    source = Source(records(120))
    fenced = FencedError("moved on", source="topic", partition=0)
    running = Running(service(source, Engines(), away(store, fenced, fenced)))
    wait_for(lambda: bool(source.committed) and source.place == 120)
    running.end()
    assert running.error is None
    assert source.committed[-1] == 120
    (entry,) = store.ledger("g")
    assert (entry.next_offset, entry.num_messages) == (120, 120)
    assert sum(store.funnel().values()) == entry.num_records


@pytest.mark.parametrize(
    ("shown", "is_end_known"), [(None, True), (0, True), (0, False)], ids=["unfinished", "not come", "unknown"]
)
def test_a_fresh_partition_holds_the_watermark_until_its_first_records_are_finished(
    store: Store, shown: int | None, is_end_known: bool
) -> None:
    """Else its first block would enter evidence after later ones of the other partition, because it was slow."""
    slow = Source(records(60, 1), PartitionId("topic", 1), shown, is_end_known)
    slow_engines = Engines(is_running=False)
    last = Running(service(slow, slow_engines, store))
    wait_for(lambda: bool(store.ledger("g")))
    quick = Source(records(60))
    first = Running(service(quick, Engines(), store))
    wait_for(lambda: quick.place == 60 and any(entry.num_messages > 20 for entry in store.ledger("g")))
    first.end()
    assert store.runs("chat")
    assert store.watermark("chat").time is None
    assert [decision.num_blocks for decision in decisions(store)] == [0]
    slow_engines.is_running, slow.shown, slow.is_end_known = True, None, True
    wait_for(lambda: slow.place == 60)
    last.end()
    assert store.watermark("chat").held_by is None
    assert [decision.num_blocks for decision in decisions(store)] == [len(store.blocks("chat"))]


def test_a_partition_in_which_there_is_nothing_holds_nothing_back(store: Store) -> None:
    empty = Running(service(Source([], PartitionId("topic", 1)), Engines(), store))
    wait_for(lambda: bool(store.ledger("g")) and not store.ledger("g")[0].is_behind)
    first = Running(service(Source(records(60)), Engines(), store))
    wait_for(lambda: any(entry.num_messages > 20 for entry in store.ledger("g")))
    first.end()
    assert store.watermark("chat").time is not None
    empty.end()


def test_a_partition_that_was_only_taken_up_begins_where_its_group_does(store: Store) -> None:
    """The ledger then stands at 0, which is no place: what is there may be older than what the group is to read."""
    claim = Advance(PARTITION, None, 0, 0, {}, None, is_behind=True)
    store.save_batch(WriteBatch(advances=(claim,)), "g")
    assert partition_past(store, "g", PARTITION, [RULE]).resume_offset is None
    step = Advance(PARTITION, 0, 101, 1, {("chat", FunnelCounter.MEASURED, None): 1}, None, first_offset=100)
    store.save_batch(WriteBatch(advances=(step,)), "g")
    with store.evidence_session("chat") as session:
        assert session.finished_spans() == [Span("topic", 0, 100, 101)]
    assert partition_past(store, "g", PARTITION, [RULE]).resume_offset == 101


def decisions(store: Store) -> list[Decision]:
    """What a gate says of the whole endpoint."""
    found = run_endpoint_gate(store, "chat", GatePolicy(window_s=0.0, min_span_s=0.0)).decisions
    return [decision for decision in found if not decision.slice_key]

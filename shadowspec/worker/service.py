"""The worker of a Kafka mirror: the loop that polls, and everything that must not hold it up.

The engine lives in processes of its own and the database behind a thread of its own, so that the loop polls
on whatever they do.  A record's way: polled, taken into the pipeline, measured in a block, written together
with the ledger's step, and only then committed to the broker.  What is not written is delivered again.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from shadowspec.errors import FencedError
from shadowspec.garbage import seldom_collected
from shadowspec.tap.admission import Admission
from shadowspec.tap.endpoints import EndpointRule
from shadowspec.types import PartitionId, WriteBatch, WriteOutcome
from shadowspec.worker.background import Background, Call
from shadowspec.worker.pipeline import Pipeline
from shadowspec.worker.ports import BlockSupervisor, DeadLetterQueue, MessageSource, WorkerStore
from shadowspec.worker.rates import SliceRates, Verdicts
from shadowspec.worker.restart import PartitionPast, partition_past
from shadowspec.worker.telemetry import Telemetry

log = logging.getLogger(__name__)

POLL_S = 0.05  # longest wait for messages: what the engine and the database give back is taken up at least as often


@dataclass(frozen=True, slots=True)
class Limits:
    """When the loop stops taking messages, and how long it waits at the end."""

    max_unfinished_messages: int
    flush_interval_s: float
    refresh_rates_s: float
    drain_timeout_s: float
    block_max_wait_s: float  # of the wall clock, where no message comes to move event time
    sheds: bool  # where the engine is behind: shed admitted requests instead of pausing the partitions


class Service:
    """One worker.  Lives from its first poll to its drain."""

    def __init__(
        self,
        source: MessageSource,
        pipeline: Pipeline,
        admission: Admission,
        supervisor: BlockSupervisor,
        store: WorkerStore,
        dead_letters: DeadLetterQueue,
        rates: SliceRates,
        rules: Sequence[EndpointRule],
        *,
        consumer: str,
        limits: Limits,
        telemetry: Telemetry,
    ) -> None:
        self.source, self._pipeline, self._outbox = source, pipeline, pipeline.outbox
        self._admission = admission
        self._supervisor, self._store, self._dead_letters = supervisor, store, dead_letters
        self._rates, self._rules = rates, tuple(rules)
        self._consumer, self._limits, self._telemetry = consumer, limits, telemetry
        self._database = Background("shadowspec-database")
        self._starting: dict[PartitionId, Call[PartitionPast]] = {}
        self._write: Call[WriteOutcome] | None = None
        self._refresh: Call[Mapping[str, Verdicts]] | None = None
        self._known: frozenset[str] = frozenset()  # fingerprints that are in the database
        self._written_at = self._write_began_at = self._refreshed_at = self._taken_at = time.monotonic()
        self._is_stopping = False

    def stop(self) -> None:
        """Ask the loop to drain and end; safe in a signal handler."""
        self._is_stopping = True

    @property
    def conditions(self) -> dict[str, Callable[[], bool]]:
        """What readiness needs, by name."""
        return {
            "broker": lambda: self.source.is_connected,
            "database": lambda: self._database.error is None,
            "engine": lambda: self._supervisor.is_ready,
        }

    def run(self) -> None:
        """Poll until asked to stop, then drain: finish what is begun, write it, commit it.

        Raises:
            ServiceUnavailableError: broker or database refuse for good.
            ModelError: the engine cannot be built.
        """
        try:
            with seldom_collected():
                while not self._is_stopping:
                    self._turn()
                self._drain()
        finally:
            self._database.close()

    def _turn(self) -> None:
        """One round: 1. partitions; 2. messages; 3. blocks; 4. rows and offsets; 5. rates; 6. back-pressure."""
        self._follow_assignment()
        if taken := [raw for raw in self.source.poll(POLL_S) if self._pipeline.reads(raw.key)]:
            self._pipeline.take_all(taken, self.source.topic_of)
            self._taken_at = time.monotonic()
        self._pass_idle_time()
        self._measure()
        self._save()
        self._refresh_rates()
        self._press()
        self._observe()

    def _follow_assignment(self) -> None:
        changes = self.source.changes()
        for lost in changes.lost_ranges:
            self._telemetry.lost(lost.topic, lost.partition.partition, lost.end - lost.start)
        for partition in changes.revoked:
            self._starting.pop(partition, None)
            self._pipeline.forget(partition)
        for partition in changes.assigned:
            self._starting[partition] = self._read_past(partition)
        for partition, call in list(self._starting.items()):
            if call.is_done():
                del self._starting[partition]
                self._start(partition, call.result())

    def _read_past(self, partition: PartitionId) -> Call[PartitionPast]:
        return self._database.call(
            f"reading the ledger of {partition.source}[{partition.partition}]",
            lambda: partition_past(self._store, self._consumer, partition, self._rules),
        )

    def _start(self, partition: PartitionId, past: PartitionPast) -> None:
        for endpoint, remembered in past.endpoints.items():
            self._admission.restore(partition, endpoint, remembered.units, remembered.request_ids)
        self._pipeline.start(partition, past.entry, past.stored)
        self._outbox.claim(partition)
        self.source.start(partition, past.resume_offset)

    def _pass_idle_time(self) -> None:
        """Where no message comes to move event time, the wall clock ends what waits for company."""
        if time.monotonic() - self._taken_at >= self._limits.block_max_wait_s:
            self._taken_at = time.monotonic()
            self._pipeline.end_waiting()

    def _measure(self) -> None:
        ready = self._pipeline.ready
        while ready and self._supervisor.offer(ready[0]):
            ready.popleft()
        for outcome in self._supervisor.step():
            self._pipeline.measured(outcome.result, outcome.poisoned)
            self._telemetry.measured(outcome.result, outcome.poisoned, outcome.seconds)

    def _save(self) -> None:
        """Rows first, then the ledger (one transaction), then the broker's offsets."""
        if self._write is None:
            is_early = time.monotonic() - self._written_at < self._limits.flush_interval_s and not self._is_stopping
            if is_early or self._starting:  # nothing is in the ledger before every partition that is ours
                return
            batch = self._outbox.batch(behind=self._behind())
            if batch is None:
                return
            self._begin_write(batch)
        assert self._write is not None
        if not self._write.is_done():
            return
        try:
            outcome = self._write.result()
        except FencedError as error:
            # Another worker has moved this partition's ledger: what is ours of it has been done by that one.  If
            # the partition is ours again by now, it is read anew from where that one left it.
            log.warning("%s", error)
            partition = PartitionId(error.source, error.partition)
            self._pipeline.forget(partition)
            self._starting[partition] = self._read_past(partition)
            self._begin_write(self._outbox.without(partition))
            return
        self._write = None
        self._written_at = time.monotonic()
        self._telemetry.written(outcome, time.monotonic() - self._write_began_at)
        places = self._outbox.settle()
        if places and not self.source.commit(places).is_complete:
            self._telemetry.commit_failed()

    def _begin_write(self, batch: WriteBatch) -> None:
        configs = {c.fingerprint: c for own in self._supervisor.configs_by_endpoint.values() for c in own}

        def write() -> WriteOutcome:
            self._dead_letters.flush()  # a message is finished only once its dead letter is safe
            if not configs.keys() <= self._known:
                self._store.save_fingerprints(list(configs.values()))
                self._known = frozenset(configs)
            return self._store.save_batch(batch, self._consumer)

        self._write_began_at = time.monotonic()
        self._write = self._database.call("writing measurements", write)

    def _behind(self) -> frozenset[PartitionId]:
        """Partitions of which more is to come; of one that was never heard of, as long as nothing is known."""
        lag = self.source.lag()
        return frozenset(own for own, number in lag.items() if number > 0) | (self._outbox.unheard - lag.keys())

    def _refresh_rates(self) -> None:
        if self._refresh is None:
            if time.monotonic() - self._refreshed_at >= self._limits.refresh_rates_s:
                self._refresh = self._database.call("reading verdicts", self._read_verdicts)
        elif self._refresh.is_done():
            measured = self._supervisor.configs_by_endpoint.items()
            self._rates.measure_with({name: [config.fingerprint for config in own] for name, own in measured})
            self._rates.refresh(self._refresh.result())
            self._refresh, self._refreshed_at = None, time.monotonic()

    def _read_verdicts(self) -> dict[str, Verdicts]:
        return {rule.name: self._store.standing_verdicts(rule.name) for rule in self._rules}

    def _press(self) -> None:
        """Pause every partition while there is more in hand than can be held; poll() goes on."""
        is_engine_behind = bool(self._pipeline.ready)  # the engine's own queue is full
        is_held = self._outbox.num_unfinished >= self._limits.max_unfinished_messages
        self._pipeline.is_shedding = self._limits.sheds and is_engine_behind
        is_paused = is_held or (is_engine_behind and not self._limits.sheds)
        if is_paused:
            self.source.pause_all()
        else:
            self.source.resume_all()
        self._telemetry.pressed(
            is_paused=is_paused,
            num_unfinished=self._outbox.num_unfinished,
            num_waiting=self._pipeline.num_waiting,
        )

    def _observe(self) -> None:
        self._telemetry.beat()
        self._telemetry.engine(num_queued=self._supervisor.num_queued, num_in_flight=self._supervisor.in_flight)
        self._telemetry.announced([c for own in self._supervisor.configs_by_endpoint.values() for c in own])
        lag = self.source.lag().items()
        self._telemetry.lag({(self.source.topic_of(p.source) or p.source, p.partition): n for p, n in lag})
        self._telemetry.funnel(self._outbox.counts)
        self._outbox.counts.clear()

    def _drain(self) -> None:
        """Take no more messages; start what is open, and end once it is written or the time is up."""
        deadline = time.monotonic() + self._limits.drain_timeout_s
        self.source.pause_all()
        self._pipeline.drain()
        while time.monotonic() < deadline:
            self._follow_assignment()
            self.source.poll(0.0)  # keeps the membership; everything is paused
            self._measure()
            self._save()
            self._telemetry.beat()
            is_idle = not self._pipeline.ready and self._supervisor.in_flight == 0
            if is_idle and self._write is None and not self._outbox.has_writable:
                return
            time.sleep(POLL_S)
        log.warning(
            "drained for %.0f s; %d requests are unfinished and will be delivered again",
            self._limits.drain_timeout_s,
            self._pipeline.num_waiting,
        )

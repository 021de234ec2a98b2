"""The worker of a Kafka mirror: the loop that polls, and separate processes and threads for all that could block it.

The engine runs in separate processes and the database behind a separate thread, so that the loop always polls.  The way
of a record: polled, admitted by the pipeline, measured in a block, written together with the ledger's step, and only
then committed to the broker (`outbox.Writer`).  Unwritten records are delivered again.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from shadowspec.gate.verdict.lifecycle import CurrentVerdicts, decided_slices
from shadowspec.gc_control import gc_relaxed
from shadowspec.store import Store
from shadowspec.tap.admission import Admission
from shadowspec.tap.endpoints import EndpointRule
from shadowspec.types import FingerprintedConfig, LedgerEntry, PartitionId, RecordKey, StoredRecord, UnitMemory
from shadowspec.types.settings import WorkerSettings
from shadowspec.worker.background import Background, RetriedCall
from shadowspec.worker.outbox import Writer
from shadowspec.worker.pipeline import Pipeline
from shadowspec.worker.supervisor import SERVER_AWAY
from shadowspec.worker.telemetry import Telemetry

if TYPE_CHECKING:
    from shadowspec.tap.dead_letter_topic import DeadLetterWriter
    from shadowspec.tap.kafka.consumer import KafkaTap
    from shadowspec.worker.supervisor import Supervisor

log = logging.getLogger(__name__)

POLL_S = 0.05  # longest wait for messages, and so the longest delay of results from engine and database


class Service:
    """One worker.  Lives from its first poll to its drain."""

    def __init__(
        self,
        source: KafkaTap,
        pipeline: Pipeline,
        admission: Admission,
        supervisor: Supervisor,
        store: Store,
        dead_letters: DeadLetterWriter,
        rates: SliceRates,
        rules: Sequence[EndpointRule],
        *,
        consumer: str,
        settings: WorkerSettings,
        telemetry: Telemetry,
    ) -> None:
        self.source, self._pipeline, self._outbox = source, pipeline, pipeline.outbox
        self._admission = admission
        self._supervisor, self._store = supervisor, store
        self._rates, self._rules = rates, tuple(rules)
        # Of the wall clock, where no message comes to move event time.
        self._block_max_wait_s = min(rule.block_max_wait for rule in rules).total_seconds()
        self._longest_waits_s = {rule.name: rule.longest_wait.total_seconds() for rule in rules}
        self._consumer, self._settings, self._telemetry = consumer, settings, telemetry
        self._database = Background("shadowspec-database")
        self._starting: dict[PartitionId, RetriedCall[PartitionPast]] = {}
        self._refresh: RetriedCall[Mapping[str, CurrentVerdicts]] | None = None
        self._writer = Writer(
            self._outbox,
            self._database,
            store,
            source,
            dead_letters,
            telemetry,
            consumer=consumer,
            flush_interval_s=settings.flush_interval_s,
            on_fenced=self._read_again,
        )
        self._refreshed_at = self._taken_at = time.monotonic()
        self._behind: set[str] = set()  # endpoints whose engines' queue was full for a block
        self._is_stopping = False

    def stop(self) -> None:
        """Ask the loop to drain and end; safe in a signal handler."""
        self._is_stopping = True

    @property
    def conditions(self) -> dict[str, Callable[[], bool]]:
        """The conditions of readiness, by name."""
        return {
            "broker": lambda: self.source.is_connected,
            "database": lambda: self._database.error is None,
            "engine": lambda: self._supervisor.is_ready,
        }

    @property
    def waiting(self) -> list[str]:
        """The endpoints without an engine that could measure them now."""
        return sorted(self._longest_waits_s.keys() - self._supervisor.groups.ready_endpoints)

    def run(self) -> None:
        """Poll until asked to stop, then drain: finish started work, write it, commit it.

        Raises:
            ServiceUnavailableError: broker or database refuse permanently.
            ModelError: the engine cannot be built.
        """
        try:
            with gc_relaxed():
                while not self._is_stopping:
                    self._turn()
                self._drain()
        finally:
            self._database.close()

    def _turn(self) -> None:
        """One round: 1. partitions; 2. messages; 3. blocks; 4. rows and offsets; 5. rates; 6. back-pressure."""
        self._follow_assignment()
        self._take_messages()
        self._measure()
        self._writer.step(self._configs, may_begin=not self._starting)
        self._refresh_rates()
        self._apply_backpressure()
        self._observe()

    def _follow_assignment(self) -> None:
        changes = self.source.changes()
        for lost in changes.lost_ranges:
            self._telemetry.record_loss(lost.topic, lost.partition.partition, lost.end - lost.start)
        for partition in changes.revoked:
            self._starting.pop(partition, None)
            self._pipeline.forget(partition)
        for partition in changes.assigned:
            self._starting[partition] = self._read_past(partition)
        for partition, call in list(self._starting.items()):
            if call.is_done():
                del self._starting[partition]
                self._start(partition, call.result())

    def _read_past(self, partition: PartitionId) -> RetriedCall[PartitionPast]:
        return self._database.call(
            f"reading the ledger of {partition.source}[{partition.partition}]",
            lambda: partition_past(self._store, self._consumer, partition, self._rules),
        )

    def _read_again(self, partition: PartitionId) -> None:
        """Another worker has moved the partition's ledger: begin again where that one left it."""
        self._pipeline.forget(partition)
        self._starting[partition] = self._read_past(partition)

    def _start(self, partition: PartitionId, past: PartitionPast) -> None:
        for endpoint, remembered in past.endpoints.items():
            self._admission.restore(partition, endpoint, remembered.units, remembered.request_ids)
        self._pipeline.start(partition, past.entry, past.stored)
        self._outbox.claim(partition)
        self.source.start(partition, past.resume_offset)

    def _take_messages(self) -> None:
        """Poll; without messages to move event time, the wall clock ends the waits."""
        if taken := [raw for raw in self.source.poll(POLL_S) if self._pipeline.reads(raw.key)]:
            self._pipeline.take_all(taken, self.source.topic_of)
            self._taken_at = time.monotonic()
        if time.monotonic() - self._taken_at >= self._block_max_wait_s:
            self._taken_at = time.monotonic()
            self._pipeline.end_waiting()

    def _measure(self) -> None:
        """Give every endpoint's queue its blocks, in their order, and take back those that are finished.

        Where an endpoint's servers are away and others are measured, it waits without them: what its queue does not
        take is shed, and what has waited there for as long as a block may wait to be full, or holds half of the
        unfinished messages that there may be.  A worker that ends leaves them unfinished.
        """
        ready = self._pipeline.ready
        stranded = frozenset() if self._is_stopping else self._supervisor.groups.stranded_endpoints
        if stranded:
            waits_s = dict.fromkeys(self._longest_waits_s, 0.0) if self._is_half_full else self._longest_waits_s
            for block in self._supervisor.withdraw(waits_s):
                self._pipeline.shed(block, SERVER_AWAY)
        behind = self._supervisor.take_from(ready)
        for block in [block for block in ready if block.endpoint in stranded]:
            ready.remove(block)
            self._pipeline.shed(block, SERVER_AWAY)
        self._behind = behind - stranded
        for outcome in self._supervisor.step():
            self._pipeline.finish(outcome.result, outcome.poisoned)
            self._telemetry.record_block(outcome.result, outcome.poisoned, outcome.seconds, outcome.failure)

    @property
    def _configs(self) -> list[FingerprintedConfig]:
        """The engines' configs, endpoint by endpoint."""
        return [config for configs in self._supervisor.configs_by_endpoint.values() for config in configs]

    def _refresh_rates(self) -> None:
        if self._refresh is None:
            if time.monotonic() - self._refreshed_at >= self._settings.refresh_rates_s:
                self._refresh = self._database.call("reading verdicts", self._read_verdicts)
        elif self._refresh.is_done():
            measured = self._supervisor.configs_by_endpoint.items()
            self._rates.measure_with({name: [config.fingerprint for config in configs] for name, configs in measured})
            self._rates.refresh(self._refresh.result())
            self._refresh, self._refreshed_at = None, time.monotonic()

    def _read_verdicts(self) -> dict[str, CurrentVerdicts]:
        return {rule.name: self._store.current_verdicts(rule.name) for rule in self._rules}

    def _apply_backpressure(self) -> None:
        """Pause every partition while too much work is in hand; poll() continues.

        A block of a rare slice waits long to be full, and the ledger with it: well before the limit it runs short.
        """
        if self._is_half_full:
            self._pipeline.start_fronts()
        is_held = self._outbox.num_unfinished >= self._settings.max_unfinished_messages
        self._pipeline.shedding = self._behind if self._settings.overload == "shed" else ()
        is_paused = is_held or bool(self._behind.difference(self._pipeline.shedding))
        if is_paused:
            self.source.pause_all()
        else:
            self.source.resume_all()
        self._telemetry.record_backpressure(
            is_paused=is_paused, num_unfinished=self._outbox.num_unfinished, num_waiting=self._pipeline.num_waiting
        )

    @property
    def _is_half_full(self) -> bool:
        return 2 * self._outbox.num_unfinished >= self._settings.max_unfinished_messages

    def _observe(self) -> None:
        groups = self._supervisor.groups
        self._telemetry.beat()
        self._telemetry.engine(num_queued=groups.num_queued, num_in_flight=self._supervisor.in_flight)
        self._telemetry.record_ready(self._longest_waits_s, groups.ready_endpoints)
        self._telemetry.record_configs(self._configs)
        lag = self.source.lag().items()
        self._telemetry.lag({(self.source.topic_of(p.source) or p.source, p.partition): n for p, n in lag})
        self._telemetry.funnel(self._outbox.counts)
        self._outbox.counts.clear()

    def _drain(self) -> None:
        """Take no more messages; start open blocks, and end once everything is written or the time is up."""
        deadline = time.monotonic() + self._settings.drain_timeout_s
        self.source.pause_all()
        self._pipeline.drain()
        while time.monotonic() < deadline:
            self._follow_assignment()
            self.source.poll(0.0)  # keeps the membership; everything is paused
            self._measure()
            self._writer.step(self._configs, may_begin=not self._starting, at_once=True)
            self._telemetry.beat()
            waiting = self._supervisor.groups.waiting_endpoints
            is_left = any(block.endpoint not in waiting for block in self._pipeline.ready)
            if not is_left and self._supervisor.is_done and self._writer.is_idle:
                break
            time.sleep(POLL_S)
        if (number := self._pipeline.num_waiting) > 0:
            log.warning("drained; %d requests are unfinished and will be delivered again", number)


@dataclass(frozen=True, slots=True)
class EndpointPast:
    """Admission's memory of one endpoint's records in the partition."""

    units: Mapping[str, UnitMemory]
    request_ids: Collection[str] = field(repr=False)


@dataclass(frozen=True, slots=True)
class PartitionPast:
    """`stored` holds the rows at and beyond the ledger's place, `endpoints` the memory of those before it."""

    entry: LedgerEntry | None
    stored: Mapping[RecordKey, StoredRecord]
    endpoints: Mapping[str, EndpointPast]

    @property
    def resume_offset(self) -> int | None:
        """Where to read from; None: the ledger does not know it."""
        if self.entry is None or not self.entry.has_position:
            return None
        return self.entry.next_offset if self.entry.resume_offset is None else self.entry.resume_offset


def partition_past(store: Store, consumer: str, partition: PartitionId, rules: Sequence[EndpointRule]) -> PartitionPast:
    """Read it.  Records before the ledger's place are remembered, those at and beyond it are delivered again."""
    entry = store.ledger_entry(consumer, partition)
    if entry is None:
        return PartitionPast(None, store.finished_records(partition, 0), {})
    stored = store.finished_records(partition, entry.next_offset)
    endpoints: dict[str, EndpointPast] = {}
    if entry.watermark is not None:
        for rule in rules:
            since = entry.watermark - rule.forget_unit_after
            units = store.unit_memories(rule.name, since, partition=partition, before_offset=entry.next_offset)
            request_ids = store.recent_request_ids(
                rule.name, since, partition=partition, before_offset=entry.next_offset
            )
            endpoints[rule.name] = EndpointPast(units, request_ids)
    return PartitionPast(entry, stored, endpoints)


@dataclass(frozen=True, slots=True)
class Scope:
    """The configs and loads that an endpoint is measured with now: hypotheses of any other no longer count."""

    fingerprints: Collection[str]
    loads: Collection[int]


class SliceRates:
    """The rates as of the last decisions that were read; until the engines report their configs, the full ones."""

    def __init__(self, loads: Mapping[str, Collection[int]]) -> None:
        self._scopes = {endpoint: Scope((), endpoint_loads) for endpoint, endpoint_loads in loads.items()}
        self._decided: frozenset[tuple[str, str]] = frozenset()

    def measure_with(self, fingerprints: Mapping[str, Collection[str]]) -> None:
        """The engines are built: the configs of each endpoint."""
        for endpoint, of_endpoint in fingerprints.items():
            self._scopes[endpoint] = replace(self._scopes[endpoint], fingerprints=tuple(of_endpoint))

    def __call__(self, rule: EndpointRule, slice_key: str) -> float:
        """The rate of a slice that begins now; of the whole endpoint (""), the smallest of its slices'."""
        is_decided = (rule.name, slice_key) in self._decided
        return min(rule.min_rate, rule.sample_rate) if is_decided else rule.sample_rate

    def refresh(self, verdicts_by_endpoint: Mapping[str, CurrentVerdicts]) -> None:
        """Take up the current verdicts of each endpoint."""
        self._decided = frozenset(
            (endpoint, slice_key)
            for endpoint, verdicts in verdicts_by_endpoint.items()
            for slice_key in decided_slices(verdicts, self._scopes[endpoint].loads, self._scopes[endpoint].fingerprints)
        )

"""The worker's metrics, for Prometheus.  `docs/metrics.md` describes each of them.

They count this process's events since it started: a record that is delivered again counts again here, and once in the
database.  Labels hold names from the configuration, short codes and slice keys, never an id or text of a request.  The
number of different values that come from the data is limited.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import Metric

from shadowspec import metrics
from shadowspec.types import (
    Arm,
    ArmTiming,
    BlockResult,
    FingerprintedConfig,
    FunnelKey,
    RecordKey,
    Run,
    SpeculationCounts,
    WriteOutcome,
)

MAX_LABEL_VALUES = 100  # of one label; each is a separate time series in an operator's database
OTHER = "other"  # replaces all further values
CONFIG_CHARACTERS = 12  # of a fingerprint: enough to distinguish an operator's configs

_STEP_SECONDS: Final = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
_BLOCK_SECONDS: Final = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 60.0, 120.0, 300.0, 600.0)
_WRITE_SECONDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_BATCH_REQUESTS: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256)


@dataclass(frozen=True, slots=True)
class MetricDescription:
    """A metric as the documentation shows it."""

    name: str
    kind: str
    labels: tuple[str, ...]
    meaning: str


class Telemetry:
    """The metrics of one worker, in a separate registry.  Safe to call from any thread."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()

        self.described: list[MetricDescription] = []

        def describe(kind: str, name: str, meaning: str, labels: Sequence[str]) -> str:
            self.described.append(MetricDescription(f"shadowspec_{name}", kind, tuple(labels), meaning))
            return f"shadowspec_{name}"

        def counter(name: str, meaning: str, *labels: str) -> Counter:
            return Counter(describe("counter", name, meaning, labels), meaning, labels, registry=registry)

        def gauge(name: str, meaning: str, *labels: str) -> Gauge:
            return Gauge(describe("gauge", name, meaning, labels), meaning, labels, registry=registry)

        def histogram(name: str, meaning: str, buckets: Iterable[float], *labels: str) -> Histogram:
            full_name = describe("histogram", name, meaning, labels)
            return Histogram(full_name, meaning, labels, registry=registry, buckets=tuple(buckets))

        by_slice = ("endpoint", "slice", "config")
        self._records = counter(
            "records_total", "Records by the funnel counter in which they ended.", "endpoint", "counter", "reason"
        )
        self._lag = gauge(
            "consumer_lag_messages", "Messages of an assigned partition that are not polled yet.", "topic", "partition"
        )
        self._unfinished = gauge("unfinished_messages", "Polled messages whose records are not all written yet.")
        self._waiting = gauge("waiting_requests", "Admitted requests that are not measured yet.")
        self._paused = gauge("paused", "1 while the partitions are paused because the worker is full.")
        self._queued = gauge("queued_blocks", "Blocks that wait for an engine.")
        self._in_flight = gauge(
            "in_flight_blocks", "Blocks sent to the engines and not returned yet, the waiting ones included."
        )
        self._ready = gauge(
            "endpoint_ready",
            "1 while the endpoint can be measured.",
            "endpoint",
        )
        self._batch = histogram(
            "batch_requests",
            "Requests that ran together in a measured block, fillers included.",
            _BATCH_REQUESTS,
            "endpoint",
        )
        self._block_seconds = histogram(
            "block_seconds",
            "Time to measure a block: both arms of every candidate, and parity; at first also the warm-up.",
            _BLOCK_SECONDS,
            "endpoint",
        )
        self._step_seconds = histogram(
            "step_seconds",
            "Mean decoding step of a run in an arm (`baseline`, `speculative`).",
            _STEP_SECONDS,
            "endpoint",
            "arm",
        )
        self._drafts = counter("drafts_total", "Steps that drafted.", *by_slice)
        self._draft_tokens = counter("draft_tokens_total", "Drafted tokens.", *by_slice)
        self._accepted_tokens = counter("accepted_tokens_total", "Drafted tokens that were accepted.", *by_slice)
        self._first_accepted = counter(
            "first_position_accepted_total", "Steps whose first drafted token was accepted.", *by_slice
        )
        self._runs = counter("runs_total", "Runs; an empty `failure` was measured.", *by_slice, "failure")
        self._config = gauge(
            "config_info", "Meaning of a `config` label; always 1.", "config", "name", "engine", "device"
        )
        self._restarts = counter(
            "engine_restarts_total",
            "Engine processes that ended unexpectedly, by reason.",
            "reason",
        )
        self._failed_blocks = counter(
            "failed_blocks_total",
            "Blocks at which an engine failed; all their requests fail.",
            "endpoint",
            "reason",
        )
        self._poisoned = counter(
            "poisoned_requests_total",
            "Requests given up because they ended the engine too often.",
            "endpoint",
            "reason",
        )
        self._out_of_memory = counter(
            "out_of_memory_total", "Batches that did not fit into memory and ran in halves.", "endpoint"
        )
        self._write_seconds = histogram("write_seconds", "Time to write a batch to the database.", _WRITE_SECONDS)
        self._written = counter("written_rows_total", "Rows that writes added: `runs`, `records`, `blocks`.", "table")
        self._commit_failures = counter(
            "commit_failures_total",
            "Offset commits that the broker refused. They lose nothing: the ledger in the database decides.",
        )
        self._dead_letters = counter("dead_letters_total", "Messages sent to the dead-letter topic.", "stage")
        self._lost_ranges = counter(
            "lost_ranges_total",
            "Ranges of offsets that the broker deleted before they were polled.",
            "topic",
            "partition",
        )
        self._lost_offsets = counter("lost_offsets_total", "Offsets in those ranges.", "topic", "partition")

        self._label_values: dict[str, set[str]] = {}
        self._partitions: set[tuple[str, str]] = set()
        self._lock = threading.Lock()
        self._beat_at = time.monotonic()

    def beat(self) -> None:
        """The poll loop has come round once more."""
        self._beat_at = time.monotonic()

    @property
    def seconds_since_beat(self) -> float:
        """How long the poll loop has not come round; from the beginning, if it has not yet."""
        return time.monotonic() - self._beat_at

    def funnel(self, counts: Mapping[FunnelKey, int]) -> None:
        """Records that have ended since the last call."""
        for (endpoint, end, reason), count in counts.items():
            self._records.labels(endpoint or "", end.value, self._bound_label("reason", reason or "")).inc(count)

    def lag(self, messages: Mapping[tuple[str, int], int]) -> None:
        """The lag of every partition assigned now, by topic and partition; others are removed."""
        shown = {(topic, str(partition)): lag for (topic, partition), lag in messages.items()}
        with self._lock:
            for gone in self._partitions - shown.keys():
                self._lag.remove(*gone)
            self._partitions = set(shown)
            for labels, lag in shown.items():
                self._lag.labels(*labels).set(lag)

    def record_backpressure(self, *, is_paused: bool, num_unfinished: int, num_waiting: int) -> None:
        """How much is in hand, and whether more is taken."""
        self._paused.set(is_paused)
        self._unfinished.set(num_unfinished)
        self._waiting.set(num_waiting)

    def engine(self, *, num_queued: int, num_in_flight: int) -> None:
        """How much the engines have before them."""
        self._queued.set(num_queued)
        self._in_flight.set(num_in_flight)

    def record_ready(self, endpoints: Iterable[str], ready: Collection[str]) -> None:
        """Which of the worker's endpoints can be measured now."""
        for endpoint in endpoints:
            self._ready.labels(endpoint).set(endpoint in ready)

    def record_configs(self, configs: Iterable[FingerprintedConfig]) -> None:
        """The engines' configs."""
        for config in configs:
            self._config.labels(
                config.fingerprint[:CONFIG_CHARACTERS], config.config.name, config.engine, config.device
            ).set(1)

    def engine_restarted(self, reason: str) -> None:
        """An engine process has ended and is replaced."""
        self._restarts.labels(reason).inc()

    def record_block(
        self,
        result: BlockResult,
        poisoned: Mapping[RecordKey, str] | None = None,
        seconds: float | None = None,
        failure: str | None = None,
    ) -> None:
        """A block has come back; `seconds` is how long its measurement took (None or 0: it was not measured).

        `failure` is why the engine failed at it, if it did.
        """
        block = result.block
        if failure is not None:
            self._failed_blocks.labels(block.endpoint, failure).inc()
        for reason in (poisoned or {}).values():
            self._poisoned.labels(block.endpoint, reason).inc()
        self._out_of_memory.labels(block.endpoint).inc(result.num_out_of_memory)
        if seconds:
            self._block_seconds.labels(block.endpoint).observe(seconds)
            self._batch.labels(block.endpoint).observe(block.concurrency)
        for run in result.runs:
            self._observe(block.endpoint, self._bound_label("slice", block.slice_key), run)

    def record_write(self, outcome: WriteOutcome, seconds: float | None = None) -> None:
        """A batch is in the database."""
        if seconds is not None:
            self._write_seconds.observe(seconds)
        self._written.labels("runs").inc(outcome.num_new_runs)
        self._written.labels("records").inc(outcome.num_new_records)
        self._written.labels("blocks").inc(outcome.num_new_blocks)

    def commit_failed(self) -> None:
        """The broker refused offsets; they are committed with later ones, or by the partition's new owner."""
        self._commit_failures.inc()

    def dead_letter(self, stage: str) -> None:
        """A message went to the dead-letter topic."""
        self._dead_letters.labels(self._bound_label("stage", stage)).inc()

    def record_loss(self, topic: str, partition: int, num_offsets: int) -> None:
        """The broker had deleted a range before it was polled."""
        self._lost_ranges.labels(topic, str(partition)).inc()
        self._lost_offsets.labels(topic, str(partition)).inc(num_offsets)

    def exposition(self) -> bytes:
        """All of it as Prometheus reads it (text format 0.0.4)."""
        return generate_latest(_WithoutCreationTimes(self.registry))

    def _observe(self, endpoint: str, slice_key: str, run: Run) -> None:
        config = self._bound_label("config", run.fingerprint[:CONFIG_CHARACTERS])
        labels = (endpoint, slice_key, config)
        self._runs.labels(*labels, self._bound_label("failure", run.failure or "")).inc()
        if run.counts is None:
            return
        counts = run.counts
        self._drafts.labels(*labels).inc(counts.num_drafts)
        self._draft_tokens.labels(*labels).inc(counts.num_draft_tokens)
        self._accepted_tokens.labels(*labels).inc(counts.num_accepted_tokens)
        self._first_accepted.labels(*labels).inc(counts.num_first_accepted)
        steps = {
            Arm.BASELINE: metrics.time_per_output_token_ms(run.baseline) if run.baseline is not None else None,
            Arm.SPECULATIVE: _step_ms(run.speculative, counts) if run.speculative is not None else None,
        }
        for arm, milliseconds in steps.items():
            if milliseconds is not None:
                self._step_seconds.labels(endpoint, arm.value).observe(milliseconds / 1e3)

    def _bound_label(self, label: str, value: str) -> str:
        """The value, or `OTHER` where the label has as many as may be."""
        with self._lock:
            kept = self._label_values.setdefault(label, set())
            if value in kept or len(kept) < MAX_LABEL_VALUES:
                kept.add(value)
                return value
        return OTHER


class _WithoutCreationTimes:
    """The metrics of a registry without a second series for each, that says when it began."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry

    def collect(self) -> Iterator[Metric]:
        for metric in self._registry.collect():
            metric.samples = [sample for sample in metric.samples if not sample.name.endswith("_created")]
            yield metric


def _step_ms(timing: ArmTiming, counts: SpeculationCounts) -> float | None:
    return metrics.ratio(timing.decode_ms, counts.target_passes - 1)

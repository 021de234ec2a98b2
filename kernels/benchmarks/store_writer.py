"""Runs per second that one writer puts into Postgres, everything that a run brings with it included.

    python -m kernels.benchmarks.store_writer [--url URL] [--runs N] [--out FILE]

Every run has its record, a share in a block of four with its memory, its part in the rollups (sums, positions,
histograms), in the funnel counts and in the ledger of six partitions; a batch is one transaction, as the worker's
writer sends it.  Without `--url` a server of its own is started, with its default settings: fsync, full_page_writes
and synchronous_commit are on.  Batches are made before the clock starts, as the worker's come from its engine.
Nothing else may run meanwhile.
"""

from __future__ import annotations

import random
import statistics
import time
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

from kernels.benchmarks import harness
from kernels.benchmarks.harness import options, show, write
from shadowspec.store import Store, upgrade
from shadowspec.types import (
    Advance,
    Arm,
    ArmTiming,
    Block,
    BlockResult,
    FingerprintedConfig,
    FunnelCounter,
    Memory,
    PartitionId,
    RecordKey,
    Run,
    SpeculationConfig,
    SpeculationCounts,
    StoredRecord,
    VerifyRule,
    WriteBatch,
)

FINGERPRINT = "6f" * 32
TOPIC = "b1Jr0zqYQ5yq3VQd0J8aKQ"  # as Kafka writes a topic's id
NUM_PARTITIONS = 6
BLOCK_SIZE = 4
NUM_SPECULATIVE_TOKENS = 4
CONFIG = FingerprintedConfig(
    SpeculationConfig("draft-4", "target", "draft", "draft_model", NUM_SPECULATIVE_TOKENS, VerifyRule.REJECTION),
    *("engine/1", "cuda", "bfloat16", {}, FINGERPRINT),
)
SLICES = [
    f"prompt_class={name},sampling_regime={how}" for name in ("code", "chat", "maths") for how in ("greedy", "low")
]
BATCH_SIZES = (400, 2000, 5000)  # runs in a batch: a flush a second of a slow, a busy and the fastest worker
START = datetime.now(UTC) - timedelta(hours=1)


class WrittenTraffic:
    """Endless measured blocks with growing offsets, drawn from a seed."""

    def __init__(self, seed: int, endpoint: str = "chat") -> None:
        self._endpoint = endpoint
        self._random = random.Random(seed)  # noqa: S311 - traffic, not secrets
        self._source = f"{TOPIC}{seed}"
        self._next = [0] * NUM_PARTITIONS

    def batch(self, num_runs: int) -> WriteBatch:
        """One transaction's worth of runs."""
        before = list(self._next)
        blocks = tuple(self._block() for _ in range(num_runs // BLOCK_SIZE))
        funnel = [Counter[Any]() for _ in range(NUM_PARTITIONS)]
        for _, records in blocks:
            for record in records:
                funnel[record.key.partition][record.endpoint, record.counter, record.reason] += 1
        advances = tuple(
            Advance(
                PartitionId(self._source, n),
                before[n] or None,
                self._next[n],
                sum(funnel[n].values()),
                funnel[n],
                START,
            )
            for n in range(NUM_PARTITIONS)
            if self._next[n] > before[n]
        )
        return WriteBatch((), blocks, advances)

    def _block(self) -> tuple[BlockResult, tuple[StoredRecord, ...]]:
        draw = self._random
        slice_key, block_id = draw.choice(SLICES), f"{draw.getrandbits(256):064x}"
        records = tuple(self._record(slice_key) for _ in range(BLOCK_SIZE))
        shape = Block(block_id, self._next[0], self._endpoint, slice_key, BLOCK_SIZE, (), (), Arm.BASELINE)
        runs = tuple(
            Run(
                key=record.key,
                fingerprint=FINGERPRINT,
                block_id=block_id,
                counts=_counts(draw),
                baseline=_timing(draw, 1.0),
                speculative=_timing(draw, 0.8),
                finish_reason="stop",
            )
            for record in records
        )
        return BlockResult(shape, START, runs, {FINGERPRINT: Memory(10**9, 11 * 10**8, 10**5, 10**8, 10**4)}), records

    def _record(self, slice_key: str) -> StoredRecord:
        draw = self._random
        partition = draw.randrange(NUM_PARTITIONS)
        offset = self._next[partition]
        self._next[partition] = offset + draw.randrange(1, 20)  # most messages are not sampled
        event_time = START + timedelta(milliseconds=offset)
        session = f"{draw.getrandbits(256):064x}"
        return StoredRecord(
            key=RecordKey(self._source, partition, offset, int(event_time.timestamp() * 1000)),
            counter=FunnelCounter.MEASURED,
            endpoint=self._endpoint,
            slice_key=slice_key,
            labels=dict(part.split("=") for part in slice_key.split(",")) | {"context_bucket": "1k"},
            event_time=event_time,
            session_hash=session,
            request_id_hash=f"{draw.getrandbits(256):064x}",
            unit_key=f"session:{session}",
            session_position=draw.randrange(1, 5),
            sampling_rate=0.1,
            num_prompt_tokens=draw.randrange(20, 2000),
        )


def _counts(draw: random.Random) -> SpeculationCounts:
    histogram = [draw.randrange(1, 20) for _ in range(NUM_SPECULATIVE_TOKENS + 1)]
    per_pos = tuple(sum(histogram[position + 1 :]) for position in range(NUM_SPECULATIVE_TOKENS))
    drafts, accepted = sum(histogram), sum(per_pos)
    return SpeculationCounts(
        drafts, drafts * NUM_SPECULATIVE_TOKENS, accepted, per_pos, tuple(histogram), 1 + drafts + accepted, 200
    )


def _timing(draw: random.Random, scale: float) -> ArmTiming:
    prefill, decode = scale * draw.lognormvariate(4, 0.5), scale * draw.lognormvariate(7, 0.5)
    return ArmTiming(1.5, prefill, decode, 0.2 * decode, 0.7 * decode, 0.1 * decode, draw.randrange(50, 200))


def measure(store: Store, traffic: WrittenTraffic, batch_size: int, num_runs: int) -> dict[str, Any]:
    """Write batches of one size; seconds and rate.  Every run must really have been new."""
    batches = [traffic.batch(batch_size) for _ in range(max(3, num_runs // batch_size))]
    store.save_batch(batches[0], "benchmark")  # connection, statements and the month's partition are made here
    seconds = []
    for batch in batches[1:]:
        started = time.perf_counter()
        outcome = store.save_batch(batch, "benchmark")
        seconds.append(time.perf_counter() - started)
        if outcome.num_new_runs != batch_size // BLOCK_SIZE * BLOCK_SIZE:
            raise SystemExit("a run was lost or there before")
    written = batch_size * len(seconds)
    return {
        "batch_size": batch_size,
        "num_runs": written,
        "runs_per_s": round(written / sum(seconds), 1),
        "batch_s_median": round(statistics.median(seconds), 4),
        "batch_s_max": round(max(seconds), 4),
    }


def machine(url: str) -> dict[str, str]:
    """What the figures were measured on."""
    names = ("server_version", "fsync", "synchronous_commit", "full_page_writes", "shared_buffers", "max_wal_size")
    settings = harness.postgres_settings(url, *names)
    return harness.machine("psycopg") | {f"postgres {name}": value for name, value in settings.items()}


def main() -> None:
    """Measure each batch size, print a table and write the results."""
    parser = options(__doc__, "store_writer.json")
    parser.add_argument("--url", help="a Postgres database to fill (it is brought to this version's revision)")
    parser.add_argument("--runs", type=int, default=60_000, help="runs for each batch size")
    arguments = parser.parse_args()
    from tests.services import postgres_server

    with postgres_server(is_durable=True) as own:
        url = arguments.url or own.url
        upgrade(url)
        with Store.open(url) as store:
            store.save_fingerprints([CONFIG])
            rows = [measure(store, WrittenTraffic(seed), size, arguments.runs) for seed, size in enumerate(BATCH_SIZES)]
        results = {"machine": machine(url), "results": rows}
    show("batches", rows)
    write(arguments.out, results)


if __name__ == "__main__":
    main()

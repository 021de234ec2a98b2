"""Messages per second through the tap, against a bare kafka-python poll loop over the same topic.

    python -m kernels.benchmarks.tap [--messages N] [--rounds N] [--out FILE] [--profile]

One consumer process, one topic of six partitions on a broker of its own, messages of 2 kB in the form of a
vLLM request and response (prompt and output as text and as token ids).  The contestants take turns within
each round; quote the ratios.  The tap polls, decodes, validates, slices, samples, enqueues and settles its
offsets; blocks that are full are taken off the queue and count as measured.  `text only` leaves the token ids out,
so that every prompt is tokenised by the bundled tokenizer as well.

Beside messages per second stands the processor time of the consuming process, which other work on the machine
disturbs less; a bare loop waits for the broker part of its time, so the two ratios differ.
"""

from __future__ import annotations

import cProfile
import json
import pstats
import random
import statistics
import time
import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from io import StringIO
from pathlib import Path
from typing import Any, NamedTuple

from kafka import KafkaConsumer, KafkaProducer
from rich.console import Console

from kernels.benchmarks.harness import machine, options, show, write
from shadowspec import demo
from shadowspec.engine.tokenizer import FolderTokenizer, load_tokenizer
from shadowspec.gate.policy import GatePolicy
from shadowspec.gc_control import gc_relaxed
from shadowspec.tap.admission import Admission
from shadowspec.tap.blocks import BlockFormer
from shadowspec.tap.endpoints import EndpointRule, Load, MatchRule
from shadowspec.tap.hashing import KeyedHash
from shadowspec.tap.joining import Joiner
from shadowspec.tap.kafka import KafkaSettings
from shadowspec.tap.kafka.consumer import KafkaTap
from shadowspec.tap.routing import Routing
from shadowspec.types import BlockResult
from shadowspec.worker.pipeline import Pipeline
from tests.kafka_server import kafka_server
from tests.kafka_topics import Topics

NUM_PARTITIONS = 6
MESSAGE_BYTES = 2_000
SETTLE_EVERY = 20  # polls: as often as a worker writes at these rates
ENDPOINT = "bench"
SECRET = b"a secret for the benchmark"


def records(count: int, tokenizer: FolderTokenizer, *, with_ids: bool) -> Iterator[tuple[bytes, bytes]]:
    """Session and message of `count` requests about the demo's own documentation."""
    text = " ".join(path.read_text(encoding="utf-8") for path in sorted(Path("docs").glob("*.md")))
    draw = random.Random(0)  # noqa: S311 - places in a text
    for number in range(count):
        length = 520 if with_ids else 1_300
        at = draw.randrange(len(text) - 2_000)
        prompt, answer = text[at : at + length], text[at + length : at + length + length // 3]
        request = {"model": "bench-model", "prompt": prompt, "max_tokens": 128, "temperature": 0.7, "top_p": 0.95}
        choice: dict[str, Any] = {"index": 0, "text": answer, "finish_reason": "length"}
        response: dict[str, Any] = {"id": f"cmpl-{number}", "model": "bench-model", "choices": [choice]}
        if with_ids:
            choice["prompt_token_ids"] = tokenizer.encode(prompt)
            choice["token_ids"] = tokenizer.encode(answer)
        record = {
            "timestamp": 1_760_000_000 + number / 100,
            "path": "/v1/completions",
            "request": request,
            "response": response,
        }
        yield f"session-{number}".encode(), json.dumps(record).encode()


def fill(bootstrap: str, topic: str, messages: Iterator[tuple[bytes, bytes]]) -> float:
    """Produce them; their mean size in bytes."""
    producer = KafkaProducer(bootstrap_servers=bootstrap, linger_ms=50, batch_size=512_000, compression_type="lz4")
    total = count = 0
    for session, value in messages:
        producer.send(topic, value=value, key=session, headers=[("x-session-id", session), ("x-endpoint", b"bench")])
        total, count = total + len(value), count + 1
    producer.flush()
    producer.close()
    return total / count


class Speed(NamedTuple):
    """Of one contestant in one round."""

    messages_per_second: float
    cpu_us_per_message: float  # of the process, all of its threads


class Stopwatch:
    """Wall clock and processor time since it was made."""

    def __init__(self) -> None:
        self._wall, self._cpu = time.perf_counter(), time.process_time()

    def speed(self, count: int) -> Speed:
        wall, cpu = time.perf_counter() - self._wall, time.process_time() - self._cpu
        return Speed(count / wall, cpu / count * 1e6)


def bare(bootstrap: str, topic: str, count: int) -> Speed:
    """A loop that polls and does nothing, with kafka-python as it comes."""
    consumer = KafkaConsumer(
        topic, bootstrap_servers=bootstrap, group_id=f"bench-{uuid.uuid4().hex}", auto_offset_reset="earliest",
        enable_auto_commit=False, max_poll_records=500,
    )  # fmt: skip
    seen, watch = 0, None
    while seen < count:
        polled = consumer.poll(timeout_ms=200)
        watch = watch or (Stopwatch() if polled else None)
        seen += sum(map(len, polled.values()))
    assert watch is not None
    speed = watch.speed(count)
    consumer.close(autocommit=False)
    return speed


def endpoint(rate: float) -> EndpointRule:
    """Whose traffic the messages are."""
    return EndpointRule(
        name=ENDPOINT, served_models=("bench-model",), match=MatchRule(endpoint=ENDPOINT), sample_rate=rate,
        loads=(Load(4),), **GatePolicy(timed_positions=1, window_s=0.0).rule_parts(),  # a window draws a few blocks
    )  # fmt: skip


def tapped(bootstrap: str, topic: str, count: int, tokenizer: FolderTokenizer, *, rate: float) -> Speed:
    """The tap, at a rate of sessions."""
    rule = endpoint(rate)
    settings = KafkaSettings(
        bootstrap_servers=(bootstrap,), topics=(topic,), group_id=f"bench-{uuid.uuid4().hex}",
        routing=Routing("header:x-endpoint", "key"),
    )  # fmt: skip
    admission = Admission([rule], {ENDPOINT: tokenizer}, KeyedHash(SECRET))
    pipeline = Pipeline(admission, BlockFormer([rule]), routing=settings.routing, joiner=Joiner(timedelta(minutes=5)))
    seen = measured = polls = 0
    watch: Stopwatch | None = None
    with KafkaTap(settings) as tap, gc_relaxed():
        while seen < count:
            for partition in tap.changes().assigned:
                pipeline.start(partition, None, {})
                tap.start(partition, None)
            polled = tap.poll(0.2)
            watch = watch or (Stopwatch() if polled else None)
            pipeline.take_all(polled, tap.topic_of)
            seen, polls = seen + len(polled), polls + 1
            while pipeline.ready:
                block = pipeline.ready.popleft()
                measured += len(block.requests)
                pipeline.finish(BlockResult(block, datetime.now(UTC), (), {}))
            if polls % SETTLE_EVERY == 0 and pipeline.outbox.batch() is not None:
                pipeline.outbox.settle()
        assert watch is not None
        speed = watch.speed(count)
    wanted = count * rate
    assert abs(measured - wanted) < 0.1 * wanted + 50, f"{measured} of {wanted:.0f} requests were measured"
    return speed


def main() -> None:
    """Fill the topics, run the rounds, print a table and write the results."""
    parser = options(__doc__, "tap.json")
    parser.add_argument("--messages", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--profile", action="store_true", help="print where the time goes, with everything measured")
    arguments = parser.parse_args()
    console, count = Console(stderr=True), arguments.messages
    fewer = count // 10  # of text only, where the tokenizer takes most of the time
    tokenizer = load_tokenizer(str(demo.TARGET))
    with kafka_server() as broker, Topics(broker.bootstrap) as topics:
        address = broker.bootstrap
        sizes = {}
        names = {True: topics.create(NUM_PARTITIONS), False: topics.create(NUM_PARTITIONS)}
        for with_ids, topic in names.items():
            console.print(f"producing messages {'with' if with_ids else 'without'} token ids")
            number = count if with_ids else fewer
            sizes[with_ids] = fill(address, topic, records(number, tokenizer, with_ids=with_ids))
        contestants: dict[str, Callable[[], Speed]] = {
            "bare poll loop": lambda: bare(address, names[True], count),
            "tap, everything measured": lambda: tapped(address, names[True], count, tokenizer, rate=1.0),
            "tap, 10% of sessions": lambda: tapped(address, names[True], count, tokenizer, rate=0.1),
            "bare poll loop, text only": lambda: bare(address, names[False], fewer),
            "tap, everything measured, text only": lambda: tapped(address, names[False], fewer, tokenizer, rate=1.0),
            "tap, 10% of sessions, text only": lambda: tapped(address, names[False], fewer, tokenizer, rate=0.1),
        }
        if arguments.profile:
            profile = cProfile.Profile()
            profile.runcall(contestants["tap, everything measured"])
            out = StringIO()
            pstats.Stats(profile, stream=out).strip_dirs().sort_stats("tottime").print_stats(30)
            print(out.getvalue())
            return
        speeds: dict[str, list[Speed]] = {name: [] for name in contestants}
        for number in range(arguments.rounds):
            for name, contestant in contestants.items():
                speeds[name].append(speed := contestant())
                console.print(
                    f"round {number + 1}: {name}: {speed.messages_per_second:.0f} messages/s, "
                    f"{speed.cpu_us_per_message:.1f} us of processor time each"
                )
    rows = []
    for name, own_speeds in speeds.items():
        beside = speeds["bare poll loop, text only" if name.endswith("text only") else "bare poll loop"]
        pairs = list(zip(own_speeds, beside, strict=True))
        row = {
            "contestant": name,
            "messages_per_second": statistics.median(mine.messages_per_second for mine in own_speeds),
            "of_bare_loop": statistics.median(a.messages_per_second / b.messages_per_second for a, b in pairs),
            "cpu_us_per_message": statistics.median(mine.cpu_us_per_message for mine in own_speeds),
            "of_bare_loop_by_cpu": statistics.median(b.cpu_us_per_message / a.cpu_us_per_message for a, b in pairs),
        }
        rows.append(row)
    show("messages", rows)
    document = {
        "messages": count,
        "rounds": arguments.rounds,
        "mean_bytes": {"with ids": round(sizes[True]), "text only": round(sizes[False])},
        "machine": machine("kafka-python"),
        "results": rows,
    }
    write(arguments.out, document)


if __name__ == "__main__":
    main()

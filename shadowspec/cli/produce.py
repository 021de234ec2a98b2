"""`shadowspec produce`: put recorded traffic on a topic."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Annotated

import typer

from shadowspec.app.progress_bar import progress_bar
from shadowspec.capture.capture_settings import kafka_settings
from shadowspec.cli.console import print_json, results
from shadowspec.cli.options import (
    ArrivalsOption,
    ConfigOption,
    FilesArgument,
    JsonOption,
    MapOption,
    MaxMessagesOption,
    chosen_map,
    chosen_trace,
    print_consequences,
)
from shadowspec.config import find_config, load_config
from shadowspec.errors import ConfigError, UsageError
from shadowspec.tap.formats import FieldMap, MessageFormat
from shadowspec.tap.kafka import KafkaSettings
from shadowspec.tap.kafka.arrivals import Arrival, Pace, arrival, batches
from shadowspec.tap.kafka.producer import TopicWriter, deliver
from shadowspec.tap.load_trace import ArrivalTimes
from shadowspec.tap.records import EPOCH
from shadowspec.tap.sources import read_records, require_file
from shadowspec.types.public_documents import PublicDocument

MAX_BATCH_MESSAGES = 2_000
MAX_BATCH_BYTES = 8 * 1024 * 1024
OWN_TIMES = "a record that holds a time keeps it, and the worker reads it; one without has that of its message"
TICK_S = 0.02  # messages that are due within it go together

TopicOption = Annotated[str, typer.Option("--topic", "-t", help="Topic to write to; it must exist.")]
BrokersOption = Annotated[
    str | None,
    typer.Option(
        "--bootstrap-servers", metavar="HOST:PORT,...", help="Brokers to use without login instead of [kafka]."
    ),
]


class ProduceDocument(PublicDocument, frozen=True, kw_only=True):
    """What `produce --json` sent."""

    topic: str
    messages: int
    messages_without_key: int
    bytes: int
    duration_s: float


def produce(
    files: FilesArgument,
    topic: TopicOption,
    config_path: ConfigOption = None,
    bootstrap_servers: BrokersOption = None,
    rate: Annotated[float | None, typer.Option("--rate", min=0.001, help="Messages per second.")] = None,
    trace_speed: Annotated[
        float | None,
        typer.Option("--trace-speed", min=0.001, help="Keep the recorded times, at this multiple of their speed."),
    ] = None,
    arrivals_path: ArrivalsOption = None,
    max_messages: MaxMessagesOption = None,
    field_map: MapOption = None,
    as_json: JsonOption = False,
) -> None:
    """Send files of mirrored traffic to a topic, for trials and load tests.

    Every line becomes one message, unchanged (also with --map and --arrivals). Its key is its session, else its user,
    else its request id; its time is that of sending. All replicas acknowledge. The command waits two minutes for a
    broker that is gone.
    """
    if rate is not None and trace_speed is not None:
        raise UsageError("--rate and --trace-speed exclude each other; give one")
    if rate is not None and arrivals_path is not None:
        raise UsageError("--rate and --arrivals exclude each other; give one")
    for file in files:
        require_file(file)
    settings = mirror_settings(config_path, bootstrap_servers, topic)
    trace = chosen_trace(arrivals_path)
    times = None if trace is None else ArrivalTimes(trace)
    arrivals = islice(_arrivals(files, chosen_map(field_map) or settings.message_format, times), max_messages)
    num_messages = num_bytes = num_without_key = 0
    with TopicWriter(settings, topic, name="shadowspec-produce") as writer, progress_bar() as bar:
        task = bar.add_task(f"producing to {topic}", total=max_messages, detail="")
        began = time.monotonic()
        due_batches = batches(
            arrivals,
            Pace(rate=rate, trace_speed=1.0 if times is not None and trace_speed is None else trace_speed),
            max_messages=MAX_BATCH_MESSAGES,
            max_bytes=MAX_BATCH_BYTES,
            tick_s=TICK_S,
        )
        for due_s, batch in due_batches:
            time.sleep(max(0.0, began + due_s - time.monotonic()))
            deliver(writer, batch)
            num_messages += len(batch)
            num_bytes += sum(len(message.value or b"") for message in batch)
            num_without_key += sum(message.key is None for message in batch)
            bar.update(task, completed=num_messages)
        seconds = time.monotonic() - began
    if times is not None:
        print_consequences((*times.trace.consequences(times.num_given), OWN_TIMES))
    if as_json:
        print_json(
            ProduceDocument(
                topic=topic,
                messages=num_messages,
                messages_without_key=num_without_key,
                bytes=num_bytes,
                duration_s=round(seconds, 3),
            )
        )
        return
    results.print(
        f"{num_messages} messages ({num_bytes / 1e6:.1f} MB) on {topic} in {seconds:.1f} s"
        + (f"; {num_without_key} without a key" if num_without_key else ""),
        highlight=False,
        markup=False,
    )


def _arrivals(files: list[str], format: FieldMap | MessageFormat, times: ArrivalTimes | None) -> Iterator[Arrival]:
    for path in files:
        for raw in read_records(path):
            arriving = arrival(raw, format)
            yield arriving if times is None else replace(arriving, time=EPOCH + times.next_offset())


def mirror_settings(config_path: Path | None, bootstrap_servers: str | None, topic: str) -> KafkaSettings:
    """The configured mirror, or the brokers that an option names."""
    if bootstrap_servers is not None:
        servers = tuple(server.strip() for server in bootstrap_servers.split(",") if server.strip())
        return kafka_settings(servers, topic)
    config = load_config(find_config(config_path))
    if config.kafka is None:
        raise ConfigError(f"{config.path}: no mirror is configured; add [kafka], or give --bootstrap-servers")
    return config.kafka

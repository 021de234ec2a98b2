"""`shadowspec tail`: put each line that is added to a log on a topic."""

from __future__ import annotations

import logging
import math
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Final

import typer

from shadowspec.capture.followed_log import POSITION_SUFFIX, FollowedLog, read_position, write_position
from shadowspec.cli.options import ConfigOption, MapOption, chosen_map
from shadowspec.cli.produce import BrokersOption, TopicOption, mirror_settings
from shadowspec.errors import ExitCode, ServiceUnavailableError
from shadowspec.tap.kafka.arrivals import arrival, without_bodies
from shadowspec.tap.kafka.producer import TopicWriter, deliver
from shadowspec.tap.sources import RawRecord
from shadowspec.types import RecordKey

log = logging.getLogger(__name__)

POLL_S: Final = 0.2  # between two looks at a log without new lines


def tail(
    file: Annotated[Path, typer.Argument(help="The log; it need not exist yet.")],
    topic: TopicOption,
    position_file: Annotated[
        Path | None,
        typer.Option("--position", metavar="FILE", help="Where the place in the log is stored. Default: LOG.position."),
    ] = None,
    config_path: ConfigOption = None,
    bootstrap_servers: BrokersOption = None,
    field_map: MapOption = None,
) -> None:
    """Follow a log of mirrored traffic and send each line to a topic, until stopped.

    Lines become messages as those of `produce`. The command begins at the log's first line, and after a restart where
    it ended. It follows rotation and truncation, and waits for brokers that go away: the log is their buffer. A line
    may be sent twice, and none is lost while its file lies uncompressed beside the log.
    """
    settings = mirror_settings(config_path, bootstrap_servers, topic)
    format = chosen_map(field_map) or settings.message_format
    position_file = position_file or file.with_name(file.name + POSITION_SUFFIX)
    followed = FollowedLog(file, read_position(position_file))
    with (
        stopping() as stop,
        TopicWriter(settings, topic, name="shadowspec-tail", lesser=without_bodies) as writer,
    ):
        num_too_long = 0
        while not stop.is_set():
            if not (lines := followed.lines()):
                stop.wait(POLL_S)
                continue
            if followed.num_too_long > num_too_long:
                num_too_long = followed.num_too_long
                log.warning("%s: %d lines so far are too long and were not sent", file, num_too_long)
            messages = (arrival(RawRecord(RecordKey(str(file), 0, 0), line), format).message for line in lines)
            try:
                deliver(writer, messages, patience_s=math.inf, is_stopping=stop.is_set)
            except ServiceUnavailableError as error:
                if error.is_retryable:
                    break  # stopped while the brokers are away
                raise
            if (position := followed.position) is not None:
                write_position(position_file, position)
    followed.close()


@contextmanager
def stopping() -> Iterator[threading.Event]:
    """An event that SIGTERM and Ctrl-C set; after Ctrl-C the command ends as interrupted."""
    stop = threading.Event()
    received: list[int] = []

    def note(number: int, _frame: object) -> None:
        received.append(number)
        stop.set()

    previous = {number: signal.signal(number, note) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield stop
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
    if signal.SIGINT in received:
        raise typer.Exit(ExitCode.INTERRUPTED)

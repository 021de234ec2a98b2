"""The process that writes copies to the mirror's topic: a gateway's or server's own interpreter has no time for it.

A thread of Python holds the interpreter's lock for up to 5 ms, and a producer needs a third of a millisecond a message:
chunks of all clients would wait.  So the outlet starts this module as a separate process, which gives way to others.
Parent and child share a socket.  The parent sends the settings and then batches; the child answers each batch with one
`Written`, and before it with any number of `Problem`.  The child ends with the parent, whatever ends that.
"""

from __future__ import annotations

import logging
import math
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Final

from shadowspec.capture.capture_settings import CaptureSettings
from shadowspec.child_processes import STOPPING, stopping_blocked
from shadowspec.errors import ConfigError, ServiceUnavailableError
from shadowspec.tap.kafka.arrivals import without_bodies
from shadowspec.tap.kafka.producer import OutgoingMessage, TopicWriter, deliver

RETRY_S: Final = 1.0  # between two attempts to reach the brokers
END_S: Final = 2.0  # for the child to end by itself, before it is killed
LAST_S: Final = 5.0  # for the batch that is being written when the parent is killed
NICENESS: Final = 10  # where there is no class for what gives way to everybody


@dataclass(frozen=True, slots=True)
class Problem:
    """Why copies wait, without a part of any."""

    text: str


@dataclass(frozen=True, slots=True)
class Written:
    """What became of a batch."""

    sent: int
    refused: int


class Sender:
    """The child as the outlet sees it.  One thread uses it.

    Raises:
        OSError: the process cannot be started.
    """

    def __init__(self, settings: CaptureSettings) -> None:
        ours, theirs = socket.socketpair()
        with ours, theirs, stopping_blocked():
            # By import, not by -m: what the child pickles must be of this module, not of `__main__`.
            command = [sys.executable, "-P", "-c", f"from {__name__} import main; main()"]
            command += [str(theirs.fileno()), str(os.getpid())]
            environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
            self._process = subprocess.Popen(  # noqa: S603
                command, pass_fds=(theirs.fileno(),), stdin=subprocess.DEVNULL, env=environment
            )
            self._connection: Connection = Connection(ours.detach())
        self._connection.send(settings)

    @property
    def pid(self) -> int:
        """The child's number."""
        return self._process.pid

    def send(self, messages: Sequence[OutgoingMessage]) -> None:
        """Hand over a batch, once the one before is written.

        Raises:
            OSError: the child is gone.
        """
        self._connection.send(messages)

    def reply(self, timeout_s: float) -> Problem | Written | None:
        """What the child says of the batch, or None where it says nothing in this time.

        Raises:
            EOFError, OSError: the child is gone.
        """
        if not self._connection.poll(timeout_s):
            return None
        reply: Problem | Written = self._connection.recv()
        return reply

    def close(self) -> None:
        """End the child, with what it is writing."""
        self._connection.close()
        try:
            self._process.wait(END_S / 2)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class _Child:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._settings: CaptureSettings = connection.recv()
        self._writer: TopicWriter | None = None

    def serve(self) -> None:
        """Write batches until the parent is gone.

        Raises:
            EOFError, OSError: it is.
        """
        while True:
            self._connection.send(self._write(self._connection.recv()))

    def _write(self, messages: Sequence[OutgoingMessage]) -> Written:
        while self._writer is None:
            self._writer = self._connected()
        try:
            deliver(self._writer, messages, patience_s=math.inf)
        except ServiceUnavailableError as error:
            self._connection.send(Problem(str(error)))
        except Exception as error:  # whatever a client wrote must not end what copies for all
            self._connection.send(Problem(f"an internal error ({type(error).__name__})"))
        else:
            return Written(sent=len(messages), refused=0)
        self._writer.close()  # with what waits in it
        self._writer = None
        return Written(sent=0, refused=len(messages))

    def _connected(self) -> TopicWriter | None:
        try:
            kafka, topic = self._settings.kafka, self._settings.topic
            return TopicWriter(kafka, topic, name="shadowspec-capture", lesser=without_bodies)
        except (ServiceUnavailableError, ConfigError) as error:
            self._connection.send(Problem(str(error)))
        time.sleep(RETRY_S)
        return None


def give_way() -> None:
    """Have what serves clients on this machine take the processor before this process, at once."""
    try:
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    except (AttributeError, OSError):  # another system, or a sandbox that refuses it
        os.nice(NICENESS)


def _end_with(parent: int) -> None:
    """End this process soon after its parent, whatever it waits for.

    Not `end_with_parent`: the batch that is being written would go with a parent that is killed.
    """
    while os.getppid() == parent:
        time.sleep(RETRY_S)
    time.sleep(LAST_S)
    os._exit(0)


def main() -> None:
    """Be the child: of the socket and of the process whose numbers are given."""
    for number in STOPPING:
        signal.signal(number, signal.SIG_IGN)  # those of a group: the parent says when the last copy is sent
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPPING)
    give_way()
    logging.disable()  # the parent logs problems
    descriptor, parent = map(int, sys.argv[1:])
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    try:
        _Child(Connection(descriptor)).serve()
    except (EOFError, OSError):
        return

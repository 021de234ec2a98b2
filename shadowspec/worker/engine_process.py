"""The engine in a process separate from the poll process, and the channel between the two.

The child builds its engines from a picklable factory, so that only it loads torch and the models, and measures blocks
one by one in the order given.  It ignores SIGINT and SIGTERM, because the parent decides what is still measured, and
dies with its parent.

The poll process's end of the channel never waits, neither to send nor to receive.  An engine that blocks its
interpreter for minutes, is stopped or dies in the middle of a message therefore does not stop the poll loop.  That is
why the channel is a socket pair with frames and not `multiprocessing.Connection`, whose calls wait for whole messages.
Both ends run this code, so that the pickles are safe to load.
"""

from __future__ import annotations

import atexit
import faulthandler
import logging
import multiprocessing
import os
import pickle
import select
import signal
import socket
import struct
import sys
import time
import traceback
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol, TypeAlias

from shadowspec.child_processes import STOPPING, end_with_parent, stopping_blocked
from shadowspec.errors import ServiceUnavailableError, ShadowSpecError
from shadowspec.types import Block, BlockResult, FingerprintedConfig

log = logging.getLogger(__name__)

FIRST_BACKOFF_S = 1.0  # before an engine is built again where no block explains why it was not; doubled each time
LONGEST_BACKOFF_S = 30.0
EXIT_GRACE_S = 10.0  # for a child that has closed its end: a driver takes seconds to let go of a device
_LENGTH: Final = struct.Struct("!Q")  # bytes of the message that follows
_RECEIVE_BYTES = 1024 * 1024
_SEND_BUFFER_BYTES = 4 * 1024 * 1024  # asked of the kernel: a block waiting its turn is there without another send


@dataclass(frozen=True, slots=True)
class Ready:
    """The engines are built; by endpoint, the configs that each measures."""

    configs: Mapping[str, tuple[FingerprintedConfig, ...]]
    device: str  # as its configs name it


@dataclass(frozen=True, slots=True)
class MeasuringFailed:
    """Measuring raised; the error's message stays behind, because it may quote prompts.  The process ends."""

    block_id: str
    error: str  # class name
    is_away: bool  # a server could not be reached: nothing of the block was measured


@dataclass(frozen=True, slots=True)
class BuildFailed:
    """The engines cannot be built; the process ends.  `exit_code` is that of the error."""

    message: str
    exit_code: int


@dataclass(frozen=True, slots=True)
class Away:
    """A server could not be reached while the engines were built; the process goes on trying."""

    message: str


@dataclass(frozen=True, slots=True)
class Died:
    """The process has ended, and nothing follows.  A negative `exit_code` is the signal that killed it."""

    exit_code: int

    def __str__(self) -> str:
        if self.exit_code < 0:
            return f"killed by {signal.Signals(-self.exit_code).name}"
        return f"exit code {self.exit_code}"


# A child's reports: its configs, a measured block, or why it ends or waits.
Event: TypeAlias = Ready | BlockResult | MeasuringFailed | BuildFailed | Away | Died


class Channel:
    """One end of a socket pair that carries messages.  The poll process's end is made with `blocks` off."""

    def __init__(self, connection: socket.socket, *, blocks: bool) -> None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER_BYTES)
        connection.setblocking(blocks)
        self._socket = connection
        self._outgoing = bytearray()
        self._incoming = bytearray()
        self.is_closed = False  # the other end has gone

    def fileno(self) -> int:
        """The descriptor that is readable when something arrived, for select."""
        return self._socket.fileno()

    def send(self, message: object) -> None:
        """Take a message; all of it is sent by now where the end blocks, else as `flush` is called."""
        payload = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
        self._outgoing += _LENGTH.pack(len(payload)) + payload
        self.flush()

    def flush(self) -> None:
        """Send as much as the channel takes now."""
        try:
            while self._outgoing and not self.is_closed:
                del self._outgoing[: self._socket.send(self._outgoing)]
        except BlockingIOError:
            return  # the other end is busy; the rest goes with a later call
        except (BrokenPipeError, ConnectionResetError):
            self.is_closed = True

    def receive(self) -> Any | None:
        """The next message that has arrived whole; None if there is none yet, or the channel has ended."""
        while not self.is_closed and self._missing_bytes() > 0:
            try:
                chunk = self._socket.recv(_RECEIVE_BYTES)
            except BlockingIOError:
                return None
            except ConnectionResetError:
                chunk = b""
            self._incoming += chunk
            self.is_closed = not chunk
        if self._missing_bytes() > 0:
            return None
        length = _LENGTH.unpack_from(self._incoming)[0]
        end = _LENGTH.size + length
        payload = bytes(self._incoming[_LENGTH.size : end])
        del self._incoming[:end]
        return pickle.loads(payload)  # noqa: S301  (written by the other end of our socket pair)

    def close(self) -> None:
        self._socket.close()
        self.is_closed = True

    def _missing_bytes(self) -> int:
        """How many more bytes the next message surely needs."""
        if len(self._incoming) < _LENGTH.size:
            return _LENGTH.size - len(self._incoming)
        return int(_LENGTH.size + _LENGTH.unpack_from(self._incoming)[0]) - len(self._incoming)


class BlockEngine(Protocol):
    """Measures a block."""

    def measure(self, block: Block) -> BlockResult: ...


class ConfiguredEngine(BlockEngine, Protocol):
    """An engine that measures blocks, with its configs."""

    @property
    def configs(self) -> tuple[FingerprintedConfig, ...]: ...


def measure_timed(engine: BlockEngine, block: Block) -> BlockResult:
    """Measure a block; the result says how long that took."""
    began = time.monotonic()
    result = engine.measure(block)
    return replace(result, seconds=time.monotonic() - began)


class EngineFactory(Protocol):
    """Builds the engine of each of its endpoints; picklable, e.g. a frozen dataclass."""

    @property
    def endpoints(self) -> Collection[str]: ...

    def __call__(self) -> Mapping[str, ConfiguredEngine]: ...


class EngineProcess:
    """Owns one child process, from `start` until its `Died` is seen or it is killed.

    The thread that calls `start` must live as long as the child is needed: on Linux the child is tied to it.
    """

    def __init__(self, factory: EngineFactory, name: str = "engine") -> None:
        self._factory, self._name = factory, name
        self._process: multiprocessing.process.BaseProcess | None = None
        self._channel: Channel | None = None
        self._closed_since: float | None = None
        self._is_over = False

    def start(self) -> None:
        """Start the child; `Ready`, `BuildFailed` or `Died` follows, and before it any number of `Away`."""
        assert self._process is None, "a process is started once"
        ours, its = socket.socketpair()
        arguments = (its, pickle.dumps(self._factory), os.getpid(), log.getEffectiveLevel())
        self._process = multiprocessing.get_context("spawn").Process(
            target=_run, args=arguments, name=self._name, daemon=True
        )
        with stopping_blocked(), its:
            self._process.start()
        # Before multiprocessing's hook, which would wait for a child that ignores its SIGTERM.
        atexit.register(self.kill)
        self._channel = Channel(ours, blocks=False)

    def fileno(self) -> int:
        """Readable when something has happened; for select.  -1 where no process runs."""
        if self._process is None or self._channel is None or self._is_over:
            return -1
        # A closed channel is always readable, so then the sentinel of the process's end is waited for.
        return int(self._process.sentinel) if self._channel.is_closed else self._channel.fileno()

    def submit(self, block: Block) -> None:
        """Give the child a block to measure after those that it has."""
        assert self._channel is not None, "the process is not started"
        self._channel.send(block)

    def poll(self) -> list[Event]:
        """The events since the last call; never waits.  `Died` comes once, and last."""
        if self._process is None or self._channel is None or self._is_over:
            return []
        # The exit code first: messages sent before the end are then surely readable.
        exit_code = self._process.exitcode
        self._channel.flush()
        events: list[Event] = []
        while (event := self._channel.receive()) is not None:
            events.append(event)
        if exit_code is not None:
            self._end()
            events.append(Died(exit_code))
        elif self._channel.is_closed:
            self._closed_since = self._closed_since or time.monotonic()
            if time.monotonic() - self._closed_since > EXIT_GRACE_S:
                self._process.kill()
        return events

    def stop(self, timeout_s: float) -> list[Event]:
        """Let the child finish its blocks, then end it, by force after `timeout_s`; returns the last events."""
        if self._channel is not None and not self._is_over:
            self._channel.send(None)
        events = self._poll_until_over(time.monotonic() + timeout_s)
        if not self._is_over:
            self.kill()
            events += self._poll_until_over(time.monotonic() + EXIT_GRACE_S)
        return events

    def kill(self) -> None:
        """End the child at once; `Died` follows when the system has let go of it."""
        if self._process is not None and not self._is_over:
            self._process.kill()

    def _poll_until_over(self, deadline: float) -> list[Event]:
        events = self.poll()
        while self._process is not None and not self._is_over and time.monotonic() < deadline:
            select.select([self], [], [], 0.1)
            events += self.poll()
        return events

    def _end(self) -> None:
        assert self._process is not None
        assert self._channel is not None
        self._is_over = True
        self._channel.close()
        self._process.join()  # it has ended: this only reaps it
        self._process.close()
        atexit.unregister(self.kill)


def _run(connection: socket.socket, factory: bytes, parent: int, log_level: int) -> None:
    """The child: build the engines, then measure until asked to stop or the parent is gone."""
    for ignored in STOPPING:
        signal.signal(ignored, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPPING)
    end_with_parent(parent)  # elsewhere than on Linux the closed channel ends it a block later
    os.set_inheritable(connection.fileno(), False)  # a helper of torch's must not hold our end open
    faulthandler.enable()
    logging.basicConfig(
        level=log_level, stream=sys.stderr, format="%(asctime)s %(levelname)s engine[%(process)d] %(name)s: %(message)s"
    )
    channel = Channel(connection, blocks=True)
    engines = _build(channel, factory)
    while engines is not None:
        block: Block | None = channel.receive()
        if block is None:
            break
        try:
            result = measure_timed(engines[block.endpoint], block)
        except Exception as error:
            log.error("measuring block %s: %s", block.block_id, _without_message(error))
            channel.send(
                MeasuringFailed(block.block_id, type(error).__name__, isinstance(error, ServiceUnavailableError))
            )
            break  # the device may be left in a state in which every block fails
        channel.send(result)


def _build(channel: Channel, factory: bytes) -> Mapping[str, ConfiguredEngine] | None:
    """The engines, announced to the parent; None where they cannot be built."""
    try:
        engines = _build_patiently(channel, pickle.loads(factory))  # noqa: S301  (our parent's)
        configs = {endpoint: engine.configs for endpoint, engine in engines.items()}
    except ShadowSpecError as error:
        channel.send(BuildFailed(str(error), error.exit_code))
        return None
    except Exception as error:
        log.exception("building the engines failed")  # no prompt has been seen yet
        channel.send(BuildFailed(f"the engines cannot be built: {type(error).__name__}", ShadowSpecError.exit_code))
        return None
    devices = sorted({config.device for group in configs.values() for config in group})
    channel.send(Ready(configs, ", ".join(devices)))
    return engines


def _build_patiently(channel: Channel, factory: EngineFactory) -> Mapping[str, ConfiguredEngine]:
    """Build the engines; while a server is away, again and again."""
    wait_s = FIRST_BACKOFF_S
    while True:
        try:
            return factory()
        except ServiceUnavailableError as error:
            if not error.is_retryable:
                raise
            channel.send(Away(str(error)))
        time.sleep(wait_s)
        wait_s = min(LONGEST_BACKOFF_S, 2.0 * wait_s)


def _without_message(error: BaseException) -> str:
    """Class of an error and where it was raised; its message may quote prompts."""
    places = traceback.extract_tb(error.__traceback__)
    return " < ".join([type(error).__name__, *(f"{p.name} ({p.filename}:{p.lineno})" for p in reversed(places))])

"""What the poll process and an engine process say to each other, and the channel that carries it.

The poll process's end never waits, neither to send nor to receive: an engine that holds its interpreter for
minutes, is stopped or dies in the middle of a message leaves the poll loop as it was.  That is why this is a
socket pair with frames of our own and not `multiprocessing.Connection`, whose calls wait for whole messages.
Both ends run this code, so that the pickles are ours.
"""

from __future__ import annotations

import pickle
import signal
import socket
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from shadowspec.types import BlockResult, FingerprintedConfig

_LENGTH: Final = struct.Struct("!Q")  # bytes of the message that follows
_RECEIVE_BYTES = 1024 * 1024
_SEND_BUFFER_BYTES = 4 * 1024 * 1024  # asked of the kernel: a block waiting its turn is there without another send


@dataclass(frozen=True, slots=True)
class Ready:
    """The engines are built; by endpoint, the configs that each measures."""

    configs: Mapping[str, tuple[FingerprintedConfig, ...]]
    device: str  # as its configs name it

    @property
    def fingerprints(self) -> tuple[FingerprintedConfig, ...]:
        """Every config once."""
        return tuple({config.fingerprint: config for group in self.configs.values() for config in group}.values())


@dataclass(frozen=True, slots=True)
class Measured:
    """A block is measured."""

    result: BlockResult


@dataclass(frozen=True, slots=True)
class Failed:
    """Measuring raised; the error's message stays behind, because it may quote prompts.  The process ends."""

    block_id: str
    error: str  # class name


@dataclass(frozen=True, slots=True)
class BuildFailed:
    """The engines cannot be built; the process ends.  `exit_code` is that of the error."""

    message: str
    exit_code: int


@dataclass(frozen=True, slots=True)
class Died:
    """The process has ended, and nothing follows.  A negative `exit_code` is the signal that killed it."""

    exit_code: int

    def __str__(self) -> str:
        if self.exit_code < 0:
            return f"killed by {signal.Signals(-self.exit_code).name}"
        return f"exit code {self.exit_code}"


Event: TypeAlias = Ready | Measured | Failed | BuildFailed | Died


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
        """Send what can be sent now."""
        try:
            while self._outgoing and not self.is_closed:
                del self._outgoing[: self._socket.send(self._outgoing)]
        except BlockingIOError:
            return  # the other end is busy; the rest goes with a later call
        except (BrokenPipeError, ConnectionResetError):
            self.is_closed = True

    def receive(self) -> Any | None:
        """The next message that has arrived whole; None if there is none yet, or none any more."""
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
        return pickle.loads(payload)  # noqa: S301  (written by the other end of our own socket pair)

    def close(self) -> None:
        self._socket.close()
        self.is_closed = True

    def _missing_bytes(self) -> int:
        """How many more bytes the next message surely needs."""
        if len(self._incoming) < _LENGTH.size:
            return _LENGTH.size - len(self._incoming)
        return int(_LENGTH.size + _LENGTH.unpack_from(self._incoming)[0]) - len(self._incoming)

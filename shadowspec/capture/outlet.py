"""The outlet: copies of calls wait in memory, within a bound, and a separate process writes them to the topic.

Invariants:
- Nothing that an adapter calls waits for the brokers, the thread, the process or the disk, or raises.  A copy for which
  there is no room is dropped and counted.
- All copies together hold at most `max_waiting_bytes`, and as much again as the batch that is being written.
- Thread and process begin with the first copy and are retried for ever: brokers that are away at the start or later, a
  topic that is missing, and a process that is killed, cost copies and nothing else.
- No log line holds a part of a copy.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from queue import Empty, SimpleQueue
from typing import Final, Self

from shadowspec.capture.capture_settings import CaptureSettings, capture_settings
from shadowspec.capture.sender import END_S, RETRY_S, Sender, Written
from shadowspec.tap.kafka.producer import OutgoingMessage

log = logging.getLogger(__name__)

CALL_BYTES: Final = 2_048  # that a copy takes beside its bodies; bounds the number of waiting copies
CHUNK_BYTES: Final = 64  # that a chunk takes beside its bytes
LINGER_S: Final = 0.1  # copies that come within it are written together
MAX_BATCH_BYTES: Final = 4 * 1024 * 1024
REPORT_S: Final = 60.0  # between two lines about the counts
CLOSE_TIMEOUT_S: Final = 5.0
CLOSING_S: Final = 0.05  # between two looks at the time while it closes


@dataclass(slots=True)
class CaptureCounts:
    """Copies since the start; a call is in exactly one of the last four, or still goes on or waits."""

    sent: int = 0
    dropped_full: int = 0  # no room
    dropped_refused: int = 0  # the topic is gone, or takes no such message or nothing from this client
    dropped_unreadable: int = 0  # no message could be made of it
    dropped_at_end: int = 0  # the program ended first

    @property
    def dropped(self) -> int:
        return self.dropped_full + self.dropped_refused + self.dropped_unreadable + self.dropped_at_end


@dataclass(frozen=True, slots=True)
class _Waiting:
    num_bytes: int
    make: Callable[[], OutgoingMessage]


class Outlet:
    """Room for copies, and the thread that hands them to the sender.  Any thread may call it."""

    def __init__(self, settings: CaptureSettings, close_timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        self.settings = settings
        self.close_timeout_s = close_timeout_s
        self.counts = CaptureCounts()
        self._held_bytes = 0
        self._lock = threading.Lock()
        self._waiting: SimpleQueue[_Waiting] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._closing = threading.Event()
        self._gives_up_at = 0.0  # once it is closing
        self._reported = (0.0, CaptureCounts())
        self._last_problem = ""

    @classmethod
    def from_environment(cls) -> Self:
        """
        Raises:
            ConfigError: a variable is missing or wrong.
        """
        return cls(capture_settings(os.environ))

    @property
    def held_bytes(self) -> int:
        """What all copies hold now."""
        return self._held_bytes

    def take_room(self, num_bytes: int) -> bool:
        """Whether there is room for so many more bytes; then they are taken until `give_room`."""
        with self._lock:
            if self._held_bytes + num_bytes > self.settings.max_waiting_bytes:
                return False
            self._held_bytes += num_bytes
            return True

    def give_room(self, num_bytes: int) -> None:
        """Give bytes back that `take_room` took."""
        with self._lock:
            self._held_bytes -= num_bytes

    def count_dropped(self) -> None:
        """Count a copy for which there was no room."""
        with self._lock:
            self.counts.dropped_full += 1
        self._begin()

    def put(self, num_bytes: int, make: Callable[[], OutgoingMessage]) -> None:
        """Hand over a copy whose room was taken; the thread makes its message."""
        self._waiting.put(_Waiting(num_bytes, make))
        self._begin()

    def offer(self, num_bytes: int, make: Callable[[], OutgoingMessage]) -> None:
        """Hand over a finished copy, or count it as dropped where there is no room."""
        if self.take_room(num_bytes + CALL_BYTES):
            self.put(num_bytes + CALL_BYTES, make)
        else:
            self.count_dropped()

    def close(self) -> None:
        """Send what waits, for `close_timeout_s` at most; further copies begin a new thread."""
        with self._lock:
            thread = self._thread
        if thread is not None:
            self._gives_up_at = time.monotonic() + self.close_timeout_s
            self._closing.set()
            thread.join(self.close_timeout_s + END_S)

    def _begin(self) -> None:
        if self._thread is not None:
            return
        with self._lock:
            if self._thread is None:
                self._closing.clear()
                self._thread = threading.Thread(target=self._run, name="shadowspec-capture", daemon=True)
                self._thread.start()
                atexit.register(self.close)

    def _run(self) -> None:
        sender: Sender | None = None
        batch: list[_Waiting] = []
        try:
            while batch := self._next_batch():
                messages = self._made(batch)
                while True:
                    sender = sender or self._started()
                    if sender is not None and self._is_written(sender, messages):
                        break
                    if self._closing.is_set():
                        return
                    if sender is not None:
                        sender.close()
                        sender = None
                    self._closing.wait(RETRY_S)
                self._release(batch)
                batch = []
        except Exception as error:
            log.error("the capture stops after an internal error (%s)", type(error).__name__)
        finally:
            while not self._waiting.empty():
                batch.append(self._waiting.get())
            with self._lock:
                self.counts.dropped_at_end += len(batch)
                self._thread = None
            self._release(batch)
            self._report(is_last=True)
            if sender is not None:
                sender.close()  # last: a busy machine may take seconds for it, as the process gives way to everybody

    def _next_batch(self) -> list[_Waiting]:
        """Copies that go together, at least one; none where the outlet closes and nothing waits."""
        while True:
            try:
                batch = [self._waiting.get(timeout=RETRY_S if not self._closing.is_set() else 0)]
            except Empty:
                self._report()
                if self._closing.is_set():
                    return []
                continue
            self._closing.wait(LINGER_S)
            num_bytes = batch[0].num_bytes
            while num_bytes < MAX_BATCH_BYTES and not self._waiting.empty():
                batch.append(self._waiting.get())
                num_bytes += batch[-1].num_bytes
            return batch

    def _made(self, batch: list[_Waiting]) -> list[OutgoingMessage]:
        messages = []
        for waiting in batch:
            try:
                messages.append(waiting.make())
            except Exception:  # whatever a client wrote
                self.counts.dropped_unreadable += 1
            time.sleep(0)  # the threads that serve clients go first
        return messages

    def _started(self) -> Sender | None:
        try:
            return Sender(self.settings)
        except OSError as error:
            self._warn(f"the process that writes copies cannot be started ({type(error).__name__})")
            return None

    def _is_written(self, sender: Sender, messages: list[OutgoingMessage]) -> bool:
        """Have a batch written and count it; False where the sender is gone, or the outlet closes and time is up."""
        try:
            sender.send(messages)
            while not isinstance(reply := sender.reply(CLOSING_S if self._closing.is_set() else RETRY_S), Written):
                if reply is not None:
                    self._warn(reply.text)
                self._report()
                if self._closing.is_set() and time.monotonic() >= self._gives_up_at:
                    return False
        except (EOFError, OSError):
            self._warn("the process that writes copies has ended, and another one begins")
            return False
        self.counts.sent += reply.sent
        if not reply.refused:
            self._last_problem = ""
        elif self._closing.wait(RETRY_S):
            self.counts.dropped_at_end += reply.refused
        else:
            self.counts.dropped_refused += reply.refused
        self._report()
        return True

    def _release(self, batch: list[_Waiting]) -> None:
        self.give_room(sum(waiting.num_bytes for waiting in batch))

    def _warn(self, problem: str) -> None:
        """Log a problem once, until something was sent again."""
        if problem != self._last_problem:
            self._last_problem = problem
            log.warning("%s; copies wait, and are dropped where there is no room; no answer is delayed", problem)

    def _report(self, *, is_last: bool = False) -> None:
        """A line about the counts, where they have changed: a warning where copies were dropped since the last one."""
        at, before = self._reported
        now = time.monotonic()
        counts = CaptureCounts(**asdict(self.counts))
        if counts == before or not (is_last or now - at >= REPORT_S):
            return
        self._reported = (now, counts)
        level = logging.WARNING if counts.dropped > before.dropped else logging.INFO
        words = "sent %d copies to %s, dropped %d (no room %d, refused %d, unreadable %d, at the end %d), %d bytes wait"
        log.log(
            level,
            words,
            counts.sent,
            self.settings.topic,
            counts.dropped,
            counts.dropped_full,
            counts.dropped_refused,
            counts.dropped_unreadable,
            counts.dropped_at_end,
            self._held_bytes,
        )

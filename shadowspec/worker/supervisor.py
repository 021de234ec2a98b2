"""Keeps the engines running: a bounded queue of blocks, one child process per device, and the recovery from failures.

`step` is called from the poll loop and never waits.  A child that dies or stalls at a block is replaced and the block
fails (see `recovery`).  A child that dies or stalls while it builds, dies idle, or finds that a server is away, is
replaced after a while, and the block is measured then, because no arm has run.  Work in hand when the worker must end
is no failure either: it is not stored, and is delivered again.
"""

from __future__ import annotations

import logging
import select
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Self

from shadowspec.errors import ModelError, ServiceUnavailableError
from shadowspec.types import Block, BlockResult, FingerprintedConfig, RecordKey
from shadowspec.types.settings import WorkerSettings
from shadowspec.worker.engine_process import (
    BuildFailed,
    Died,
    EngineFactory,
    EngineProcess,
    Event,
    MeasuringFailed,
    Ready,
)
from shadowspec.worker.recovery import Attempts, BlockOutcome, Case, MeasuredPrompts

if TYPE_CHECKING:
    from shadowspec.store import Store

log = logging.getLogger(__name__)

SENT_AHEAD = 2  # blocks in a child's hands: the next begins without waiting for the poll loop
FIRST_BACKOFF_S = 1.0  # doubles with every death that no block explains, up to the longest
LONGEST_BACKOFF_S = 30.0
SERVER_AWAY = "server_away"  # why a child ended that could not begin its block
CLOSE_TIMEOUT_S = 5.0  # for an idle child to leave by itself


@dataclass(slots=True)
class _Slot:
    """One device: its child, if one runs, and its work.  `case` is the block that it is recovering."""

    factory: EngineFactory
    name: str
    process: EngineProcess | None = None
    is_ready: bool = False
    has_been_ready: bool = False
    configs: Mapping[str, tuple[FingerprintedConfig, ...]] = field(default_factory=dict)  # when last ready
    sent: deque[Case] = field(default_factory=deque)  # in the child's hands, in the order in which they are measured
    since: float = 0.0  # when the first of them began; before the child is ready, when it was started
    case: Case | None = None
    blame: str | None = None  # why the child is about to end, where we know
    restart_at: float = 0.0
    num_unexplained_deaths: int = 0  # in a row


class Supervisor:
    """Measures blocks on one or several engines.  Owns their processes from `start` to `close`."""

    def __init__(
        self,
        factories: Sequence[EngineFactory],
        store: Store,
        settings: WorkerSettings,
        on_restart: Callable[[str], None] = lambda _: None,
    ) -> None:
        """
        Args:
            factories: one for each child process; each runs on a separate device.
            settings: a child that is not built after `build_timeout_s` is killed; at its first start that is an error.
                So is one that gives no result of a block for `block_timeout_s`.  A request is poisoned after
                `max_attempts` failures of its single tries.
            on_restart: called with a short reason whenever a child has ended and another will be started.
        """
        self._slots = [_Slot(factory, f"engine-{index}") for index, factory in enumerate(factories)]
        self._attempts = Attempts(store)
        self._settings, self._on_restart = settings, on_restart
        self._queue: deque[Case] = deque()
        self._outcomes: list[BlockOutcome] = []
        self._measured = MeasuredPrompts()
        self._poisoned: dict[RecordKey, str] = {}  # grows by requests that each cost several restarts: slowly

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def is_ready(self) -> bool:
        """Some engine is built and can measure."""
        return any(slot.is_ready for slot in self._slots)

    @property
    def is_full(self) -> bool:
        """No block is taken now."""
        return len(self._queue) >= self._settings.max_queued_blocks

    @property
    def is_idle(self) -> bool:
        """Every block that was taken has been given back."""
        return self.in_flight == 0

    @property
    def num_queued(self) -> int:
        """Blocks that wait."""
        return len(self._queue)

    @property
    def in_flight(self) -> int:
        """Blocks that were taken and not yet given back, the waiting ones included."""
        in_hand = sum(max(len(slot.sent), slot.case is not None) for slot in self._slots)
        return len(self._queue) + in_hand + len(self._outcomes)

    @property
    def configs_by_endpoint(self) -> dict[str, tuple[FingerprintedConfig, ...]]:
        """The configs that each endpoint is measured with, as last announced; empty until an engine is built."""
        return {endpoint: config for slot in self._slots for endpoint, config in slot.configs.items()}

    def start(self) -> None:
        """Start the children; the calling thread must live as long as they are needed."""
        for slot in self._slots:
            self._start(slot)

    def offer(self, block: Block) -> bool:
        """Queue a block; False if the queue is full."""
        if self.is_full:
            return False
        self._queue.append(Case(block))
        return True

    def step(self) -> list[BlockOutcome]:
        """Handle the events of the children, replace those that ended, give them work; the blocks finished meanwhile.

        Raises:
            ShadowSpecError: engines cannot be built at their first start, or not in time, or attempts cannot be
                written down.
        """
        for slot in self._slots:
            for event in slot.process.poll() if slot.process is not None else ():
                self._handle(slot, event)
            self._watch(slot)
        for depth in range(1, SENT_AHEAD + 1):  # every engine has a block before any has two
            for slot in self._slots:
                self._give_work(slot, depth)
        outcomes, self._outcomes = self._outcomes, []
        return outcomes

    def wait(self, timeout_s: float) -> None:
        """Sleep until a child has something to say, at most so long."""
        running = [slot.process for slot in self._slots if slot.process is not None]
        select.select([process for process in running if process.fileno() >= 0], [], [], timeout_s)

    def drain(self, timeout_s: float) -> list[BlockOutcome]:
        """Measure all blocks in hand; those not finished in time are left (see `is_idle`)."""
        deadline = time.monotonic() + timeout_s
        outcomes = self.step()
        while not self.is_idle and time.monotonic() < deadline:
            self.wait(0.1)
            outcomes += self.step()
        return outcomes

    def close(self) -> None:
        """End the children, at once where they are measuring; their blocks in hand are not measured."""
        self._attempts.close()
        for slot in self._slots:
            if slot.process is not None:
                slot.process.stop(0.0 if slot.sent else CLOSE_TIMEOUT_S)
                slot.process, slot.is_ready = None, False

    def _start(self, slot: _Slot) -> None:
        slot.process, slot.since = EngineProcess(slot.factory, slot.name), time.monotonic()
        slot.process.start()

    def _handle(self, slot: _Slot, event: Event) -> None:
        match event:
            case Ready():
                slot.is_ready = slot.has_been_ready = True
                slot.configs = event.configs
            case BlockResult():
                case, now = slot.sent.popleft(), time.monotonic()
                seconds, slot.since = now - slot.since, now
                slot.num_unexplained_deaths = 0
                self._measured.remember(event)
                if case.attempt:
                    self._attempts.clear(case.clear_suspect())
                else:
                    self._outcomes.append(BlockOutcome(replace(event, block=case.block), {}, seconds))
            case MeasuringFailed():
                slot.blame = SERVER_AWAY if event.is_away else "engine_failed"
            case BuildFailed(message, exit_code):
                if not slot.has_been_ready:
                    error = ModelError(message)
                    error.exit_code = exit_code
                    raise error
                log.error("%s cannot be built: %s", slot.name, message)
                slot.blame = "build_failed"
            case Died():
                self._replace(slot, event)

    def _watch(self, slot: _Slot) -> None:
        """Kill a child that has been at its build or at one block for too long; start one whose time has come."""
        now = time.monotonic()
        if slot.process is None:
            if now >= slot.restart_at:
                self._start(slot)
        elif not slot.is_ready and slot.blame is None and now - slot.since > self._settings.build_timeout_s:
            limit = f"{self._settings.build_timeout_s:g} s ([worker] build_timeout_s)"
            message = f"{slot.name} was not built within {limit}"
            slot.process.kill()
            if not slot.has_been_ready:
                raise ServiceUnavailableError(
                    f"{message}: its device or the disk with the models does not answer, or is slower than that"
                )
            log.error("%s", message)
            slot.blame = "build_stalled"
        elif slot.sent and slot.blame is None and now - slot.since > self._settings.block_timeout_s:
            slot.blame = "engine_stalled"
            slot.process.kill()

    def _replace(self, slot: _Slot, death: Died) -> None:
        """A child has ended: blame the block that it was at, if any, take back the others, and plan its successor."""
        reason = slot.blame or "engine_died"
        log.error("%s ended (%s, %s)%s", slot.name, reason, death, "" if slot.sent else " while no block was measured")
        slot.process, slot.is_ready, slot.blame = None, False, None
        slot.restart_at = time.monotonic()
        first = slot.sent.popleft() if slot.sent and reason != SERVER_AWAY else None
        self._queue.extendleft(case for case in reversed(slot.sent) if case is not slot.case)
        slot.sent.clear()
        if first is not None:
            self._blame(slot, first, reason)
        else:
            slot.restart_at += min(LONGEST_BACKOFF_S, FIRST_BACKOFF_S * 2.0**slot.num_unexplained_deaths)
            slot.num_unexplained_deaths += 1
        self._on_restart(reason)

    def _blame(self, slot: _Slot, case: Case, reason: str) -> None:
        """The engine failed at the block that it was sent: a suspect by itself, or all of it."""
        slot.case = case
        if not case.attempt:
            case.suspect(self._measured.suspects(case.block), reason)
        elif case.attempt >= self._settings.max_attempts:
            self._poison(case, reason)

    def _give_work(self, slot: _Slot, depth: int) -> None:
        if not slot.is_ready or slot.blame is not None or len(slot.sent) >= depth:
            return
        if slot.case is not None:
            if not slot.sent:
                self._recover(slot, slot.case)
        elif self._queue:
            case = self._queue.popleft()
            self._send(slot, case, self._measured.without(case.block, self._poisoned))

    def _recover(self, slot: _Slot, case: Case) -> None:
        """The next step of a recovery: a suspect by itself, or, when all were tried, the block's end."""
        while case.suspects:
            suspect = case.suspects[0]
            attempt = self._attempts.number(suspect.key)
            if attempt is None:
                return  # it is being written down
            if attempt <= self._settings.max_attempts:
                self._send(slot, case, self._measured.trial(case.block, suspect), attempt)
                return
            self._poison(case, case.reason)  # an earlier worker has tried it often enough
        slot.case = None
        self._outcomes.append(case.fail(slot.configs[case.block.endpoint]))

    def _poison(self, case: Case, reason: str) -> None:
        key = case.poison_suspect(reason)
        log.error("%s is poisoned: %s", key, reason)
        self._poisoned[key] = reason

    def _send(self, slot: _Slot, case: Case, block: Block, attempt: int = 0) -> None:
        """Have the child measure this block for a case: only its suspect at this attempt, or all of it (0)."""
        assert slot.process is not None
        if not slot.sent:
            slot.since = time.monotonic()
        case.attempt = attempt
        slot.sent.append(case)
        slot.process.submit(block)

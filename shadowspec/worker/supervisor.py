"""Keeps the engines running: one child process for each device or set of servers, and the recovery from failures.

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
from dataclasses import replace
from typing import TYPE_CHECKING, Self

from shadowspec.errors import ModelError, ServiceUnavailableError, ShadowSpecError
from shadowspec.types import Block, BlockResult, FingerprintedConfig, RecordKey
from shadowspec.types.settings import WorkerSettings
from shadowspec.worker.engine_groups import EngineGroups, Slot
from shadowspec.worker.engine_process import (
    FIRST_BACKOFF_S,
    LONGEST_BACKOFF_S,
    Away,
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
SERVER_AWAY = "server_away"  # why a child ended that could not begin its block
CLOSE_TIMEOUT_S = 5.0  # for an idle child to leave by itself


class Supervisor:
    """Measures blocks on one or several engines.  Owns their processes from `start` to `close`."""

    def __init__(
        self,
        factories: Sequence[EngineFactory],
        store: Store,
        settings: WorkerSettings,
        on_restart: Callable[[str], None] = lambda _: None,
        new_process: Callable[[EngineFactory, str], EngineProcess] = EngineProcess,
    ) -> None:
        """
        Args:
            factories: one for each child process; two of them measure the same endpoints, or none that both do.
            settings: each group of them queues `max_queued_blocks`.  A child that is not built after `build_timeout_s`
                is killed, and one that gives no result of a block for `block_timeout_s`.  A request is poisoned after
                `max_attempts` failures of its single tries.
            on_restart: called with a short reason whenever a child has ended and another will be started.
            new_process: makes the process of a factory and a name, not started.
        """
        self.groups = EngineGroups(factories)
        self._slots = self.groups.slots
        self._attempts = Attempts(store)
        self._settings, self._on_restart, self._new_process = settings, on_restart, new_process
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
    def is_idle(self) -> bool:
        """Every block that was taken has been given back."""
        return self.in_flight == 0

    @property
    def is_done(self) -> bool:
        """No block is left, but of endpoints that wait."""
        return not self._outcomes and self.groups.num_measurable == 0

    @property
    def in_flight(self) -> int:
        """Blocks that were taken and not yet given back, the waiting ones included."""
        return self.groups.num_blocks + len(self._outcomes)

    @property
    def configs_by_endpoint(self) -> dict[str, tuple[FingerprintedConfig, ...]]:
        """The configs that each endpoint is measured with, as last announced; empty until an engine is built."""
        return {endpoint: config for slot in self._slots for endpoint, config in slot.configs.items()}

    def start(self) -> None:
        """Start the children; the calling thread must live as long as they are needed."""
        for slot in self._slots:
            self._start(slot)

    def offer(self, block: Block) -> bool:
        """Queue a block; False if the queue of its endpoint is full."""
        queue = self.groups.queue_of(block.endpoint)
        if len(queue) >= self._settings.max_queued_blocks:
            return False
        queue.append(Case(block))
        return True

    def take_from(self, ready: deque[Block]) -> set[str]:
        """Queue blocks in their order and leave those whose queue is full; the endpoints of these."""
        behind: set[str] = set()
        for _ in range(len(ready)):
            block = ready.popleft()
            if block.endpoint in behind or not self.offer(block):
                behind.add(block.endpoint)
                ready.append(block)
        return behind

    def withdraw(self, waits_s: Mapping[str, float]) -> list[Block]:
        """Take back stranded blocks that were taken longer than `waits_s` of their endpoint ago, in seconds.

        One at which an engine failed is not taken back: it ends as a failed one.
        """
        now, withdrawn = time.monotonic(), list[Block]()

        def is_over(case: Case) -> bool:
            return now - case.since > waits_s[case.block.endpoint]

        for group in self.groups.stranded:
            for case in [case for case in group.queue if is_over(case)]:
                group.queue.remove(case)
                withdrawn.append(case.block)
            for slot in group.slots:
                if slot.case is not None and not slot.sent and is_over(slot.case):
                    self._fail(slot, slot.case)
        return withdrawn

    def step(self) -> list[BlockOutcome]:
        """Handle the events of the children, replace those that ended, give them work; the blocks finished meanwhile.

        Raises:
            ShadowSpecError: no engine can be built at its first start, or not in time, and no server is only away; or
                attempts cannot be written down.
        """
        for slot in self._slots:
            for event in slot.process.poll() if slot.process is not None else ():
                self._handle(slot, event)
            self._watch(slot)
        for depth in range(1, SENT_AHEAD + 1):  # every engine of a group has a block before any has two
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
        """End the children, at once where they are at work; their blocks in hand are not measured."""
        self._attempts.close()
        for slot in self._slots:
            if slot.process is not None:
                slot.process.stop(0.0 if slot.sent or not slot.is_ready else CLOSE_TIMEOUT_S)
                slot.process, slot.is_ready = None, False

    def _start(self, slot: Slot) -> None:
        slot.process, slot.since = self._new_process(slot.factory, slot.name), time.monotonic()
        slot.process.start()

    def _handle(self, slot: Slot, event: Event) -> None:
        match event:
            case Ready():
                if slot.is_waiting:
                    log.warning("%s is built again", slot)
                slot.is_ready = slot.has_been_ready = True
                slot.is_waiting, slot.refusal, slot.configs = False, None, event.configs
            case BlockResult():
                case, now = slot.sent.popleft(), time.monotonic()
                seconds, slot.since = now - slot.since, now
                slot.num_unexplained_deaths = 0
                slot.is_waiting = all(run.failure is not None for run in event.runs)
                self._measured.remember(event)
                if case.attempt:
                    self._attempts.clear(case.clear_suspect())
                else:
                    self._outcomes.append(BlockOutcome(replace(event, block=case.block), {}, seconds))
            case MeasuringFailed():
                slot.blame = SERVER_AWAY if event.is_away else "engine_failed"
            case Away(message):
                log.log(_level(slot), "%s: %s; trying again", slot, message)
                slot.is_waiting, slot.refusal, slot.since = True, None, time.monotonic()
            case BuildFailed(message, exit_code):
                error = ModelError(message)
                error.exit_code = exit_code
                slot.blame = "build_failed"
                self._refuse(slot, error)
            case Died():
                self._replace(slot, event)

    def _watch(self, slot: Slot) -> None:
        """Kill a child that has been at its build or at one block for too long; start one whose time has come."""
        now = time.monotonic()
        if slot.process is None:
            if now >= slot.restart_at:
                self._start(slot)
        elif not slot.is_ready and slot.blame is None and now - slot.since > self._settings.build_timeout_s:
            slot.process.kill()
            slot.blame = "build_stalled"
            limit = f"{self._settings.build_timeout_s:g} s ([worker] build_timeout_s)"
            error = f"{slot.name} was not built within {limit}: its device or the disk with the models does not answer"
            self._refuse(slot, ServiceUnavailableError(f"{error}, or is slower than that"))
        elif slot.sent and slot.blame is None and now - slot.since > self._settings.block_timeout_s:
            slot.blame = "engine_stalled"
            slot.process.kill()

    def _refuse(self, slot: Slot, error: ShadowSpecError) -> None:
        """A child cannot be built as it is configured: the end, unless another one has been, or may yet be."""
        if not slot.has_been_ready:
            slot.refusal = error
            if all(other.refusal is not None for other in self._slots):
                raise error
        log.log(_level(slot), "%s cannot be built: %s; trying again", slot, error)

    def _replace(self, slot: Slot, death: Died) -> None:
        """A child has ended: blame the block that it was at, if any, take back the others, and plan its successor."""
        reason = slot.blame or "engine_died"
        idle = "" if slot.sent else " while no block was measured"
        log.log(_level(slot), "%s ended (%s, %s)%s", slot, reason, death, idle)
        slot.is_waiting = reason == SERVER_AWAY or not slot.is_ready
        slot.process, slot.is_ready, slot.blame = None, False, None
        slot.restart_at = time.monotonic()
        first = slot.sent.popleft() if slot.sent and reason != SERVER_AWAY else None
        slot.queue.extendleft(case for case in reversed(slot.sent) if case is not slot.case)
        slot.sent.clear()
        if first is not None:
            self._blame(slot, first, reason)
        else:
            slot.restart_at += min(LONGEST_BACKOFF_S, FIRST_BACKOFF_S * 2.0**slot.num_unexplained_deaths)
            slot.num_unexplained_deaths += 1
        self._on_restart(reason)

    def _blame(self, slot: Slot, case: Case, reason: str) -> None:
        """The engine failed at the block that it was sent: a suspect by itself, or all of it."""
        slot.case = case
        if not case.attempt:
            case.suspect(self._measured.suspects(case.block), reason)
        elif case.attempt >= self._settings.max_attempts:
            self._poison(case, reason)

    def _give_work(self, slot: Slot, depth: int) -> None:
        if not slot.is_ready or slot.blame is not None or len(slot.sent) >= depth:
            return
        if slot.case is not None:
            if not slot.sent:
                self._recover(slot, slot.case)
        elif slot.queue:
            case = slot.queue.popleft()
            self._send(slot, case, self._measured.without(case.block, self._poisoned))

    def _recover(self, slot: Slot, case: Case) -> None:
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
        self._fail(slot, case)

    def _fail(self, slot: Slot, case: Case) -> None:
        slot.case = None
        self._outcomes.append(case.fail(slot.configs[case.block.endpoint]))

    def _poison(self, case: Case, reason: str) -> None:
        key = case.poison_suspect(reason)
        log.error("%s is poisoned: %s", key, reason)
        self._poisoned[key] = reason

    def _send(self, slot: Slot, case: Case, block: Block, attempt: int = 0) -> None:
        """Have the child measure this block for a case: only its suspect at this attempt, or all of it (0)."""
        assert slot.process is not None
        if not slot.sent:
            slot.since = time.monotonic()
        case.attempt = attempt
        slot.sent.append(case)
        slot.process.submit(block)


def _level(slot: Slot) -> int:
    """Of messages on a child that cannot measure: a long wait is reported once."""
    return logging.DEBUG if slot.is_waiting else logging.ERROR

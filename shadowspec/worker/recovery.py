"""A block at which an engine may die: which request is suspected, which is poisoned, and which rows are stored.

A block at which the engine died, stalled or raised is not measured again: a successful second measurement would hide
the failure of the first.  The failing arm is unknown, so each of its requests fails in every config.  For the blocks to
come, recovery looks for the cause: each request of the block, fillers that are not known to be good included, is tried
singly, beside copies of prompts that were measured well.  A request at which the engine fails too often is poisoned.

The number of single tries of a request is stored before each try, outside the process.  A restarted worker therefore
does not count from zero again for a request that kills its engine.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from msgspec import structs

from shadowspec.errors import ServiceUnavailableError, ShadowSpecError
from shadowspec.tap.blocks import REMEMBERED_PROMPTS
from shadowspec.types import Block, BlockResult, FingerprintedConfig, RecordKey, Run, ShadowPrompt

if TYPE_CHECKING:
    from shadowspec.store import Store


@dataclass(frozen=True, slots=True)
class BlockOutcome:
    """A finished block.

    `failure` is why the engine failed at it (None: it did not): then all its runs are failed ones, and `poisoned` are
    the requests that did it, by reason code.  `seconds` is the wall time of its measurement, 0 if it failed.
    """

    result: BlockResult
    poisoned: Mapping[RecordKey, str]
    seconds: float
    failure: str | None = None


@dataclass(slots=True)
class Case:
    """The state of one block.  `suspects`, yet to be tried singly, is None until the engine failed at it."""

    block: Block
    suspects: deque[ShadowPrompt] | None = None
    attempt: int = 0  # the number of the first suspect's trial that is measured now; 0: the block is
    poisoned: dict[RecordKey, str] = field(default_factory=dict)
    reason: str = "engine_died"  # of the failure at the block
    since: float = field(default_factory=time.monotonic)  # when it was taken

    def suspect(self, prompts: Iterable[ShadowPrompt], reason: str) -> None:
        """The engine failed at the block: each of these is to be tried."""
        self.reason = reason
        self.suspects = deque({prompt.key: prompt for prompt in prompts}.values())

    def clear_suspect(self) -> RecordKey:
        """The request that was tried did no harm; its key."""
        assert self.suspects
        return self.suspects.popleft().key

    def poison_suspect(self, reason: str) -> RecordKey:
        """The request that was tried has failed too often; its key."""
        assert self.suspects
        key = self.suspects.popleft().key
        self.poisoned[key] = reason
        return key

    def fail(self, configs: Sequence[FingerprintedConfig]) -> BlockOutcome:
        """The end of a block at which the engine failed: a failed run of every config for each request."""
        runs = tuple(
            Run(prompt.key, config.fingerprint, self.block.block_id, failure=self.poisoned.get(prompt.key, self.reason))
            for config in configs
            for prompt in self.block.requests
        )
        result = BlockResult(self.block, datetime.now(UTC), runs, {})
        return BlockOutcome(result, dict(self.poisoned), 0.0, self.reason)


class MeasuredPrompts:
    """Prompts that were measured well lately, by endpoint and slice: they fill untimed places."""

    def __init__(self) -> None:
        self._prompts: dict[tuple[str, str], deque[ShadowPrompt]] = {}

    def remember(self, result: BlockResult) -> None:
        """Keep the prompts that a measurement found nothing wrong with."""
        failed = {run.key for run in result.runs if run.failure is not None}
        place = (result.block.endpoint, result.block.slice_key)
        kept = self._prompts.setdefault(place, deque(maxlen=REMEMBERED_PROMPTS))
        kept.extend(prompt for prompt in result.block.requests if prompt.key not in failed)

    def without(self, block: Block, poisoned: Mapping[RecordKey, str]) -> Block:
        """The block with other fillers in the places of poisoned ones, so that the load is true."""
        fillers = [prompt for prompt in block.fillers if prompt.key not in poisoned]
        missing = len(block.fillers) - len(fillers)
        fillers += _repeat(self._others(block) or block.requests, missing)
        return structs.replace(block, fillers=tuple(fillers))

    def suspects(self, block: Block) -> list[ShadowPrompt]:
        """Whom to try once the engine has failed at the block."""
        good = {prompt.key for prompt in self._prompts.get((block.endpoint, block.slice_key), ())}
        return [*block.requests, *(prompt for prompt in block.fillers if prompt.key not in good)]

    def trial(self, block: Block, suspect: ShadowPrompt) -> Block:
        """A block of which only the suspect is new; smaller than the load where nothing was measured well yet."""
        fillers = _repeat(self._others(block), block.concurrency - 1)
        return structs.replace(block, requests=(suspect,), fillers=tuple(fillers))

    def _others(self, block: Block) -> Sequence[ShadowPrompt]:
        """Good prompts outside the block: of its slice, else of its endpoint."""
        timed_keys = {prompt.key for prompt in block.requests}
        place = (block.endpoint, block.slice_key)
        elsewhere = [kept for (endpoint, _), kept in self._prompts.items() if endpoint == block.endpoint]
        alike = [prompt for prompt in self._prompts.get(place, ()) if prompt.key not in timed_keys]
        return alike or [prompt for kept in elsewhere for prompt in kept if prompt.key not in timed_keys]


def _repeat(prompts: Sequence[ShadowPrompt], count: int) -> list[ShadowPrompt]:
    """`count` of the prompts, from the first again where they run out; none of none."""
    return [prompts[index % len(prompts)] for index in range(count)] if prompts else []


log = logging.getLogger(__name__)

RETRY_S = 1.0  # between two tries to reach the log


class Attempts:
    """Queries the log on a separate thread: a database that is away must not stop the poll loop."""

    def __init__(self, store: Store) -> None:
        self._log = store
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="attempts")
        self._closing = threading.Event()
        self._asked: dict[RecordKey, Future[int]] = {}

    def number(self, key: RecordKey) -> int | None:
        """The number of the attempt that may now be made; None while it is not written down yet: ask again.

        Raises:
            ShadowSpecError: the log cannot be written to, and waiting does not heal it.
        """
        if key not in self._asked:
            self._asked[key] = self._executor.submit(self._record, key)
        if not self._asked[key].done():
            return None
        return self._asked.pop(key).result()

    def clear(self, key: RecordKey) -> None:
        """Forget the attempts of a request that has done no harm."""
        self._executor.submit(self._clear, key)

    def close(self) -> None:
        """Ask nothing any more."""
        self._closing.set()
        self._executor.shutdown(wait=False, cancel_futures=True)

    def _record(self, key: RecordKey) -> int:
        while True:
            try:
                return self._log.record_attempt([key])[key]
            except ServiceUnavailableError as error:
                if not error.is_retryable or self._closing.is_set():
                    raise
                log.warning("an attempt cannot be written down yet: %s", error)
                self._closing.wait(RETRY_S)

    def _clear(self, key: RecordKey) -> None:
        try:
            self._log.clear_attempts([key])
        except ShadowSpecError as error:
            # The request then has one attempt fewer left, should its block ever fail again.
            log.warning("the attempts of %s are not cleared: %s", key, error)

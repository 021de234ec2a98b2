"""Blocks spread over actors: by Ray Data where tasks read the files, by a pool where their reader is here.

With Ray Data actors judge blocks as tasks read files, and the results stream back.  The actors of a pool get items one
by one from their reader, with results in any order.

Values are pickled here, opaque to Ray.  Ray restarts an actor that died and gives it its row again, and reads a file
again where rows of it were lost with a node.  A row that has ended MAX_TRIES actors is given up, and the others
continue.  Back-pressure is Ray Data's: files are read no faster than rows are judged and taken.
"""

from __future__ import annotations

import hashlib
import logging
import pickle
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar, cast

import ray
import ray.data
from ray.data import ActorPoolStrategy, DataContext, TaskPoolStrategy
from ray.exceptions import RayActorError

from shadowspec.errors import ShadowSpecError

log = logging.getLogger(__name__)

MAX_TRIES: Final = 4  # of a row: survives lost machines, and ends a row that kills its actor
IN_FLIGHT: Final = 2  # rows at an actor: one is judged while the next one comes
_COLUMN: Final = "row"

Read = Callable[[str], Iterator[Any]]  # the rows of one file
Judge = Callable[[Any], Any]  # the result of a row
Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Actors:
    """How many judge at a time, and the resources of each.  `cpus` are threads of torch where there is no GPU."""

    number: int
    gpus: float = 0.0
    cpus: float = 1.0


def call_remotely(function: Callable[[], Any], actors: Actors) -> Any:
    """A function's result in an actor's environment.

    Raises:
        ShadowSpecError: the function raised it.
    """
    remote = ray.remote(num_cpus=actors.cpus, num_gpus=actors.gpus, max_retries=MAX_TRIES)(_call)
    result = pickle.loads(ray.get(remote.remote(pickle.dumps(function))))  # noqa: S301 - ours
    if isinstance(result, ShadowSpecError):
        raise result
    return result


def judge_rows(
    files: Sequence[str], read: Read, build: Callable[[], Judge], give_up: Judge, actors: Actors, *, readers: int
) -> Iterator[Any]:
    """The result of every row of the files, as it comes, in no order.

    Args:
        read: picklable, as the next two; an exception loses the rest of a file.
        build: makes the function that judges rows, once in every actor.
        give_up: the result of a row that has ended MAX_TRIES actors.
        readers: files read at a time.
    """
    context = DataContext.get_current()
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    context.enable_auto_log_stats = False
    context.target_max_block_size = 1  # bytes: a row is handed on as soon as it is there
    context.max_errored_blocks = -1  # the caller counts the rows and misses lost ones
    logging.getLogger("ray.data").setLevel(logging.CRITICAL)  # lower levels log errors with their texts
    tries: Any = ray.remote(num_cpus=0, max_restarts=-1, max_task_retries=-1)(_Tries).remote()
    places = ray.data.from_items([{_COLUMN: place} for place in files], override_num_blocks=len(files))
    rows = places.map_batches(
        cast("Any", _read),  # a function that yields batches, which Ray's types have no name for
        fn_args=(pickle.dumps(read),),
        batch_size=1,
        batch_format="numpy",
        compute=TaskPoolStrategy(size=min(readers, len(files))),
        num_cpus=0,
    )
    results = rows.map_batches(
        _JudgingActor,
        fn_constructor_args=(pickle.dumps(build), pickle.dumps(give_up), tries),
        batch_size=1,
        batch_format="numpy",
        compute=ActorPoolStrategy(size=actors.number, max_tasks_in_flight_per_actor=IN_FLIGHT),
        num_cpus=actors.cpus,
        num_gpus=actors.gpus or None,
    )
    for row in results.iter_rows():
        yield pickle.loads(row[_COLUMN])  # noqa: S301 - ours
    if again := ray.get(tries.num_again.remote()):
        log.warning("%d blocks were started more than once: actors died while they measured them", again)


def _call(function: bytes) -> bytes:
    """The function's result, or its ShadowSpecError; Ray's error would be its whole traceback."""
    try:
        return pickle.dumps(pickle.loads(function)())  # noqa: S301 - ours
    except ShadowSpecError as error:
        return pickle.dumps(error)


def _read(batch: Mapping[str, Any], read: bytes) -> Iterator[dict[str, list[bytes]]]:
    """The rows of files, each by itself."""
    rows_of: Read = pickle.loads(read)  # noqa: S301 - ours
    for place in batch[_COLUMN]:
        for row in rows_of(str(place)):
            yield {_COLUMN: [pickle.dumps(row)]}


class _Tries:
    """An actor that counts how often each row was started."""

    def __init__(self) -> None:
        self._numbers: Counter[bytes] = Counter()
        self._again: set[bytes] = set()

    def begin(self, row: bytes) -> int:
        """How often it was started, this time included."""
        self._numbers[row] += 1
        if self._numbers[row] > 1:
            self._again.add(row)
        return self._numbers[row]

    def end(self, row: bytes) -> None:
        """It is done."""
        self._numbers.pop(row, None)

    def num_again(self) -> int:
        """How many were started more than once."""
        return len(self._again)


class _JudgingActor:
    """An actor that judges rows one after the other."""

    def __init__(self, build: bytes, give_up: bytes, tries: Any) -> None:
        self._judge: Judge = pickle.loads(build)()  # noqa: S301 - ours
        self._give_up: Judge = pickle.loads(give_up)  # noqa: S301 - ours
        self._tries = tries

    def __call__(self, batch: Mapping[str, Iterable[bytes]]) -> dict[str, list[bytes]]:
        return {_COLUMN: [pickle.dumps(self._one(row)) for row in batch[_COLUMN]]}

    def _one(self, row: bytes) -> Any:
        name = hashlib.sha256(row).digest()
        is_over = ray.get(self._tries.begin.remote(name)) > MAX_TRIES
        judged = (self._give_up if is_over else self._judge)(pickle.loads(row))  # noqa: S301 - ours
        self._tries.end.remote(name)
        return judged


@dataclass(slots=True)
class _Sent(Generic[Item]):
    item: Item
    actor: int
    num_tries: int


class ActorPool(Generic[Item, Result]):
    """Owns its actors for as long as the cluster is connected."""

    def __init__(
        self, build: Callable[[], Callable[[Item], Result]], give_up: Callable[[Item], Result], actors: Actors
    ) -> None:
        """
        Args:
            build: picklable; makes the function for items, once in every actor.
            give_up: the result of an item that has ended MAX_TRIES actors.
        """
        remote = ray.remote(num_cpus=actors.cpus, num_gpus=actors.gpus, max_restarts=-1)(_Worker)
        self._actors: list[Any] = [remote.remote(pickle.dumps(build)) for _ in range(actors.number)]
        self._give_up = give_up
        self._sent: dict[Any, _Sent[Item]] = {}  # by Ray's reference to the result
        self._results: deque[Result] = deque()
        self.num_deaths = 0

    def submit(self, item: Item) -> None:
        """Hand an item to the actor with the fewest; waits while all have as many as they may."""
        while len(self._sent) >= IN_FLIGHT * len(self._actors):
            self._collect(timeout_s=None)
        self._send(item, 1)

    def take_finished(self) -> list[Result]:
        """The results since the last call; never waits."""
        if self._sent:
            self._collect(timeout_s=0.0)
        results = list(self._results)
        self._results.clear()
        return results

    def drain(self) -> Iterator[Result]:
        """All that is still worked on, as it comes."""
        while self._sent or self._results:
            while self._results:
                yield self._results.popleft()
            if self._sent:
                self._collect(timeout_s=None)

    def _send(self, item: Item, num_tries: int) -> None:
        loads = [0] * len(self._actors)
        for sent in self._sent.values():
            loads[sent.actor] += 1
        actor = loads.index(min(loads))
        reference = self._actors[actor].work.remote(pickle.dumps(item))
        self._sent[reference] = _Sent(item, actor, num_tries)

    def _collect(self, timeout_s: float | None) -> None:
        ready, _ = ray.wait(list(self._sent), num_returns=1, timeout=timeout_s)
        for reference in ready:
            sent = self._sent.pop(reference)
            try:
                self._results.append(pickle.loads(ray.get(reference)))  # noqa: S301 - ours
            except RayActorError:
                self.num_deaths += 1
                if sent.num_tries >= MAX_TRIES:
                    self._results.append(self._give_up(sent.item))
                else:
                    self._send(sent.item, sent.num_tries + 1)


class _Worker:
    """The actor."""

    def __init__(self, build: bytes) -> None:
        self._work: Callable[[Any], Any] = pickle.loads(build)()  # noqa: S301 - ours

    def work(self, item: bytes) -> bytes:
        """The result of an item."""
        return pickle.dumps(self._work(pickle.loads(item)))  # noqa: S301 - ours

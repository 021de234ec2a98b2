"""A pool of actors that get items one by one from their reader, with results in any order.

Ray restarts an actor that dies, and its item is handed out again; an item that has ended MAX_TRIES actors is given up.
"""

from __future__ import annotations

import pickle
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import ray
from ray.exceptions import RayActorError

from shadowspec.backfill.cluster import IN_FLIGHT, MAX_TRIES, Actors

Item = TypeVar("Item")
Result = TypeVar("Result")


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

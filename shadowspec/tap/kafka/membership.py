"""Joining the group without starting over.

kafka-python joins in the background, on its own thread, while polls come and go.  A join that is finished when the
next poll comes is forgotten, and another one begun, which makes every other member join again too: with polls that
are short, or callers that do something between them, a group may rebalance for ever.  Here the finished join is
taken up.

A leader joins again when a topic's partitions change, and takes note of the new ones in the middle of that join.  A
poll that ends between that moment and the join's end leaves nothing that would tell the next poll to go on: the
member would hang between two generations, its heartbeats paused.  Here a join that was begun is gone on with.
"""

from __future__ import annotations

from typing import Any

from kafka.consumer import group
from kafka.coordinator.consumer import ConsumerCoordinator
from kafka.structs import MemberState


class Coordinator(ConsumerCoordinator):  # type: ignore[misc] # kafka-python has no types
    """A group member's side of the group's protocol, which keeps what it has joined."""

    _join_task: Any

    def need_rejoin(self) -> bool:
        is_begun = self.rejoining and self._subscription.partitions_auto_assigned()
        return bool(is_begun or super().need_rejoin())

    async def join_group_async(self, timeout_ms: float | None = None) -> Any:
        task = self._join_task
        is_joined = task is not None and task.is_done and task.succeeded() and not self._generation.is_lost()
        if not (is_joined and self.need_rejoin()):
            return await super().join_group_async(timeout_ms=timeout_ms)
        # What the library does when a join ends while a poll waits for it.
        self._join_task = None
        with self._lock:
            self.rejoining = False
            self.rejoin_needed = False
            self.state = MemberState.STABLE
            self._enable_heartbeat()
        generation = self._generation
        await self._on_join_complete_async(
            generation.generation_id, generation.member_id, generation.protocol, task.value
        )
        return True


def keep_joins() -> None:
    """Let every consumer of this process join so."""
    group.ConsumerCoordinator = Coordinator

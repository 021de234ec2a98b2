"""Engine processes by what they measure: those of one set of endpoints are a group, and share a bounded queue."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from shadowspec.errors import ShadowSpecError
from shadowspec.types import FingerprintedConfig
from shadowspec.worker.engine_process import EngineFactory, EngineProcess
from shadowspec.worker.recovery import Case


@dataclass(slots=True)
class Slot:
    """One device or set of servers: its child, if one runs, and its work.  `case` is the block that it recovers."""

    factory: EngineFactory
    name: str
    queue: deque[Case]  # its group's
    process: EngineProcess | None = None
    is_ready: bool = False
    has_been_ready: bool = False
    is_waiting: bool = False  # its last child found a server away, measured nothing of its last block, or is not built
    refusal: ShadowSpecError | None = None  # why it cannot be built as it is configured, before it has ever been
    configs: Mapping[str, tuple[FingerprintedConfig, ...]] = field(default_factory=dict)  # when last ready
    sent: deque[Case] = field(default_factory=deque)  # in the child's hands, in the order in which they are measured
    since: float = 0.0  # when the first of them began; before the child is ready, when it was started
    case: Case | None = None
    blame: str | None = None  # why the child is about to end, where we know
    restart_at: float = 0.0
    num_unexplained_deaths: int = 0  # in a row

    def __str__(self) -> str:
        return f"{self.name} ({', '.join(sorted(self.factory.endpoints))})"


@dataclass(frozen=True, slots=True)
class Group:
    """The children that measure the same endpoints, and the blocks that wait for one of them."""

    endpoints: frozenset[str]
    queue: deque[Case] = field(default_factory=deque)
    slots: list[Slot] = field(default_factory=list)

    @property
    def is_ready(self) -> bool:
        """Some engine of it is built, and measures."""
        return any(slot.is_ready and not slot.is_waiting for slot in self.slots)

    @property
    def is_waiting(self) -> bool:
        """Its servers are away or answer nothing, or no engine of it can be built."""
        return all(slot.is_waiting for slot in self.slots)

    @property
    def num_blocks(self) -> int:
        """Blocks that were taken and are not finished."""
        return len(self.queue) + sum(max(len(slot.sent), slot.case is not None) for slot in self.slots)


class EngineGroups:
    """All of a worker's.  An endpoint belongs to one group."""

    def __init__(self, factories: Sequence[EngineFactory]) -> None:
        groups: dict[frozenset[str], Group] = {}
        self.slots: list[Slot] = []
        for index, factory in enumerate(factories):
            endpoints = frozenset(factory.endpoints)
            group = groups.setdefault(endpoints, Group(endpoints))
            self.slots.append(Slot(factory, f"engine-{index}", group.queue))
            group.slots.append(self.slots[-1])
        self._groups = list(groups.values())
        self._by_endpoint = {endpoint: group for group in self._groups for endpoint in group.endpoints}

    def queue_of(self, endpoint: str) -> deque[Case]:
        """The blocks that wait for an engine of the endpoint."""
        return self._by_endpoint[endpoint].queue

    @property
    def ready_endpoints(self) -> frozenset[str]:
        """Those that can be measured now."""
        return _endpoints(group for group in self._groups if group.is_ready)

    @property
    def waiting_endpoints(self) -> frozenset[str]:
        """Those of groups that wait."""
        return _endpoints(group for group in self._groups if group.is_waiting)

    @property
    def stranded(self) -> list[Group]:
        """The groups that wait while others do not: those must not wait with them."""
        waiting = [group for group in self._groups if group.is_waiting]
        return waiting if len(waiting) < len(self._groups) else []

    @property
    def stranded_endpoints(self) -> frozenset[str]:
        """Those of stranded groups."""
        return _endpoints(self.stranded)

    @property
    def num_queued(self) -> int:
        """Blocks that wait for an engine."""
        return sum(len(group.queue) for group in self._groups)

    @property
    def num_blocks(self) -> int:
        """Blocks that were taken and are not finished."""
        return sum(group.num_blocks for group in self._groups)

    @property
    def num_measurable(self) -> int:
        """Those of groups that do not wait."""
        return sum(group.num_blocks for group in self._groups if not group.is_waiting)


def _endpoints(groups: Iterable[Group]) -> frozenset[str]:
    return frozenset(endpoint for group in groups for endpoint in group.endpoints)

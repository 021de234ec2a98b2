"""What an arm needs of its device's memory, whatever lies there for others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from shadowspec.engine.candidate import Candidate
from shadowspec.engine.models import LoadedModel


class Allocator(Protocol):
    """What a device's allocator tells, in bytes."""

    def allocated(self) -> int:
        """All that is allocated now."""

    def begin(self) -> None:
        """Forget the peak."""

    def peak(self) -> int:
        """The most that was allocated at once since."""


class CudaAllocator:
    """Torch's own for a GPU."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def allocated(self) -> int:
        return int(torch.cuda.memory_allocated(self._device))

    def begin(self) -> None:
        torch.cuda.synchronize(self._device)
        torch.cuda.reset_peak_memory_stats(self._device)

    def peak(self) -> int:
        return int(torch.cuda.max_memory_allocated(self._device))


def allocator_of(device: torch.device) -> Allocator | None:
    """The device's; None where torch does not count what it allocates."""
    return CudaAllocator(device) if device.type == "cuda" else None


@dataclass(frozen=True, slots=True)
class Gauge:
    """Takes the peak of one arm; weights, and what static passes hold, lie there throughout, for other arms too."""

    allocator: Allocator
    models: Sequence[LoadedModel]  # all that may have static passes
    others: int  # bytes that lay there before, but for static passes

    @classmethod
    def begin(cls, allocator: Allocator, models: Sequence[LoadedModel]) -> Gauge:
        allocator.begin()
        return cls(allocator, models, allocator.allocated() - _held_by_passes(models))

    def peak_bytes(self, weight_bytes: int, static_bytes: int) -> int:
        """What the arm needs by itself.

        Args:
            weight_bytes: of its own models.
            static_bytes: its own share of what the static passes hold.
        """
        passing = self.allocator.peak() - self.others - _held_by_passes(self.models)
        return passing + weight_bytes + static_bytes


def _held_by_passes(models: Sequence[LoadedModel]) -> int:
    return sum(model.passes.allocated_bytes() for model in models if model.passes is not None)


def models_of(target: LoadedModel, candidates: Sequence[Candidate]) -> list[LoadedModel]:
    """The target and the draft models, each once."""
    drafts = {id(own.draft): own.draft for own in candidates if isinstance(own.draft, LoadedModel)}
    return [target, *drafts.values()]

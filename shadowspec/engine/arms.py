"""Running one arm of a block: its passes recorded ahead, in halves where memory runs out, and its memory.

An arm that runs out of memory is run in halves, one after the other, down to single requests; a request that does not
fit by itself is not decoded.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final, Protocol, TypeVar

import torch

from shadowspec.engine.batch import Request, needed_capacity
from shadowspec.engine.candidate import Candidate
from shadowspec.engine.decode import ArmResult, Decoded, decode_batch
from shadowspec.engine.models import LoadedModel
from shadowspec.engine.proposers.suffix_automaton import SuffixAutomaton
from shadowspec.engine.static_passes import Reach, StaticPasses
from shadowspec.types import VerifyRule

log = logging.getLogger(__name__)

Result = TypeVar("Result")

OUT_OF_MEMORY: Final = (torch.OutOfMemoryError, MemoryError)

# A draft model's new tokens and how many stay: the last two tokens at first, then each that it drafted.
DRAFT_COUNTS = ((2, 1), (1, 1))


class ArmRunner:
    """Runs the arms of one target and its candidates, on their device."""

    def __init__(self, target: LoadedModel, candidates: Sequence[Candidate]) -> None:
        self._target = target
        drafts = {
            id(candidate.draft): candidate.draft for candidate in candidates if isinstance(candidate.draft, LoadedModel)
        }
        self._models = [target, *drafts.values()]
        self._allocator = allocator_of(target.model.device)

    @property
    def memory_source(self) -> str:
        """Where `peak_bytes` comes from."""
        return "accounted" if self._allocator is None else "cuda_peak"

    def run(
        self,
        requests: Sequence[Request],
        candidate: Candidate | None,
        slots: int,
        recent: SuffixAutomaton | None = None,
    ) -> ArmResult[Decoded | None]:
        """Decode the requests, `slots` at a time; in halves, one after the other, where they do not fit into memory.

        The second half has waited for the first, and both for the try that ran out of memory.  That time is part of
        their prefill time, because requests that arrive together on this device would wait as long.  Of a queue that is
        longer than its slots the second half would not have been issued meanwhile, and has not waited.

        The peak is the memory that the whole arm needs, as far as known.  On a GPU it is the most that was allocated
        for it, tries that ran out of memory included; elsewhere the weights and all caches, as if no part had waited.

        Args:
            candidate: None: the baseline arm.
            recent: outputs that the candidate may draft from.
        """
        gauge = None if self._allocator is None else Gauge.begin(self._allocator, self._models)
        config = None if candidate is None else candidate.config.config
        decoded: list[Decoded | None] = []
        cache_bytes = static_bytes = num_halved = 0
        duration_ms = waited_ms = 0.0
        together_bytes = 0  # caches of the parts that arrived together
        parts = [(requests, True)]  # the next one last; whether a part arrives only when those before it have ended
        while parts:
            part, arrives_later = parts.pop()
            if arrives_later:
                waited_ms, together_bytes = 0.0, 0
            result: ArmResult[Decoded] | None = None
            began_s = time.perf_counter()
            with suppress(*OUT_OF_MEMORY):
                recorded_bytes = record_ahead(self._target, candidate, part, slots)
                result = decode_batch(
                    self._target.model,
                    part,
                    proposer=None if candidate is None else candidate.proposer(recent),
                    num_speculative_tokens=0 if config is None else config.num_speculative_tokens,
                    verify_rule=VerifyRule.EXACT_MATCH if config is None else config.verify_rule,
                    end_token_ids=self._target.end_token_ids,
                    detokenize=self._target.tokenizer.decode,
                    num_slots=slots,
                    passes=self._target.passes,
                    kernels=self._target.kernels,
                    shares_prefixes=self._target.shares_prefixes,
                )
            if result is not None:
                decoded += [_delay(decoded_request, waited_ms) for decoded_request in result.decoded]
                duration_ms, waited_ms = duration_ms + result.duration_ms, waited_ms + result.duration_ms
                together_bytes += result.cache_bytes
                cache_bytes = max(cache_bytes, together_bytes)
                static_bytes = max(static_bytes, recorded_bytes)
                continue
            free_memory(self._target, "an arm", min(slots, len(part)))
            lost_ms = 1e3 * (time.perf_counter() - began_s)
            duration_ms, waited_ms = duration_ms + lost_ms, waited_ms + lost_ms
            if len(part) == 1:
                decoded.append(None)
            else:
                middle, is_queue = len(part) // 2, len(part) > slots
                parts += [(part[middle:], is_queue), (part[:middle], False)]  # this one is there already
                num_halved += 1
        weights = self._target.weight_bytes
        if candidate is not None and candidate.draft is not None:
            weights += candidate.draft.weight_bytes
        peak_bytes = weights + cache_bytes if gauge is None else gauge.peak_bytes(weights, static_bytes)
        return ArmResult(tuple(decoded), cache_bytes, duration_ms, static_bytes, num_halved, peak_bytes)


def within_memory(target: LoadedModel, what: str, num_requests: int, work: Callable[[], Result]) -> Result | None:
    """The work's result; None if the target's device runs out of memory, which is logged."""
    with suppress(*OUT_OF_MEMORY):
        return work()
    free_memory(target, what, num_requests)
    return None


def free_memory(target: LoadedModel, what: str, num_requests: int) -> None:
    """Log that the target's device has run out of memory, and return the work's cached memory to it.

    Call it once the error, and with it the frames that hold the tensors, is gone: before, nothing is free.
    """
    log.warning("%s of %d requests ran out of memory", what, num_requests)
    if target.model.device.type == "cuda":
        torch.cuda.empty_cache()


def _delay(decoded: Decoded, waited_ms: float) -> Decoded:
    """The same, its first token that much later."""
    return replace(decoded, timing=replace(decoded.timing, prefill_ms=decoded.timing.prefill_ms + waited_ms))


def record_ahead(target: LoadedModel, candidate: Candidate | None, requests: Sequence[Request], slots: int) -> int:
    """Record the passes that decoding the requests may need, `slots` at a time, where passes are recorded.

    Args:
        candidate: None: the baseline arm.

    Returns:
        Bytes that these passes, their buffers and their caches hold from batch to batch.
    """
    depth = candidate.config.config.num_speculative_tokens if candidate is not None else 0
    held = 0
    for passes, counts, layers in _list_passes(target, candidate, depth):
        reach = Reach(
            min(slots, len(requests)),
            min(len(request.prompt) for request in requests),
            needed_capacity(requests, depth),
        )
        passes.prepare(reach, counts, layers)
        held += passes.bytes_for(reach, counts)
    return held


def _list_passes(
    target: LoadedModel, candidate: Candidate | None, depth: int
) -> Iterator[tuple[StaticPasses, Sequence[tuple[int, int]], tuple[int, ...]]]:
    """Recorded passes with their inputs: new tokens and how many are kept, and the layers handed out."""
    if target.passes is not None:
        hidden = candidate.proposer().hidden if candidate is not None else None
        verified = candidate.num_verified() if candidate is not None else (1,)
        yield target.passes, [(count, count) for count in verified], hidden.layers if hidden is not None else ()
    if candidate is not None and isinstance(candidate.draft, LoadedModel) and candidate.draft.passes is not None:
        yield candidate.draft.passes, DRAFT_COUNTS[:depth], ()


class Allocator(Protocol):
    """The counters of a device's allocator, in bytes."""

    def allocated_bytes(self) -> int:
        """All that is allocated now."""

    def begin(self) -> None:
        """Forget the peak."""

    def peak(self) -> int:
        """The most that was allocated at once since."""


class CudaAllocator:
    """Torch's allocator of a GPU."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def allocated_bytes(self) -> int:
        return int(torch.cuda.memory_allocated(self._device))

    def begin(self) -> None:
        torch.cuda.synchronize(self._device)
        torch.cuda.reset_peak_memory_stats(self._device)

    def peak(self) -> int:
        return int(torch.cuda.max_memory_allocated(self._device))


def allocator_of(device: torch.device) -> Allocator | None:
    """The device's; None where torch does not count its allocations."""
    return CudaAllocator(device) if device.type == "cuda" else None


@dataclass(frozen=True, slots=True)
class Gauge:
    """Takes the peak of one arm; weights and static passes stay allocated throughout, for other arms too."""

    allocator: Allocator
    models: Sequence[LoadedModel]  # all that may have static passes
    others: int  # bytes that lay there before, but for static passes

    @classmethod
    def begin(cls, allocator: Allocator, models: Sequence[LoadedModel]) -> Gauge:
        allocator.begin()
        return cls(allocator, models, allocator.allocated_bytes() - _held_by_passes(models))

    def peak_bytes(self, weight_bytes: int, static_bytes: int) -> int:
        """The arm's part of the peak.

        Args:
            weight_bytes: of the arm's models.
            static_bytes: the arm's share of the static passes' memory.
        """
        passing = self.allocator.peak() - self.others - _held_by_passes(self.models)
        return passing + weight_bytes + static_bytes


def _held_by_passes(models: Sequence[LoadedModel]) -> int:
    return sum(model.passes.allocated_bytes() for model in models if model.passes is not None)

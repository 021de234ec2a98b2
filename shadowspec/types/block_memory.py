"""Memory of speculation: by the peaks of both arms in process, by the capacities of two servers' KV caches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Memory:
    """Peak bytes of both arms on one block, and the draft's cost expressed in the target's KV-cache tokens."""

    baseline_peak_bytes: int
    speculative_peak_bytes: int
    kv_bytes_per_token: int  # the target's
    draft_weight_bytes: int
    draft_kv_bytes_per_token: int
    source: str = "accounted"  # "cuda_peak": the allocator's peak; "accounted": weights and caches added up
    kv_tokens_per_request: float | None = None  # prompt and output, mean over the block; None: measured before 0021

    @property
    def extra_share(self) -> float | None:
        """Extra peak of the speculative arm, as a share of the baseline's; None where that is 0."""
        if not self.baseline_peak_bytes:
            return None
        return (self.speculative_peak_bytes - self.baseline_peak_bytes) / self.baseline_peak_bytes

    @property
    def displaced_kv_tokens(self) -> int:
        """KV-cache tokens of the target that the speculative arm's extra memory would have held."""
        extra = max(0, self.speculative_peak_bytes - self.baseline_peak_bytes)
        return extra // self.kv_bytes_per_token if self.kv_bytes_per_token else 0

    @property
    def displaced_requests(self) -> float | None:
        """Requests of the block's mean length whose cache these tokens are; None where that length is not known."""
        return self.displaced_kv_tokens / self.kv_tokens_per_request if self.kv_tokens_per_request else None

    @property
    def baseline_requests(self) -> float | None:
        """None: the device was not filled, so that it is not known how many requests it holds."""
        return None


@dataclass(frozen=True, slots=True)
class ServedMemory:
    """The capacities of two servers' KV caches, as they reported them before a block was sent.

    A server fills its memory at its start: the memory of speculation is the capacity that its cache lacks.  A request
    of full length has as many tokens as the server accepts; None where that is not known.
    """

    baseline_kv_tokens: int
    speculative_kv_tokens: int
    baseline_kv_requests: float | None  # of full length, at once
    speculative_kv_requests: float | None
    source: str  # the engine that reported them, as its /v1/models names it

    @property
    def extra_share(self) -> float | None:
        """Displaced tokens, as a share of the baseline's; below 0 where the speculative server's cache holds more.

        It is never below the share of peak memory that the same bytes are of a full device, on which weights lie too.
        """
        if not self.baseline_kv_tokens:
            return None
        return (self.baseline_kv_tokens - self.speculative_kv_tokens) / self.baseline_kv_tokens

    @property
    def displaced_kv_tokens(self) -> int:
        """Tokens by which the speculative server's cache holds less."""
        return max(0, self.baseline_kv_tokens - self.speculative_kv_tokens)

    @property
    def displaced_requests(self) -> float | None:
        """Requests of full length by which it holds less."""
        if self.baseline_kv_requests is None or self.speculative_kv_requests is None:
            return None
        return max(0.0, self.baseline_kv_requests - self.speculative_kv_requests)

    @property
    def baseline_requests(self) -> float | None:
        """Requests of full length that the baseline's cache holds at once."""
        return self.baseline_kv_requests


BlockMemory: TypeAlias = Memory | ServedMemory

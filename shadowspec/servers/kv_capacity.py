"""A server's KV cache capacity, as the server reports it (`ServingEngine.capacity_of`).

A server takes its memory at its start and gives the rest beside the weights to its cache.  The memory of speculation
(weights and cache of a draft) is therefore the difference between the baseline's and the speculative server's cache.
It is read before each block and stored with it; it is in no fingerprint.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from shadowspec.types import ServedMemory

SHARES: Final = ("gpu_memory_utilization", "mem_fraction_static")  # of the device's memory, weights included


@dataclass(frozen=True, slots=True)
class KvCapacity:
    """Tokens that the KV cache of a server holds, over all of its engine cores, and requests of full length at once.

    A request of full length is one of as many tokens as the server accepts.  `sizing` names the options that the size
    follows from, as far as the server reports them.
    """

    tokens: int
    requests: float | None = None  # None: it is not known how long a request may be
    sizing: tuple[tuple[str, str], ...] = ()

    @property
    def shares(self) -> tuple[tuple[str, str], ...]:
        """The share of the device's memory that the server may take, by the option's name."""
        return tuple(option for option in self.sizing if option[0] in SHARES)

    @property
    def fixed_by(self) -> str | None:
        """The option that sets the size itself, so that the weights of a draft take nothing of it; None: none does."""
        return next((name for name, _ in self.sizing if name not in SHARES), None)


def served_memory(baseline: KvCapacity | None, speculative: KvCapacity | None, engine: str) -> ServedMemory | None:
    """The capacity of both servers' caches; None where one is unknown, or may take another share of its memory."""
    if baseline is None or speculative is None or baseline.shares != speculative.shares:
        return None
    return ServedMemory(baseline.tokens, speculative.tokens, baseline.requests, speculative.requests, engine)

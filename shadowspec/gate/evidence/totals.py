"""Sums over a hypothesis's timed requests, beside the sums of its tests: parity, memory, missing results."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

from shadowspec.gate.evidence.series import Blocks, add_times
from shadowspec.metrics import ratio
from shadowspec.types import BlockMemory, Parity

MAX_Z_ERROR = 0.01  # per token of a sampled request: half of the margin for the mean z; beyond it its parity is unknown
MAX_RATES = 3  # smallest sampling rates kept, beside the largest: the worker's and two of the operator's
MAX_GAPS = 256  # largest top-2 gaps kept; one above the limit is enough for the verdict


@dataclass(frozen=True, slots=True)
class RunTotals:
    """Counts over the measured requests of folded blocks; each request counts once per hypothesis.

    `largest_gaps` are the target's top-2 logit gaps at greedy divergences, descending.  The number of faults depends on
    a limit that an operator may change, so the largest `MAX_GAPS` gaps are stored.  `rates` are the sampling rates of
    the requests' sessions, ascending: the `MAX_RATES` smallest and the largest.
    """

    num_blocks: int = 0
    num_requests: int = 0
    num_failed: int = 0  # an arm gave nothing to judge
    num_greedy: int = 0
    num_sampled: int = 0
    num_unknown_parity: int = 0  # of the requests that did not fail
    num_known_greedy: int = 0  # greedy requests of which it is known whether they are faults
    num_diverging: int = 0  # of those: where the outputs differ
    num_streams: int = 0  # chats that both arms streamed
    num_stream_faults: int = 0  # of those: with a fault that the speculative server alone explains
    largest_gaps: tuple[float, ...] = ()
    max_block_requests: int = 0  # the largest full size of a block
    max_turns: int = 1  # of a conversation; 1: every request was of a session apart
    num_memory_blocks: int = 0
    displaced_kv_tokens_total: int = 0
    max_displaced_kv_tokens: int | None = None
    max_extra_peak_share: float | None = None  # of the baseline's peak; with servers, of its KV cache
    max_displaced_requests: float | None = None
    baseline_requests: float | None = None  # that its KV cache holds, where `max_displaced_requests` are displaced
    rates: tuple[float, ...] = ()

    def fold(self, blocks: Blocks) -> RunTotals:
        """The totals with these blocks added."""
        timed = add_times(blocks)
        if not timed.units:
            return self
        runs = timed.runs
        measured = [m for m, is_without in zip(runs, timed.is_missing.tolist(), strict=True) if not is_without]
        greedy = [m.run.parity for m in measured if m.is_greedy and m.run.parity is not None]
        known = [p for p in greedy if p.first_divergence is None or p.divergence_gap is not None]
        gaps = [p.divergence_gap for p in known if p.divergence_gap is not None]
        unknown = sum(m.run.parity is None or (not m.is_greedy and not _is_scored(m.run.parity)) for m in measured)
        num_greedy = sum(m.is_greedy for m in runs)
        streams = [m.run.stream for m in measured if m.run.stream is not None]
        reported = [unit.block.memory.get(unit.runs[0].run.fingerprint) for unit in timed.units]
        memory = [block_memory for block_memory in reported if block_memory is not None]
        displaced = [block_memory.displaced_kv_tokens for block_memory in memory]
        return replace(
            self,
            num_blocks=self.num_blocks + len(timed.units),
            num_requests=self.num_requests + len(runs),
            num_failed=self.num_failed + len(runs) - len(measured),
            num_greedy=self.num_greedy + num_greedy,
            num_sampled=self.num_sampled + len(runs) - num_greedy,
            num_unknown_parity=self.num_unknown_parity + unknown,
            num_known_greedy=self.num_known_greedy + len(known),
            num_diverging=self.num_diverging + sum(p.first_divergence is not None for p in known),
            num_streams=self.num_streams + len(streams),
            num_stream_faults=self.num_stream_faults + sum(stream.is_stream_fault for stream in streams),
            largest_gaps=tuple(heapq.nlargest(MAX_GAPS, (*self.largest_gaps, *gaps))),
            max_block_requests=max(self.max_block_requests, int(timed.n_max.max())),
            max_turns=max(self.max_turns, *(unit.block.max_turns for unit in timed.units)),
            num_memory_blocks=self.num_memory_blocks + len(memory),
            displaced_kv_tokens_total=self.displaced_kv_tokens_total + sum(displaced),
            max_displaced_kv_tokens=max([*displaced, self.max_displaced_kv_tokens or 0])
            if memory
            else self.max_displaced_kv_tokens,
            max_extra_peak_share=_largest(
                self.max_extra_peak_share, (block_memory.extra_share for block_memory in memory)
            ),
            **_displaced_requests(self, memory),
            rates=_merge_rates(self.rates, (m.sampling_rate for m in runs)),
        )

    @property
    def regimes(self) -> frozenset[str]:
        """The kinds of requests that were measured, for each of which there may be a test (`BettingTest.regime`)."""
        counted = {"greedy": self.num_greedy, "sampled": self.num_sampled, "chat": self.num_streams}
        return frozenset(name for name, number in counted.items() if number)

    def operator_rates(self, min_rate: float) -> tuple[float, float] | None:
        """The smallest and the largest rate that an operator set, where these differ; None where they do not.

        The worker lowers the rate of decided slices to `min_rate`: where that is the smallest of all, it is the
        worker's.
        """
        own = [rate for rate in self.rates if not math.isclose(rate, min_rate) or rate > self.rates[0]]
        return (own[0], own[-1]) if own and not math.isclose(own[0], own[-1]) else None

    def num_faults(self, near_tie_logit: float) -> int:
        """Greedy divergences at a gap above this, up to `MAX_GAPS` of them."""
        return sum(gap > near_tie_logit for gap in self.largest_gaps)


def _merge_rates(before: tuple[float, ...], rates: Iterable[float]) -> tuple[float, ...]:
    known = sorted({*before, *rates})
    return tuple(known if len(known) <= MAX_RATES else (*known[:MAX_RATES], known[-1]))


def _is_scored(parity: Parity) -> bool:
    """Whether a sampled request's z is known well enough to pass; one that is known less well may fail all the same."""
    return parity.z_sum is not None and (ratio(parity.z_error or 0.0, parity.z_tokens or 0) or 0.0) <= MAX_Z_ERROR


def _displaced_requests(before: RunTotals, memory: Iterable[BlockMemory]) -> dict[str, float | None]:
    """The most requests that were displaced on any block, and how many its baseline holds."""
    most, held = before.max_displaced_requests, before.baseline_requests
    for block_memory in memory:
        if block_memory.displaced_requests is not None and (most is None or block_memory.displaced_requests > most):
            most, held = block_memory.displaced_requests, block_memory.baseline_requests
    return {"max_displaced_requests": most, "baseline_requests": held}


def _largest(before: float | None, values: Iterable[float | None]) -> float | None:
    known = [value for value in (before, *values) if value is not None]
    return max(known) if known else None

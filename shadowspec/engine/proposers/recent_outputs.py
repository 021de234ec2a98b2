"""The recent outputs of an endpoint: the outputs that a server with one replica would remember.

They belong to an endpoint and a candidate, whose speculative arm adds them, exist only in this process, and are neither
stored nor logged.  Their number of tokens is limited; the oldest outputs go first, whole.  A request that is decoded
again replaces its output.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Self

from shadowspec.engine.proposers.suffix_automaton import SuffixAutomaton
from shadowspec.types import Block, FingerprintedConfig, RecordKey, SpeculationConfig


class RecentOutputs:
    """Outputs by the record that they answer, and their index."""

    def __init__(self, max_tree_depth: int, max_tokens: int) -> None:
        """At most `max_tokens` are kept, 1 or more."""
        self._depth, self._max_tokens = max_tree_depth, max_tokens
        self._outputs: dict[RecordKey, tuple[int, ...]] = {}  # oldest first
        self._index = SuffixAutomaton(max_tree_depth)
        self._num_removed = 0  # tokens that the index still has states of
        self.num_tokens = 0

    @classmethod
    def of(cls, config: SpeculationConfig) -> Self | None:
        """The empty memory of the config's proposer for an endpoint; None if the proposer has none."""
        if not config.remembers:
            return None
        return cls(config.suffix_decoding_max_tree_depth, config.suffix_memory_tokens)

    def add(self, key: RecordKey, output: Sequence[int]) -> None:
        """Remember an output; of one that is longer than all that may be kept, its end."""
        if (before := self._outputs.pop(key, None)) is not None:
            self.num_tokens -= len(before)
            self._build()  # only the oldest output can be taken out of an index
        kept = tuple(output[-self._max_tokens :])
        self._outputs[key] = kept
        self.num_tokens += len(kept)
        _take_in(self._index, kept)
        while self.num_tokens > self._max_tokens:
            self._forget_oldest()
        if self._num_removed > self._max_tokens:  # as much as may be kept, so that it costs O(1) a token
            self._build()

    def without(self, keys: Collection[RecordKey]) -> SuffixAutomaton:
        """The index of all outputs but those of these requests; it does not change until the next `add`."""
        if self._outputs.keys().isdisjoint(keys):
            return self._index
        return _build_index(self._depth, (output for key, output in self._outputs.items() if key not in keys))

    def _forget_oldest(self) -> None:
        oldest = self._outputs.pop(next(iter(self._outputs)))
        self.num_tokens -= len(oldest)
        self._num_removed += len(oldest)
        self._index.remove(oldest)

    def _build(self) -> None:
        self._index = _build_index(self._depth, self._outputs.values())
        self._num_removed = 0


class OutputsByEndpoint:
    """Each candidate's memory of each endpoint.  Lives as long as the engine that measures them."""

    def __init__(self) -> None:
        self._recent: dict[tuple[str, str], RecentOutputs] = {}  # by endpoint and fingerprint

    def before(self, block: Block, candidate: FingerprintedConfig) -> SuffixAutomaton | None:
        """The outputs that the candidate may draft from in a block: those of earlier blocks; None without any.

        Outputs of the block's prompts, fillers included, are left out, so that no request finds its answer ready.
        """
        recent = self._recent.get((block.endpoint, candidate.fingerprint))
        return None if recent is None else recent.without({prompt.key for prompt in (*block.requests, *block.fillers)})

    def after(self, block: Block, candidate: FingerprintedConfig, outputs: Iterable[Sequence[int] | None]) -> None:
        """Add the candidate's outputs of the block's measured requests, which come first (None: it failed)."""
        place = block.endpoint, candidate.fingerprint
        recent = self._recent.get(place) or RecentOutputs.of(candidate.config)
        assert recent is not None, "the candidate remembers nothing"
        self._recent[place] = recent
        for prompt, output in zip(block.requests, outputs, strict=False):
            if output is not None:
                recent.add(prompt.key, output)


def _build_index(depth: int, outputs: Iterable[Sequence[int]]) -> SuffixAutomaton:
    index = SuffixAutomaton(depth)
    for output in outputs:
        _take_in(index, output)
    return index


def _take_in(index: SuffixAutomaton, output: Sequence[int]) -> None:
    index.begin()
    for token in output:
        index.append(token)

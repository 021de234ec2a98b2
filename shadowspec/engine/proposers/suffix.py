"""Drafting by suffix: the continuations of earlier occurrences of the text's end, in it and in recent outputs.

The rule is that of SuffixDecoding (arXiv:2411.04975) as vLLM's `suffix` method runs it, with Arctic Inference's
options: a chain, not the paper's tree.  For every length m at which the text's last m tokens have occurred before, the
likeliest continuation is followed token by token; the estimated probability of a draft is the product of the shares of
occurrences that continued so, and it ends before it falls below `min_token_prob`, after `max_spec_factor` * m tokens,
and where m and the draft together reach `max_tree_depth`.  The draft with the largest sum of estimated probabilities
wins, which is the expected number of accepted tokens; among equals that of the longer match, and the
text's before that of recent outputs.

The current occurrence counts as one whose continuation is not known, as in vLLM.  No model is needed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from shadowspec.engine.batch import Batch
from shadowspec.engine.kv_cache import ColumnSpan
from shadowspec.engine.proposers import Proposal
from shadowspec.engine.proposers.suffix_automaton import NOTHING, ROOT, SuffixAutomaton
from shadowspec.engine.sampling import to_device
from shadowspec.types import SpeculationConfig

ROUNDING = 1e-6  # of a factor times a length; Arctic Inference's value


@dataclass(frozen=True, slots=True)
class SuffixOptions:
    """The limits of a draft; names and meaning are vLLM's, without their prefix `suffix_decoding_`."""

    max_tree_depth: int = 24  # tokens of match and draft together
    max_spec_factor: float = 1.0  # drafted tokens for each matched one
    min_token_prob: float = 0.1  # estimated probability of the draft up to a token

    @classmethod
    def of(cls, config: SpeculationConfig) -> SuffixOptions:
        """Those of a speculation config."""
        return cls(
            config.suffix_decoding_max_tree_depth,
            config.suffix_decoding_max_spec_factor,
            config.suffix_decoding_min_token_prob,
        )


@dataclass(frozen=True, slots=True)
class Budgets:
    """How many tokens may be drafted, by the length of the match."""

    by_length: tuple[int, ...]
    peak: int  # the longest match of those that allow most; below it they never fall, above it they always do


@lru_cache(maxsize=1024)  # of the few depths and options that a process runs
def budgets(options: SuffixOptions, count: int) -> Budgets:
    """The budgets for at most `count` tokens."""
    depth = options.max_tree_depth
    by_length = tuple(
        min(count, int(length * options.max_spec_factor + ROUNDING), depth - length) for length in range(depth)
    )
    return Budgets(by_length, max(range(depth), key=lambda length: (by_length[length], length)))


class SuffixText:
    """The text of one request as it grows, and where its end is in the recent outputs."""

    def __init__(self, options: SuffixOptions, recent: SuffixAutomaton | None, tokens: Sequence[int]) -> None:
        """
        Args:
            recent: the recent outputs, which do not change while the text grows; None: there are none.
            tokens: the text so far.
        """
        self._options, self._recent = options, recent
        self._own = SuffixAutomaton(options.max_tree_depth)
        self._state, self._length = ROOT, 0  # in the recent outputs
        self.num_tokens = 0
        self.extend(tokens)

    def extend(self, tokens: Iterable[int]) -> None:
        """Append these tokens to the text."""
        for token in tokens:
            self._own.append(token)
            if self._recent is not None:
                self._state, self._length = self._recent.follow(self._state, self._length, token)
            self.num_tokens += 1

    def draft(self, count: int) -> list[int]:
        """Up to `count` likely next tokens of the text; none where its last token is new."""
        allowed = budgets(self._options, count)
        drafted, own_score = self._draft(self._own, self._own.state, self._own.length, 0, allowed)
        if self._recent is None:
            return drafted
        other, other_score = self._draft(self._recent, self._state, self._length, 1, allowed)
        return other if other_score > own_score else drafted

    def _draft(
        self, index: SuffixAutomaton, state: int, length: int, num_asking: int, allowed: Budgets
    ) -> tuple[list[int], float]:
        """The best draft and its score.

        Args:
            state, length: of the longest suffix of the text that occurs in the index.
            num_asking: occurrences, of this text's end, that the index does not count.
        """
        following, counts, likeliest, least = (
            index.following,
            index.counts,
            index.likeliest,
            self._options.min_token_prob,
        )
        best: list[int] = []
        best_score = 0.0
        while state > ROOT:
            link = index.links[state]
            shortest = index.longest[link] + 1
            # All matches of a state have the same continuations, so that only the largest budget matters.
            budget = allowed.by_length[min(max(allowed.peak, shortest), length)]
            if budget > best_score:  # each token adds at most 1
                tokens: list[int] = []
                score, probability = 0.0, 1.0
                at, occurrences = state, counts[state] + num_asking
                while len(tokens) < budget and (token := likeliest[at]) != NOTHING:
                    at = following[at][token]
                    probability *= counts[at] / occurrences
                    if probability < least:
                        break
                    tokens.append(token)
                    score += probability
                    occurrences = counts[at]
                if score > best_score:
                    best, best_score = tokens, score
            state, length = link, shortest - 1
        return best, best_score


class SuffixProposer:
    """One-hot drafts of as many tokens as the text bears out.  Rows whose end is new make a plain step."""

    hidden = None  # of the target: none are needed

    def __init__(
        self, num_speculative_tokens: int, options: SuffixOptions, recent: SuffixAutomaton | None = None
    ) -> None:
        """
        Args:
            recent: recent outputs, none of them of a request in the batch; None: without.
        """
        self._num_speculative_tokens = num_speculative_tokens
        self._options, self._recent = options, recent

    def begin(self, batch: Batch) -> None:
        self._texts: dict[int, SuffixText] = {}  # by slot

    def admit(self, batch: Batch, slots: Sequence[int]) -> None:
        """Take in the prompts; the first tokens follow with the next step."""
        for slot in slots:
            self._texts[slot] = SuffixText(self._options, self._recent, batch.prompts[slot])

    def propose(self, batch: Batch, span: ColumnSpan) -> Proposal:
        drafted = np.zeros((batch.num_rows, self._num_speculative_tokens), dtype=np.int64)
        counts = np.zeros(batch.num_rows, dtype=np.int64)
        for row, text in self._texts.items():
            if batch.is_active(row):
                text.extend(batch.rows[row].output[text.num_tokens - len(batch.prompts[row]) :])
                draft = text.draft(self._num_speculative_tokens)
                drafted[row, : len(draft)] = draft
                counts[row] = len(draft)
        drafted = drafted[:, : counts.max()]
        return Proposal(to_device(drafted, batch.device), to_device(counts, batch.device), None)

    def keep(self, slots: list[int]) -> None:
        self._texts = {place: self._texts[slot] for place, slot in enumerate(slots)}

    def cache_bytes(self) -> int:
        return 0  # texts and their indexes are in host memory, outside the device's

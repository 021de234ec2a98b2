"""Drafting by prompt lookup: the tokens after an earlier (latest or earliest) occurrence of the row's last n tokens.

`latest_filled` is vLLM's lookup on GPUs (`_ngram_scan_kernel` and `_ngram_finalize_kernel` of its runner V2, 0.32 and
0.33): places without a token are drafted and verified as well, so that there is no plain step.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from shadowspec.engine.batch import Batch
from shadowspec.engine.kv_cache import ColumnSpan
from shadowspec.engine.proposers import Proposal
from shadowspec.engine.sampling import to_device
from shadowspec.types import NgramOccurrence


def lookup(
    tokens: npt.NDArray[np.int64],
    shortest: int,
    longest: int,
    count: int,
    occurrence: NgramOccurrence = NgramOccurrence.LATEST,
) -> npt.NDArray[np.int64]:
    """Up to `count` tokens that followed an earlier occurrence of the longest matching suffix.

    Args:
        tokens: the row's prompt and output so far, int64 [length].
        shortest, longest: lengths of the suffixes looked up, longest first.
        count: maximum number of tokens.
        occurrence: which one, where the suffix has several.

    Returns:
        0 to `count` tokens, int64 [tokens]; none where no suffix occurs earlier.  As many as `count` where they are
        filled.
    """
    length = len(tokens)
    if occurrence is NgramOccurrence.LATEST_FOLLOWED:
        return _followed(tokens, shortest, longest, count)
    if occurrence is NgramOccurrence.LATEST_FILLED:
        draft = lookup(tokens, shortest, longest, count)
        return np.concatenate([draft, np.full(count - len(draft), tokens[-1])])
    for size in range(min(longest, length - 1), shortest - 1, -1):
        windows = np.lib.stride_tricks.sliding_window_view(tokens[:-1], size)  # all but the suffix itself
        matches = np.flatnonzero((windows == tokens[length - size :]).all(axis=1))
        if len(matches):
            chosen = matches[-1] if occurrence is NgramOccurrence.LATEST else matches[0]
            start = int(chosen) + size
            return tokens[start : start + count]
    return tokens[:0]


def _followed(tokens: npt.NDArray[np.int64], shortest: int, longest: int, count: int) -> npt.NDArray[np.int64]:
    """As llama.cpp's `common_ngram_simple_draft`, which looks up one length and ignores the text's last token.

    Shapes are those of `lookup`.  An occurrence at the very beginning does not count, nor one that a single token
    follows.  A text that is no longer than suffix, draft and two tokens gets no draft.
    """
    length, known = len(tokens), len(tokens) - 1
    for size in range(min(longest, known - 1), shortest - 1, -1):
        if known - 2 < size:
            continue
        windows = np.lib.stride_tricks.sliding_window_view(tokens[1 : known - 1], size)  # from the second token on
        matches = np.flatnonzero((windows == tokens[length - size :]).all(axis=1))
        if len(matches):
            start = 1 + int(matches[-1]) + size
            draft = tokens[start : min(start + count, known)]
            return draft if len(draft) >= size and length > size + count + 2 else tokens[:0]
    return tokens[:0]


class NgramProposer:
    """Prompt lookup over prompt and output; needs no model.  A row without a match makes a plain step, or is filled."""

    hidden = None  # of the target: none are needed

    def __init__(
        self,
        num_speculative_tokens: int,
        shortest: int,
        longest: int,
        occurrence: NgramOccurrence = NgramOccurrence.LATEST,
    ) -> None:
        """
        Args:
            shortest, longest, occurrence: as `lookup` takes them.
        """
        self._num_speculative_tokens = num_speculative_tokens
        self._shortest, self._longest = shortest, longest
        self._occurrence = occurrence

    def begin(self, batch: Batch) -> None:
        """Nothing to prepare: the batch keeps the rows' tokens."""

    def admit(self, batch: Batch, slots: Sequence[int]) -> None:
        """Nothing is held per slot."""

    def propose(self, batch: Batch, span: ColumnSpan) -> Proposal:
        drafted = np.zeros((batch.num_rows, self._num_speculative_tokens), dtype=np.int64)
        counts = np.zeros(batch.num_rows, dtype=np.int64)
        for row in range(batch.num_rows):
            if batch.is_active(row):
                draft = lookup(
                    batch.history(row), self._shortest, self._longest, self._num_speculative_tokens, self._occurrence
                )
                drafted[row, : len(draft)] = draft
                counts[row] = len(draft)
        drafted = drafted[:, : counts.max()]
        return Proposal(to_device(drafted, batch.device), to_device(counts, batch.device), None)

    def keep(self, slots: list[int]) -> None:
        """Nothing is held per slot."""

    def cache_bytes(self) -> int:
        return 0

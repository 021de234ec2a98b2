"""Drafting by suffix over the request itself and recent outputs of its endpoint; needs no model."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from shadowspec.engine.batch import Batch
from shadowspec.engine.kv_cache import Span
from shadowspec.engine.proposers import Proposal
from shadowspec.engine.proposers.suffix_automaton import SuffixAutomaton
from shadowspec.engine.proposers.suffix_text import SuffixOptions, SuffixText
from shadowspec.engine.transfer import to_device


class SuffixProposer:
    """One-hot drafts of as many tokens as the text bears out.  Rows whose end is new make a plain step."""

    hidden = None  # of the target: none are needed

    def __init__(
        self, num_speculative_tokens: int, options: SuffixOptions, recent: SuffixAutomaton | None = None
    ) -> None:
        """
        Args:
            recent: recent outputs, none of them of a request in the batch; None: there are none.
        """
        self._num_speculative_tokens = num_speculative_tokens
        self._options, self._recent = options, recent

    def begin(self, batch: Batch) -> None:
        self._texts: dict[int, SuffixText] = {}  # by slot

    def admit(self, batch: Batch, slots: Sequence[int]) -> None:
        """Take in the prompts; the first tokens follow with the next step."""
        for slot in slots:
            self._texts[slot] = SuffixText(self._options, self._recent, batch.prompts[slot])

    def propose(self, batch: Batch, span: Span) -> Proposal:
        drafted = np.zeros((batch.num_rows, self._num_speculative_tokens), dtype=np.int64)
        counts = np.zeros(batch.num_rows, dtype=np.int64)
        for row, text in self._texts.items():
            if batch.is_active(row):
                text.extend(batch.rows[row].output[text.num_tokens - len(batch.prompts[row]) :])
                found = text.draft(self._num_speculative_tokens)
                drafted[row, : len(found)] = found
                counts[row] = len(found)
        drafted = drafted[:, : counts.max()]
        return Proposal(to_device(drafted, batch.device), to_device(counts, batch.device), None)

    def keep(self, slots: list[int]) -> None:
        self._texts = {place: self._texts[slot] for place, slot in enumerate(slots)}

    def cache_bytes(self) -> int:
        return 0  # texts and their indexes lie in the host's memory, beside the process's own

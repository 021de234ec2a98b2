"""Contamination: whether texts occur in the training text, by runs of 13 lower-cased words."""

from __future__ import annotations

import re
from collections.abc import Iterable

import numpy as np

RUN_LENGTH = 13  # words; that of the contamination studies of large language models
# Powers of an odd number, so that no word of a run is lost from its 64-bit hash.
FACTORS = np.multiply.accumulate(np.full(RUN_LENGTH, 0x9E3779B97F4A7C15, dtype=np.uint64))
APART = [-1] * RUN_LENGTH  # beside each document: no run of a text goes on from one to the next

Prompt = str | tuple[str, ...]  # a completion's text, or a chat's messages: the user's and the assistant's in turn


class TrainingText:
    """The word sequences of the training documents; answers whether texts occur in them."""

    def __init__(self, documents: Iterable[str]) -> None:
        self._ids = ids = dict[str, int]()
        rows = ([ids.setdefault(word, len(ids)) for word in words_of(document)] + APART for document in documents)
        places = np.concatenate([APART, *(np.array(row, dtype=np.int64) for row in rows)])
        # Random codes of the words, then of a word that no document has (-2), and of what is between documents (-1).
        self._codes = np.random.default_rng(13).integers(0, 2**63, size=len(ids) + 2, dtype=np.uint64)
        self._words = self._codes[places]  # [words]
        self._runs: dict[int, np.ndarray] = {}  # hashes of all runs, sorted, by the length of run

    def occurs(self, text: str) -> bool:
        """Whether a text shares a run of RUN_LENGTH words with a document (or, shorter, stands in one)."""
        codes = self._codes[[self._ids.get(word, -2) for word in words_of(text)]]
        length = min(RUN_LENGTH, len(codes))
        if not length:
            return False
        if length not in self._runs:
            self._runs[length] = np.sort(np.correlate(self._words, FACTORS[:length]))
        hashes = np.correlate(codes, FACTORS[:length])
        first, after = (np.searchsorted(self._runs[length], hashes, side) for side in ("left", "right"))
        return bool((first < after).any())


def words_of(text: str) -> list[str]:
    """The lower-cased words of a text."""
    return re.findall(r"\w+", text.lower())


def checked(prompt: Prompt, *answer: str) -> list[str]:
    """What is looked up of a request: each piece by itself, as a short one is checked whole, and all as one run."""
    pieces = [prompt, *answer] if isinstance(prompt, str) else [*prompt, *answer]
    return [*pieces, "\n".join(pieces)]

"""No bundled prompt or continuation occurs in the training text: a check on runs of 13 words.

    python -m kernels.benchmarks.bundled_pair.contamination --corpora DIR --traffic FILE.jsonl.gz

A text is the sequence of its lower-cased words (`\\w+`).  It occurs in the training text if any 13 of its
consecutive words stand in one training document; a text shorter than 13 words, if all of it does.  Each
record is checked as one run of words (its messages or prompt, then its continuation, so that a run across
their border counts too) and each of its pieces by itself, so that a short piece is checked whole.
"""

from __future__ import annotations

import argparse
import gzip
import json
import re
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from kernels.benchmarks.bundled_pair.corpora import Document, read_documents
from shadowspec.errors import InputError

RUN_LENGTH = 13  # words; the length used by the contamination studies of large language models
_WORD = re.compile(r"\w+")
_HASH_BASE = np.uint64(0x9E3779B97F4A7C15)  # odd, so that no word of a run is lost from its 64-bit hash


def words(text: str) -> list[str]:
    """The lower-cased words of a text."""
    return _WORD.findall(text.lower())


def document_text(document: Document) -> str:
    """All text of a document: its turns one after the other, without the template's own markers."""
    if not document.turns:
        return document.text
    return "\n".join(f"{turn.user}\n{turn.assistant}" for turn in document.turns)


class TrainingText:
    """The word sequences of the training documents; answers whether texts occur in them."""

    def __init__(self, documents: Iterable[Document]) -> None:
        self._word_ids: dict[str, int] = {}
        ids: list[np.ndarray] = []
        for document in documents:
            known = self._word_ids
            row = [known.setdefault(word, len(known)) for word in words(document_text(document))]
            ids.append(np.asarray(row, dtype=np.int64))
        self._documents = np.repeat(np.arange(len(ids)), [len(row) for row in ids])  # [words]
        self._codes = np.random.default_rng(13).integers(0, 2**63, size=len(self._word_ids), dtype=np.uint64)
        self._words = self._codes[np.concatenate(ids)] if ids else np.empty(0, dtype=np.uint64)  # [words]

    @property
    def num_words(self) -> int:
        return len(self._words)

    def occurs(self, texts: Sequence[str]) -> list[bool]:
        """For each text, whether it shares a run of RUN_LENGTH words (or, shorter, occurs whole)."""
        found = [False] * len(texts)
        queries: dict[int, list[tuple[int, np.ndarray]]] = {}  # run length -> (text, codes of its words)
        for index, text in enumerate(texts):
            row = words(text)
            length = min(RUN_LENGTH, len(row))
            if length == 0:
                continue
            for piece in self._known_stretches(row, length):
                queries.setdefault(length, []).append((index, piece))
        for length, pieces in queries.items():
            hashes = [_run_hashes(codes, length) for _, codes in pieces]
            owners = np.repeat([index for index, _ in pieces], [len(row) for row in hashes])
            for index in owners[self._contained(np.concatenate(hashes), length)]:
                found[int(index)] = True
        return found

    def _known_stretches(self, row: list[str], length: int) -> Iterable[np.ndarray]:
        """Stretches of at least `length` words that all stand in the training vocabulary, as codes."""
        stretch: list[int] = []
        for word in [*row, None]:
            known = None if word is None else self._word_ids.get(word)
            if known is not None:
                stretch.append(known)
                continue
            if len(stretch) >= length:
                yield self._codes[stretch]
            stretch = []

    def _contained(self, hashes: np.ndarray, length: int) -> np.ndarray:
        """Which run hashes occur within one training document; bool [runs]."""
        if self.num_words < length:
            return np.zeros(len(hashes), dtype=bool)
        within = self._documents[length - 1 :] == self._documents[: self.num_words - length + 1]
        wanted = np.unique(hashes)
        training = _run_hashes(self._words, length)[within]
        slots = np.minimum(np.searchsorted(wanted, training), len(wanted) - 1)
        present = np.zeros(len(wanted), dtype=bool)
        present[slots[wanted[slots] == training]] = True
        return present[np.searchsorted(wanted, hashes)]


def _run_hashes(codes: np.ndarray, length: int) -> np.ndarray:
    """64-bit hash of every run of `length` codes; uint64 [len(codes) - length + 1]."""
    count = len(codes) - length + 1
    hashes = np.zeros(count, dtype=np.uint64)
    for offset in range(length):
        hashes = hashes * _HASH_BASE + codes[offset : offset + count]
    return hashes


def record_pieces(record: dict[str, Any]) -> tuple[list[str], str]:
    """The prompt's pieces and the continuation of one traffic record in the OpenAI form."""
    request, choice = record["request"], record["response"]["choices"][0]
    if "prompt" in request:
        return [request["prompt"]], choice["text"]
    pieces: list[str] = []
    for message in request["messages"]:
        content = message["content"]
        parts = [content] if isinstance(content, str) else [part.get("text", "") for part in content]
        pieces += [part for part in parts if part]
    return pieces, choice["message"]["content"]


def contaminated(training: TrainingText, records: Sequence[tuple[Sequence[str], str]]) -> list[bool]:
    """For each (prompt pieces, continuation), whether it or a piece of it occurs in the training text."""
    texts: list[str] = []
    owners: list[int] = []
    for index, (pieces, continuation) in enumerate(records):
        candidates = ["\n".join([*pieces, continuation]), *pieces, continuation]
        texts += candidates
        owners += [index] * len(candidates)
    flags = [False] * len(records)
    for owner, occurs in zip(owners, training.occurs(texts), strict=True):
        flags[owner] = flags[owner] or occurs
    return flags


def check_traffic(corpora: Path, traffic: Path) -> dict[str, Counter[str]]:
    """Counts per endpoint (by served model) of records checked and of records that occur in the training text.

    Lines that are no JSON object carry no readable prompt and are counted under "unreadable".

    Raises:
        InputError: the traffic file cannot be read.
    """
    records: list[dict[str, Any]] = []
    counts: dict[str, Counter[str]] = {}
    try:
        lines = gzip.decompress(traffic.read_bytes()).decode("utf-8").splitlines()
    except OSError as error:
        raise InputError(f"cannot read the traffic file {traffic}: {error}") from error
    for line in lines:
        try:
            record = json.loads(line)
        except json.JSONDecodeError:
            record = None
        if isinstance(record, dict):
            records.append(record)
        else:
            counts.setdefault("unreadable", Counter())["records"] += 1
    training = TrainingText(document for document in read_documents(corpora) if not document.held_out)
    flags = contaminated(training, [record_pieces(record) for record in records])
    for record, flag in zip(records, flags, strict=True):
        row = counts.setdefault(record["request"]["model"], Counter())
        row["records"] += 1
        row["in_training_text"] += flag
    return counts


def main() -> None:
    """Print counts per served model; exit 1 if anything bundled occurs in the training text."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpora", type=Path, required=True)
    parser.add_argument("--traffic", type=Path, required=True)
    arguments = parser.parse_args()
    counts = check_traffic(arguments.corpora, arguments.traffic)
    for name, row in sorted(counts.items()):
        print(f"{name}: {row['records']} records, {row['in_training_text']} in the training text")
    sys.exit(1 if any(row["in_training_text"] for row in counts.values()) else 0)


if __name__ == "__main__":
    main()

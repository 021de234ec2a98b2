"""The baseline that the target must beat: an interpolated Kneser-Ney 5-gram over the same training tokens.

    python -m kernels.benchmarks.bundled_pair.ngram --pair DIR --corpora DIR [--seed S]

An n-gram of up to five 12-bit token ids packs into one 64-bit integer, so that the model is a few sorted
arrays and its counts are exact.  The highest order counts occurrences, the lower ones distinct left
neighbours; each order has one absolute discount, n1 / (n1 + 2 n2) (Chen and Goodman 1998, section 2.8).
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from kernels.benchmarks.bundled_pair.corpora import read_documents
from kernels.benchmarks.bundled_pair.responses import load_tokenizer
from kernels.benchmarks.bundled_pair.train import VOCABULARY_SIZE, token_streams
from shadowspec.errors import InputError

ORDER = 5
BITS = 12  # of one token id; five of them fit in 64 bits
ROW_TOKENS = 512  # the evaluation's rows, as in `train.held_out_losses`
MAX_ROWS = 40

Tokens = npt.NDArray[np.int64]
Keys = npt.NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class OrderCounts:
    """Counts of one order: its n-grams and their contexts, both sorted."""

    grams: Keys
    gram_counts: npt.NDArray[np.int64]
    contexts: Keys
    context_counts: npt.NDArray[np.int64]  # summed over the tokens that follow
    context_types: npt.NDArray[np.int64]  # distinct tokens that follow
    discount: float


def packed(tokens: Tokens, order: int) -> Keys:
    """Every run of `order` tokens as one integer, the first token highest; uint64 [tokens - order + 1]."""
    count = len(tokens) - order + 1
    keys = np.zeros(max(0, count), dtype=np.uint64)
    for offset in range(order):
        keys = (keys << np.uint64(BITS)) | tokens[offset : offset + count].astype(np.uint64)
    return keys


def _order_counts(grams: Keys, gram_counts: npt.NDArray[np.int64]) -> OrderCounts:
    contexts, first = np.unique(grams >> np.uint64(BITS), return_index=True)
    once, twice = int(np.sum(gram_counts == 1)), int(np.sum(gram_counts == 2))
    return OrderCounts(
        grams=grams,
        gram_counts=gram_counts,
        contexts=contexts,
        context_counts=np.add.reduceat(gram_counts, first),
        context_types=np.diff(np.append(first, len(grams))),
        # Every n-gram seen once gives n2 = 0 and a discount of 1, which would leave seen n-grams nothing.
        discount=min(0.95, once / (once + 2 * twice)) if once else 0.5,
    )


def _looked_up(keys: Keys, sorted_keys: Keys, values: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The value of each key, 0 where it is not there."""
    places = np.minimum(np.searchsorted(sorted_keys, keys), len(sorted_keys) - 1)
    return np.where(sorted_keys[places] == keys, values[places], 0)


class NgramModel:
    """Next-token probabilities from up to ORDER - 1 tokens of context."""

    def __init__(self, streams: Sequence[Tokens], vocabulary: int = VOCABULARY_SIZE) -> None:
        if vocabulary > 1 << BITS:
            raise InputError(f"the n-gram baseline takes vocabularies of up to {1 << BITS} tokens, not {vocabulary}")
        if sum(len(stream) >= ORDER for stream in streams) == 0:
            raise InputError(f"the n-gram baseline needs a stream of at least {ORDER} tokens")
        self._vocabulary = vocabulary
        highest = np.concatenate([packed(stream, ORDER) for stream in streams])
        grams, counts = np.unique(highest, return_counts=True)
        self._orders = [_order_counts(grams, counts)]
        for order in range(ORDER - 1, 0, -1):
            kept = np.uint64((1 << (BITS * order)) - 1)
            grams, counts = np.unique(grams & kept, return_counts=True)
            self._orders.insert(0, _order_counts(grams, counts))

    def probabilities(self, contexts: Keys, context_lengths: Tokens, tokens: Tokens) -> npt.NDArray[np.float64]:
        """P(token | context) for each entry.

        Args:
            contexts: the preceding tokens, packed; uint64 [entries].
            context_lengths: how many tokens each context holds, at most ORDER - 1; [entries].
            tokens: token ids; int64 [entries].
        """
        result = np.full(len(tokens), 1.0 / self._vocabulary)
        for length, counts in enumerate(self._orders):
            context = contexts & np.uint64((1 << (BITS * length)) - 1)
            total = _looked_up(context, counts.contexts, counts.context_counts)
            types = _looked_up(context, counts.contexts, counts.context_types)
            gram = (context << np.uint64(BITS)) | tokens.astype(np.uint64)
            seen = _looked_up(gram, counts.grams, counts.gram_counts)
            applies = (total > 0) & (context_lengths >= length)
            divisor = np.where(applies, total, 1)
            interpolated = (np.maximum(seen - counts.discount, 0.0) + counts.discount * types * result) / divisor
            result = np.where(applies, interpolated, result)
        return result

    def loss(self, rows: Tokens) -> float:
        """Cross-entropy in nats per token of rows [rows, tokens], each predicted from its own tokens alone."""
        contexts, lengths, targets = [], [], []
        for row in rows:
            for position in range(1, min(ORDER, len(row))):
                contexts.append(packed(row[:position], position))
                lengths.append(np.array([position]))
                targets.append(row[position : position + 1])
            contexts.append(packed(row[:-1], ORDER - 1)[1:])
            lengths.append(np.full(len(row) - ORDER, ORDER - 1))
            targets.append(row[ORDER:])
        probs = self.probabilities(np.concatenate(contexts), np.concatenate(lengths), np.concatenate(targets))
        return float(-np.log(probs).mean())


def held_out_ngram_losses(pair: Path, corpora: Path, seed: int) -> dict[str, float]:
    """The baseline's loss per domain, on the tokens that `train.held_out_losses` scores the pair on."""
    tokenizer = load_tokenizer(pair / "target")
    documents = read_documents(corpora)
    training = token_streams(documents, tokenizer, held_out=False, seed=seed)
    held_out = token_streams(documents, tokenizer, held_out=True, seed=seed)
    model = NgramModel([stream.astype(np.int64) for stream in training.values()])
    losses: dict[str, float] = {}
    for domain, stream in held_out.items():
        rows = min(MAX_ROWS, len(stream) // ROW_TOKENS)
        losses[domain] = model.loss(stream[: rows * ROW_TOKENS].astype(np.int64).reshape(rows, ROW_TOKENS))
    return losses


def main() -> None:
    """Print the losses as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pair", type=Path, required=True)
    parser.add_argument("--corpora", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=0, help="the training's seed, which orders the held-out text")
    arguments = parser.parse_args()
    print(json.dumps(held_out_ngram_losses(arguments.pair, arguments.corpora, arguments.seed), indent=1))


if __name__ == "__main__":
    main()

"""The n-gram baseline: a probability for every token, Kneser-Ney's by its definition, honest at row starts."""

from __future__ import annotations

import math
from collections import Counter, defaultdict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.benchmarks.bundled_pair.ngram import BITS, ORDER, NgramModel, Tokens, packed
from shadowspec.errors import InputError

VOCABULARY = 6
STREAMS = st.lists(st.lists(st.integers(0, VOCABULARY - 1), min_size=8, max_size=60), min_size=1, max_size=3)
CONTEXTS = st.lists(st.integers(0, VOCABULARY - 1), max_size=ORDER - 1)


def as_tokens(values: list[int]) -> Tokens:
    return np.asarray(values, dtype=np.int64)


def model_probability(model: NgramModel, context: list[int], token: int) -> float:
    key = packed(as_tokens(context), len(context)) if context else np.zeros(1, dtype=np.uint64)
    return float(model.probabilities(key, as_tokens([len(context)]), as_tokens([token]))[0])


class DefinedModel:
    """Interpolated Kneser-Ney written down from its definition, with dictionaries."""

    def __init__(self, streams: list[list[int]]) -> None:
        counts = [Counter[tuple[int, ...]]() for _ in range(ORDER + 1)]
        for row in streams:
            counts[ORDER].update(tuple(row[i : i + ORDER]) for i in range(len(row) - ORDER + 1))
        for order in range(ORDER - 1, 0, -1):
            counts[order].update(gram[1:] for gram in counts[order + 1])  # each distinct left neighbour once
        self.counts = counts
        self.discounts = [0.0]
        for order in range(1, ORDER + 1):
            once = sum(value == 1 for value in counts[order].values())
            twice = sum(value == 2 for value in counts[order].values())
            self.discounts.append(min(0.95, once / (once + 2 * twice)) if once else 0.5)
        self.following = [defaultdict[tuple[int, ...], list[int]](list) for _ in range(ORDER + 1)]
        for order in range(1, ORDER + 1):
            for gram, value in counts[order].items():
                self.following[order][gram[:-1]].append(value)

    def probability(self, context: tuple[int, ...], token: int) -> float:
        result = 1.0 / VOCABULARY
        for order in range(1, len(context) + 2):
            suffix = context[len(context) - order + 1 :]
            following = self.following[order].get(suffix)
            if following is None:
                continue
            discount = self.discounts[order]
            kept = max(self.counts[order][(*suffix, token)] - discount, 0.0)
            result = (kept + discount * len(following) * result) / sum(following)
        return result


@settings(max_examples=150, deadline=None)
@given(STREAMS, CONTEXTS)
def test_probabilities_are_kneser_neys_and_sum_to_one(streams: list[list[int]], context: list[int]) -> None:
    model = NgramModel([as_tokens(row) for row in streams], VOCABULARY)
    defined = DefinedModel(streams)
    probs = [model_probability(model, context, token) for token in range(VOCABULARY)]
    assert probs == pytest.approx([defined.probability(tuple(context), token) for token in range(VOCABULARY)])
    assert math.fsum(probs) == pytest.approx(1.0)
    assert min(probs) > 0.0


@settings(max_examples=50, deadline=None)
@given(STREAMS, st.lists(st.lists(st.integers(0, 5), min_size=7, max_size=7), min_size=1, max_size=4))
def test_loss_predicts_each_token_from_its_own_row(streams: list[list[int]], rows: list[list[int]]) -> None:
    model = NgramModel([as_tokens(row) for row in streams], VOCABULARY)
    losses = [
        -math.log(model_probability(model, row[max(0, position - ORDER + 1) : position], row[position]))
        for row in rows
        for position in range(1, len(row))
    ]
    assert model.loss(np.asarray(rows)) == pytest.approx(sum(losses) / len(losses))


def test_it_learns_what_there_is_to_learn() -> None:
    rng = np.random.default_rng(3)
    stream = [0, 1]
    for value in rng.random(6_000):  # an order-2 chain: mostly the sum of the last two
        stream.append((stream[-1] + stream[-2] + 1) % VOCABULARY if value < 0.9 else int(value * 1e6) % VOCABULARY)
    stream_entropy = -(0.9 + 0.1 / 6) * math.log(0.9 + 0.1 / 6) - 5 * (0.1 / 6) * math.log(0.1 / 6)
    model = NgramModel([as_tokens(stream[:5_000])], VOCABULARY)
    assert stream_entropy - 0.1 < model.loss(as_tokens(stream[5_000:])[None]) < stream_entropy + 0.25
    noise = NgramModel([rng.integers(0, VOCABULARY, 5_000)], VOCABULARY)
    assert noise.loss(rng.integers(0, VOCABULARY, (1, 1_000))) > math.log(VOCABULARY) - 0.05


def test_five_tokens_fit_a_key() -> None:
    tokens = as_tokens([4_095, 0, 4_094, 1, 4_093, 2])
    keys = packed(tokens, ORDER)
    unpacked = [[int(key) >> (BITS * place) & 4_095 for place in reversed(range(ORDER))] for key in keys]
    assert unpacked == [tokens[:5].tolist(), tokens[1:].tolist()]


def test_what_it_cannot_hold_is_refused() -> None:
    with pytest.raises(InputError, match="up to 4096"):
        NgramModel([as_tokens([1] * 9)], 5_000)
    with pytest.raises(InputError, match="at least 5 tokens"):
        NgramModel([as_tokens([1, 2])], VOCABULARY)

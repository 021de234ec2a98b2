"""How probable the likeliest token was under a request's sampling parameters, from only the likeliest few.

Servers report the log probabilities of the N likeliest tokens before temperature and truncation.  The sum of all other
tokens is then known (one less theirs), and none of them is likelier than the N-th.  From that follow bounds of their
weight at another temperature, and so of the processed probability of the likeliest token.  The bounds are equal, but
for rounding, where temperature is 1 and nothing is cut, and where min-p, top-k and top-p leave only tokens among the N.
Parameters apply in the order of `shadowspec.engine.sampling`: temperature, min-p, top-k, top-p.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from shadowspec.types import SamplingParameters

MOST_WORDS: Final = 2**20  # no model has more
SUM_ERROR: Final = 1e-6  # of probabilities added up from 32-bit log probabilities
EDGE: Final = 1e-5  # weights nearer to an edge than this, relative to it, may be cut or not: rounding decides

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Weights:
    """The rest of each place's distribution, in units of its likeliest token: between `low` and `high`.

    `head` holds the N likeliest, falling from 1.  Of the places' heads `num_low` are left for certain and `num_high` at
    most; the tokens beyond weigh `tail_low` to `tail_high` together.
    """

    head: Floats  # [places, N]
    num_low: NDArray[np.int64]  # [places]
    num_high: NDArray[np.int64]  # [places]
    tail_low: Floats  # [places]
    tail_high: Floats  # [places]

    @property
    def low(self) -> Floats:
        """The least that everything left may weigh, [places]."""
        return _heads(self.head, self.num_low) + self.tail_low

    @property
    def high(self) -> Floats:
        """The most that everything left may weigh, [places]."""
        return _heads(self.head, self.num_high) + self.tail_high


def likeliest_probs(logprobs: Floats, sampling: SamplingParameters) -> tuple[Floats, Floats]:
    """Bounds of the processed probability of each place's likeliest token.

    Args:
        logprobs: of the N likeliest tokens of each place, falling, natural, before any processing; [places, N].
        sampling: of a sampled request without penalties.

    Returns:
        The lower and the upper bound, each [places].
    """
    weights = _apply_temperature(logprobs, 1.0 / sampling.temperature)
    if sampling.min_p > 0.0:
        weights = _without_improbable(weights, sampling.min_p)
    if sampling.top_k > 0:
        weights = _highest(weights, sampling.top_k)
    low, high = weights.low, weights.high
    if sampling.top_p < 1.0:
        low, high = _nucleus(weights, sampling.top_p)
    return 1.0 / np.maximum(high, 1.0), 1.0 / np.maximum(low, 1.0)


def num_needed(sampling: SamplingParameters, most: int) -> int:
    """How many of the likeliest tokens are worth asking for: one, where that one says it all."""
    return 1 if sampling.temperature == 1.0 and not sampling.truncates(MOST_WORDS) else most


def _apply_temperature(logprobs: Floats, exponent: float) -> Weights:
    """Weights at a temperature of 1 / exponent.

    With x the weights of the tail at temperature 1, each at most that of the N-th token, and q their sum, x^exponent
    lies between x times the N-th's (exponent - 1)th power and the value for equal shares of q (Jensen): the first
    is the upper bound where the exponent is above 1, the lower one where it is below.
    """
    places, number = logprobs.shape
    relative = logprobs - logprobs[:, :1]
    shared = np.maximum(0.0, 1.0 - np.exp(logprobs).sum(1)) / np.exp(logprobs[:, 0])
    error = SUM_ERROR / np.exp(logprobs[:, 0])
    last = np.exp(relative[:, -1])
    # An empty rest stays empty at any temperature; if the last weight vanishes, so do the tokens beyond it.
    least, most = (np.minimum(sums, MOST_WORDS * last) for sums in (np.maximum(0.0, shared - error), shared + error))
    power = exponent - 1.0

    def at_edge(sums: Floats) -> Floats:
        return sums * np.where(last > 0.0, last, 1.0) ** power

    def spread(sums: Floats) -> Floats:
        return np.where(sums > 0.0, sums * (np.where(sums > 0.0, sums, 1.0) / MOST_WORDS) ** power, 0.0)

    tail_low, tail_high = (spread(least), at_edge(most)) if power >= 0.0 else (at_edge(least), spread(most))
    every = np.full(places, number)
    return Weights(np.exp(relative * exponent), every, every, tail_low, tail_high)


def _without_improbable(weights: Weights, min_p: float) -> Weights:
    """Without tokens less probable than `min_p` times the likeliest."""
    head = weights.head
    may_go_on = head[:, -1] >= min_p * (1.0 - EDGE)
    return Weights(
        head,
        (head >= min_p * (1.0 + EDGE)).sum(1).clip(1),
        (head >= min_p * (1.0 - EDGE)).sum(1).clip(1),
        np.zeros_like(weights.tail_low),
        np.where(may_go_on, weights.tail_high, 0.0),
    )


def _highest(weights: Weights, top_k: int) -> Weights:
    """The `top_k` likeliest; those as likely as the last of them stay with it."""
    head, number = weights.head, weights.head.shape[1]
    last = head[:, min(top_k, number) - 1]
    num_tied = (head >= last[:, None] * (1.0 - EDGE)).sum(1)
    # Beyond the N there are more to keep, or as many as may be tied with the last.
    beyond = (top_k - number) * head[:, -1] if top_k > number else np.where(num_tied == number, np.inf, 0.0)
    return Weights(
        head,
        np.minimum(weights.num_low, top_k),
        np.minimum(weights.num_high, number if top_k > number else num_tied),
        np.zeros_like(weights.tail_low),
        np.minimum(weights.tail_high, beyond),
    )


def _nucleus(weights: Weights, top_p: float) -> tuple[Floats, Floats]:
    """Bounds of the smallest head of the rest with a share of `top_p`; those tied with its last token may stay."""
    head, low, high = weights.head, weights.low, weights.high
    summed = head.cumsum(1)
    places, number = np.arange(len(head)), head.shape[1]
    first = (summed < top_p * low[:, None] * (1.0 - EDGE)).sum(1)  # the index of the last token kept, at least
    last = (summed < top_p * high[:, None] * (1.0 + EDGE)).sum(1)
    least = np.where(first < weights.num_low, summed[places, np.minimum(first, number - 1)], top_p * low)
    edge = head[places, np.minimum(last, number - 1)]
    num_tied = (head >= edge[:, None] * (1.0 - EDGE)).sum(1)
    most = np.where((last < number) & (num_tied < number), _heads(head, num_tied), high)
    return least, np.minimum(most, high)


def _heads(head: Floats, number: NDArray[np.int64]) -> Floats:
    """The sums of the first `number` entries of each row, [places]."""
    sums: Floats = np.where(np.arange(head.shape[1]) < number[:, None], head, 0.0).sum(1)
    return sums

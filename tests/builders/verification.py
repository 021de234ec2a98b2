"""Draws of verify rules, the exact distribution and a p-value of their difference."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from scipy import stats

from shadowspec.engine.batch import Request
from shadowspec.engine.decode import decode_batch
from shadowspec.types import SamplingParameters, VerifyRule

PROMPT = (0, 5, 3, 7, 5, 3)
DRAWS = 10_240
BATCH = 2_048
OUTPUT_TOKENS = 3
LEVEL = 1e-4  # a right rule fails one seeded test in ten thousand; the broken ones fail at 1e-12 and below
SAMPLING = SamplingParameters(temperature=0.8, max_tokens=OUTPUT_TOKENS, ignore_eos=True)


def exact_distribution(target: Any, sampling: SamplingParameters) -> dict[tuple[int, ...], float]:
    """Probability of every output, by enumeration with plain forward passes (temperature and top-p only)."""
    vocabulary = int(target.config.vocab_size)

    def next_probs(tokens: tuple[int, ...]) -> np.ndarray:
        with torch.inference_mode():
            logits = target(input_ids=torch.tensor([tokens]), use_cache=False).logits[0, -1].double()
        probs = torch.softmax(logits / sampling.temperature, -1).numpy()
        if sampling.top_p < 1.0:
            order = np.argsort(-probs)
            ahead = np.cumsum(probs[order]) - probs[order]
            probs[order[ahead >= sampling.top_p]] = 0.0
            probs /= probs.sum()
        return probs

    def extend(prefix: tuple[int, ...], weight: float) -> dict[tuple[int, ...], float]:
        if len(prefix) == OUTPUT_TOKENS:
            return {prefix: weight}
        found: dict[tuple[int, ...], float] = {}
        for token, probability in enumerate(next_probs(PROMPT + prefix)):
            if probability > 0.0:
                found |= extend((*prefix, token), weight * probability)
        return found

    assert vocabulary**OUTPUT_TOKENS < 10_000
    return extend((), 1.0)


def draw(target: Any, sampling: SamplingParameters, rule: VerifyRule, make: Callable[[], Any]) -> list[tuple[int, ...]]:
    """Outputs of DRAWS independent requests through the speculative loop."""
    outputs: list[tuple[int, ...]] = []
    for start in range(0, DRAWS, BATCH):
        requests = [Request(PROMPT, sampling, seed) for seed in range(start, start + BATCH)]
        result = decode_batch(
            target, requests, proposer=make(), num_speculative_tokens=2, verify_rule=rule, end_token_ids=frozenset({1})
        )
        outputs += [decoded.output for decoded in result.decoded]
    return outputs


def p_value(outputs: list[tuple[int, ...]], exact: dict[tuple[int, ...], float]) -> float:
    """Chi-square of observed outputs against exact probabilities; rare outputs are pooled to 5 expected."""
    counts = Counter(outputs)
    assert set(counts) <= set(exact), "an output of probability 0 was drawn"
    cells = sorted(exact, key=lambda output: -exact[output])
    expected = np.array([exact[output] * len(outputs) for output in cells])
    observed = np.array([counts[output] for output in cells], dtype=float)
    common = expected >= 5.0
    pooled_expected = np.append(expected[common], expected[~common].sum())
    pooled_observed = np.append(observed[common], observed[~common].sum())
    keep = pooled_expected > 0
    return float(
        stats.chisquare(
            pooled_observed[keep], pooled_expected[keep] * pooled_observed.sum() / pooled_expected.sum()
        ).pvalue
    )

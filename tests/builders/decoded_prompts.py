"""Prompts of the bundled traffic and their greedy decoding."""

from __future__ import annotations

import gzip
import json
from typing import Any

from shadowspec import demo
from shadowspec.engine.batch import Request
from shadowspec.engine.decode import Decoded, decode_batch
from shadowspec.engine.parity import divergence_gap
from shadowspec.engine.proposers import Proposer
from shadowspec.quality.outputs import first_divergence
from shadowspec.types import SamplingParameters, VerifyRule

GREEDY = SamplingParameters(temperature=0.0, max_tokens=24, ignore_eos=True)
NEAR_TIE_LOGIT = 1e-3  # float32; the gate's own


def decode_greedy(target: Any, requests: list[Request], proposer: Proposer | None, depth: int) -> list[Decoded]:
    return list(
        decode_batch(
            target,
            requests,
            proposer=proposer,
            num_speculative_tokens=depth,
            verify_rule=VerifyRule.GREEDY,
            end_token_ids=frozenset({1}),
        ).decoded
    )


def assert_equal_but_for_near_ties(
    target: Any, request: Request, first: tuple[int, ...], second: tuple[int, ...]
) -> None:
    """Greedy outputs may part only where the target's two best logits are a rounding error apart."""
    position = first_divergence(first, second)
    if position is not None:
        gap = divergence_gap(target, request, first[: position + 1], frozenset({1}))
        assert gap < NEAR_TIE_LOGIT, f"greedy outputs part at {position} with a top-2 gap of {gap}"


def traffic_prompts(count: int) -> list[tuple[int, ...]]:
    """Prompts of the bundled traffic, evenly from all of it and so of every endpoint, below 400 tokens."""
    prompts: list[tuple[int, ...]] = []
    with gzip.open(demo.TRAFFIC, "rt", encoding="utf-8") as file:
        for line in file:
            try:
                prompts.append(tuple(json.loads(line)["response"]["choices"][0]["prompt_token_ids"]))
            except (ValueError, KeyError, TypeError):
                continue  # a record that is bad on purpose, or was served without token ids
    prompts = [prompt for prompt in prompts if len(prompt) < 400]
    return prompts[:: len(prompts) // count][:count]

"""Answers of the bundled target, sampled in batches by the engine's own baseline loop."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from kernels.benchmarks.bundled_pair.prompts import Prompt
from shadowspec.engine.batch import Request
from shadowspec.engine.decode import Decoded, decode_batch
from shadowspec.engine.proposers import Proposer
from shadowspec.types import VerifyRule

log = logging.getLogger("kernels.benchmarks.bundled_pair.responses")

BATCH_ROWS = 64  # large enough that a step's fixed cost is shared, small enough that lengths within it are alike


def load_model(folder: Path) -> Any:
    """A model of the pair in fp32 on the CPU, as the demo runs it."""
    return LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="sdpa").eval()


def load_tokenizer(folder: Path) -> Any:
    """The pair's tokenizer, with its chat template."""
    return PreTrainedTokenizerFast.from_pretrained(folder)


def prompt_token_ids(tokenizer: Any, prompt: Prompt) -> tuple[int, ...]:
    """The prompt as the server would see it: a completion's text after the beginning token, a chat by template."""
    if not prompt.messages:
        return tuple(tokenizer(prompt.text)["input_ids"])
    rendered = tokenizer.apply_chat_template(
        [dict(message) for message in prompt.messages], tokenize=False, add_generation_prompt=True
    )
    return tuple(tokenizer(rendered, add_special_tokens=False)["input_ids"])


def request_seed(*parts: object) -> int:
    """The seed of a request's random numbers, from what identifies it."""
    digest = hashlib.blake2b(":".join(map(str, parts)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def respond(
    target: Any,
    requests: Sequence[Request],
    *,
    proposer: Proposer | None = None,
    num_speculative_tokens: int = 0,
    verify_rule: VerifyRule = VerifyRule.GREEDY,
    batch_rows: int = BATCH_ROWS,
) -> list[Decoded]:
    """Decode every request, in the order given; prompts of like length share a batch."""
    order = sorted(range(len(requests)), key=lambda index: len(requests[index].prompt))
    decoded: dict[int, Decoded] = {}
    for start in range(0, len(order), batch_rows):
        rows = order[start : start + batch_rows]
        result = decode_batch(
            target,
            [requests[index] for index in rows],
            proposer=proposer,
            num_speculative_tokens=num_speculative_tokens,
            verify_rule=verify_rule,
            end_token_ids=frozenset({int(target.config.eos_token_id)}),
        )
        decoded.update(zip(rows, result.decoded, strict=True))
        log.info("%d of %d answers", len(decoded), len(requests))
    return [decoded[index] for index in range(len(requests))]

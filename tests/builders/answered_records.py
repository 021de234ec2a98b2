"""Mirrored records that hold their logged responses."""

from __future__ import annotations

from typing import Any

from shadowspec.engine.batch import Request
from shadowspec.engine.decode import decode_batch
from shadowspec.engine.models import LoadedModel
from shadowspec.types import SamplingParameters, VerifyRule
from tests.builders.workspace import record

NGRAM = """
[[endpoints.letters.candidates]]
name = "lookup"
proposer = "ngram"
num_speculative_tokens = 3
ngram_min = 1
"""


def answered(target: LoadedModel, number: int, **changes: Any) -> dict[str, Any]:
    """A record with what the target answers to it: greedy unless `changes` say otherwise."""
    asked = record(number, max_tokens=12, **changes)
    prompt = tuple(target.tokenizer.encode(asked["request"]["prompt"]))
    sampling = SamplingParameters(temperature=asked["request"]["temperature"], max_tokens=12)
    answer = decode_batch(
        target.model, [Request(prompt, sampling, number)], proposer=None, num_speculative_tokens=0,
        verify_rule=VerifyRule.EXACT_MATCH, end_token_ids=target.end_token_ids,
    ).decoded[0]  # fmt: skip
    choice = {"text": "", "token_ids": list(answer.output), "finish_reason": answer.finish_reason}
    usage = {"completion_tokens": len(answer.output)}
    return asked | {"response": {"model": "m", "choices": [choice], "usage": usage}}

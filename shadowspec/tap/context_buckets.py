"""The context bucket of a prompt, by its number of tokens, and the finer ranges in which views show lengths."""

from __future__ import annotations

from typing import Final

# Upper bounds in prompt tokens, exclusive; a bucket's name holds no comma and no "=", it is part of slice keys.
CONTEXT_BUCKETS: Final = (
    (512, "<512"), (2_048, "512-2k"), (8_192, "2k-8k"), (32_768, "8k-32k"), (131_072, "32k-128k"),
)  # fmt: skip
LARGEST_CONTEXT_BUCKET: Final = "128k+"
SHORTEST_RANGE: Final = 64  # prompt tokens, where views of lengths begin to double
KILO: Final = 1_024


def context_bucket(num_prompt_tokens: int) -> str:
    """The bucket of a prompt's length in tokens."""
    for limit, name in CONTEXT_BUCKETS:
        if num_prompt_tokens < limit:
            return name
    return LARGEST_CONTEXT_BUCKET


def prompt_range(num_prompt_tokens: int) -> str:
    """The range of prompt lengths that doubles from `SHORTEST_RANGE` on: "<64", "64-128", ..., "512-1k", "1k-2k"."""
    limit = SHORTEST_RANGE
    if num_prompt_tokens < limit:
        return f"<{limit}"
    while num_prompt_tokens >= 2 * limit:
        limit *= 2
    return f"{_thousands(limit)}-{_thousands(2 * limit)}"


def _thousands(tokens: int) -> str:
    return str(tokens) if tokens < KILO else f"{tokens // KILO}k"

"""Whether a server finds a prompt in its prefix cache that it has just answered.

In: a client of one server.  Out: what a measurement with the prefix cache on needs to know.  Imports: requests, clients
and answers of servers.
"""

from __future__ import annotations

from typing import Final

from shadowspec.errors import ModelError
from shadowspec.servers.client import Client, fresh_salt
from shadowspec.servers.request import ServerRequest
from shadowspec.types import SamplingParameters

# Caches hold whole pages of 1 to 256 tokens, and never the last token of a prompt.
PROBE_TOKENS: Final = 600
SAMPLING: Final = SamplingParameters(temperature=0.0, max_tokens=1, ignore_eos=True)


async def finds_its_prefix(client: Client, max_model_len: int | None) -> bool | None:
    """Whether a second turn finds the first; None where the server does not say what it had cached.

    Raises:
        ServerError: it gives no usable answer.
    """
    length = PROBE_TOKENS if max_model_len is None else min(PROBE_TOKENS, max_model_len - 8)
    first = ServerRequest((5, 6, 7, 8) * (length // 4), SAMPLING, 0)
    later = ServerRequest((*first.prompt_token_ids, 9, 10), SAMPLING, 0, is_later_turn=True)
    salt = fresh_salt()
    await client.complete(first, salt, is_turn=True)
    answer = await client.complete(later, salt, is_turn=True)
    return None if answer.cached_tokens is None else answer.cached_tokens > 0


def require_prefix_cache(name: str, finds_prefix: bool | None) -> None:
    """Raise ModelError where the baseline has no prefix cache, though what is measured is said to have one.

    Args:
        name: of the baseline server, for messages.  A speculative server may lose its hits: that is measured.
    """
    if finds_prefix is False:
        raise ModelError(
            f"{name} found nothing of a prompt that it had just answered: servers.prefix_cache is on and the "
            "server's is off; start vLLM with --enable-prefix-caching, SGLang without --disable-radix-cache"
        )

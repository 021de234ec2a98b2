"""What timed requests may find in the servers' prefix caches, by `prefix_cache` of the servers.

"off": nothing; each request, arm and attempt has its salt.  "on": the earlier turns of its conversation, which begins
cold.  "as_served": whatever measured requests have left there since this engine connected, whose salt they share: both
arms begin cold, and each keeps its cache.  "evicted": the same, but that other prompts fill the cache between two turns
of a conversation, so that a later turn is computed again, or restored from another tier.

Everything else that is sent must leave that cache alone: it has salts of its own.  On an engine without salts
(`ServingEngine.has_salts`) it is computed without the cache, and warm-up sends other prompts.  A repeat of the baseline
would find its own prompts there, so that it runs under another salt, whose cache is first given what the first run had
found in it from before; where that is not known it does not run.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from shadowspec.errors import ModelError
from shadowspec.servers.client import ServerClient, fresh_salt
from shadowspec.servers.closed_loop import Outcome, run_arm, run_conversations
from shadowspec.servers.engines import Lack, ServingEngine
from shadowspec.servers.kv_capacity import KvCapacity
from shadowspec.servers.request import ServerRequest
from shadowspec.servers.server_settings import PrefixCache
from shadowspec.servers.stream import Completion, ServerError
from shadowspec.types import SamplingParameters

ONE_TOKEN: Final = SamplingParameters(temperature=0.0, max_tokens=1, ignore_eos=True)
SAME_CACHED: Final = 16  # tokens, a page of vLLM's, by which the caches of two runs may differ and yet be the same
MAX_FILL_TOKENS: Final = 2_000_000  # of a cache that is filled between two turns: a minute or more on one device
MAX_FILLER_TOKENS: Final = 4_096  # of one prompt that fills it
FILLER_IDS: Final = (5, 6, 7, 8)  # tokens that every vocabulary has
DRAWN_IDS: Final = 32  # with which a prompt begins


class PrefixCaches:
    """The salts of one engine's requests."""

    def __init__(self, mode: PrefixCache, *, has_salts: bool = True) -> None:
        """`has_salts`: both servers keep prompts of different salts apart."""
        self.mode, self.has_salts, self._salt = mode, has_salts, fresh_salt()

    @property
    def keeps_cache(self) -> bool:
        """Whether a request may find what those of other conversations and blocks have left."""
        return self.mode in ("as_served", "evicted")

    def uses_cache(self, turn: int, *, is_filler: bool) -> bool:
        """Whether a timed arm's request may find anything at all; `turn`: its place in its conversation, from 0."""
        return self.mode != "off" and (turn > 0 or (self.keeps_cache and not is_filler))

    def salts(self, num_measured: int, num_fillers: int, salt: str | None = None) -> list[str]:
        """Of an arm's conversations.

        A filler is a copy of one that was measured: it begins cold in every mode, or it would be no load.

        Args:
            salt: the measured ones', where it is not that of this engine.
        """
        own, number = fresh_salt(), num_measured + num_fillers
        alone = [f"{own}-{index}" for index in range(number)]
        return [salt or self._salt] * num_measured + alone[num_measured:] if self.keeps_cache else alone

    def apart(self, request: ServerRequest) -> ServerRequest:
        """A request of this length that leaves nothing for the measured ones, under another salt."""
        request = replace(request, uses_cache=False)
        if self.has_salts or not self.keeps_cache:
            return request
        return replace(request, prompt_token_ids=request.prompt_token_ids[::-1], chat=None)

    async def repeat_salt(
        self, client: ServerClient, requests: Sequence[ServerRequest], first_run: Sequence[Outcome], slots: int
    ) -> str | None:
        """The salt of another run of these requests, whose cache holds what the first run found from before it.

        None where that is not known, or cannot be: there is no other run.
        """
        if not self.keeps_cache:
            return fresh_salt()
        found = found_before(requests, first_run) if self.has_salts else None
        if found is None:
            return None
        salt = fresh_salt()
        prompts = [[ServerRequest(prefix, ONE_TOKEN, 0)] for prefix in found]
        primed = await run_conversations(client, prompts, slots, [salt] * len(prompts), shares_prefix=True)
        return None if any(isinstance(outcome, ServerError) for outcome in primed) else salt


def found_before(requests: Sequence[ServerRequest], answers: Sequence[Outcome]) -> list[tuple[int, ...]] | None:
    """The prompts' beginnings that were in a cache before any of these requests was sent, none of them twice.

    What a request found is one of them where no request sent before it begins alike.  None where an answer does not
    say how much it found, or of which tokens its prompt was.
    """
    answered = [(r, a) for r, a in zip(requests, answers, strict=True) if isinstance(a, Completion)]
    sent: list[tuple[int, ...]] = []
    found: list[tuple[int, ...]] = []
    for request, answer in sorted(answered, key=lambda pair: pair[1].sent_s):
        prompt, number = answer.prompt_token_ids or request.prompt_token_ids, answer.cached_tokens
        if number is None or len(prompt) != answer.num_prompt_tokens:
            return None
        prefix = prompt[:number]
        if number and not any(other[:number] == prefix for other in (*sent, *found)):
            found.append(prefix)
        sent.append((*prompt, *(answer.token_ids or ())))
    return found


def has_same_cache(first: Outcome, again: Outcome) -> bool:
    """Whether both runs of a request found as much."""
    if not (isinstance(first, Completion) and isinstance(again, Completion)):
        return False
    if first.cached_tokens is None or again.cached_tokens is None:
        return first.cached_tokens is again.cached_tokens
    return abs(first.cached_tokens - again.cached_tokens) <= SAME_CACHED


async def fill(client: ServerClient, num_tokens: int, max_model_len: int | None, slots: int) -> ServerError | None:
    """Send prompts that nothing else begins with until a cache of so many tokens holds none but them; a fault, if any.

    Caches evict what was unused for longest first.
    """
    length = min(MAX_FILLER_TOKENS, (max_model_len or MAX_FILLER_TOKENS) - 1)
    fillers = [ServerRequest(_filler(length), ONE_TOKEN, 0) for _ in range(-(-num_tokens // length))]
    outcomes = await run_arm(client, fillers, slots, fresh_salt())
    return next((outcome for outcome in outcomes if isinstance(outcome, ServerError)), None)


def require_fillable(name: str, engine: ServingEngine, capacity: KvCapacity | None) -> None:
    """Raise ModelError where a server's cache cannot be filled between two turns: unknown, or too large."""
    if capacity is None:
        shown = engine.remedies.get(Lack.CAPACITY)
        remedy = 'set prefix_cache = "as_served"' if shown is None else f"let it say so ({shown})"
        raise ModelError(f"{name} does not say how many tokens its KV cache holds, and is to be filled: {remedy}")
    if capacity.tokens > MAX_FILL_TOKENS:
        raise ModelError(
            f"{name}: its KV cache holds {capacity.tokens:,} tokens, and between two turns at most "
            f"{MAX_FILL_TOKENS:,} are filled: start both servers with a smaller one (vLLM: --num-gpu-blocks-override)"
        )


def _filler(length: int) -> tuple[int, ...]:
    """A prompt that begins by chance: no other one begins so, whatever a cache knows of salts."""
    drawn = [secrets.choice(FILLER_IDS) for _ in range(min(length, DRAWN_IDS))]
    return (*drawn, *(FILLER_IDS * (length // len(FILLER_IDS) + 1))[: length - len(drawn)])

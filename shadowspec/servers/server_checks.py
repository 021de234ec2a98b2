"""Checks of a server: whether it enforces constraints, finds a prompt in its cache, and what its KV cache holds.

A server that does not know a field ignores it, and would be measured without the constraint that production enforced.
So each server must return one given word before the first block of constrained requests; without such requests there
is no check.
"""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from typing import Final

from shadowspec.errors import ModelError
from shadowspec.servers.client import ServerClient, fresh_salt
from shadowspec.servers.engines import Lack, ServerIdentity
from shadowspec.servers.kv_capacity import KvCapacity
from shadowspec.servers.request import ServerRequest
from shadowspec.servers.stream import ServerError
from shadowspec.types import ConstraintForm, ConstraintKind, OutputConstraint, SamplingParameters

TRIAL_WORD: Final = "shadowspec"
_CONSTRAINT: Final = OutputConstraint(ConstraintKind.GRAMMAR, ConstraintForm.CHOICE, json.dumps([TRIAL_WORD]))
TRIAL: Final = ServerRequest(
    (5, 6, 7, 8) * 4, SamplingParameters(temperature=0.0, max_tokens=24), 0, constraint=_CONSTRAINT
)

log = logging.getLogger(__name__)


class Enforcement:
    """The check results of servers, by name; each is checked once."""

    def __init__(self) -> None:
        self._enforced: dict[str, bool] = {}

    async def enforces(self, client: ServerClient) -> bool:
        """Whether the server restricts its answers.

        Raises:
            ServerError: it cannot be asked now.
        """
        if client.name in self._enforced:
            return self._enforced[client.name]
        try:
            is_enforced = (await client.complete(TRIAL, fresh_salt())).text.strip() == TRIAL_WORD
        except ServerError as fault:
            if fault.is_retryable:
                raise
            is_enforced = False
        if not is_enforced:
            log.warning(
                "%s does not restrict its answers to a grammar: requests that ask for it (response_format, a schema, "
                "forced tools) fail here. Its grammar backend may be switched off",
                client.name,
            )
        self._enforced[client.name] = is_enforced
        return is_enforced


# Caches hold whole pages of 1 to 256 tokens, and never the last token of a prompt.
PROBE_TOKENS: Final = 600
SAMPLING: Final = SamplingParameters(temperature=0.0, max_tokens=1, ignore_eos=True)


@dataclass(frozen=True, slots=True)
class CacheBehaviour:
    """What a server finds of a prompt that it has just answered: under the same salt, and under another one."""

    finds_prefix: bool
    has_salts: bool


async def cache_behaviour(client: ServerClient, max_model_len: int | None) -> CacheBehaviour | None:
    """Whether a second turn finds the first, and a prompt of another salt does not; None where the server does not
    report its cached tokens.

    Raises:
        ServerError: no usable answer.
    """
    length = PROBE_TOKENS if max_model_len is None else min(PROBE_TOKENS, max_model_len - 8)
    first = ServerRequest((5, 6, 7, 8) * (length // 4), SAMPLING, 0)
    later = ServerRequest((*first.prompt_token_ids, 9, 10), SAMPLING, 0, uses_cache=True)
    salt = fresh_salt()
    await client.complete(first, salt, is_turn=True)
    found = (await client.complete(later, salt, is_turn=True)).cached_tokens
    elsewhere = (await client.complete(later, fresh_salt(), is_turn=True)).cached_tokens
    if found is None or elsewhere is None:
        return None
    return CacheBehaviour(found > 0, client.engine.has_salts and elsewhere == 0)


def require_prefix_cache(client: ServerClient, probed: CacheBehaviour | None, mode: str) -> None:
    """Raise ModelError where the baseline has no prefix cache, though this mode needs one.

    A speculative server may lose its hits: that is part of the result.
    """
    if probed is None or probed.finds_prefix or mode == "as_served":
        return
    remedy = client.engine.remedies.get(Lack.PREFIX_CACHE, "switch it on")
    raise ModelError(
        f"{client.name} found nothing of a prompt that it had just answered: servers.prefix_cache is {mode} and the "
        f"server's is off. To have it, {remedy}"
    )


async def read_capacity(client: ServerClient, identity: ServerIdentity) -> KvCapacity | None:
    """The capacity of the server's cache; None where it is not reported, or the server cannot be reached now."""
    try:
        return await client.engine.capacity_of(client, identity)
    except (ServerError, ValueError) as error:  # no reason to end a measurement
        log.warning("%s: its KV cache capacity is unknown (%s)", client.name, type(error).__name__)
        return None

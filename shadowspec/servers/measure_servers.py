"""Measuring a block through servers of one target: the in-process engine's interface, other machines' time.

The order of the arms is drawn by hash; each begins when the one before it has ended, and the baseline runs twice in
every tenth block (`ArmOrder`).  What requests may find in prefix caches is the matter of `prefix_caches`.  Connections,
warm-up, parity, audits and the pass that counts for answers without counts are outside the timed arms.  Facts that a
server does not report stay unknown.  The KV caches' capacity is read before each block.  A fault of one candidate's
server fails only this candidate's runs; a server that is away or another one ends the block for all.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from itertools import chain
from typing import Final

from msgspec import structs

from shadowspec.quality.custom_scores import Scorer
from shadowspec.servers.client import ServerClient, run_async, trust
from shadowspec.servers.closed_loop import Outcome, run_conversations
from shadowspec.servers.judging import Judge, ServedCandidate, audits_of, repeats_of, runs_of
from shadowspec.servers.kv_capacity import served_memory
from shadowspec.servers.measured_server import MeasuredServer
from shadowspec.servers.prefix_caches import PrefixCaches, fill
from shadowspec.servers.request import ServerRequest
from shadowspec.servers.server_checks import Enforcement, read_capacity
from shadowspec.servers.server_settings import ServerSettings
from shadowspec.types import (
    Arm,
    ArmOrder,
    AuditedRun,
    Block,
    BlockMemory,
    BlockResult,
    FingerprintedConfig,
    Run,
    ShadowPrompt,
    add_order,
)
from shadowspec.types.settings import EngineSettings

log = logging.getLogger(__name__)

WARM_TOKENS: Final = 8
UNCONSTRAINED_ANSWER: Final = "unconstrained"  # the failure of constrained requests where a server enforces nothing
SEEDS: Final = 2**63  # servers take no larger ones


class ServerEngine:
    """Measures the blocks of one endpoint through its servers."""

    def __init__(
        self,
        settings: ServerSettings,
        baseline: MeasuredServer,
        candidates: Sequence[ServedCandidate],
        measuring: EngineSettings,
        caches: PrefixCaches,
        scorer: Scorer | None = None,
    ) -> None:
        """A block is measured on no servers but those that the candidates' fingerprints name."""
        self._settings, self._candidates = settings, tuple(candidates)
        # By place in the order of a block's arms: None is the baseline.
        self._servers: dict[int | None, MeasuredServer] = {None: baseline}
        self._servers |= {place: candidate.server for place, candidate in enumerate(self._candidates)}
        self._measuring, self._scorer, self._caches = measuring, scorer or Scorer(), caches
        self._context = trust(settings.ca_file)
        self._enforcement = Enforcement()
        self._warm: set[tuple[int, int]] = set()  # slots, conversations
        self._last_arm: Arm | None = None  # that the servers ran, which may share a device

    @property
    def configs(self) -> tuple[FingerprintedConfig, ...]:
        """The configs that measure every block."""
        return tuple(candidate.config for candidate in self._candidates)

    def measure(self, block: Block) -> BlockResult:
        """Send the block's requests, fillers along with them, to every server.

        Raises:
            ServiceUnavailableError: a server is away, or is not the one that it was.
        """
        return run_async(self._measure(block))

    def require_same_servers(self) -> None:
        """Raise unless every server is still the one that a config's fingerprint names.

        Raises:
            ServiceUnavailableError: a server is away, or is not the one that it was.
        """
        run_async(self._require_same_servers())

    async def _require_same_servers(self) -> None:
        async with AsyncExitStack() as stack:
            await self._open(stack, 1)

    async def _open(self, stack: AsyncExitStack, slots: int) -> dict[int | None, ServerClient]:
        """A client of each server, once it is known to be the one that it was."""
        clients = {
            place: await stack.enter_async_context(server.open(self._context, slots))
            for place, server in self._servers.items()
        }
        for place, client in clients.items():
            await self._servers[place].await_same(client)
        return clients

    async def _measure(self, block: Block) -> BlockResult:
        conversations, num_measured = self._conversations(block)
        requests = list(chain.from_iterable(conversations))
        alone = [replace(request, uses_cache=False) for request in requests]
        slots, number = min(block.concurrency, len(conversations)), len(block.requests)
        async with AsyncExitStack() as stack:
            clients = await self._open(stack, slots)
            held = {
                place: await read_capacity(client, self._servers[place].identity) for place, client in clients.items()
            }
            failures = await self._unconstrained(clients, requests)
            order = [place for place in block.arm_order(len(self._candidates)) if place not in failures]
            if None in failures or set(order) == {None}:
                return self._unmeasured(block, failures)
            await self._warm_up(clients, conversations, slots)
            started_at, before = datetime.now(UTC), self._last_arm
            outcomes, repeated = await self._run_arms(order, clients, conversations, num_measured, slots)
            judge = Judge(
                alone,
                self._servers[None],
                clients[None],
                outcomes[None],
                self._settings.model,
                self._settings.score_logprobs,
            )
            judged = {
                place: await judge.judge(self._candidates[place], clients[place], answers, number)
                for place, answers in outcomes.items()
                if place is not None
            }
            for place, answers in outcomes.items():
                every = (*answers, *(repeated or ())) if place is None else answers
                if (failure := await self._servers[place].change_in(clients[place], every)) is not None:
                    log.warning("block %s: %s: %s changed meanwhile", block.block_id, failure, clients[place].name)
                    failures[place] = failure
        if None in failures:
            return self._unmeasured(block, failures)
        repeats, runs = repeats_of(outcomes[None], repeated), list[Run]()
        memory: dict[str, BlockMemory] = {}
        audits: list[AuditedRun] = []
        for place, candidate in enumerate(self._candidates):
            if place in failures:
                runs += _failed(block, candidate, failures[place])
                continue
            measured = runs_of(block, candidate, self._servers[None], judged[place], self._scorer)
            runs += add_order(measured, ArmOrder.of(order, place, before), repeats)
            served = served_memory(held[None], held[place], candidate.server.identity.engine)
            if served is not None:
                memory[candidate.config.fingerprint] = served
            audits += audits_of(block, candidate, judged[place])
            if failed := sorted({run.failure for run in measured if run.failure is not None}):
                log.warning(
                    "block %s: requests failed: %s (%s)", block.block_id, ", ".join(failed), clients[place].name
                )
        return BlockResult(block, started_at, tuple(runs), memory, audits=tuple(audits))

    async def _unconstrained(
        self, clients: Mapping[int | None, ServerClient], requests: Sequence[ServerRequest]
    ) -> dict[int | None, str]:
        """The failures of constrained requests by server, where it enforces nothing.

        Either all requests of a block are constrained, or they are turns of conversations, which are measured whole or
        not at all.
        """
        if all(request.constraint is None for request in requests):
            return {}
        return {
            place: f"{self._servers[place].arm}_{UNCONSTRAINED_ANSWER}"
            for place, client in clients.items()
            if not await self._enforcement.enforces(client)
        }

    async def _run_arms(
        self,
        order: Sequence[int | None],
        clients: Mapping[int | None, ServerClient],
        conversations: Sequence[Sequence[ServerRequest]],
        num_measured: int,
        slots: int,
    ) -> tuple[dict[int | None, tuple[Outcome, ...]], tuple[Outcome, ...] | None]:
        """The answers of each arm, one after the other, and the baseline's second ones where it ran twice.

        `num_measured` conversations are measured; the others are fillers.
        """
        outcomes: dict[int | None, tuple[Outcome, ...]] = {}
        repeated: tuple[Outcome, ...] | None = None
        measured = list(chain.from_iterable(conversations[:num_measured]))
        for place in order:
            salt: str | None = None
            if place in outcomes:
                first = outcomes[place][: len(measured)]
                salt = await self._caches.repeat_salt(clients[place], measured, first, slots)
                if salt is None:
                    continue
            self._last_arm = self._servers[place].arm
            await asyncio.sleep(self._measuring.pause_s)
            salts = self._caches.salts(num_measured, len(conversations) - num_measured, salt)
            answers = await self._run_arm(place, clients[place], conversations, slots, salts)
            if place in outcomes:
                repeated = answers
            else:
                outcomes[place] = answers
        return outcomes, repeated

    async def _run_arm(
        self,
        place: int | None,
        client: ServerClient,
        conversations: Sequence[Sequence[ServerRequest]],
        slots: int,
        salts: Sequence[str],
    ) -> tuple[Outcome, ...]:
        between, server = None, self._servers[place]
        if self._settings.prefix_cache == "evicted":
            assert server.cache_tokens is not None, "a cache that is filled says its size"
            between = partial(fill, client, server.cache_tokens, server.identity.max_model_len, slots)
        shares_prefix = self._settings.measures_conversations
        return await run_conversations(
            client, conversations, slots, salts, shares_prefix=shares_prefix, between_turns=between
        )

    def _conversations(self, block: Block) -> tuple[list[list[ServerRequest]], int]:
        """The requests of each conversation, and how many of these are measured; the others are fillers."""
        caches, own = self._caches, {prompt.key for prompt in block.requests}
        conversations: list[list[ServerRequest]] = []
        num_measured = num_requests = 0
        for prompts in block.conversations:
            is_filler = num_requests >= len(block.requests)
            turns = [
                self._request(prompt, uses_cache=caches.uses_cache(turn, is_filler=is_filler))
                for turn, prompt in enumerate(prompts)
            ]
            is_copy = is_filler and any(prompt.key in own for prompt in prompts)
            conversations.append([caches.apart(request) for request in turns] if is_copy else turns)
            num_requests += len(turns)
            num_measured += not is_filler
        return conversations, num_measured

    def _request(self, prompt: ShadowPrompt, *, uses_cache: bool) -> ServerRequest:
        """Every arm draws from the same seed."""
        return ServerRequest(
            prompt.prompt_token_ids,
            prompt.sampling,
            prompt.seed_under(self._measuring.seed) % SEEDS,
            keeps_special_tokens=prompt.contract is not None and prompt.contract.may_be_marked,
            constraint=prompt.constraint,
            uses_cache=uses_cache,
            chat=prompt.chat,
        )

    def _unmeasured(self, block: Block, failures: Mapping[int | None, str]) -> BlockResult:
        """A block whose requests all failed: the baseline's failure is that of every candidate."""
        runs = [
            run
            for place, candidate in enumerate(self._candidates)
            for run in _failed(block, candidate, failures[None if None in failures else place])
        ]
        return BlockResult(block, datetime.now(UTC), tuple(runs), memory={})

    async def _warm_up(
        self, clients: Mapping[int | None, ServerClient], conversations: Sequence[Sequence[ServerRequest]], slots: int
    ) -> None:
        """Open all connections; then, once for blocks of this size, send untimed blocks of the same prompts."""
        for client in clients.values():
            await asyncio.gather(*(client.look("v1/models") for _ in range(slots)))
        if (slots, len(conversations)) in self._warm:
            return
        self._warm.add((slots, len(conversations)))
        short = [[_shortened(self._caches.apart(request)) for request in turns] for turns in conversations]
        for _ in range(self._measuring.warmup_blocks):
            for place, client in clients.items():
                salts = self._caches.salts(0, len(short))
                shares_prefix = self._settings.measures_conversations
                await run_conversations(client, short, slots, salts, shares_prefix=shares_prefix)
                self._last_arm = self._servers[place].arm


def _failed(block: Block, candidate: ServedCandidate, failure: str) -> list[Run]:
    return [Run(prompt.key, candidate.config.fingerprint, block.block_id, failure=failure) for prompt in block.requests]


def _shortened(request: ServerRequest) -> ServerRequest:
    """The request with an output just long enough to warm a server up."""
    sampling = request.sampling
    return replace(request, sampling=structs.replace(sampling, max_tokens=min(WARM_TOKENS, sampling.max_tokens)))

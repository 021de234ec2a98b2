"""Measuring a block through two servers of the same target: the in-process engine's interface, other machines' time.

The order of the arms is drawn by hash; each begins when the one before it has ended, and the baseline runs twice in
every tenth block (`ArmOrder`).  What requests may find in prefix caches is the matter of `prefix_caches`.  Connections,
warm-up, parity, audits and the pass that counts for answers without counts are outside the timed arms.  Facts that a
server does not report stay unknown.  The KV caches' capacity is read before each block.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from itertools import chain
from types import MappingProxyType
from typing import Final, Protocol

from msgspec import structs

from shadowspec.errors import ConfigError, ModelError, ServiceUnavailableError
from shadowspec.quality.contracts import judge
from shadowspec.quality.custom_scores import Scorer
from shadowspec.quality.outputs import is_repetition_loop
from shadowspec.servers.acceptance_kept import both_accepted
from shadowspec.servers.answer_parity import parity_of
from shadowspec.servers.chat_answer import stream_parity, thinking_of
from shadowspec.servers.client import ServerClient, fresh_salt, open_client, run_async, trust
from shadowspec.servers.closed_loop import Outcome, concurrencies, run_conversations, timing
from shadowspec.servers.counter_pass import count_alone
from shadowspec.servers.engines import ServerIdentity, engine_of
from shadowspec.servers.identity import fingerprint_server_config, identify
from shadowspec.servers.kv_capacity import served_memory
from shadowspec.servers.prefix_caches import PrefixCaches, fill, has_same_cache
from shadowspec.servers.probing import counts_source, probe_both, remarks
from shadowspec.servers.request import ServerRequest
from shadowspec.servers.server_checks import Enforcement, read_capacity
from shadowspec.servers.server_settings import ServerSettings
from shadowspec.servers.step_counts import (
    COUNTERS,
    Accepted,
    CountsSource,
    OtherDepthError,
    UncountableError,
    without_drafts,
)
from shadowspec.servers.stream import Completion, ServerError
from shadowspec.types import (
    ACCEPTANCE_KEPT,
    Arm,
    ArmOrder,
    AuditedRun,
    Block,
    BlockResult,
    FingerprintedConfig,
    LoggedResponse,
    Parity,
    RecordKey,
    Run,
    RunFlags,
    ServedOutput,
    ServedRun,
    ShadowPrompt,
    SpeculationConfig,
    Validity,
    add_order,
)
from shadowspec.types.prompt_rules import UNNAMED, PromptRules
from shadowspec.types.settings import EngineSettings

log = logging.getLogger(__name__)

WARM_TOKENS: Final = 8
UNSURE: Final = "_unsure"  # suffix of a run's `counts_source` where the last step is uncertain
OTHER_SERVER: Final = "other_server"  # the failure of runs in whose block a server became another one
SPECULATES: Final = "speculates"  # that of a baseline
UNCONSTRAINED_ANSWER: Final = "unconstrained"  # the failure of constrained requests where a server enforces nothing
OTHER_PROMPT: Final = "other_prompt"  # that of chats that the arms render otherwise, or nobody can render here
AGAIN: Final = "again"  # the source of counts of a chat that was sent again as token ids
SEEDS: Final = 2**63  # servers take no larger ones


@dataclass(frozen=True, slots=True)
class _Arms:
    """Both arms' answers, in the order of the block's requests."""

    baseline: tuple[Outcome, ...]
    speculative: tuple[Outcome, ...]


class OutputAuditor(Protocol):
    """Replays a share of the speculative server's outputs."""

    def audit_served(
        self, fingerprint: str, prompts: Sequence[ShadowPrompt], served: Mapping[RecordKey, ServedOutput]
    ) -> tuple[AuditedRun, ...]:
        """The audited runs among these requests of a block, whose outputs come by record."""


class ServerEngine:
    """Measures the blocks of one endpoint through two servers."""

    def __init__(
        self,
        settings: ServerSettings,
        config: FingerprintedConfig,
        identities: Mapping[Arm, ServerIdentity],
        source: CountsSource,
        measuring: EngineSettings,
        scorer: Scorer | None = None,
        auditor: OutputAuditor | None = None,
        *,
        caches: PrefixCaches | None = None,
        cache_tokens: Mapping[Arm, int] = MappingProxyType({}),
        baseline_depth: int = 0,
    ) -> None:
        """`identities` are the servers that the config's fingerprint names; a block is measured on no others.

        Without an auditor no output is replayed.  `cache_tokens` are the sizes of the caches that are filled between
        turns (`prefix_cache = "evicted"`).  `baseline_depth` is the number of tokens that the baseline drafts, which
        only the first of two deployments may.
        """
        self._settings, self._config, self._identities, self._source = settings, config, dict(identities), source
        self._engines = {arm: engine_of(identity.engine, identity.version) for arm, identity in identities.items()}
        self._depths = {Arm.BASELINE: baseline_depth, Arm.SPECULATIVE: config.config.num_speculative_tokens}
        self._measuring, self._scorer, self._auditor = measuring, scorer or Scorer(), auditor
        self._context = trust(settings.ca_file)
        self._enforcement = Enforcement()
        self._caches, self._cache_tokens = caches or PrefixCaches(settings.prefix_cache), dict(cache_tokens)
        self._warm: set[tuple[int, int]] = set()  # slots, conversations
        self._last_arm: Arm | None = None  # that the servers ran, which may share a device

    @property
    def configs(self) -> tuple[FingerprintedConfig, ...]:
        """The configs that measure every block."""
        return (self._config,)

    def measure(self, block: Block) -> BlockResult:
        """Send the block's requests, fillers along with them, to both servers.

        Raises:
            ServiceUnavailableError: a server is away, or is not the one that it was.
        """
        return run_async(self._measure(block))

    def require_same_servers(self) -> None:
        """Raise unless both servers are still those that the config's fingerprint names.

        Raises:
            ServiceUnavailableError: a server is away, or is not the one that it was.
        """
        run_async(self._require_same_servers())

    async def _require_same_servers(self) -> None:
        for arm, url in zip((Arm.BASELINE, Arm.SPECULATIVE), self._settings.roots, strict=True):
            async with open_client(arm, url, self._settings, self._context, 1) as client:
                await self._await_server(arm, client)

    async def _measure(self, block: Block) -> BlockResult:
        conversations, num_measured = self._conversations(block)
        requests = list(chain.from_iterable(conversations))
        alone = [replace(request, uses_cache=False) for request in requests]
        slots = min(block.concurrency, len(conversations))
        async with AsyncExitStack() as stack:
            clients = {
                arm: (
                    await stack.enter_async_context(open_client(arm, url, self._settings, self._context, slots))
                ).speaking_to(self._engines[arm])
                for arm, url in zip((Arm.BASELINE, Arm.SPECULATIVE), self._settings.roots, strict=True)
            }
            for arm, client in clients.items():
                await self._await_server(arm, client)
            held = {arm: await read_capacity(client, self._identities[arm]) for arm, client in clients.items()}
            if any(request.constraint is not None for request in requests):
                # All of a block's are, or they are turns of conversations, which are measured whole or not at all.
                for arm, client in clients.items():
                    if not await self._enforcement.enforces(arm, client):
                        return self._unmeasured(block, f"{arm}_{UNCONSTRAINED_ANSWER}")
            await self._warm_up(clients, conversations, slots)
            started_at = datetime.now(UTC)
            outcomes: dict[Arm, tuple[Outcome, ...]] = {}
            repeated: tuple[Outcome, ...] | None = None
            order, before = block.arm_order(1), self._last_arm
            for place in order:
                arm = Arm.BASELINE if place is None else Arm.SPECULATIVE
                salt: str | None = None
                if arm in outcomes:
                    first = outcomes[arm][: len(block.requests)]
                    salt = await self._caches.repeat_salt(clients[arm], requests[: len(first)], first, slots)
                    if salt is None:
                        continue
                self._last_arm = arm
                await asyncio.sleep(self._measuring.pause_s)
                salts = self._caches.salts(num_measured, len(conversations) - num_measured, salt)
                answers = await self._run_arm(arm, clients[arm], conversations, slots, salts)
                if arm in outcomes:
                    repeated = answers
                else:
                    outcomes[arm] = answers
            arms = _Arms(outcomes[Arm.BASELINE], outcomes[Arm.SPECULATIVE])
            indices = range(len(block.requests))
            judged = {i: await self._judged(clients, alone[i], arms, i) for i in indices}
            accepted = {i: await self._count_accepted(clients[Arm.SPECULATIVE], *judged[i]) for i in indices}
            parities = {i: await self._parity(clients[Arm.BASELINE], *judged[i]) for i in indices}
            for arm, client in clients.items():
                answers = (*outcomes[arm], *(repeated or ())) if arm is Arm.BASELINE else outcomes[arm]
                if (failure := await self._change_of(arm, client, answers)) is not None:
                    log.warning("block %s: %s: its server changed meanwhile", block.block_id, failure)
                    return self._unmeasured(block, failure)
        measured = self._runs(block, arms, accepted, parities)
        runs = tuple(add_order(measured, ArmOrder.of(order, 0, before), _repeats(outcomes[Arm.BASELINE], repeated)))
        failed = sorted({run.failure for run in runs if run.failure is not None})
        if failed:
            log.warning("block %s: requests failed: %s", block.block_id, ", ".join(failed))
        engine = self._identities[Arm.SPECULATIVE].engine
        served = served_memory(held[Arm.BASELINE], held[Arm.SPECULATIVE], engine)
        memory = {} if served is None else {self._config.fingerprint: served}
        return BlockResult(block, started_at, runs, memory, audits=self._audits(block, arms, accepted))

    def _audits(self, block: Block, arms: _Arms, accepted: Mapping[int, Accepted | str]) -> tuple[AuditedRun, ...]:
        """Replay's expectation of the answers that have token ids and counts."""
        if self._auditor is None:
            return ()
        served, config = {}, self._config.config
        for index, prompt in enumerate(block.requests):
            answer, known = arms.speculative[index], accepted[index]
            if not isinstance(answer, Completion) or not _is_rendered_alike(prompt, answer):
                continue
            if answer.token_ids and isinstance(known, Accepted):
                response = LoggedResponse(
                    token_ids=answer.token_ids,
                    finish_reason=answer.finish_reason,
                    num_output_tokens=answer.num_output_tokens,
                )
                uncertain = self._engines[Arm.SPECULATIVE].uncertain_tokens(
                    answer.finish_reason, config.num_speculative_tokens, drafts_always=config.drafts_in_every_step
                )
                served[prompt.key] = ServedOutput(response, known.counts.num_accepted_tokens, uncertain)
        return self._auditor.audit_served(self._config.fingerprint, block.requests, served)

    async def _run_arm(
        self,
        arm: Arm,
        client: ServerClient,
        conversations: Sequence[Sequence[ServerRequest]],
        slots: int,
        salts: Sequence[str],
    ) -> tuple[Outcome, ...]:
        between = None
        if self._settings.prefix_cache == "evicted":
            between = partial(fill, client, self._cache_tokens[arm], self._identities[arm].max_model_len, slots)
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
        """Both arms draw from the same seed."""
        return ServerRequest(
            prompt.prompt_token_ids,
            prompt.sampling,
            prompt.seed_under(self._measuring.seed) % SEEDS,
            keeps_special_tokens=prompt.contract is not None and prompt.contract.may_be_marked,
            constraint=prompt.constraint,
            uses_cache=uses_cache,
            chat=prompt.chat,
        )

    def _unmeasured(self, block: Block, failure: str) -> BlockResult:
        runs = [Run(prompt.key, self._config.fingerprint, block.block_id, failure=failure) for prompt in block.requests]
        return BlockResult(block, datetime.now(UTC), tuple(runs), memory={})

    async def _await_server(self, arm: Arm, client: ServerClient) -> None:
        """Wait until the server is there, but not for ever, and see that it is the one that it was."""
        deadline, wait_s = time.monotonic() + self._settings.reachable_within_s, 0.5
        while True:
            try:
                identity = await identify(client, self._settings.model)
                break
            except ServerError as fault:
                if not fault.is_retryable or time.monotonic() + wait_s > deadline:
                    raise
                log.warning("%s; waiting for it", fault)
            await asyncio.sleep(wait_s)
            wait_s = min(2.0 * wait_s, 10.0)
        known = self._identities[arm]
        if identity != known:
            raise ServiceUnavailableError(
                f"{client.name}: it was {known.name} and is now {identity.name}, or its weights, length or flags "
                "changed: its figures would be another config's; start again"
            )
        number = await self._reported_depth(arm, client)
        if number not in (None, self._depth(arm)):
            raise ServiceUnavailableError(
                f"{client.name}: it now drafts {number} tokens in a step, and not {self._depth(arm)}. Its "
                "figures would be another config's: start it as it was, and start again"
            )

    def _depth(self, arm: Arm) -> int:
        return self._depths[arm]

    async def _reported_depth(self, arm: Arm, client: ServerClient) -> int | None:
        """How many tokens the server drafts in a step now, by its pages; None where they do not say."""
        drafts = await self._engines[arm].drafts_of(client, self._identities[arm], None, self._settings.model)
        return drafts.num_speculative_tokens

    async def _change_of(self, arm: Arm, client: ServerClient, outcomes: Sequence[Outcome]) -> str | None:
        """How the server changed while it answered a block, as a failure of its runs.

        None where nothing shows it; a server that is away now is waited for before the next block.  Where its pages do
        not say how many tokens it drafts, the longest draft of its answers does, of those with room for it.
        """
        engine, wanted = self._engines[arm], self._depth(arm)
        answers = [
            answer
            for answer in outcomes
            if isinstance(answer, Completion) and (answer.message is None or engine.counts_chats)
        ]
        longest = [engine.longest_draft_in(answer) for answer in answers if answer.num_output_tokens > wanted + 1]
        try:
            if await identify(client, self._settings.model) != self._identities[arm]:
                return f"{arm}_{OTHER_SERVER}"
            number = await self._reported_depth(arm, client)
        except ServerError as fault:
            log.warning("%s; it is looked at again before the next block", fault)
            return None
        if number is None:
            number = max(longest, default=wanted)
            if number < wanted and not self._config.config.drafts_in_every_step:  # a lookup may have come up short
                return None
        is_other = number != wanted
        return f"{arm}_{OtherDepthError.failure if arm is Arm.SPECULATIVE else SPECULATES}" if is_other else None

    async def _warm_up(
        self, clients: Mapping[Arm, ServerClient], conversations: Sequence[Sequence[ServerRequest]], slots: int
    ) -> None:
        """Open all connections; then, once for blocks of this size, send untimed blocks of the same prompts."""
        for client in clients.values():
            await asyncio.gather(*(client.look("v1/models") for _ in range(slots)))
        if (slots, len(conversations)) in self._warm:
            return
        self._warm.add((slots, len(conversations)))
        short = [[_shortened(self._caches.apart(request)) for request in turns] for turns in conversations]
        for _ in range(self._measuring.warmup_blocks):
            for arm, client in clients.items():
                salts = self._caches.salts(0, len(short))
                shares_prefix = self._settings.measures_conversations
                await run_conversations(client, short, slots, salts, shares_prefix=shares_prefix)
                self._last_arm = arm

    async def _judged(
        self, clients: Mapping[Arm, ServerClient], request: ServerRequest, arms: _Arms, index: int
    ) -> tuple[ServerRequest, Outcome, Outcome]:
        """The request and both answers by which acceptance and parity are judged.

        Where a chat's answer reports neither steps nor tokens, the request is sent again as the token ids that the
        server made of it, to both servers and untimed.
        """
        base, spec = arms.baseline[index], arms.speculative[index]
        if request.chat is None or isinstance(base, ServerError) or isinstance(spec, ServerError):
            return request, base, spec
        if base.num_prompt_tokens != spec.num_prompt_tokens:
            fault = ServerError(clients[Arm.SPECULATIVE].name, OTHER_PROMPT, "the servers count different prompts")
            return request, base, fault
        prompt_ids = base.prompt_token_ids or request.prompt_token_ids
        plain = replace(request, chat=None, prompt_token_ids=prompt_ids)
        if self._counts_chats:
            return replace(plain, chat=request.chat), base, spec
        if len(prompt_ids) != base.num_prompt_tokens:
            fault = ServerError(clients[Arm.SPECULATIVE].name, OTHER_PROMPT, "its prompt cannot be rendered here")
            return request, base, fault
        again: dict[Arm, Outcome] = {}
        for arm, client in clients.items():
            try:
                again[arm] = await client.complete(plain, fresh_salt())
            except ServerError as fault:
                again[arm] = fault
        return plain, again[Arm.BASELINE], again[Arm.SPECULATIVE]

    @property
    def _counts_chats(self) -> bool:
        return all(engine.counts_chats for engine in self._engines.values())

    async def _count_accepted(
        self, client: ServerClient, request: ServerRequest, base: Outcome, spec: Outcome
    ) -> Accepted | str:
        """The accepted tokens of a request that both arms answered; else the reason why they are unknown."""
        if isinstance(spec, ServerError):
            return spec.code
        if isinstance(base, ServerError):
            return "unanswered"
        width = self._config.config.num_speculative_tokens
        try:
            if self._source == COUNTERS:
                return await count_alone(client, request, self._settings.model, width)
            if not width:
                return without_drafts(spec)
            if spec.speculation is None:
                return "no_acceptance"
            # A mask removes the tokens that the grammar forbids from a draft, and may leave none.
            always = self._config.config.drafts_in_every_step and request.constraint is None
            return client.engine.count(spec, spec.num_prompt_tokens, width, drafts_always=always)
        except UncountableError as error:
            log.warning("%s: a request's acceptance is not known: %s", client.name, error)
            return error.failure
        except ServerError as fault:
            return fault.code

    async def _parity(
        self, client: ServerClient, request: ServerRequest, base: Outcome, spec: Outcome
    ) -> Parity | None:
        if not isinstance(base, Completion) or not isinstance(spec, Completion):
            return None
        most, length = self._settings.score_logprobs, self._identities[Arm.BASELINE].max_model_len
        return await parity_of(client, request, base, spec, most, length)

    def _runs(
        self, block: Block, arms: _Arms, accepted: Mapping[int, Accepted | str], parities: Mapping[int, Parity | None]
    ) -> tuple[Run, ...]:
        """One run per measured request; fillers are dropped here, and so are texts."""
        loads = [concurrencies(outcomes) for outcomes in (arms.baseline, arms.speculative)]
        runs = []
        for index, prompt in enumerate(block.requests):
            base, spec, known = arms.baseline[index], arms.speculative[index], accepted[index]
            engine, depth = self._engines[Arm.BASELINE], self._depths[Arm.BASELINE]
            drafts = not depth and isinstance(base, Completion) and engine.longest_draft_in(base) > 0
            failure = f"{Arm.BASELINE}_{SPECULATES}" if drafts else _failure(base, spec, known)
            if failure is not None or isinstance(base, ServerError) or isinstance(spec, ServerError):
                runs.append(Run(prompt.key, self._config.fingerprint, block.block_id, failure=failure))
                continue
            assert isinstance(known, Accepted), "a run without a failure has its counts"
            has_text = all(engine.returns_text for engine in self._engines.values())
            flags = _flags(prompt, base, spec, known, has_text=has_text)
            scores = dict(self._scorer.score_pairs([base.text], [spec.text], [prompt])[0])
            if self._config.config.is_deployment:
                scores[ACCEPTANCE_KEPT] = both_accepted(base, known, engine, depth)
            is_again = base.message is not None and not self._counts_chats
            source = AGAIN if is_again else self._source.name
            runs.append(
                Run(
                    key=prompt.key,
                    fingerprint=self._config.fingerprint,
                    block_id=block.block_id,
                    counts=known.counts,
                    baseline=timing(base, loads[0][index]),
                    speculative=timing(spec, loads[1][index]),
                    parity=parities[index],
                    is_repetition_loop=is_repetition_loop(spec.token_ids or ()),
                    finish_reason=spec.finish_reason,
                    scores=scores | self._scorer.of_flags(flags),
                    flags=flags,
                    served=ServedRun(
                        counts_source=source if known.is_sure else f"{source}{UNSURE}",
                        baseline_cached_tokens=base.cached_tokens,
                        speculative_cached_tokens=spec.cached_tokens,
                        num_retries=base.num_attempts + spec.num_attempts - 2,
                    ),
                    stream=stream_parity(base, spec),
                    thinking=thinking_of(base, spec, self._engines[Arm.SPECULATIVE].steps_of(spec)),
                )
            )
        return tuple(runs)


def connect(
    settings: ServerSettings,
    config: SpeculationConfig,
    measuring: EngineSettings,
    *,
    requests_per_slot: int,
    default_sampling: Mapping[str, float],
    max_turns: int = 1,
    prompt_rules: PromptRules = UNNAMED,
    scorer: Scorer | None = None,
    new_auditor: Callable[[FingerprintedConfig], OutputAuditor] | None = None,
) -> ServerEngine:
    """An engine on two servers that were probed and fit the config.

    `requests_per_slot`, `default_sampling`, `max_turns` and `prompt_rules` are those of the endpoint, a part of its
    fingerprint.
    `new_auditor` makes the auditor of the config, once its servers are known.

    Raises:
        ServerError: one of them gives no usable answer.
        ModelError: they do not fit; the message names what is missing.
        ConfigError: the key's variable is not set, the file of certificates cannot be read, or scores need a text that
            a server does not return.
    """
    baseline, speculative = probe_both(settings)
    source = counts_source(config, baseline, speculative)
    if (
        scorer is not None
        and scorer.functions
        and not (baseline.engine.returns_text and speculative.engine.returns_text)
    ):
        raise ConfigError(
            f"scores: {speculative.engine.title} returns token ids without their text, which functions need; remove "
            "the key"
        )
    for remark in remarks(baseline, speculative, config):
        log.warning("candidate %r: %s", config.name, remark)
    identities = {Arm.BASELINE: baseline.identity, Arm.SPECULATIVE: speculative.identity}
    known = fingerprint_server_config(
        config,
        settings,
        identities,
        source,
        requests_per_slot,
        default_sampling,
        max_turns,
        prompt_rules,
        baseline_depth=baseline.num_speculative_tokens or 0,
    )
    if new_auditor is not None and source == COUNTERS:
        raise ModelError(
            f"servers.audit_share: answers of {speculative.identity.name} do not report accepted tokens, and its "
            "counters count another answer; start it with per-request metrics (docs/servers.md), or remove the key"
        )
    auditor = None if new_auditor is None else new_auditor(known)
    caches = PrefixCaches(settings.prefix_cache, has_salts=baseline.has_salts and speculative.has_salts)
    return ServerEngine(
        settings,
        known,
        identities,
        source,
        measuring,
        scorer,
        auditor,
        caches=caches,
        cache_tokens={
            arm: probe.kv_capacity.tokens
            for arm, probe in ((Arm.BASELINE, baseline), (Arm.SPECULATIVE, speculative))
            if probe.kv_capacity is not None
        },
        baseline_depth=baseline.num_speculative_tokens or 0,
    )


def _is_rendered_alike(prompt: ShadowPrompt, answer: Completion) -> bool:
    """Whether the server made the tokens of a prompt that are known here, as far as it says."""
    is_as_long = answer.num_prompt_tokens == len(prompt.prompt_token_ids)
    return is_as_long and answer.prompt_token_ids in (None, prompt.prompt_token_ids)


def _shortened(request: ServerRequest) -> ServerRequest:
    """The request with an output just long enough to warm a server up."""
    sampling = request.sampling
    return replace(request, sampling=structs.replace(sampling, max_tokens=min(WARM_TOKENS, sampling.max_tokens)))


def _failure(base: Outcome, spec: Outcome, known: Accepted | str) -> str | None:
    """The short code of the first failure, with its arm; None without one."""
    if isinstance(base, ServerError):
        return f"{Arm.BASELINE}_{base.code}"
    word = spec.code if isinstance(spec, ServerError) else known
    return f"{Arm.SPECULATIVE}_{word}" if isinstance(word, str) else None


def _repeats(first: Sequence[Outcome], again: Sequence[Outcome] | None) -> list[float | None] | None:
    """The baseline's second end-to-end times, milliseconds; None where it failed, or its cache held more or less."""
    if again is None:
        return None
    loads = concurrencies(again)
    return [
        timing(answer, loads[index]).end_to_end_ms
        if isinstance(answer, Completion) and has_same_cache(first[index], answer)
        else None
        for index, answer in enumerate(again)
    ]


def _flags(prompt: ShadowPrompt, base: Completion, spec: Completion, known: Accepted, *, has_text: bool) -> RunFlags:
    contract = prompt.contract if has_text else None

    def validity(answer: Completion) -> Validity | None:
        if contract is None:
            return None
        calls = None if answer.message is None else answer.message.calls
        return judge(contract, answer.text, answer.finish_reason, calls)

    return RunFlags.judge(
        contract,
        validity(base),
        validity(spec),
        is_early_rejection=known.is_early_rejection,
        intervention=prompt.intervention,
    )

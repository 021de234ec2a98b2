"""From both arms' answers to a block to runs: accepted tokens, parity, contracts and scores.

All of it is outside the timed arms.  What is asked of the baseline server for it serves every candidate of the block.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Protocol

from shadowspec.quality.contracts import judge
from shadowspec.quality.custom_scores import Scorer
from shadowspec.quality.outputs import is_repetition_loop
from shadowspec.servers.acceptance_kept import both_accepted
from shadowspec.servers.answer_parity import OutputScore, parity_of, score
from shadowspec.servers.chat_answer import stream_parity, thinking_of
from shadowspec.servers.client import ServerClient, fresh_salt
from shadowspec.servers.closed_loop import Outcome, concurrencies, timing
from shadowspec.servers.counter_pass import count_alone
from shadowspec.servers.measured_server import SPECULATES, MeasuredServer
from shadowspec.servers.prefix_caches import has_same_cache
from shadowspec.servers.request import ServerRequest
from shadowspec.servers.step_counts import COUNTERS, Accepted, CountsSource, UncountableError, without_drafts
from shadowspec.servers.stream import Completion, ServerError
from shadowspec.types import (
    ACCEPTANCE_KEPT,
    Arm,
    AuditedRun,
    Block,
    FingerprintedConfig,
    LoggedResponse,
    Parity,
    RecordKey,
    Run,
    RunFlags,
    ServedOutput,
    ServedRun,
    ShadowPrompt,
    Validity,
)

log = logging.getLogger(__name__)

UNSURE: Final = "_unsure"  # suffix of a run's `counts_source` where the last step is uncertain
OTHER_PROMPT: Final = "other_prompt"  # that of chats that the arms render otherwise, or nobody can render here
AGAIN: Final = "again"  # the source of counts of a chat that was sent again as token ids


class OutputAuditor(Protocol):
    """Replays a share of a speculative server's outputs."""

    def audit_served(
        self, fingerprint: str, prompts: Sequence[ShadowPrompt], served: Mapping[RecordKey, ServedOutput]
    ) -> tuple[AuditedRun, ...]:
        """The audited runs among these requests of a block, whose outputs come by record."""


@dataclass(frozen=True, slots=True)
class ServedCandidate:
    """A config with its server, where its accepted tokens are read, and who replays its outputs (None: nobody)."""

    config: FingerprintedConfig
    server: MeasuredServer
    source: CountsSource
    auditor: OutputAuditor | None = None


@dataclass(frozen=True, slots=True)
class JudgedArm:
    """One candidate's answers to a block beside the baseline's, in the order of its requests, and what they say."""

    baseline: tuple[Outcome, ...]
    speculative: tuple[Outcome, ...]
    accepted: tuple[Accepted | str, ...]  # or why it is unknown
    parities: tuple[Parity | None, ...]
    is_again: bool  # whether chats were sent again to be counted


class Judge:
    """Judges the arms of one block, while its servers are open."""

    def __init__(
        self,
        requests: Sequence[ServerRequest],
        baseline: MeasuredServer,
        client: ServerClient,
        answers: tuple[Outcome, ...],
        model: str,
        score_logprobs: int,
    ) -> None:
        """
        Args:
            requests: the block's, as they are sent apart from the timed arms.
            client: of the baseline server.
            answers: its answers to the requests, and to fillers behind them.
            model: name under which servers serve the target.
            score_logprobs: number of likeliest tokens to request at each place of a sampled answer; 0: no score.
        """
        self._requests, self._server, self._client, self._answers = requests, baseline, client, answers
        self._model, self._score_logprobs = model, score_logprobs
        self._again: dict[int, Outcome] = {}  # the baseline's second answers, by request
        self._scores: dict[tuple[int, tuple[int, ...]], OutputScore | None] = {}  # of the baseline's outputs

    async def judge(
        self, candidate: ServedCandidate, client: ServerClient, answers: tuple[Outcome, ...], number: int
    ) -> JudgedArm:
        """The first `number` answers of a candidate's server."""
        counts_chats = all(
            server.engine.counts_chat(answer)
            for server, outcomes in ((self._server, self._answers), (candidate.server, answers))
            for answer in outcomes[:number]
            if isinstance(answer, Completion)
        )
        judged = [await self._judged(client, index, answers[index], counts_chats) for index in range(number)]
        accepted = [await self._count_accepted(candidate, client, *asked) for asked in judged]
        parities = [await self._parity(index, *asked) for index, asked in enumerate(judged)]
        return JudgedArm(self._answers, answers, tuple(accepted), tuple(parities), not counts_chats)

    async def _judged(
        self, client: ServerClient, index: int, spec: Outcome, counts_chats: bool
    ) -> tuple[ServerRequest, Outcome, Outcome]:
        """The request and both answers by which acceptance and parity are judged.

        Where a chat's answer reports neither steps nor tokens, the request is sent again as the token ids that the
        server made of it, to both servers and untimed.
        """
        request, base = self._requests[index], self._answers[index]
        if request.chat is None or isinstance(base, ServerError) or isinstance(spec, ServerError):
            return request, base, spec
        if base.num_prompt_tokens != spec.num_prompt_tokens:
            return request, base, ServerError(client.name, OTHER_PROMPT, "the servers count different prompts")
        prompt_ids = base.prompt_token_ids or request.prompt_token_ids
        plain = replace(request, chat=None, prompt_token_ids=prompt_ids)
        if counts_chats:
            return replace(plain, chat=request.chat), base, spec
        if len(prompt_ids) != base.num_prompt_tokens:
            return request, base, ServerError(client.name, OTHER_PROMPT, "its prompt cannot be rendered here")
        if index not in self._again:
            self._again[index] = await _outcome(self._client, plain)
        return plain, self._again[index], await _outcome(client, plain)

    async def _count_accepted(
        self, candidate: ServedCandidate, client: ServerClient, request: ServerRequest, base: Outcome, spec: Outcome
    ) -> Accepted | str:
        """The accepted tokens of a request that both arms answered; else the reason why they are unknown."""
        if isinstance(spec, ServerError):
            return spec.code
        if isinstance(base, ServerError):
            return "unanswered"
        config = candidate.config.config
        width = config.num_speculative_tokens
        try:
            if candidate.source == COUNTERS:
                return await count_alone(client, request, self._model, width)
            if not width:
                return without_drafts(spec)
            if spec.speculation is None:
                return "no_acceptance"
            # A mask removes the tokens that the grammar forbids from a draft, and may leave none.
            always = config.drafts_in_every_step and request.constraint is None
            return client.engine.count(spec, spec.num_prompt_tokens, width, drafts_always=always)
        except UncountableError as error:
            log.warning("%s: a request's acceptance is not known: %s", client.name, error)
            return error.failure
        except ServerError as fault:
            return fault.code

    async def _parity(self, index: int, request: ServerRequest, base: Outcome, spec: Outcome) -> Parity | None:
        if not isinstance(base, Completion) or not isinstance(spec, Completion):
            return None
        most, length = self._score_logprobs, self._server.identity.max_model_len
        output = base.token_ids or ()

        async def plain_score() -> OutputScore | None:
            if (index, output) not in self._scores:
                self._scores[index, output] = await score(self._client, request, output, most, length)
            return self._scores[index, output]

        return await parity_of(self._client, request, base, spec, most, length, plain_score)


async def _outcome(client: ServerClient, request: ServerRequest) -> Outcome:
    try:
        return await client.complete(request, fresh_salt())
    except ServerError as fault:
        return fault


def runs_of(
    block: Block, candidate: ServedCandidate, baseline: MeasuredServer, judged: JudgedArm, scorer: Scorer
) -> list[Run]:
    """One run per measured request; fillers are dropped here, and so are texts."""
    loads = [concurrencies(outcomes) for outcomes in (judged.baseline, judged.speculative)]
    engine, depth, config = baseline.engine, baseline.num_speculative_tokens, candidate.config
    has_text = engine.returns_text and candidate.server.engine.returns_text
    runs = []
    for index, prompt in enumerate(block.requests):
        base, spec, known = judged.baseline[index], judged.speculative[index], judged.accepted[index]
        drafts = not depth and isinstance(base, Completion) and engine.longest_draft_in(base) > 0
        failure = f"{Arm.BASELINE}_{SPECULATES}" if drafts else _failure(base, spec, known)
        if failure is not None or isinstance(base, ServerError) or isinstance(spec, ServerError):
            runs.append(Run(prompt.key, config.fingerprint, block.block_id, failure=failure))
            continue
        assert isinstance(known, Accepted), "a run without a failure has its counts"
        flags = _flags(prompt, base, spec, known, has_text=has_text)
        scores = dict(scorer.score_pairs([base.text], [spec.text], [prompt])[0])
        if config.config.is_deployment:
            scores[ACCEPTANCE_KEPT] = both_accepted(base, known, engine, depth)
        source = AGAIN if base.message is not None and judged.is_again else candidate.source.name
        runs.append(
            Run(
                key=prompt.key,
                fingerprint=config.fingerprint,
                block_id=block.block_id,
                counts=known.counts,
                baseline=timing(base, loads[0][index]),
                speculative=timing(spec, loads[1][index]),
                parity=judged.parities[index],
                is_repetition_loop=is_repetition_loop(spec.token_ids or ()),
                finish_reason=spec.finish_reason,
                scores=scores | scorer.of_flags(flags),
                flags=flags,
                served=ServedRun(
                    counts_source=source if known.is_sure else f"{source}{UNSURE}",
                    baseline_cached_tokens=base.cached_tokens,
                    speculative_cached_tokens=spec.cached_tokens,
                    num_retries=base.num_attempts + spec.num_attempts - 2,
                ),
                stream=stream_parity(base, spec),
                thinking=thinking_of(base, spec, candidate.server.engine.steps_of(spec)),
            )
        )
    return runs


def repeats_of(first: Sequence[Outcome], again: Sequence[Outcome] | None) -> list[float | None] | None:
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


def audits_of(block: Block, candidate: ServedCandidate, judged: JudgedArm) -> tuple[AuditedRun, ...]:
    """Replay's expectation of the answers that have token ids and counts."""
    if candidate.auditor is None:
        return ()
    served, config = {}, candidate.config.config
    for index, prompt in enumerate(block.requests):
        answer, known = judged.speculative[index], judged.accepted[index]
        if not isinstance(answer, Completion) or not _is_rendered_alike(prompt, answer):
            continue
        if answer.token_ids and isinstance(known, Accepted):
            response = LoggedResponse(
                token_ids=answer.token_ids,
                finish_reason=answer.finish_reason,
                num_output_tokens=answer.num_output_tokens,
            )
            uncertain = candidate.server.engine.uncertain_tokens(
                answer.finish_reason, config.num_speculative_tokens, drafts_always=config.drafts_in_every_step
            )
            served[prompt.key] = ServedOutput(response, known.counts.num_accepted_tokens, uncertain)
    return candidate.auditor.audit_served(candidate.config.fingerprint, block.requests, served)


def _is_rendered_alike(prompt: ShadowPrompt, answer: Completion) -> bool:
    """Whether the server made the tokens of a prompt that are known here, as far as it says."""
    is_as_long = answer.num_prompt_tokens == len(prompt.prompt_token_ids)
    return is_as_long and answer.prompt_token_ids in (None, prompt.prompt_token_ids)


def _failure(base: Outcome, spec: Outcome, known: Accepted | str) -> str | None:
    """The short code of the first failure, with its arm; None without one."""
    if isinstance(base, ServerError):
        return f"{Arm.BASELINE}_{base.code}"
    word = spec.code if isinstance(spec, ServerError) else known
    return f"{Arm.SPECULATIVE}_{word}" if isinstance(word, str) else None


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

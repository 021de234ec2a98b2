"""Our side: the loop on the same prompts, and replay of what the servers answered."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from msgspec.structs import replace

from shadowspec import demo
from shadowspec.engine.batch import Request
from shadowspec.engine.decode import decode_batch
from shadowspec.engine.models import LoadedModel, load_model
from shadowspec.engine.parity import divergence_gap, teacher_forced_logits, top_two_gap
from shadowspec.engine.proposers import Proposer
from shadowspec.engine.proposers.draft_model import DraftModelProposer
from shadowspec.engine.proposers.ngram import NgramProposer
from shadowspec.engine.replay.acceptance import check_target, lookup_chances, prefix_accept
from shadowspec.engine.replay.law import StepChances, expected_counts, step_law
from shadowspec.engine.replay.response_tokens import Response
from shadowspec.engine.replay.scoring import TokenScores, token_scores
from shadowspec.errors import RecordError
from shadowspec.gate.policy import NEAR_TIE_LOGIT
from shadowspec.types import (
    DraftSampling,
    ExpectedCounts,
    NgramOccurrence,
    RecordKey,
    SamplingParameters,
    VerifyRule,
)

from .counted import Counted
from .predicting import Steps, TimedRequest
from .ways import NGRAM_MAX, NGRAM_MIN, Way

BATCH = 64
NEAR_TIE = NEAR_TIE_LOGIT["float32"]

Prompt = tuple[int, ...]


class Ours:
    """The bundled pair in this process, in float32."""

    def __init__(self) -> None:
        device = torch.device("cpu")
        self.target: LoadedModel = load_model(str(demo.TARGET), device, torch.float32)
        self.draft: LoadedModel = load_model(str(demo.DRAFT), device, torch.float32)

    def loop(self, way: Way, prompts: Sequence[Prompt], max_tokens: int, depth: int, course: int) -> list[Counted]:
        """Every prompt decoded by our loop, drafting as vLLM does, in batches of prompts of like length."""
        sampling = replace(way.sampling, max_tokens=max_tokens)
        order = sorted(range(len(prompts)), key=lambda row: len(prompts[row]))
        found: dict[int, Counted] = {}
        for start in range(0, len(order), BATCH):
            rows = order[start : start + BATCH]
            result = decode_batch(
                self.target.model,
                [Request(prompts[row], sampling, 1_000_000 * course + row) for row in rows],
                proposer=self.proposer(way, depth),
                num_speculative_tokens=depth,
                verify_rule=way.rule,
                end_token_ids=self.target.end_token_ids,
                releases_slots=True,
            )
            found.update(zip(rows, map(Counted.of_loop, result.decoded), strict=True))
        return [found[row] for row in range(len(prompts))]

    def queue(
        self, way: Way, depth: int, prompts: Sequence[Prompt], slots: int, max_tokens: int
    ) -> tuple[TimedRequest, ...]:
        """Prompts decoded so many at a time, timed; at depth 0 without drafts."""
        sampling = replace(way.sampling, max_tokens=max_tokens)
        result = decode_batch(
            self.target.model,
            [Request(prompt, sampling, row) for row, prompt in enumerate(prompts)],
            proposer=self.proposer(way, depth) if depth else None,
            num_speculative_tokens=depth,
            verify_rule=way.rule,
            end_token_ids=self.target.end_token_ids,
            num_slots=slots,
            releases_slots=True,  # a server keeps no slot that nobody uses
        )
        return tuple(
            TimedRequest(
                Steps(each.counts.num_prompt_tokens, each.counts.num_plain_steps, each.counts.num_drafts),
                each.timing.prefill_ms,
                each.timing.decode_ms,
            )
            for each in result.decoded
        )

    def proposer(self, way: Way, depth: int) -> Proposer:
        """What drafts as vLLM does in this way."""
        if way.is_lookup:
            return NgramProposer(depth, NGRAM_MIN, NGRAM_MAX, NgramOccurrence.EARLIEST)
        is_sampling = way.rule is VerifyRule.REJECTION
        temperature = DraftSampling.TEMPERATURE
        return DraftModelProposer(self.draft.model, depth, is_sampling=is_sampling, draft_sampling=temperature)

    def replayed(
        self,
        way: Way,
        prompts: Sequence[Prompt],
        outputs: Sequence[Sequence[int]],
        depths: Sequence[int],
        *,
        by_our_rule: bool = False,
    ) -> list[tuple[ExpectedCounts, ...] | None]:
        """What each output is expected to have accepted at every depth, by vLLM's rules or by our own.

        Returns:
            None for an output that cannot be the target's.
        """
        logged = [
            Response(RecordKey("validation", 0, row), Request(prompt, way.sampling, 0), tuple(output))
            for row, (prompt, output) in enumerate(zip(prompts, outputs, strict=True))
        ]
        ends = self.target.end_token_ids
        scores = token_scores(self.target.model, logged, ends, with_probs=not way.is_greedy)
        sound = [row for row in range(len(logged)) if _is_possible(logged[row], scores[row])]
        responses = [logged[row] for row in sound]
        if way.is_lookup:
            occurrence = NgramOccurrence.LATEST if by_our_rule else NgramOccurrence.EARLIEST
            chances = lookup_chances(responses, NGRAM_MIN, NGRAM_MAX, max(depths), occurrence)
        else:
            drafted_for = responses if by_our_rule else [each.by_temperature_alone() for each in responses]
            drafts = token_scores(self.draft.model, drafted_for, ends, with_probs=not way.is_certain)
            accepts = [
                prefix_accept(way.rule, logged[row], draft, scores[row].probs)
                for row, draft in zip(sound, drafts, strict=True)
            ]
            chances = StepChances.of_prefix(accepts, max(depths))
        law = step_law(chances, list(depths))
        found = {row: expected_counts(law, place, len(prompts[row])) for place, row in enumerate(sound)}
        return [found.get(row) for row in range(len(logged))]

    def smallest_draft_gap(self, prompt: Prompt, output: Sequence[int]) -> float:
        """The smallest top-2 gap of the draft along an output: where its arg-max is in doubt, counts may differ."""
        request = Request(prompt, SamplingParameters(temperature=0.0, max_tokens=len(output)), 0)
        logits = teacher_forced_logits(self.draft.model, [request], [output])[0][0]  # [tokens, vocabulary]
        return min(top_two_gap(each) for each in logits)

    def top_two_gap(self, prompt: Prompt, output: Sequence[int]) -> float:
        """The target's top-2 logit gap at the last token of a greedy output."""
        request = Request(prompt, SamplingParameters(temperature=0.0, max_tokens=len(output)), 0)
        return divergence_gap(self.target.model, request, output, self.target.end_token_ids)


def _is_possible(response: Response, scores: TokenScores) -> bool:
    """Whether the target can have given the response."""
    try:
        check_target(response, scores, NEAR_TIE)
    except RecordError:
        return False
    return True

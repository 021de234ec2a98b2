"""Our side: the loop on the same prompts, drafting no further than llama.cpp does."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from shadowspec.engine.batch import Batch, Request
from shadowspec.engine.decode import decode_batch
from shadowspec.engine.kv_cache import Span
from shadowspec.engine.models import LoadedModel, load_model
from shadowspec.engine.parity import divergence_gap, teacher_forced_logits, top_two_gap
from shadowspec.engine.proposers import Proposal, Proposer
from shadowspec.engine.proposers.draft_model import DraftModelProposer
from shadowspec.engine.proposers.ngram import NgramProposer
from shadowspec.engine.replay.acceptance import lookup_chances, prefix_accept
from shadowspec.engine.replay.law import StepChances, expected_counts, step_law
from shadowspec.engine.replay.response_tokens import Response
from shadowspec.engine.replay.scoring import token_scores
from shadowspec.types import ExpectedCounts, NgramOccurrence, RecordKey, SamplingParameters

from ..pair import BUNDLED, Pair
from .asking import Answered, Prompt, limited
from .ways import DRAFT, NGRAM, Way

BATCH = 64


class WithinLimit:
    """A proposer whose drafts are cut to one token less than may still be emitted, as llama.cpp cuts them."""

    def __init__(self, proposer: Proposer) -> None:
        self._proposer = proposer
        self.hidden = proposer.hidden
        self.begin, self.admit = proposer.begin, proposer.admit
        self.keep, self.cache_bytes = proposer.keep, proposer.cache_bytes

    def propose(self, batch: Batch, span: Span) -> Proposal:
        """The proposer's drafts, cut."""
        proposal = self._proposer.propose(batch, span)
        left = [max(0, row.request.sampling.max_tokens - len(row.output) - 1) for row in batch.rows]
        drafted = torch.minimum(proposal.num_drafted, torch.tensor(left, device=batch.device))
        width = int(drafted.max()) if len(left) else 0
        probs = None if proposal.draft_probs is None else proposal.draft_probs[:, :width]
        return Proposal(proposal.tokens[:, :width], drafted, probs)


class Ours:
    """The pair in this process, in float32."""

    def __init__(self, pair: Pair = BUNDLED) -> None:
        device = torch.device("cpu")
        self.target: LoadedModel = load_model(str(pair.target), device, torch.float32)
        self.draft: LoadedModel = load_model(str(pair.draft), device, torch.float32)

    def loop(self, way: Way, prompts: Sequence[Prompt], max_tokens: int, depth: int) -> list[Answered]:
        """Every prompt decoded by our loop, in batches of prompts of like length."""
        sampling = limited(way.sampling, max_tokens)
        order = sorted(range(len(prompts)), key=lambda row: len(prompts[row]))
        found: dict[int, Answered] = {}
        for start in range(0, len(order), BATCH):
            rows = order[start : start + BATCH]
            result = decode_batch(
                self.target.model,
                [Request(prompts[row], sampling, 1_000_000 * depth + row) for row in rows],
                proposer=WithinLimit(self._proposer(way, depth)),
                num_speculative_tokens=depth,
                verify_rule=way.rule,
                end_token_ids=self.target.end_token_ids,
                releases_slots=True,
            )
            for row, decoded in zip(rows, result.decoded, strict=True):
                found[row] = Answered(decoded.output, decoded.finish_reason, decoded.counts)
        return [found[row] for row in range(len(prompts))]

    def replayed(
        self, way: Way, prompts: Sequence[Prompt], outputs: Sequence[Sequence[int]], max_tokens: int, depth: int
    ) -> list[ExpectedCounts]:
        """What outputs accept of the drafts along them, which these rules determine; cut as `WithinLimit` cuts them."""
        sampling = limited(way.sampling, max_tokens)
        responses = [
            Response(RecordKey("validation", 0, row), Request(prompt, sampling, 0), tuple(output))
            for row, (prompt, output) in enumerate(zip(prompts, outputs, strict=True))
        ]
        if way.proposer == DRAFT:
            drafts = token_scores(self.draft.model, responses, self.target.end_token_ids, with_probs=False)
            accepts = [prefix_accept(way.rule, *pair, None) for pair in zip(responses, drafts, strict=True)]
            chances = StepChances.of_prefix(accepts, depth)
        else:
            chances = lookup_chances(responses, NGRAM, NGRAM, depth, NgramOccurrence.LATEST_FOLLOWED)
        left = np.maximum(0, max_tokens - 1 - np.arange(chances.proposed.shape[1]))
        proposed = np.minimum(chances.proposed, left)
        is_proposed = np.arange(depth) < proposed[:, :, None]
        law = step_law(StepChances(chances.accept * is_proposed, proposed, chances.lengths), [depth])
        return [expected_counts(law, row, len(prompt))[0] for row, prompt in enumerate(prompts)]

    def _proposer(self, way: Way, depth: int) -> Proposer:
        if way.proposer == DRAFT:
            return DraftModelProposer(self.draft.model, depth, is_sampling=False)
        return NgramProposer(depth, NGRAM, NGRAM, NgramOccurrence.LATEST_FOLLOWED)

    def top_two_gap(self, prompt: Prompt, output: Sequence[int]) -> float:
        """The target's top-2 logit gap at the last token of a greedy output."""
        request = Request(prompt, SamplingParameters(temperature=0.0, max_tokens=len(output)), 0)
        return divergence_gap(self.target.model, request, output, self.target.end_token_ids)

    def smallest_draft_gap(self, prompt: Prompt, output: Sequence[int]) -> float:
        """The smallest top-2 gap of the draft along an output: where its arg-max is in doubt, counts may differ."""
        request = Request(prompt, SamplingParameters(temperature=0.0, max_tokens=len(output)), 0)
        logits = teacher_forced_logits(self.draft.model, [request], [output])[0][0]  # [tokens, vocabulary]
        return min(top_two_gap(each) for each in logits)

"""Our side: the product's loop on the same prompts, and its replay of what the servers answered.

Candidates come from the product's configuration with `serving_engine = "llama.cpp"`, and with them the proposers, the
loop's and replay's: nothing is put in their place.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from shadowspec.engine.batch import Request
from shadowspec.engine.candidate import Candidate, fingerprint_candidate
from shadowspec.engine.decode import decode_batch
from shadowspec.engine.models import LoadedModel, load_model
from shadowspec.engine.parity import divergence_gap, teacher_forced_logits, top_two_gap
from shadowspec.engine.replay.replayer import Drafting, Replayed, Replayer
from shadowspec.engine.replay.response_tokens import Response
from shadowspec.types import ExpectedCounts, RecordKey, SamplingParameters

from ..candidates import candidates_of
from ..pair import BUNDLED, Pair
from .asking import Answered, Prompt, limited
from .ways import SERVING_ENGINE, Way

BATCH = 64


class Ours:
    """The pair in this process, in float32."""

    def __init__(self, pair: Pair = BUNDLED) -> None:
        device = torch.device("cpu")
        self._pair = pair
        self.target: LoadedModel = load_model(str(pair.target), device, torch.float32)
        self.draft: LoadedModel = load_model(str(pair.draft), device, torch.float32)

    def loop(self, way: Way, prompts: Sequence[Prompt], max_tokens: int, depth: int) -> list[Answered]:
        """Every prompt decoded by our loop, in batches of prompts of like length."""
        sampling = limited(way.sampling, max_tokens)
        order = sorted(range(len(prompts)), key=lambda row: len(prompts[row]))
        candidate = self.candidate(way, depth)
        found: dict[int, Answered] = {}
        for start in range(0, len(order), BATCH):
            rows = order[start : start + BATCH]
            result = decode_batch(
                self.target.model,
                [Request(prompts[row], sampling, 1_000_000 * depth + row) for row in rows],
                proposer=candidate.proposer(),
                num_speculative_tokens=depth,
                verify_rule=candidate.config.config.verify_rule,
                end_token_ids=self.target.end_token_ids,
                releases_slots=True,
            )
            for row, decoded in zip(rows, result.decoded, strict=True):
                found[row] = Answered(decoded.output, decoded.finish_reason, decoded.counts)
        return [found[row] for row in range(len(prompts))]

    def replayed(
        self, way: Way, prompts: Sequence[Prompt], outputs: Sequence[Sequence[int]], max_tokens: int, depth: int
    ) -> list[ExpectedCounts]:
        """What the product's replay expects outputs to have accepted: these rules determine it."""
        sampling = limited(way.sampling, max_tokens)
        responses = [
            Response(RecordKey("validation", 0, row), Request(prompt, sampling, 0), tuple(output))
            for row, (prompt, output) in enumerate(zip(prompts, outputs, strict=True))
        ]
        candidate = self.candidate(way, depth)
        drafting = Drafting(candidate.config.config, candidate.draft)
        replayer = Replayer([drafting], [depth], end_token_ids=self.target.end_token_ids, target=None)
        return [each.counts[0][0] for each in replayer.replay(responses) if isinstance(each, Replayed)]

    def candidate(self, way: Way, depth: int) -> Candidate:
        """The product's candidate for this way, as an endpoint that llama.cpp serves has it."""
        deployments = {way.proposer: way.candidate_of(self._pair)}
        (config,) = candidates_of(SERVING_ENGINE, self._pair, deployments, [depth]).values()
        draft = None if config.draft is None else self.draft
        return Candidate(fingerprint_candidate(config, self.target, draft, 1, {}), draft)

    def top_two_gap(self, prompt: Prompt, output: Sequence[int]) -> float:
        """The target's top-2 logit gap at the last token of a greedy output."""
        request = Request(prompt, SamplingParameters(temperature=0.0, max_tokens=len(output)), 0)
        return divergence_gap(self.target.model, request, output, self.target.end_token_ids)

    def smallest_draft_gap(self, prompt: Prompt, output: Sequence[int]) -> float:
        """The smallest top-2 gap of the draft along an output: where its arg-max is in doubt, counts may differ."""
        request = Request(prompt, SamplingParameters(temperature=0.0, max_tokens=len(output)), 0)
        logits = teacher_forced_logits(self.draft.model, [request], [output])[0][0]  # [tokens, vocabulary]
        return min(top_two_gap(each) for each in logits)

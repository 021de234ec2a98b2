"""The models that both sides run, the bundled pair or another one, and the pair in this process, by the product."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from kernels.benchmarks.decoding import in_batches
from kernels.benchmarks.harness import Prompt
from shadowspec import demo
from shadowspec.engine.batch import Request
from shadowspec.engine.candidate import Candidate, fingerprint_candidate
from shadowspec.engine.decode import Decoded
from shadowspec.engine.models import LoadedModel, load_model
from shadowspec.engine.parity import divergence_gap, teacher_forced_logits, top_two_gap
from shadowspec.engine.replay.response_tokens import Response
from shadowspec.types import RecordKey, SamplingParameters, SpeculationConfig


@dataclass(frozen=True, slots=True)
class Pair:
    """A target and a draft, as folders of weights."""

    target: Path
    draft: Path


BUNDLED = Pair(demo.TARGET, demo.DRAFT)


class LoadedPair:
    """The pair in this process, in float32: what both validations ask of the product's loop."""

    def __init__(self, pair: Pair = BUNDLED) -> None:
        device = torch.device("cpu")
        self.target: LoadedModel = load_model(str(pair.target), device, torch.float32)
        self.draft: LoadedModel = load_model(str(pair.draft), device, torch.float32)

    def candidate_of(self, config: SpeculationConfig) -> Candidate:
        """The product's candidate of a config."""
        draft = self.draft_of(config)
        return Candidate(fingerprint_candidate(config, self.target, draft, 1, {}), draft)

    def draft_of(self, config: SpeculationConfig) -> LoadedModel | None:
        """The draft model where the config has one."""
        return None if config.draft is None else self.draft

    def decoded(
        self, candidate: Candidate, prompts: Sequence[Prompt], sampling: SamplingParameters, first_seed: int
    ) -> list[Decoded]:
        """Every prompt decoded by our loop, in batches of prompts of like length; seeds count up from the first."""
        config = candidate.config.config
        requests = [Request(prompt, sampling, first_seed + row) for row, prompt in enumerate(prompts)]
        return in_batches(
            self.target.model, requests, candidate.proposer, num_speculative_tokens=config.num_speculative_tokens,
            verify_rule=config.verify_rule, end_token_ids=self.target.end_token_ids, releases_slots=True,
        )  # fmt: skip

    def smallest_draft_gap(self, prompt: Prompt, output: Sequence[int]) -> float:
        """The smallest top-2 gap of the draft along an output: where its arg-max is in doubt, counts may differ."""
        request = Request(prompt, SamplingParameters(temperature=0.0, max_tokens=len(output)), 0)
        logits = teacher_forced_logits(self.draft.model, [request], [output])[0][0]  # [tokens, vocabulary]
        return min(top_two_gap(token_logits) for token_logits in logits)

    def top_two_gap(self, prompt: Prompt, output: Sequence[int]) -> float:
        """The target's top-2 logit gap at the last token of a greedy output."""
        request = Request(prompt, SamplingParameters(temperature=0.0, max_tokens=len(output)), 0)
        return divergence_gap(self.target.model, request, output, self.target.end_token_ids)


def responses(
    prompts: Sequence[Prompt], outputs: Sequence[Sequence[int]], sampling: SamplingParameters
) -> list[Response]:
    """Outputs as logged responses, for replay."""
    return [
        Response(RecordKey("validation", 0, row), Request(prompt, sampling, 0), tuple(output))
        for row, (prompt, output) in enumerate(zip(prompts, outputs, strict=True))
    ]

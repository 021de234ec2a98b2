"""Our side: the product's loop on the same prompts, and its replay of what the servers answered.

Candidates come from the product's configuration with `serving_engine = "vllm 0.32"`, and with them the proposers, the
loop's and replay's: nothing is put in their place.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from msgspec.structs import replace

from shadowspec.engine.batch import Request
from shadowspec.engine.candidate import Candidate, fingerprint_candidate
from shadowspec.engine.decode import decode_batch
from shadowspec.engine.models import LoadedModel, load_model
from shadowspec.engine.parity import divergence_gap, teacher_forced_logits, top_two_gap
from shadowspec.engine.replay.replayer import Drafting, Replayer
from shadowspec.engine.replay.response_tokens import Response
from shadowspec.errors import RecordError
from shadowspec.gate.policy import NEAR_TIE_LOGIT
from shadowspec.types import ExpectedCounts, RecordKey, SamplingParameters, SpeculationConfig
from shadowspec.types.serving_engines import used_rules

from .candidates import SERVING_ENGINE, read_candidates
from .counted import Counted
from .pair import BUNDLED, Pair
from .predicting import Steps, TimedRequest
from .ways import DEPTHS, WAYS, Way

BATCH = 64
NEAR_TIE = NEAR_TIE_LOGIT["float32"]

Prompt = tuple[int, ...]


class Ours:
    """The pair in this process, in float32."""

    def __init__(self, pair: Pair = BUNDLED) -> None:
        device = torch.device("cpu")
        self.target: LoadedModel = load_model(str(pair.target), device, torch.float32)
        self.draft: LoadedModel = load_model(str(pair.draft), device, torch.float32)
        self._configured = read_candidates(SERVING_ENGINE, pair)
        self._by_default = read_candidates(None, pair)

    def loop(self, way: Way, prompts: Sequence[Prompt], max_tokens: int, depth: int, course: int) -> list[Counted]:
        """Every prompt decoded by our loop, in batches of prompts of like length."""
        sampling = replace(way.sampling, max_tokens=max_tokens)
        order = sorted(range(len(prompts)), key=lambda row: len(prompts[row]))
        candidate = self.candidate(way, depth)
        found: dict[int, Counted] = {}
        for start in range(0, len(order), BATCH):
            rows = order[start : start + BATCH]
            result = decode_batch(
                self.target.model,
                [Request(prompts[row], sampling, 1_000_000 * course + row) for row in rows],
                proposer=candidate.proposer(),
                num_speculative_tokens=depth,
                verify_rule=candidate.config.config.verify_rule,
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
            proposer=self.candidate(way, depth).proposer() if depth else None,
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

    def candidate(self, way: Way, depth: int) -> Candidate:
        """The product's candidate for this way, as an endpoint that vLLM serves has it."""
        config = self._configured[way.served.name, depth]
        draft = self._draft_of(config)
        return Candidate(fingerprint_candidate(config, self.target, draft, 1, {}), draft)

    def drafting_rules(self) -> dict[str, dict[str, str | bool]]:
        """The options in which engines differ, as the endpoint's candidates have them, by way."""
        return {way.name: used_rules(self._configured[way.served.name, DEPTHS[0]]) for way in WAYS}

    def _draft_of(self, config: SpeculationConfig) -> LoadedModel | None:
        return None if config.draft is None else self.draft

    def replayed(
        self,
        way: Way,
        prompts: Sequence[Prompt],
        outputs: Sequence[Sequence[int]],
        depths: Sequence[int],
        *,
        names_engine: bool = True,
    ) -> list[tuple[ExpectedCounts, ...] | None]:
        """What the product's replay expects each output to have accepted at every depth.

        Args:
            names_engine: whether the candidate's endpoint names vLLM; else it drafts by the default rules.

        Returns:
            None for an output that cannot be the target's.
        """
        logged = [
            Response(RecordKey("validation", 0, row), Request(prompt, way.sampling, 0), tuple(output))
            for row, (prompt, output) in enumerate(zip(prompts, outputs, strict=True))
        ]
        config = (self._configured if names_engine else self._by_default)[way.served.name, DEPTHS[0]]
        replayer = Replayer(
            [Drafting(config, self._draft_of(config))],
            depths,
            end_token_ids=self.target.end_token_ids,
            target=self.target,
            near_tie_logit=NEAR_TIE,
        )
        return [None if isinstance(each, RecordError) else each.counts[0] for each in replayer.replay(logged)]

    def smallest_draft_gap(self, prompt: Prompt, output: Sequence[int]) -> float:
        """The smallest top-2 gap of the draft along an output: where its arg-max is in doubt, counts may differ."""
        request = Request(prompt, SamplingParameters(temperature=0.0, max_tokens=len(output)), 0)
        logits = teacher_forced_logits(self.draft.model, [request], [output])[0][0]  # [tokens, vocabulary]
        return min(top_two_gap(each) for each in logits)

    def top_two_gap(self, prompt: Prompt, output: Sequence[int]) -> float:
        """The target's top-2 logit gap at the last token of a greedy output."""
        request = Request(prompt, SamplingParameters(temperature=0.0, max_tokens=len(output)), 0)
        return divergence_gap(self.target.model, request, output, self.target.end_token_ids)

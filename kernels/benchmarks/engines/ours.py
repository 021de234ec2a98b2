"""Our side: the product's loop on the same prompts, and its replay of what the servers answered.

Candidates come from the product's configuration with `serving_engine = "vllm-cpu"`, and with them the proposers, the
loop's and replay's: nothing is put in their place.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from kernels.benchmarks.engines.candidates import SERVING_ENGINE, read_candidates
from kernels.benchmarks.engines.counted import Counted
from kernels.benchmarks.engines.pair import BUNDLED, LoadedPair, Pair, Prompt, responses
from kernels.benchmarks.engines.predicting import Steps, TimedRequest
from kernels.benchmarks.engines.ways import DEPTHS, WAYS, Way
from shadowspec.engine.batch import Request
from shadowspec.engine.candidate import Candidate
from shadowspec.engine.decode import decode_batch
from shadowspec.engine.replay.replayer import Drafting, Replayer
from shadowspec.errors import RecordError
from shadowspec.gate.policy import NEAR_TIE_LOGIT
from shadowspec.servers.engines.rules import used_rules
from shadowspec.types import ExpectedCounts

NEAR_TIE = NEAR_TIE_LOGIT["float32"]


class Ours(LoadedPair):
    """The pair in this process, with the candidates of an endpoint that vLLM serves."""

    def __init__(self, pair: Pair = BUNDLED) -> None:
        super().__init__(pair)
        self._configured = read_candidates(SERVING_ENGINE, pair)
        self._by_default = read_candidates(None, pair)

    def loop(self, way: Way, prompts: Sequence[Prompt], max_tokens: int, depth: int, course: int) -> list[Counted]:
        """Every prompt decoded by our loop."""
        sampling = replace(way.sampling, max_tokens=max_tokens)
        decoded = self.decoded(self.candidate(way, depth), prompts, sampling, 1_000_000 * course)
        return list(map(Counted.of_loop, decoded))

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
                Steps(decoded.counts.num_prompt_tokens, decoded.counts.num_plain_steps, decoded.counts.num_drafts),
                decoded.timing.prefill_ms,
                decoded.timing.decode_ms,
            )
            for decoded in result.decoded
        )

    def candidate(self, way: Way, depth: int) -> Candidate:
        """The product's candidate for this way, as an endpoint that vLLM serves has it."""
        return self.candidate_of(self._configured[way.served.name, depth])

    def drafting_rules(self) -> dict[str, dict[str, str | bool]]:
        """The options in which engines differ, as the endpoint's candidates have them, by way."""
        return {way.name: used_rules(self._configured[way.served.name, DEPTHS[0]]) for way in WAYS}

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
        config = (self._configured if names_engine else self._by_default)[way.served.name, DEPTHS[0]]
        replayer = Replayer(
            [Drafting(config, self.draft_of(config))],
            depths,
            end_token_ids=self.target.end_token_ids,
            target=self.target,
            near_tie_logit=NEAR_TIE,
        )
        return [
            None if isinstance(outcome, RecordError) else outcome.counts[0]
            for outcome in replayer.replay(responses(prompts, outputs, way.sampling))
        ]

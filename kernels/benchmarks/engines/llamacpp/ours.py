"""Our side: the product's loop on the same prompts, and its replay of what the servers answered.

Candidates come from the product's configuration with `serving_engine = "llama.cpp"`, and with them the proposers, the
loop's and replay's: nothing is put in their place.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from kernels.benchmarks.engines.candidates import candidates_of
from kernels.benchmarks.engines.llamacpp.asking import LlamaAnswer
from kernels.benchmarks.engines.llamacpp.ways import SERVING_ENGINE, LlamaWay
from kernels.benchmarks.engines.pair import BUNDLED, LoadedPair, Pair, Prompt, responses
from shadowspec.engine.candidate import Candidate
from shadowspec.engine.replay.replayer import Drafting, Replayed, Replayer
from shadowspec.types import ExpectedCounts


class LlamaCppOurs(LoadedPair):
    """The pair in this process, with the candidates of an endpoint that llama.cpp serves."""

    def __init__(self, pair: Pair = BUNDLED) -> None:
        super().__init__(pair)
        self._pair = pair

    def loop(self, way: LlamaWay, prompts: Sequence[Prompt], max_tokens: int, depth: int) -> list[LlamaAnswer]:
        """Every prompt decoded by our loop."""
        sampling = replace(way.sampling, max_tokens=max_tokens)
        decoded = self.decoded(self.candidate(way, depth), prompts, sampling, 1_000_000 * depth)
        return [
            LlamaAnswer(one_decoded.output, one_decoded.finish_reason, one_decoded.counts) for one_decoded in decoded
        ]

    def replayed(
        self, way: LlamaWay, prompts: Sequence[Prompt], outputs: Sequence[Sequence[int]], max_tokens: int, depth: int
    ) -> list[ExpectedCounts]:
        """What the product's replay expects outputs to have accepted: these rules determine it."""
        candidate = self.candidate(way, depth)
        drafting = Drafting(candidate.config.config, candidate.draft)
        replayer = Replayer([drafting], [depth], end_token_ids=self.target.end_token_ids, target=None)
        logged = responses(prompts, outputs, replace(way.sampling, max_tokens=max_tokens))
        return [
            replayed_output.counts[0][0]
            for replayed_output in replayer.replay(logged)
            if isinstance(replayed_output, Replayed)
        ]

    def candidate(self, way: LlamaWay, depth: int) -> Candidate:
        """The product's candidate for this way, as an endpoint that llama.cpp serves has it."""
        deployments = {way.proposer: way.candidate_of(self._pair)}
        (config,) = candidates_of(SERVING_ENGINE, self._pair, deployments, [depth]).values()
        return self.candidate_of(config)

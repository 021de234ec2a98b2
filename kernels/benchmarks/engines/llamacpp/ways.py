"""What is validated: ways of drafting and of asking, with llama.cpp's arguments and our rule for each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kernels.benchmarks.engines.llamacpp.servers import Binary
from kernels.benchmarks.engines.pair import Pair
from shadowspec.types import SamplingParameters

SERVING_ENGINE = "llama.cpp"
DEPTHS = (2, 4, 6)  # K
NGRAM = 2  # tokens that are looked up
GREEDY = SamplingParameters(temperature=0.0)
SAMPLED = SamplingParameters(temperature=0.8, top_p=0.95)  # what most of the bundled traffic asks for
BASELINE = "baseline"
DRAFT, LOOKUP = "draft_model", "ngram"


@dataclass(frozen=True, slots=True)
class LlamaWay:
    """Requests of one kind to one deployment."""

    name: str
    proposer: str
    sampling: SamplingParameters

    @property
    def is_greedy(self) -> bool:
        return self.sampling.temperature == 0.0

    @property
    def regime(self) -> str:
        return "greedy" if self.is_greedy else "sampled"

    def candidate_of(self, pair: Pair) -> dict[str, Any]:
        """The product's candidate for it: keys of its configuration, but for name and K."""
        own = {"draft": pair.draft.as_posix()} if self.proposer == DRAFT else {"ngram_min": NGRAM, "ngram_max": NGRAM}
        return {"proposer": self.proposer, "verify_rule": "exact_match"} | own  # what llama.cpp accepts by

    def arguments(self, binary: Binary, depth: int) -> list[str]:
        """Of `llama-server`, about speculation."""
        if self.proposer == DRAFT:
            return [
                "--spec-type", "draft-simple", "--spec-draft-model", str(binary.draft),
                "--spec-draft-n-max", str(depth), "--spec-draft-threads", str(binary.threads),
            ]  # fmt: skip
        return [
            "--spec-type", "ngram-simple", "--spec-ngram-simple-size-n", str(NGRAM),
            "--spec-ngram-simple-size-m", str(depth),
        ]  # fmt: skip


WAYS = (
    LlamaWay("greedy", DRAFT, GREEDY),
    LlamaWay("exact_match", DRAFT, SAMPLED),
    LlamaWay("ngram", LOOKUP, GREEDY),
    LlamaWay("ngram_sampled", LOOKUP, SAMPLED),
)

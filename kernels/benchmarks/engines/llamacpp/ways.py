"""What is validated: ways of drafting and of asking, with llama.cpp's arguments and our rule for each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kernels.benchmarks.engines.llamacpp.servers import Binary
from kernels.benchmarks.engines.pair import Pair
from kernels.benchmarks.engines.ways import GREEDY, SAMPLED
from shadowspec.types import SamplingParameters

SERVING_ENGINE = "llama.cpp"
NGRAM = 2  # tokens that are looked up
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

    def candidate_of(self, pair: Pair) -> dict[str, Any]:
        """The product's candidate for it: keys of its configuration, but for name and K."""
        own = {"draft": pair.draft.as_posix()} if self.proposer == DRAFT else {"ngram_min": NGRAM, "ngram_max": NGRAM}
        return {"proposer": self.proposer, "verify_rule": "exact_match"} | own  # what llama.cpp accepts by


def speculation(proposer: str, binary: Binary, depth: int) -> list[str]:
    """Arguments of `llama-server`."""
    if proposer == DRAFT:
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

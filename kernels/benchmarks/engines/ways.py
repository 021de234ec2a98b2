"""What is validated: ways of asking a speculative server, and what they are called on either side."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernels.benchmarks.engines.pair import BUNDLED, Pair
from shadowspec.types import SamplingParameters, VerifyRule

DEPTHS = (2, 4, 6)  # K
GREEDY = SamplingParameters(temperature=0.0)
SAMPLED = SamplingParameters(temperature=0.8, top_p=0.95)  # what most of the bundled traffic asks for
NGRAM_MIN, NGRAM_MAX = 2, 4
BASELINE = "baseline"


@dataclass(frozen=True, slots=True)
class Served:
    """A speculative deployment; K comes with it where it is started."""

    name: str
    options: dict[str, Any]  # of vLLM's --speculative-config, but for K and the draft
    candidate: dict[str, Any]  # the product's candidate that stands for it: keys of its configuration, but for these
    is_fixed: bool = True  # sampled speculation on a CPU (`mend`), of which greedy requests see nothing

    def speculative_config(self, depth: int, pair: Pair = BUNDLED) -> str:
        """The value of the flag."""
        draft = {"model": str(pair.draft)} if self.has_draft else {}
        return json.dumps(self.options | draft | {"num_speculative_tokens": depth})

    def candidate_of(self, pair: Pair) -> dict[str, Any]:
        """The candidate with its draft."""
        return self.candidate | ({"draft": pair.draft.as_posix()} if self.has_draft else {})

    @property
    def has_draft(self) -> bool:
        """Whether a model drafts."""
        return bool(self.options["method"] == "draft_model")


@dataclass(frozen=True, slots=True)
class Way:
    """Requests of one kind to one deployment, and the rule by which we say that it accepts."""

    name: str
    served: Served
    sampling: SamplingParameters
    rule: VerifyRule

    @property
    def is_greedy(self) -> bool:
        """Whether both sides are to emit the same tokens."""
        return self.sampling.temperature == 0.0

    @property
    def is_certain(self) -> bool:
        """Whether drafts are certain of their token, so that an output says what was accepted."""
        return self.rule is not VerifyRule.REJECTION

    @property
    def differs(self) -> bool:
        """Whether vLLM drafts otherwise than a candidate whose endpoint names no serving engine."""
        return self.is_lookup or not self.is_certain

    @property
    def is_lookup(self) -> bool:
        """Whether drafts are looked up in the request's own text."""
        return self.served is NGRAM


_PAIR = {"method": "draft_model"}
DRAFT = Served("draft_model", _PAIR, {"proposer": "draft_model", "verify_rule": "greedy_draft"})
PROBABILISTIC = Served(
    "draft_model_probabilistic",
    _PAIR | {"draft_sample_method": "probabilistic"},
    {"proposer": "draft_model", "verify_rule": "rejection"},
)
NGRAM = Served(
    "ngram",
    {"method": "ngram", "prompt_lookup_min": NGRAM_MIN, "prompt_lookup_max": NGRAM_MAX},
    {"proposer": "ngram", "ngram_min": NGRAM_MIN, "ngram_max": NGRAM_MAX},
)
SHIPPED = Served("draft_model_shipped", DRAFT.options, DRAFT.candidate, is_fixed=False)  # sampled requests, at one K
SHIPPED_DEPTH = DEPTHS[0]
SERVED = (DRAFT, NGRAM, PROBABILISTIC)
WAYS: tuple[Way, ...] = (
    Way("greedy", DRAFT, GREEDY, VerifyRule.GREEDY),
    Way("greedy_draft", DRAFT, SAMPLED, VerifyRule.GREEDY_DRAFT),
    Way("rejection", PROBABILISTIC, SAMPLED, VerifyRule.REJECTION),
    Way("ngram", NGRAM, GREEDY, VerifyRule.GREEDY),
    Way("ngram_sampled", NGRAM, SAMPLED, VerifyRule.GREEDY_DRAFT),
)


def raw_file(folder: Path, served: str, depth: int, regime: str) -> Path:
    """Where the answers of a deployment to the requests of a regime are kept."""
    return folder / (f"{served}-{regime}.json" if depth == 0 else f"{served}-k{depth}-{regime}.json")

"""What is validated: ways of asking a speculative server, and what they are called on either side."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shadowspec import demo
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
    options: dict[str, Any]  # of vLLM's --speculative-config, but for K
    candidate: dict[str, Any]  # the product's candidate that stands for it: keys of its configuration, but for K
    is_fixed: bool = True  # sampled speculation on a CPU (`mend`), of which greedy requests see nothing

    def speculative_config(self, depth: int) -> str:
        """The value of the flag."""
        return json.dumps(self.options | {"num_speculative_tokens": depth})


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


_PAIR = {"method": "draft_model", "model": str(demo.DRAFT)}
_OUR_PAIR = {"proposer": "draft_model", "draft": demo.DRAFT.as_posix()}
DRAFT = Served("draft_model", _PAIR, _OUR_PAIR | {"verify_rule": "greedy_draft"})
PROBABILISTIC = Served(
    "draft_model_probabilistic",
    _PAIR | {"draft_sample_method": "probabilistic"},
    _OUR_PAIR | {"verify_rule": "rejection"},
)
NGRAM = Served(
    "ngram",
    {"method": "ngram", "prompt_lookup_min": NGRAM_MIN, "prompt_lookup_max": NGRAM_MAX},
    {"proposer": "ngram", "ngram_min": NGRAM_MIN, "ngram_max": NGRAM_MAX},
)
SHIPPED = Served("draft_model_shipped", DRAFT.options, DRAFT.candidate, is_fixed=False)  # sampled requests, at one K
SHIPPED_DEPTH = DEPTHS[0]
SERVED = (DRAFT, NGRAM, PROBABILISTIC)
WAYS = (
    Way("greedy", DRAFT, GREEDY, VerifyRule.GREEDY),
    Way("greedy_draft", DRAFT, SAMPLED, VerifyRule.GREEDY_DRAFT),
    Way("rejection", PROBABILISTIC, SAMPLED, VerifyRule.REJECTION),
    Way("ngram", NGRAM, GREEDY, VerifyRule.GREEDY),
    Way("ngram_sampled", NGRAM, SAMPLED, VerifyRule.GREEDY_DRAFT),
)


def raw_file(folder: Path, served: str, depth: int, regime: str) -> Path:
    """Where the answers of a deployment to the requests of a regime are kept."""
    return folder / (f"{served}-{regime}.json" if depth == 0 else f"{served}-k{depth}-{regime}.json")

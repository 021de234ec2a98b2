"""Ways of speculating: a target with a draft, and what identifies the figures measured with it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class VerifyRule(StrEnum):
    """How a drafted token is accepted; every rule leaves the target's distribution unchanged."""

    REJECTION = "rejection"
    GREEDY_DRAFT = "greedy_draft"
    EXACT_MATCH = "exact_match"
    GREEDY = "greedy"


@dataclass(frozen=True, slots=True)
class SpeculationConfig:
    """A target with a way of drafting for it; its fingerprint identifies every figure measured with it."""

    name: str  # the operator's name for it, unique within the endpoint
    target: str  # path or id
    draft: str | None  # folder of a model or of heads; None: the proposer needs none
    # "draft_model" | "heterogeneous_draft_model" | "ngram" | "suffix" | "medusa" | "mlp_speculator" | "eagle3"
    proposer: str
    num_speculative_tokens: int
    verify_rule: VerifyRule  # rule for sampled requests; a greedy request is always verified by `greedy`
    backend: str = "torch"
    ngram_min: int = 2  # shortest suffix looked up by the n-gram proposer
    ngram_max: int = 4
    # Of the suffix proposer; the first three are vLLM's (docs/engine.md).
    suffix_decoding_max_tree_depth: int = 24  # tokens of match and draft together
    suffix_decoding_max_spec_factor: float = 1.0  # drafted tokens for each matched one
    suffix_decoding_min_token_prob: float = 0.1  # estimated probability of a draft up to a token
    suffix_memory_tokens: int = 100_000  # of recent outputs of the endpoint; 0: drafts from the request alone
    draft_confidence_threshold: float = 0.0  # a draft model drafts no token that it gives less; 0: as many as it may

    @property
    def is_adaptive(self) -> bool:
        """Whether how many tokens are drafted depends on how sure the draft is."""
        return self.draft_confidence_threshold > 0.0

    @property
    def remembers(self) -> bool:
        """Whether what is drafted depends on outputs of other requests, and so on the order in which these came."""
        return self.proposer == "suffix" and self.suffix_memory_tokens > 0


SUFFIX_OPTIONS: Final = (
    "suffix_decoding_max_tree_depth",
    "suffix_decoding_max_spec_factor",
    "suffix_decoding_min_token_prob",
    "suffix_memory_tokens",
)


@dataclass(frozen=True, slots=True)
class FingerprintedConfig:
    """A speculation config with everything else that its figures depend on (revisions, tokenizer, engine)."""

    config: SpeculationConfig
    engine: str  # name and version of the engine that measures, e.g. "shadowspec-torch/0.1.0 torch/2.13.0"
    device: str
    dtype: str
    details: Mapping[str, str]  # weights and tokenizer digests, chat-template digest
    fingerprint: str  # sha256 hex of all of the above

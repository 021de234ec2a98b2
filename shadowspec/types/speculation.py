"""Speculation configs: a target with a draft, and the identity of the figures measured with it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from typing import Any, Final, Self

from shadowspec.types.prompt_rules import UNNAMED, PromptRules
from shadowspec.types.requests import SamplingParameters
from shadowspec.types.served_methods import SCHEDULE_KEY, drafts_in_every_step, scheduled_depth


class VerifyRule(StrEnum):
    """How a drafted token is accepted; every rule leaves the target's distribution unchanged.

    `SERVER`: by the rule of the server that drafts, whichever that is.
    """

    REJECTION = "rejection"
    GREEDY_DRAFT = "greedy_draft"
    EXACT_MATCH = "exact_match"
    GREEDY = "greedy"
    SERVER = "server"


class LogprobsMode(StrEnum):
    """What a server's logprobs are of; the names are vLLM's (`--logprobs-mode`)."""

    RAW = "raw_logprobs"  # before penalties, temperature and truncation: vLLM's default
    PROCESSED = "processed_logprobs"  # of the distribution that was sampled


class NgramOccurrence(StrEnum):
    """Which of several earlier occurrences of a row's last tokens prompt lookup copies from."""

    LATEST = "latest"
    EARLIEST = "earliest"
    # The latest that at least as many tokens follow as were looked up, before the last token; else nothing is drafted.
    LATEST_FOLLOWED = "latest_followed"
    # The latest; places that it leaves without a token repeat the row's last one, so that every step has a draft.
    LATEST_FILLED = "latest_filled"


class DraftSampling(StrEnum):
    """The request's sampling parameters that a draft's distribution follows.

    The target's distribution follows all of them either way, and so does the output; only acceptance differs.
    """

    REQUEST = "request"  # all of them, as the target's
    TEMPERATURE = "temperature"  # only temperature: no minimum length, no penalties, no min-p, top-k and top-p


@dataclass(frozen=True, slots=True)
class SpeculationConfig:
    """A target with a way of drafting for it; its fingerprint identifies every figure measured with it."""

    name: str  # the operator's name for it, unique within the endpoint
    target: str  # path or id
    draft: str | None  # folder of a model or of heads; None: the proposer needs none
    # "draft_model" | "heterogeneous_draft_model" | "ngram" | "suffix" | "medusa" | "mlp_speculator" | "eagle3"
    proposer: str  # or, with a `speculative_config`, the server's name of its method
    num_speculative_tokens: int
    verify_rule: VerifyRule  # rule for sampled requests; a greedy request is always verified by `greedy`
    backend: str = "torch"
    ngram_min: int = 2  # shortest suffix looked up by the n-gram proposer
    ngram_max: int = 4
    # Of the suffix proposer; the first three are vLLM's (docs/proposers.md).
    suffix_decoding_max_tree_depth: int = 24  # tokens of match and draft together
    suffix_decoding_max_spec_factor: float = 1.0  # drafted tokens for each matched one
    suffix_decoding_min_token_prob: float = 0.1  # estimated probability of a draft up to a token
    suffix_memory_tokens: int = 100_000  # of recent outputs of the endpoint; 0: drafts only from the request
    draft_confidence_threshold: float = 0.0  # a draft model drafts no token below this probability; 0: no threshold
    # The start settings of a server that drafts by another method, as canonical JSON, beside method, draft and depth;
    # None: the proposer is one of those above.
    speculative_config: str | None = None
    # Rules that differ between serving engines (`serving_engines`).
    ngram_occurrence: NgramOccurrence = NgramOccurrence.LATEST
    draft_sampling: DraftSampling = DraftSampling.REQUEST
    drafts_within_limit: bool = False  # a draft ends one token before the request's limit of output tokens

    @classmethod
    def read(cls, values: Mapping[str, Any]) -> Self:
        """From values by name as a row or a document holds them; an option that it lacks is at its default."""
        words = {name: kind(values[name]) for name, kind in _WORDS.items() if name in values}
        return cls(**{**values, **words})

    @property
    def is_served(self) -> bool:
        """Whether a server drafts, by its rules, and not the engine in this process."""
        return self.backend == SERVED_BACKEND

    def uses(self, option: str) -> bool:
        """Whether drafts depend on this option; a name that is no option counts as used."""
        if option in SUFFIX_OPTIONS:
            return self.proposer == "suffix"
        if option == "ngram_occurrence":
            return self.proposer == "ngram" and not self.is_served
        if option == "draft_sampling":
            return self.draft is not None and not self.is_served
        if option == "drafts_within_limit":
            return not self.is_served
        return True

    @property
    def is_adaptive(self) -> bool:
        """Whether how many tokens are drafted depends on how sure the draft is."""
        return self.draft_confidence_threshold > 0.0

    @property
    def is_served_method(self) -> bool:
        """Whether a server drafts by a method of which only the start settings are known."""
        return self.speculative_config is not None

    @property
    def is_deployment(self) -> bool:
        """Whether it is a second deployment of the target, which need not speculate, and no way of drafting."""
        return self.proposer == DEPLOYMENT

    @property
    def server_settings(self) -> dict[str, Any]:
        """The start settings of such a server, beside method, draft and depth."""
        settings: dict[str, Any] = json.loads(self.speculative_config or "{}")
        return settings

    @property
    def drafts_in_every_step(self) -> bool:
        """Whether every step is known to have a draft; lookups may find none, unless what they lack is filled."""
        if SCHEDULE_KEY in self.server_settings:
            return False
        is_filled = self.uses("ngram_occurrence") and self.ngram_occurrence is NgramOccurrence.LATEST_FILLED
        return is_filled or drafts_in_every_step(self.proposer)

    def depth_at(self, load: int) -> int:
        """Tokens that are drafted at most at a load: 0 where the server's schedule switches speculation off."""
        scheduled = scheduled_depth(self.server_settings, load)
        return self.num_speculative_tokens if scheduled is None else scheduled

    @property
    def off_from(self) -> int | None:
        """The smallest batch size from which on the server's schedule drafts nothing; None without one."""
        ranges = self.server_settings.get(SCHEDULE_KEY)
        if not isinstance(ranges, list) or not ranges or ranges[-1][2] != 0:
            return None
        return int(ranges[-1][0])

    @property
    def title(self) -> str:
        """The drafting method as text: the proposer, or the server's name of its method."""
        return self.proposer if self.is_served_method else self.proposer.replace("_", " ")

    @property
    def remembers(self) -> bool:
        """Whether drafts depend on outputs of other requests, and so on the order in which these came."""
        return self.proposer == "suffix" and not self.is_served_method and self.suffix_memory_tokens > 0

    @property
    def drafts_follow_from_output(self) -> bool:
        """Whether an output shows every draft that was made for it: none comes from a memory, and none ends early."""
        return not (self.is_served_method or self.remembers or self.is_adaptive)


def draft_key(config: SpeculationConfig) -> SpeculationConfig:
    """The draft of a config: a server runs only one at a time; name, depth and backend may vary."""
    return replace(config, name="", num_speculative_tokens=0, backend="")


_WORDS: Final = {
    "verify_rule": VerifyRule,
    "ngram_occurrence": NgramOccurrence,
    "draft_sampling": DraftSampling,
}
DEPLOYMENT: Final = "deployment"  # in place of a proposer
SERVED_BACKEND: Final = "openai"
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
    details: Mapping[str, str]  # further identity by name; code reads it only through the properties below
    fingerprint: str  # sha256 hex of all of the above

    @property
    def target_weights(self) -> str:
        """Digest of the target's weights; empty where none is known, as of a server's."""
        return self.details.get("target_weights", "")

    @property
    def draft_weights(self) -> str:
        """Digest of the draft's weights; empty where none is known, or without a draft."""
        return self.details.get("draft_weights", "")

    @property
    def target_revisions(self) -> tuple[str, ...]:
        """The names of the target's weights: its revision and their digest, as far as they are known."""
        return tuple(revision for revision in (self.details.get("target_revision"), self.target_weights) if revision)

    @property
    def counts_source(self) -> str | None:
        """How a server reports the accepted tokens; None of the engine."""
        return self.details.get("counts_source")

    @property
    def mode(self) -> str | None:
        """How it was measured where that is not request by request from cold caches, as verdicts say it."""
        return CACHE_MODES.get(self.details.get(PREFIX_CACHE, ""))

    @property
    def data_note(self) -> str | None:
        """The origin of its data where it is not mirrored traffic."""
        return self.details.get("data_note")

    def digests(self, role: str) -> dict[str, str]:
        """The known digests of the `target` or the `draft`, by name."""
        return {name: value for name, value in self.details.items() if name.startswith(role)}

    def differing_details(self, other: FingerprintedConfig) -> list[str]:
        """The names of the details in which they differ."""
        names = sorted(self.details.keys() | other.details.keys())
        return [name for name in names if self.details.get(name) != other.details.get(name)]

    @property
    def default_sampling(self) -> str | None:
        """The endpoint's defaults for parameters that a request leaves open, where they differ from plain sampling."""
        return self.details.get("default_sampling")


# The options that both engines' fingerprints had from the beginning.  Taking one out, or a field of these at its
# default, would change every stored fingerprint: current ENABLEs would end, and their next runs start at half level.
FIRST_OPTIONS: Final = frozenset(
    {"proposer", "num_speculative_tokens", "verify_rule", "backend", "ngram_min", "ngram_max"}
)
# Likewise of the suffix proposer; an option added to SUFFIX_OPTIONS later does not belong here.
FIRST_SUFFIX_OPTIONS: Final = frozenset(
    {
        "suffix_decoding_max_tree_depth",
        "suffix_decoding_max_spec_factor",
        "suffix_decoding_min_token_prob",
        "suffix_memory_tokens",
    }
)
PREFIX_CACHE: Final = "prefix_cache"  # a detail: of those below, or left out
CACHE_MODES: Final[Mapping[str, str]] = {
    "on": "measured with the prefix cache on, whole conversations",
    "as_served": "measured with prefix caches as served",
    "evicted": "measured with turns evicted from the prefix cache",
}
_PLAIN_SAMPLING: Final = SamplingParameters()
_NAMES: Final = frozenset({"name", "target", "draft"})  # the same weights under another path are the same config


def fingerprint_config(
    config: SpeculationConfig,
    *,
    engine: str,
    device: str,
    dtype: str,
    details: Mapping[str, str],
    frozen_options: Collection[str],
    default_sampling: Mapping[str, float],
    prompt_rules: PromptRules = UNNAMED,
) -> FingerprintedConfig:
    """The config with its fingerprint: the one rule for every measuring engine.

    An option of the config is part of it if it is not at its default and the proposer uses it, so that a new option
    changes no fingerprint until it is set.  `frozen_options` are those that the engine's stored fingerprints always
    hold, because they were taken before this rule; no option is ever added to them.

    Args:
        default_sampling: defaults for parameters that a request leaves open; values without effect are no part of it.
        prompt_rules: by which the serving engine's prompts are rendered; the default rules are no part of it.
    """
    endings = {"default_sampling": sampling_defaults(default_sampling), "prompt_rules": prompt_rules.identity}
    details = dict(details) | {name: value for name, value in endings.items() if value}
    options = {
        field.name: getattr(config, field.name)
        for field in fields(config)
        if field.name in frozen_options or _is_set(config, field.name, field.default)
    }
    identity = options | {"details": details, "engine": engine, "device": device, "dtype": dtype}
    digest = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()
    return FingerprintedConfig(config, engine, device, dtype, details, digest)


def sampling_defaults(default_sampling: Mapping[str, float]) -> str:
    """The defaults that differ from plain sampling, as a fingerprint has them; "" where none does."""
    sampling = {name: float(value) for name, value in default_sampling.items()}
    sampling |= {"top_k": max(0, int(sampling["top_k"]))} if "top_k" in sampling else {}  # -1 is 0: all tokens
    kept = {name: value for name, value in sorted(sampling.items()) if value != getattr(_PLAIN_SAMPLING, name)}
    return ", ".join(f"{name}={value!r}" for name, value in kept.items())


def _is_set(config: SpeculationConfig, name: str, default: object) -> bool:
    return name not in _NAMES and config.uses(name) and getattr(config, name) != default

"""A candidate speculation config made ready to run: its draft loaded, the pair checked, its fingerprint taken."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version

import torch

from shadowspec.engine.device import choose_device, choose_dtype, choose_kernels, choose_recorder, device_name
from shadowspec.engine.heads.eagle3 import Eagle3Draft
from shadowspec.engine.heads.folder import KINDS
from shadowspec.engine.heads.loading import LoadedHeads, load_heads
from shadowspec.engine.llama import DirectLlama
from shadowspec.engine.models import (
    LoadedModel,
    check_pair,
    load_model,
    sharing_rows,
    sharing_tokens,
)
from shadowspec.engine.proposers import Proposer
from shadowspec.engine.proposers.draft_model import DraftModelProposer
from shadowspec.engine.proposers.heads import Eagle3Proposer, HeadsProposer
from shadowspec.engine.proposers.ngram import NgramProposer
from shadowspec.engine.proposers.suffix import SuffixOptions, SuffixProposer
from shadowspec.engine.proposers.suffix_automaton import SuffixAutomaton
from shadowspec.engine.proposers.within_limit import WithinLimit
from shadowspec.engine.static_passes import StaticPasses
from shadowspec.engine.tokenizer import FolderTokenizer
from shadowspec.errors import ModelError
from shadowspec.types import (
    FIRST_OPTIONS,
    FIRST_SUFFIX_OPTIONS,
    FingerprintedConfig,
    SpeculationConfig,
    VerifyRule,
    fingerprint_config,
)
from shadowspec.types.prompt_rules import UNNAMED, PromptRules
from shadowspec.types.settings import EngineSettings

BACKEND = "torch"  # without kernels
HETEROGENEOUS = "heterogeneous_draft_model"  # the proposer that drafts the tokens that both vocabularies have


@dataclass(frozen=True, slots=True)
class Candidate:
    """A speculation config with its draft, if it needs one: a model, or heads over the target's hidden states."""

    config: FingerprintedConfig
    draft: LoadedModel | LoadedHeads | None
    context_limit: int | None = None  # tokens up to which the draft can follow its target; None: to the end

    def proposer(self, recent: SuffixAutomaton | None = None) -> Proposer:
        """A fresh proposer for one batch, which drafts from recent outputs too where it remembers them."""
        proposer = self._whole_proposer(recent)
        return WithinLimit(proposer) if self.config.config.drafts_within_limit else proposer

    def _whole_proposer(self, recent: SuffixAutomaton | None) -> Proposer:
        """One that knows no limit of output tokens."""
        wanted = self.config.config
        count, is_sampling = wanted.num_speculative_tokens, wanted.verify_rule is VerifyRule.REJECTION
        if isinstance(self.draft, LoadedModel):
            return DraftModelProposer(
                self.draft.model,
                count,
                is_sampling=is_sampling,
                draft_sampling=wanted.draft_sampling,
                confidence_threshold=wanted.draft_confidence_threshold,
                context_limit=self.context_limit,
                passes=self.draft.passes,
                kernels=self.draft.kernels,
                shares_prefixes=self.draft.shares_prefixes,
            )
        if self.draft is not None:
            heads, draft_sampling = self.draft.heads, wanted.draft_sampling
            if isinstance(heads, Eagle3Draft):
                return Eagle3Proposer(heads, count, is_sampling=is_sampling, draft_sampling=draft_sampling)
            return HeadsProposer(heads, count, is_sampling=is_sampling, draft_sampling=draft_sampling)
        if wanted.proposer == "suffix":
            return SuffixProposer(count, SuffixOptions.of(wanted), recent)
        return NgramProposer(count, wanted.ngram_min, wanted.ngram_max, wanted.ngram_occurrence)

    def num_verified(self) -> tuple[int, ...]:
        """How many tokens of a row the target may be given in a step: the drafted ones and the one before them."""
        config = self.config.config
        deepest = config.num_speculative_tokens + 1
        if self.draft is None or config.is_adaptive or config.drafts_within_limit:
            return tuple(range(1, deepest + 1))
        return (deepest,) if self.context_limit is None else (1, deepest)


class Models:
    """Loads each model folder once onto one device; lives as long as the engines that share it."""

    def __init__(self, settings: EngineSettings) -> None:
        """
        Raises:
            ModelError: the device does not exist, or does not support the requested features.
        """
        self.device = choose_device(settings.device)
        self.dtype = choose_dtype(settings.dtype, self.device)
        self._passes = settings.passes
        self._shares_prefixes = settings.share_prefixes
        self._new_recorder = choose_recorder(settings.passes, self.device)
        self.kernels = choose_kernels(settings.kernels, self.device)
        self._loaded: dict[str, LoadedModel] = {}
        self._self_drafts: dict[str, LoadedModel] = {}  # targets as their own drafts
        self._heads: dict[tuple[str, str, str], LoadedHeads] = {}  # by folder, kind and target
        # Drafts of another vocabulary, by folder, target and proposer.
        self._sharing: dict[tuple[str, str, str], LoadedModel] = {}

    def load(self, path: str) -> LoadedModel:
        """The model of a folder, loaded at its first use.

        Raises:
            ModelError: it cannot be loaded or measured.
        """
        if path not in self._loaded:
            loaded = load_model(path, self.device, self.dtype)
            loaded = replace(loaded, kernels=self.kernels, shares_prefixes=self._shares_prefixes)
            self._loaded[path] = self._record_passes(loaded)
        return self._loaded[path]

    def _record_passes(self, loaded: LoadedModel) -> LoadedModel:
        """The model with passes that are recorded, where that is asked for and can be done."""
        if self._new_recorder is None:
            return loaded
        if isinstance(loaded.model, DirectLlama):
            return replace(loaded, passes=StaticPasses(loaded.model, self._new_recorder, self.kernels))
        if self._passes == "graphs":
            raise ModelError(
                f'{loaded.path}: passes = "graphs" is configured, but this model runs through the forward pass of '
                'transformers, which is not recorded; set passes = "auto" or "dynamic"'
            )
        return loaded

    def _beside(self, target: LoadedModel) -> LoadedModel:
        """A target that drafts for itself: the same weights, with passes over a separate cache."""
        if target.passes is None:
            return target
        if target.path not in self._self_drafts:
            self._self_drafts[target.path] = self._record_passes(target)
        return self._self_drafts[target.path]

    def heads(self, path: str, kind: str, target: LoadedModel) -> LoadedHeads:
        """The heads of a folder over a target, loaded at their first use.

        Raises:
            ModelError: they cannot be loaded or do not fit the target.
        """
        key = (path, kind, target.path)
        if key not in self._heads:
            self._heads[key] = load_heads(path, kind, target)
        return self._heads[key]

    def draft_model(self, config: SpeculationConfig, target: FolderTokenizer, target_path: str) -> LoadedModel | None:
        """The draft model of a config for a target that need not be loaded; None where it drafts without one.

        Raises:
            ModelError: it cannot be loaded, or has no token in common with the target, or another tokenizer where that
                is not asked for.
        """
        if config.draft is None or config.proposer in KINDS:
            return None
        draft = self.load(config.draft)
        is_heterogeneous = config.proposer == HETEROGENEOUS
        if not is_heterogeneous and draft.tokenizer.vocabulary_size == target.vocabulary_size:
            return draft
        share = sharing_tokens if is_heterogeneous else sharing_rows
        key = (config.draft, target_path, config.proposer)
        if key not in self._sharing:
            self._sharing[key] = self._record_passes(share(draft, target, target_path))
        return self._sharing[key]

    def draft(self, config: SpeculationConfig, target: LoadedModel) -> LoadedModel | LoadedHeads | None:
        """The draft of a config, loaded at its first use; heads are loaded for their target.

        Raises:
            ModelError: it cannot be loaded, does not fit the target or drafts fewer tokens than are asked for.
        """
        if config.draft is None or config.proposer not in KINDS:
            draft = self.draft_model(config, target.tokenizer, target.path)
            return self._beside(target) if draft is target else draft
        heads = self.heads(config.draft, config.proposer, target)
        most = heads.max_speculative_tokens
        if most is not None and config.num_speculative_tokens > most:
            raise ModelError(
                f"candidate {config.name!r}: num_speculative_tokens is {config.num_speculative_tokens}, and "
                f"{heads.path} holds {most} heads, one for each token"
            )
        return heads

    def candidates(
        self,
        target_path: str,
        configs: Sequence[SpeculationConfig],
        warn: Callable[[str], None],
        requests_per_slot: int,
        default_sampling: Mapping[str, float],
        prompt_rules: PromptRules = UNNAMED,
    ) -> tuple[LoadedModel, tuple[Candidate, ...]]:
        """The target and its candidates, each pair checked before anything runs.

        `requests_per_slot`, `default_sampling` and `prompt_rules` are those of the endpoint, a part of its
        fingerprints.

        Raises:
            ModelError: a model cannot be used or a pair does not fit.
        """
        target = self.load(target_path)
        ready = []
        for config in configs:
            if config.backend not in (BACKEND, _backend(target)):
                raise ModelError(f"candidate {config.name!r}: backend {config.backend!r} is not available here")
            draft = self.draft(config, target)
            if isinstance(draft, LoadedModel):
                for warning in check_pair(target, draft):
                    warn(warning)
            is_shorter = isinstance(draft, LoadedModel) and draft.context_length < target.context_length
            limit = draft.context_length if isinstance(draft, LoadedModel) and is_shorter else None
            identity = fingerprint_candidate(config, target, draft, requests_per_slot, default_sampling, prompt_rules)
            ready.append(Candidate(identity, draft, context_limit=limit))
        return target, tuple(ready)


def engine_name() -> str:
    """Name and version of this engine, part of every fingerprint."""
    try:
        text = version("shadowspec")
    except PackageNotFoundError:
        text = "unknown"
    return f"shadowspec-torch/{text} torch/{torch.__version__} transformers/{version('transformers')}"


def fingerprint_candidate(
    config: SpeculationConfig,
    target: LoadedModel,
    draft: LoadedModel | LoadedHeads | None,
    requests_per_slot: int,
    default_sampling: Mapping[str, float],
    prompt_rules: PromptRules = UNNAMED,
) -> FingerprintedConfig:
    """The config with everything its figures depend on.

    Names and paths are left out: the same weights under another path are the same config.  Latencies in a queue that
    refills slots (`requests_per_slot` above 1) are not those of a batch.  The backend is that of the target's kernels.
    `default_sampling` is how the endpoint's requests are sampled where they say nothing, `prompt_rules` how their
    prompts are rendered.
    """
    config = replace(config, backend=_backend(target))
    details = {
        "target_weights": target.weights_digest,
        "target_config": target.config_digest,
        "target_tokenizer": target.tokenizer_digest,
        "draft_weights": draft.weights_digest if draft is not None else "",
        "draft_config": draft.config_digest if draft is not None else "",
        "target_forward": target.forward_name,
        "draft_forward": draft.forward_name if draft is not None else "",
    }
    # Details that older fingerprints lack are left out at their defaults.
    if target.shares_prefixes:
        details["shared_prefixes"] = "within a block"
    for name, model in (("target_weights_dtype", target), ("draft_weights_dtype", draft)):
        if isinstance(model, LoadedModel) and model.weights_dtype != model.model.dtype:
            details[name] = str(model.weights_dtype).removeprefix("torch.")
    if target.passes is not None:
        details["target_passes"] = target.passes.name
    if isinstance(draft, LoadedModel) and draft.passes is not None:
        details["draft_passes"] = draft.passes.name
    if isinstance(draft, LoadedModel) and draft.num_shared_tokens is not None:
        details |= {"draft_tokenizer": draft.tokenizer_digest, "shared_tokens": str(draft.num_shared_tokens)}
    if requests_per_slot > 1:  # left out of a batch's, which fingerprints had before there were queues
        details["requests_per_slot"] = str(requests_per_slot)
    return fingerprint_config(
        config,
        engine=engine_name(),
        device=device_name(target.model.device),
        dtype=str(target.model.dtype).removeprefix("torch."),
        details=details,
        frozen_options=FIRST_OPTIONS.union(FIRST_SUFFIX_OPTIONS if config.proposer == "suffix" else ()),
        default_sampling=default_sampling,
        prompt_rules=prompt_rules,
    )


def _backend(target: LoadedModel) -> str:
    """The code that verifies the target's steps, in both arms."""
    return BACKEND if target.kernels is None else target.kernels.backend

"""A candidate speculation config made ready to run: its draft loaded, the pair checked, its fingerprint taken."""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.metadata import PackageNotFoundError, version

import torch

from shadowspec.engine.models import LoadedModel, check_pair, choose_device, choose_dtype, load_model
from shadowspec.engine.proposers import Proposer
from shadowspec.engine.proposers.draft_model import DraftModelProposer
from shadowspec.engine.proposers.ngram import NgramProposer
from shadowspec.engine.proposers.suffix import SuffixProposer
from shadowspec.engine.proposers.suffix_automaton import SuffixAutomaton
from shadowspec.engine.proposers.suffix_text import SuffixOptions
from shadowspec.errors import ModelError
from shadowspec.types import SUFFIX_OPTIONS, FingerprintedConfig, SpeculationConfig, VerifyRule

BACKEND = "torch"


@dataclass(frozen=True, slots=True)
class Candidate:
    """A speculation config with its draft model, if it needs one, and the recent outputs that it drafts from."""

    config: FingerprintedConfig
    draft: LoadedModel | None
    recent: SuffixAutomaton | None = None
    context_limit: int | None = None  # tokens up to which the draft can follow its target; None: to the end

    def proposer(self) -> Proposer:
        """A fresh proposer for one batch."""
        wanted = self.config.config
        if self.draft is not None:
            return DraftModelProposer(
                self.draft.model,
                wanted.num_speculative_tokens,
                is_sampling=wanted.verify_rule is VerifyRule.REJECTION,
                confidence_threshold=wanted.draft_confidence_threshold,
                context_limit=self.context_limit,
            )
        if wanted.proposer == "suffix":
            return SuffixProposer(wanted.num_speculative_tokens, SuffixOptions.of(wanted), self.recent)
        return NgramProposer(wanted.num_speculative_tokens, wanted.ngram_min, wanted.ngram_max)

    def drafting_from(self, recent: SuffixAutomaton | None) -> Candidate:
        """The same, drafting from recent outputs too where there are any."""
        return replace(self, recent=recent)


class Models:
    """Loads each model folder once onto one device; lives as long as the engines that share it."""

    def __init__(self, device: str = "auto", dtype: str = "auto") -> None:
        self.device = choose_device(device)
        self.dtype = choose_dtype(dtype, self.device)
        self._loaded: dict[str, LoadedModel] = {}

    def load(self, path: str) -> LoadedModel:
        """The model of a folder, loaded at its first use.

        Raises:
            ModelError: it cannot be loaded or measured.
        """
        if path not in self._loaded:
            self._loaded[path] = load_model(path, self.device, self.dtype)
        return self._loaded[path]

    def candidates(
        self, target_path: str, configs: Sequence[SpeculationConfig], warn: Callable[[str], None]
    ) -> tuple[LoadedModel, tuple[Candidate, ...]]:
        """The target and its candidates, each pair checked before anything runs.

        Raises:
            ModelError: a model cannot be used or a pair does not fit.
        """
        target = self.load(target_path)
        ready = []
        for config in configs:
            if config.backend != BACKEND:
                raise ModelError(f"candidate {config.name!r}: backend {config.backend!r} is not available here")
            draft = self.load(config.draft) if config.draft is not None else None
            if draft is not None:
                for warning in check_pair(target, draft):
                    warn(warning)
            is_shorter = draft is not None and draft.context_length < target.context_length
            limit = draft.context_length if draft is not None and is_shorter else None
            ready.append(Candidate(fingerprinted(config, target, draft), draft, context_limit=limit))
        return target, tuple(ready)


def engine_name() -> str:
    """Name and version of this engine, part of every fingerprint."""
    try:
        own = version("shadowspec")
    except PackageNotFoundError:
        own = "unknown"
    return f"shadowspec-torch/{own} torch/{torch.__version__} transformers/{version('transformers')}"


def device_name(device: torch.device) -> str:
    """The device as people know it, e.g. "NVIDIA H200" or "cpu x86_64, 2 threads"."""
    if device.type == "cuda":
        return str(torch.cuda.get_device_name(device))
    return f"cpu {platform.machine()}, {torch.get_num_threads()} threads"


def fingerprinted(config: SpeculationConfig, target: LoadedModel, draft: LoadedModel | None) -> FingerprintedConfig:
    """The config with everything its figures depend on.

    Names and paths are left out: the same weights under another path are the same config.
    """
    details = {
        "target_weights": target.weights_digest,
        "target_tokenizer": target.tokenizer_digest,
        "draft_weights": draft.weights_digest if draft is not None else "",
        "target_forward": target.forward_name,
        "draft_forward": draft.forward_name if draft is not None else "",
    }
    device = device_name(target.model.device)
    dtype = str(target.model.dtype).removeprefix("torch.")
    identity = _settings(config) | {
        "details": details,
        "engine": engine_name(),
        "device": device,
        "dtype": dtype,
    }
    digest = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()
    return FingerprintedConfig(config, engine_name(), device, dtype, details, digest)


def _settings(config: SpeculationConfig) -> dict[str, object]:
    """What of the config its figures depend on.

    Options that came later are left out where they are not used, so that they changed no fingerprint.
    """
    unused = {"name", "target", "draft"}
    if config.proposer != "suffix":
        unused |= set(SUFFIX_OPTIONS)
    if config.draft_confidence_threshold == 0.0:
        unused.add("draft_confidence_threshold")
    return {key: value for key, value in asdict(config).items() if key not in unused}

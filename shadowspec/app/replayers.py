"""Replays an endpoint's responses: its models loaded, its candidates judged, each by its stored config."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from transformers.utils import logging as transformers_logging

from shadowspec.app.before_loading import require_endpoints
from shadowspec.app.logged_responses import EndpointTexts
from shadowspec.app.replay_store import fingerprints_of
from shadowspec.config import Config, EndpointConfig
from shadowspec.engine import Models
from shadowspec.engine.heads.folder import KINDS
from shadowspec.engine.heads.loading import LoadedHeads
from shadowspec.engine.models import LoadedModel, load_end_token_ids
from shadowspec.engine.replay.replayer import NEAR_TIE_LOGIT, Drafting, Replayer, require_replayable
from shadowspec.engine.tokenizer import FolderTokenizer, check_contexts, check_tokenizers
from shadowspec.errors import ConfigError, ModelError, ShadowSpecError, UsageError
from shadowspec.types import FingerprintedConfig, LogprobsMode, SpeculationConfig, VerifyRule

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Asked:
    """The parameters of a replay, for `replay` and `backfill`.

    `endpoint` is the only one to replay (None: all); `verify_rules` replace each candidate's (none:
    they do not); of `near_tie_logit` see `check_target`.
    """

    depths: tuple[int, ...]
    endpoint: str | None = None
    verify_rules: tuple[VerifyRule, ...] = ()
    draft_only: bool = False
    logprobs_mode: LogprobsMode = LogprobsMode.RAW
    near_tie_logit: float = NEAR_TIE_LOGIT


class EndpointReplay:
    """One endpoint's replayer, and what it needs beside it."""

    def __init__(
        self,
        replayer: Replayer,
        texts: EndpointTexts,
        draftings: Sequence[Drafting],
        fingerprints: Sequence[Sequence[FingerprintedConfig]],
    ) -> None:
        """`fingerprints` are of each way of drafting, for each depth; none where nothing is stored."""
        self.replayer, self.texts = replayer, texts
        self.configs = tuple(drafting.config for drafting in draftings)
        self.fingerprints = fingerprints


def chosen_endpoints(config: Config, endpoint: str | None) -> Mapping[str, EndpointConfig]:
    """The endpoints that are replayed: one of the configuration's, or all.

    Raises:
        ConfigError: there is none, or none of that name.
    """
    require_endpoints(config)
    return config.chosen(endpoint)


def load_endpoint(
    endpoint: EndpointConfig, models: Models, tokenizer: FolderTokenizer, asked: Asked, *, is_stored: bool
) -> EndpointReplay:
    """Load what is needed: lookup needs no model at all, and `draft_only` no target, unless it names what is stored.

    A candidate that cannot be replayed is left out with a message; it is an error where there is no other.
    """
    transformers_logging.disable_progress_bar()  # stderr is ours
    draftings: list[Drafting] = []
    refusal: ShadowSpecError | None = None
    for candidate in endpoint.candidates:
        try:
            draftings += _draftings(endpoint, candidate, models, tokenizer, asked)
        except _LeftOutError as left_out:
            refusal = refusal or left_out.cause
            log.warning("left out: %s", left_out)
    if refusal is not None and not draftings:
        raise refusal
    needs_target = not asked.draft_only and any(drafting.draft is not None for drafting in draftings)
    target = models.load(endpoint.target) if needs_target else None
    ends = target.end_token_ids if target is not None else load_end_token_ids(endpoint.target, tokenizer)
    replayer = Replayer(
        draftings,
        asked.depths,
        end_token_ids=ends,
        target=target,
        logprobs_mode=asked.logprobs_mode,
        near_tie_logit=asked.near_tie_logit,
        kernels=models.kernels,
    )
    fingerprints: Sequence[Sequence[FingerprintedConfig]] = ()
    if is_stored:
        fingerprints = fingerprints_of(models.load(endpoint.target), draftings, asked.depths, endpoint.rule)
    return EndpointReplay(replayer, EndpointTexts(tokenizer, ends), draftings, fingerprints)


class _LeftOutError(Exception):
    """A candidate cannot be replayed; others may be."""

    def __init__(self, message: str, cause: ShadowSpecError) -> None:
        super().__init__(message)
        self.cause = cause


def _draftings(
    endpoint: EndpointConfig, candidate: SpeculationConfig, models: Models, tokenizer: FolderTokenizer, asked: Asked
) -> list[Drafting]:
    """A candidate with its draft, once for each verify rule."""
    try:
        require_replayable(candidate)
    except ConfigError as error:
        raise _LeftOutError(str(error), error) from error
    if candidate.draft is None:
        return [Drafting(candidate, None)]  # a looked-up token is accepted alike by every rule
    draft: LoadedModel | LoadedHeads
    if candidate.proposer in KINDS:
        if asked.draft_only:
            raise UsageError(
                f"--draft-only: candidate {candidate.name} drafts from the target's hidden states, "
                "and cannot be replayed without it"
            )
        draft = models.heads(candidate.draft, candidate.proposer, models.load(endpoint.target))
    else:
        model = models.draft_model(candidate, tokenizer, endpoint.target)
        assert model is not None, "it drafts with a model"
        draft = model
        if draft.num_shared_tokens is None:
            check_tokenizers(endpoint.target, tokenizer, candidate.draft, draft.tokenizer)
        try:
            check_contexts(endpoint.target, tokenizer, candidate.draft, draft.tokenizer)
        except ModelError as error:
            raise _LeftOutError(f"candidate {candidate.name!r}: {error}", error) from error
    rules = asked.verify_rules or (candidate.verify_rule,)
    return [Drafting(replace(candidate, verify_rule=rule), draft) for rule in rules]

"""Replays an endpoint's responses: its models loaded, its candidates judged, each by its stored config.

What `shadowspec replay` finds is written to the store, if there is one.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Final

from shadowspec.app.before_loading import require_endpoints
from shadowspec.app.logged_responses import EndpointTexts
from shadowspec.app.progress_bar import notes
from shadowspec.config import Config, EndpointConfig
from shadowspec.engine import Models
from shadowspec.engine.candidate import fingerprint_candidate
from shadowspec.engine.heads.folder import KINDS
from shadowspec.engine.heads.loading import LoadedHeads
from shadowspec.engine.models import LoadedModel, load_end_token_ids
from shadowspec.engine.replay.replayer import NEAR_TIE_LOGIT, Drafting, Replayed, Replayer, require_replayable
from shadowspec.engine.tokenizer import FolderTokenizer, check_contexts, check_tokenizers
from shadowspec.errors import ConfigError, ModelError, ShadowSpecError, UsageError
from shadowspec.store import Store, current
from shadowspec.tap.endpoints import EndpointRule
from shadowspec.tap.responses import LoggedCall
from shadowspec.types import FingerprintedConfig, LogprobsMode, ReplayedRecord, SpeculationConfig, VerifyRule

log = logging.getLogger(__name__)
BATCH: Final = 200  # records written at a time: with 16 configs and depths some 3,000 rows


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
        fingerprints = _fingerprints(models.load(endpoint.target), draftings, asked.depths, endpoint.rule)
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


def _fingerprints(
    target: LoadedModel, draftings: Sequence[Drafting], depths: Sequence[int], rule: EndpointRule
) -> list[list[FingerprintedConfig]]:
    """The stored configs of each drafting, one for each depth."""
    return [
        [
            fingerprint_candidate(
                replace(drafting.config, num_speculative_tokens=depth),
                target,
                drafting.draft,
                rule.requests_per_slot,
                rule.default_sampling,
                rule.prompt_rules,
            )
            for depth in depths
        ]
        for drafting in draftings
    ]


def replayed_record(
    call: LoggedCall, fingerprints: Sequence[Sequence[FingerprintedConfig]], result: Replayed
) -> ReplayedRecord:
    """A replayed response with the configs by which it is stored."""
    prompt = call.prompt
    pairs = [
        pair
        for configs, counts in zip(fingerprints, result.counts, strict=True)
        for pair in zip(configs, counts, strict=True)
    ]
    return ReplayedRecord(prompt.key, prompt.endpoint, call.slice_key, call.unit_key, prompt.event_time, tuple(pairs))


class ReplayWriter:
    """Writes replayed records some at a time; lives as long as its store is open."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._waiting: list[ReplayedRecord] = []
        self.num_records = self.num_new_rows = 0

    def add(self, replayed: ReplayedRecord) -> None:
        """Take a record, and write when there are enough."""
        self._waiting.append(replayed)
        if len(self._waiting) >= BATCH:
            self.flush()

    def flush(self) -> None:
        """Write the waiting records."""
        self.num_new_rows += self._store.save_replays(self._waiting)
        self.num_records += len(self._waiting)
        self._waiting = []


@contextmanager
def replay_writer(config: Config, wanted: bool | None, *, draft_only: bool) -> Iterator[ReplayWriter | None]:
    """The writer of replayed records, open until its end; None where none are stored.

    Without `wanted` they are stored if there is a database, and the target is loaded: a config is known by its target's
    weights.

    Raises:
        UsageError: they are to be stored without the target.
        StoreError, ServiceUnavailableError: the database, which is wanted or was found, cannot be used.
    """
    if wanted and draft_only:
        raise UsageError("--store needs the target, because its weights name the stored rows: leave --draft-only out")
    if wanted is False or draft_only:
        yield None
        return
    if wanted is None and current(config.database_url) is None:
        notes.print("not stored: there is no database yet (`shadowspec db upgrade` makes it)", highlight=False)
        yield None
        return
    with Store.open(config.database_url) as store:
        writer = ReplayWriter(store)
        yield writer
        writer.flush()
    records, rows = writer.num_records, writer.num_new_rows
    notes.print(f"stored: {rows} new rows of expected counts, of {records} replayed responses", highlight=False)

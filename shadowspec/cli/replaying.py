"""From a configuration and files to replayed traffic: models, reader and replayer put together."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final

from transformers.utils import logging as transformers_logging

from shadowspec.cli.console import notes, progress_bar
from shadowspec.cli.logged import Ended, EndpointTexts, logged_responses, tracked
from shadowspec.cli.pipeline import load_tokenizers, new_models, require_endpoints
from shadowspec.cli.replay_store import fingerprints_of, replayed_record
from shadowspec.config import Config, EndpointConfig, load_hash_secret
from shadowspec.engine import Models
from shadowspec.engine.heads.folder import KINDS
from shadowspec.engine.heads.loading import LoadedHeads
from shadowspec.engine.models import LoadedModel, check_contexts, check_tokenizers, load_end_token_ids
from shadowspec.engine.replay.acceptance import LogprobsMode
from shadowspec.engine.replay.pooling import Pool
from shadowspec.engine.replay.replayer import NEAR_TIE_LOGIT, Drafting, Replayed, Replayer, require_replayable
from shadowspec.engine.replay.responses import Response
from shadowspec.engine.tokenizer import FolderTokenizer
from shadowspec.errors import ConfigError, ModelError, RecordError, ShadowSpecError, UsageError
from shadowspec.tap.hashing import KeyedHash
from shadowspec.tap.responses import LoggedCall, ResponseReader
from shadowspec.types import (
    ExpectedCounts,
    FingerprintedConfig,
    FunnelKey,
    RecordKey,
    ReplayedRecord,
    SpeculationConfig,
    VerifyRule,
    parse_slice_key,
)

log = logging.getLogger(__name__)

WINDOW: Final = 512  # responses of an endpoint that are sorted by length and scored together

PoolKey = tuple[str, str, int]  # endpoint, slice ("": the whole endpoint), place of the config in `configs`


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one record: its counters for each config and depth, or where and why it ended."""

    key: RecordKey
    endpoint: str | None
    slice_key: str | None = None
    unit_key: str | None = None
    counts: Mapping[tuple[str, str], tuple[ExpectedCounts, ...]] = field(default_factory=dict)  # by config and rule
    num_near_ties: int = 0
    reason: str | None = None

    def document(self, depths: Sequence[int]) -> dict[str, Any]:
        """One line of `--out`."""
        found: dict[str, Any] = {"key": str(self.key), "endpoint": self.endpoint}
        if self.reason is not None:
            return {**found, "reason": self.reason}
        replays = [
            {"config": name, "verify_rule": rule, "num_speculative_tokens": depth, "expected": asdict(own)}
            for (name, rule), counts in self.counts.items()
            for depth, own in zip(depths, counts, strict=True)
        ]
        return {
            **found,
            "slice": parse_slice_key(self.slice_key or ""),
            "session": self.unit_key,
            "near_tie_tokens": self.num_near_ties,
            "replays": replays,
        }


@dataclass(slots=True)
class ReplayedTraffic:
    """What replaying files came to."""

    depths: tuple[int, ...]
    configs: Mapping[str, tuple[SpeculationConfig, ...]]  # by endpoint
    pools: dict[PoolKey, Pool] = field(default_factory=dict)
    funnel: Counter[FunnelKey] = field(default_factory=Counter)  # records that were not replayed
    refusals: dict[str, str] = field(default_factory=dict)  # the first message of each reason that replay itself gave
    num_replayed: int = 0
    num_near_ties: int = 0


class EndpointReplay:
    """One endpoint's replayer and its waiting responses."""

    def __init__(
        self,
        replayer: Replayer,
        texts: EndpointTexts,
        draftings: list[Drafting],
        fingerprints: Sequence[Sequence[FingerprintedConfig]],
    ) -> None:
        """`fingerprints` are of each way of drafting, for each depth; none where nothing is stored."""
        self.replayer, self.texts = replayer, texts
        self.configs = tuple(drafting.config for drafting in draftings)
        self.fingerprints = fingerprints
        self.waiting: list[tuple[LoggedCall, Response]] = []


def replay_files(
    config: Config,
    paths: Sequence[str],
    depths: tuple[int, ...],
    *,
    endpoint: str | None,
    verify_rules: tuple[VerifyRule, ...],
    draft_only: bool,
    logprobs_mode: LogprobsMode,
    near_tie_logit: float | None,
    max_requests: int | None,
    on_outcome: Callable[[Outcome], None],
    on_replayed: Callable[[ReplayedRecord], None] | None = None,
) -> ReplayedTraffic:
    """Replay the responses in files of mirrored traffic, with a progress bar on stderr.

    Args:
        endpoint: replay this one alone; records of others are counted as such.
        verify_rules: instead of each candidate's own.
        on_outcome: called for every record, in no particular order.
        on_replayed: called for every one that was replayed, with the configs by which it is stored (None: they are not
            needed, and no weights are loaded for them alone).
    """
    require_endpoints(config)
    if endpoint is not None and endpoint not in config.endpoints:
        raise ConfigError(
            f"{config.path}: no endpoint {endpoint!r} is configured (configured: {', '.join(config.endpoints)})"
        )
    secret = load_hash_secret(config)
    with notes.status("loading models"):
        transformers_logging.disable_progress_bar()  # stderr is ours
        tokenizers = load_tokenizers(config)
        models = new_models(config)
        endpoints = {
            name: _endpoint(
                own,
                models,
                tokenizers[name],
                depths,
                verify_rules,
                draft_only,
                logprobs_mode,
                near_tie_logit,
                is_stored=on_replayed is not None,
            )
            for name, own in config.endpoints.items()
            if endpoint in (None, name)
        }
    run = _Run(endpoints, depths, on_outcome, on_replayed)
    for path in paths:
        rules = [own.rule for own in config.endpoints.values()]
        run.read(path, ResponseReader(rules, tokenizers, KeyedHash(secret)), max_requests)
    return run.done


def _endpoint(
    own: EndpointConfig,
    models: Models,
    tokenizer: FolderTokenizer,
    depths: tuple[int, ...],
    verify_rules: tuple[VerifyRule, ...],
    draft_only: bool,
    logprobs_mode: LogprobsMode,
    near_tie_logit: float | None,
    *,
    is_stored: bool,
) -> EndpointReplay:
    """Load what is needed: lookup needs no model at all, and `draft_only` no target, unless it names what is stored.

    A candidate that cannot be replayed is left out, and told; it is an error where there is no other.
    """
    draftings: list[Drafting] = []
    refusal: ShadowSpecError | None = None
    for candidate in own.candidates:
        try:
            require_replayable(candidate)
        except ConfigError as error:
            refusal = refusal or error
            log.warning("left out: %s", error)
            continue
        if candidate.draft is None:
            draftings.append(Drafting(candidate, None))  # a looked-up token is accepted alike by every rule
            continue
        draft: LoadedModel | LoadedHeads
        if candidate.proposer in KINDS:
            if draft_only:
                raise UsageError(
                    f"--draft-only: candidate {candidate.name} drafts from the target's hidden states, "
                    "and cannot be replayed without it"
                )
            draft = models.heads(candidate.draft, candidate.proposer, models.load(own.target))
        else:
            model = models.draft_model(candidate, tokenizer, own.target)
            assert model is not None, "it drafts with a model"
            draft = model
            if draft.num_shared_tokens is None:
                check_tokenizers(own.target, tokenizer, candidate.draft, draft.tokenizer)
            try:
                check_contexts(own.target, tokenizer, candidate.draft, draft.tokenizer)
            except ModelError as error:
                refusal = refusal or error
                log.warning("left out: candidate %r: %s", candidate.name, error)
                continue
        draftings += [
            Drafting(replace(candidate, verify_rule=rule), draft) for rule in verify_rules or (candidate.verify_rule,)
        ]
    if refusal is not None and not draftings:
        raise refusal
    needs_target = not draft_only and any(drafting.draft is not None for drafting in draftings)
    target = models.load(own.target) if needs_target else None
    ends = target.end_token_ids if target is not None else load_end_token_ids(own.target, tokenizer)
    replayer = Replayer(
        draftings,
        depths,
        end_token_ids=ends,
        target=target,
        logprobs_mode=logprobs_mode,
        near_tie_logit=NEAR_TIE_LOGIT if near_tie_logit is None else near_tie_logit,
        kernels=models.kernels,
    )
    fingerprints = fingerprints_of(models.load(own.target), draftings, depths) if is_stored else ()
    return EndpointReplay(replayer, EndpointTexts(tokenizer, ends), draftings, fingerprints)


class _Run:
    """Reads files and adds up what replaying gives."""

    def __init__(
        self,
        endpoints: Mapping[str, EndpointReplay],
        depths: tuple[int, ...],
        on_outcome: Callable[[Outcome], None],
        on_replayed: Callable[[ReplayedRecord], None] | None,
    ) -> None:
        self._endpoints, self._on_outcome, self._on_replayed = endpoints, on_outcome, on_replayed
        self.done = ReplayedTraffic(depths, {name: own.configs for name, own in endpoints.items()})

    def read(self, path: str, reader: ResponseReader, max_requests: int | None) -> None:
        """Replay one file."""
        texts = {name: own.texts for name, own in self._endpoints.items()}
        with progress_bar() as bar:
            raws = tracked(path, bar, "replaying", lambda: f"{self.done.num_replayed} replayed")
            for found in logged_responses(raws, reader, texts):
                if isinstance(found, Ended):
                    self._end(found)
                    continue
                name = found[0].prompt.endpoint
                own = self._endpoints[name]
                own.waiting.append(found)
                if len(own.waiting) >= WINDOW:
                    self._replay(name)
                waiting = sum(len(each.waiting) for each in self._endpoints.values())
                if max_requests is not None and self.done.num_replayed + waiting >= max_requests:
                    break
            for name in self._endpoints:
                self._replay(name)

    def _replay(self, name: str) -> None:
        own = self._endpoints[name]
        waiting, own.waiting = own.waiting, []
        results = own.replayer.replay([response for _, response in waiting])
        for (call, _), result in zip(waiting, results, strict=True):
            if isinstance(result, RecordError):
                self._end(Ended.refused(call, result))
            else:
                self._add(name, own, call, result)

    def _add(self, name: str, own: EndpointReplay, call: LoggedCall, result: Replayed) -> None:
        done = self.done
        done.num_replayed += 1
        done.num_near_ties += result.num_near_ties
        for slice_key in ("", call.slice_key):
            for place, counts in enumerate(result.counts):
                pool = done.pools.setdefault((name, slice_key, place), Pool(done.depths))
                pool.add(call.unit_key, counts)
        by_config = {
            (config.name, config.verify_rule.value): counts
            for config, counts in zip(own.configs, result.counts, strict=True)
        }
        if self._on_replayed is not None:
            self._on_replayed(replayed_record(call, own.fingerprints, result))
        self._on_outcome(Outcome(call.prompt.key, name, call.slice_key, call.unit_key, by_config, result.num_near_ties))

    def _end(self, ended: Ended) -> None:
        if ended.refusal is not None:
            log.info("%s", ended.refusal)
            self.done.refusals.setdefault(ended.refusal.reason, str(ended.refusal))
        self.done.funnel[ended.end] += 1
        self._on_outcome(Outcome(ended.key, ended.end[0], reason=ended.end[2]))

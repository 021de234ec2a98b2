"""From a configuration and files to a distilled draft: what is read, trained, written and compared."""

from __future__ import annotations

import logging
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from itertools import chain
from pathlib import Path

from transformers.utils import logging as transformers_logging

from shadowspec.app.before_loading import load_tokenizers, require_endpoints
from shadowspec.app.console import notes, progress_bar
from shadowspec.app.logged_responses import Ended, EndpointTexts, logged_responses, track_records
from shadowspec.config import Config, load_hash_secret
from shadowspec.config.sections import BUILT_IN_LABELS
from shadowspec.distill.answers import sample_answers
from shadowspec.distill.card import Origin, card
from shadowspec.distill.comparison import Comparison, compare
from shadowspec.distill.draft_folder import (
    load_trainable,
    num_layers,
    require_fewer_layers,
    write,
    write_card,
    write_first_layers,
)
from shadowspec.distill.examples import Example, Split, split, times
from shadowspec.distill.training import Course, Look, Trainer
from shadowspec.distill.training_settings import Settings, Shares
from shadowspec.engine import LoadedModel, Models, engine_name
from shadowspec.engine.device import device_name
from shadowspec.engine.models import check_pair
from shadowspec.engine.replay.response_tokens import Response
from shadowspec.errors import ConfigError, NoDataError, UsageError
from shadowspec.tap.hashing import KeyedHash
from shadowspec.tap.responses import ResponseReader
from shadowspec.text import plural
from shadowspec.types import FunnelCounter, FunnelKey, SpeculationConfig, VerifyRule

log = logging.getLogger(__name__)

PROPOSER = "draft_model"  # what can be trained here


@dataclass(frozen=True, slots=True)
class Wanted:
    """The request, without the settings of the training."""

    endpoint: str  # whose candidate is taken
    candidate: str | None  # None: its only draft model
    consent: str
    out: Path
    shares: Shares
    labels: dict[str, str]  # that a record must have
    max_requests: int | None
    # Of the target, which the draft begins as; None: it begins as the candidate's.
    from_layers: int | None = None


@dataclass(frozen=True, slots=True)
class Distilled:
    """What came of it."""

    out: Path
    config: SpeculationConfig  # with the draft that training began from
    endpoints: tuple[str, ...]  # that have the pair
    funnel: dict[FunnelKey, int]  # records that were not used
    split: Split
    answers: tuple[Response, ...]  # of the target again, learnt from beside those of training
    course: Course
    comparison: Comparison


@dataclass(frozen=True, slots=True)
class _Traffic:
    examples: tuple[Example, ...]
    funnel: dict[FunnelKey, int]
    first_event: datetime
    last_event: datetime


def distill_files(config: Config, paths: Sequence[str], wanted: Wanted, settings: Settings) -> Distilled:
    """Train a draft on the responses in files, write it, and replay what was held out with it and what it was before.

    It begins as a candidate's draft, or as the target's first layers. All endpoints with the same target and draft
    take part, with the same target only, where there is no draft yet: one's gain must not be another's loss.

    Raises:
        UsageError: no record can have a wanted label, or the target has too few layers.
        ConfigError: no such endpoint or candidate, or one that drafts with no model of its target's vocabulary.
        ModelError: a model cannot be loaded, or the pair does not fit.
        NoDataError: too few sessions have a response that can be used.
    """
    transformers_logging.disable_progress_bar()  # stderr is ours
    if wanted.from_layers is None:
        candidate = candidate_of(config, wanted.endpoint, wanted.candidate)
        _require_labels(config, wanted)
        return _distill(config, paths, wanted, settings, candidate, sharing(config, candidate))
    with _first_layers(config, wanted, wanted.from_layers) as candidate:
        endpoints = tuple(name for name, each in config.endpoints.items() if each.target == candidate.target)
        return _distill(config, paths, wanted, settings, candidate, endpoints)


@contextmanager
def _first_layers(config: Config, wanted: Wanted, count: int) -> Iterator[SpeculationConfig]:
    """A candidate whose draft is the target's first layers, in a folder that ends with the block.

    Its K is that of the endpoint's first candidate.
    """
    if wanted.candidate is not None:
        raise UsageError(
            f"--candidate {wanted.candidate} begins from that candidate's draft and --from-layers from the target: "
            "give one of them"
        )
    first = _endpoint_candidates(config, wanted.endpoint)[0]
    _require_labels(config, wanted)
    require_fewer_layers(first.target, count)
    wanted.out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{wanted.out.name}-", dir=wanted.out.parent) as scratch:
        folder = Path(scratch) / "first-layers"
        with notes.status(f"taking the target's first {plural(count, 'layer')}"):
            write_first_layers(first.target, count, folder)
        yield SpeculationConfig(
            wanted.out.name, first.target, str(folder), PROPOSER, first.num_speculative_tokens, VerifyRule.REJECTION
        )


def _distill(
    config: Config,
    paths: Sequence[str],
    wanted: Wanted,
    settings: Settings,
    candidate: SpeculationConfig,
    endpoints: tuple[str, ...],
) -> Distilled:
    """Train the candidate's draft on these endpoints' responses."""
    with notes.status("loading models"):
        models = Models(config.engine)
        target = models.load(candidate.target)
        assert candidate.draft is not None, "it drafts with a model"
        base = models.load(candidate.draft)
        for warning in check_pair(target, base):
            log.warning("%s", warning)
        draft, dtype = load_trainable(candidate.draft, target.model.device)
    traffic = _read(config, paths, endpoints, target, base, wanted)
    parts = split(traffic.examples, wanted.shares, settings.seed)
    answers = _sample_answers(target, parts, base.context_length, settings.seed)
    with progress_bar() as bar:
        task = bar.add_task("training", total=None, detail="looking at the validation sessions")

        def show(step: int, total: int, look: Look) -> None:
            bar.update(task, total=total, completed=step, detail=f"overlap {look.overlap:.4f}")

        course = Trainer(target.model, draft, settings).train(
            [*(each.response for each in parts.training), *answers], parts.validation, show
        )
    origin = Origin(
        target_weights=target.weights_digest,
        base_weights=base.weights_digest,
        candidate=candidate.name if wanted.from_layers is None else None,
        first_layers=wanted.from_layers,
        num_target_layers=num_layers(candidate.target),
        num_parameters=base.num_parameters,
        num_speculative_tokens=candidate.num_speculative_tokens,
        verify_rule=candidate.verify_rule.value,
        consent=wanted.consent,
        first_event=traffic.first_event,
        last_event=traffic.last_event,
        engine=engine_name(),
        device=device_name(target.model.device),
    )
    text = partial(card, origin, parts, answers, settings, course)
    write(draft, dtype, Path(candidate.draft), wanted.out, text(None))
    with notes.status("replaying the held-out sessions with both drafts"):
        after = Models(config.engine).load(str(wanted.out))  # as it was written
        try:
            comparison = compare(parts.held_out, target, base, after, candidate)
        except KeyboardInterrupt:
            notes.print(f"the draft is in {wanted.out}, and nothing is known of it", markup=False, highlight=False)
            raise
    if not comparison.gains:
        raise NoDataError(
            f"no held-out response could be replayed ({', '.join(sorted(comparison.refused))}): they are not this "
            f"target's. The draft is in {wanted.out}, and nothing is known of it"
        )
    write_card(wanted.out, text(comparison))
    return Distilled(wanted.out, candidate, endpoints, traffic.funnel, parts, answers, course, comparison)


def _sample_answers(target: LoadedModel, parts: Split, context_length: int, seed: int) -> tuple[Response, ...]:
    with progress_bar() as bar:
        task = bar.add_task("answering rare slices' prompts again", total=None, detail="")

        def show(done: int, wanted: int) -> None:
            bar.update(task, total=wanted, completed=done)

        training = parts.training
        return tuple(
            sample_answers(
                target, training, times(training), context_length=context_length, seed=seed, on_progress=show
            )
        )


def candidate_of(config: Config, endpoint: str, name: str | None) -> SpeculationConfig:
    """The candidate whose draft is to be trained.

    Raises:
        ConfigError: there is none, or more than one to choose from.
    """
    candidates = _endpoint_candidates(config, endpoint)
    if name is not None and name not in [each.name for each in candidates]:
        known = ", ".join(each.name for each in candidates)
        raise ConfigError(f"{config.path}: endpoints.{endpoint} has no candidate {name!r} (it has: {known})")
    ours = [each for each in candidates if each.proposer == PROPOSER and not each.is_served_method]
    drafting = [each for each in ours if name in (None, each.name)]
    if not drafting:
        raise ConfigError(
            f"{config.path}: endpoints.{endpoint}: only a candidate with proposer = {PROPOSER!r} can be distilled; "
            "--from-layers makes a draft from the target"
        )
    if len({each.draft for each in drafting}) > 1:
        known = ", ".join(each.name for each in drafting)
        raise ConfigError(
            f"{config.path}: endpoints.{endpoint} has several drafts; choose one with --candidate ({known})"
        )
    return drafting[0]


def _endpoint_candidates(config: Config, endpoint: str) -> Sequence[SpeculationConfig]:
    require_endpoints(config)
    return config.chosen(endpoint)[endpoint].candidates


def sharing(config: Config, speculation_config: SpeculationConfig) -> tuple[str, ...]:
    """The endpoints with this target and this draft."""
    return tuple(
        name
        for name, endpoint in config.endpoints.items()
        if any(
            (each.target, each.draft, each.proposer) == (speculation_config.target, speculation_config.draft, PROPOSER)
            for each in endpoint.candidates
        )
    )


def _require_labels(config: Config, wanted: Wanted) -> None:
    kept = (*BUILT_IN_LABELS, *config.endpoints[wanted.endpoint].rule.labels)
    if unknown := [name for name in wanted.labels if name not in kept]:
        raise UsageError(
            f"--where {unknown[0]}={wanted.labels[unknown[0]]}: endpoint {wanted.endpoint!r} keeps no label "
            f"{unknown[0]!r} (its labels: {', '.join(kept)})"
        )


def _read(
    config: Config,
    paths: Sequence[str],
    endpoints: Sequence[str],
    target: LoadedModel,
    base: LoadedModel,
    wanted: Wanted,
) -> _Traffic:
    """The usable responses of the endpoints."""
    tokenizers = load_tokenizers(config)
    texts = {name: EndpointTexts(tokenizers[name], target.end_token_ids) for name in endpoints}
    rules = [endpoint.rule for endpoint in config.endpoints.values()]
    secret = load_hash_secret(config)
    examples: list[Example] = []
    funnel: Counter[FunnelKey] = Counter()
    times: list[datetime] = []
    with progress_bar() as bar:
        by_file = (
            logged_responses(
                track_records(path, bar, "reading", lambda: f"{len(examples)} responses"),
                ResponseReader(rules, tokenizers, KeyedHash(secret)),
                texts,
            )
            for path in paths
        )
        for found in chain.from_iterable(by_file):
            if isinstance(found, Ended):
                funnel[found.end] += 1
                continue
            call, response = found
            prompt = call.prompt
            if any(prompt.labels.get(label) != value for label, value in wanted.labels.items()):
                funnel[prompt.endpoint, FunnelCounter.SAMPLED_OUT, "other_label"] += 1
            elif len(response.request.prompt) + len(response.output) > base.context_length:
                funnel[prompt.endpoint, FunnelCounter.UNSUPPORTED, "beyond_draft_context"] += 1
            else:
                examples.append(Example(prompt.endpoint, call.slice_key, call.unit_key, response))
                times.append(prompt.event_time)
            if wanted.max_requests is not None and len(examples) >= wanted.max_requests:
                break
    if not examples:
        reasons = ", ".join(sorted({reason or counter for _, counter, reason in funnel})) or "no record"
        raise NoDataError(
            f"no record holds a response that can be learnt from ({reasons}); record responses too (docs/capture.md)"
        )
    return _Traffic(tuple(examples), dict(funnel), min(times), max(times))

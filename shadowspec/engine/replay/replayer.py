"""Replaying responses: scored under target and drafts, then the law of the steps for every way of drafting."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from shadowspec.engine.heads.loading import LoadedHeads
from shadowspec.engine.models import LoadedModel
from shadowspec.engine.proposers.recent_outputs import RecentOutputs
from shadowspec.engine.proposers.suffix import SuffixOptions
from shadowspec.engine.replay.acceptance import (
    Reals,
    SuffixSteps,
    check_target,
    logged_target_probs,
    lookup_chances,
    needs_probs,
    prefix_accept,
    suffix_chances,
    suffix_steps,
)
from shadowspec.engine.replay.heads_scores import StartScores, start_chances, start_scores
from shadowspec.engine.replay.law import StepChances, StepLaw, expected_counts, step_law
from shadowspec.engine.replay.response_tokens import Response
from shadowspec.engine.replay.scoring import Budget, TokenScores, group_by_length, token_scores
from shadowspec.errors import ConfigError, RecordError
from shadowspec.types import DraftSampling, ExpectedCounts, LogprobsMode, SpeculationConfig, VerifyRule

if TYPE_CHECKING:
    from shadowspec_kernels.dispatch import Kernels

LAW_POSITIONS: Final = 65_536  # positions of responses whose laws are found at once: tens of MB at 8 depths
# Logits by which rounding may choose another greedy token than ours.  Production mostly runs in bfloat16, whose
# rounding moves logits of usual size (10 to 30) by about a tenth.
NEAR_TIE_LOGIT: Final = 0.25


Scores = Sequence[TokenScores | StartScores]


@dataclass(frozen=True, slots=True)
class Drafting:
    """A speculation config with its draft, if it needs one; its number of speculative tokens is not looked at."""

    config: SpeculationConfig
    draft: LoadedModel | LoadedHeads | None


@dataclass(frozen=True, slots=True)
class Replayed:
    """One response replayed."""

    response: Response
    counts: tuple[tuple[ExpectedCounts, ...], ...]  # of each way of drafting in the order given, for each depth
    num_near_ties: int  # tokens of a greedy response that are not the arg-max here, but nearly


@dataclass(frozen=True, slots=True)
class _Judged:
    """A response that may be the target's, with the target's probabilities of its tokens where they are needed."""

    response: Response
    num_near_ties: int
    target_probs: Reals | None  # [tokens]


class Replayer:
    """Replays responses of one target with each of its candidates.

    A candidate that drafts from recent outputs finds the responses replayed before, in their order, as far back as its
    memory goes.
    """

    def __init__(
        self,
        draftings: Sequence[Drafting],
        depths: Sequence[int],
        *,
        end_token_ids: frozenset[int],
        target: LoadedModel | None,
        logprobs_mode: LogprobsMode = LogprobsMode.RAW,
        near_tie_logit: float = NEAR_TIE_LOGIT,
        budget: Budget | None = None,
        kernels: Kernels | None = None,
    ) -> None:
        """
        Args:
            depths: numbers of speculative tokens.
            end_token_ids: those that end the target's texts.
            target: None: responses are assumed to be the target's, and its probabilities, where needed, come from the
                record's logprobs; heads cannot be replayed without it.
            logprobs_mode: the distribution of those logprobs.
            near_tie_logit: see `check_target`.
            kernels: score responses directly from hidden states (None: torch, from logits as in the decode loop).

        Raises:
            ConfigError: the depth of a candidate depends on more than a response shows.
        """
        for drafting in draftings:
            require_replayable(drafting.config)
        self._draftings, self._depths = tuple(draftings), tuple(depths)
        self._recent = [RecentOutputs.of(drafting.config) for drafting in draftings]
        self._target, self._end_token_ids = target, end_token_ids
        self._logprobs_mode, self._near_tie_logit = logprobs_mode, near_tie_logit
        self._budget, self._kernels = budget, kernels

    def replay(self, responses: Sequence[Response]) -> list[Replayed | RecordError]:
        """The counters of each response, in their order, or why it is refused."""
        results: dict[int, Replayed | RecordError] = {}
        judged: dict[int, _Judged] = {}
        for place, (response, scores) in enumerate(zip(responses, self._target_scores(responses), strict=True)):
            try:
                judged[place] = self._judge(response, scores)
            except RecordError as error:
                results[place] = error
        kept = list(judged.values())
        counts = [
            self._suffix_counts(drafting.config, recent, kept)
            if drafting.config.proposer == "suffix"
            else self._counts(drafting, kept, scores)
            for recent, (drafting, scores) in zip(self._recent, self._score(kept), strict=True)
        ]
        for index, (place, judged_response) in enumerate(judged.items()):
            results[place] = Replayed(
                judged_response.response, tuple(every[index] for every in counts), judged_response.num_near_ties
            )
        return [results[place] for place in range(len(responses))]

    def _target_scores(self, responses: Sequence[Response]) -> Sequence[TokenScores | None]:
        if self._target is None:
            return [None] * len(responses)
        return self._token_scores(self._target, responses, with_probs=True)

    def _token_scores(
        self, model: LoadedModel, responses: Sequence[Response], *, with_probs: bool
    ) -> Sequence[TokenScores]:
        return token_scores(
            model.model,
            responses,
            self._end_token_ids,
            with_probs=with_probs,
            budget=self._budget,
            kernels=self._kernels,
        )

    def _judge(self, response: Response, scores: TokenScores | None) -> _Judged:
        """With the target's probabilities, else the record's where a candidate needs them."""
        if scores is not None:
            return _Judged(response, check_target(response, scores, self._near_tie_logit), scores.probs)
        if any(self._uses_probs(drafting, response) for drafting in self._draftings):
            return _Judged(response, 0, logged_target_probs(response, self._logprobs_mode))
        return _Judged(response, 0, None)

    @staticmethod
    def _uses_probs(drafting: Drafting, response: Response) -> bool:
        return drafting.draft is not None and needs_probs(drafting.config.verify_rule, response)

    def _score(self, judged: Sequence[_Judged]) -> Iterator[tuple[Drafting, Scores | None]]:
        """Each way of drafting with its draft's scores; a draft that several share is run once for each sampling."""
        responses = [judged_response.response for judged_response in judged]
        # The drafts whose probabilities are needed.
        samples = {
            id(drafting.draft) for drafting in self._draftings if drafting.config.verify_rule is VerifyRule.REJECTION
        }
        scores_by_draft: dict[tuple[int, DraftSampling], Scores] = {}
        for drafting in self._draftings:
            draft = drafting.draft
            if draft is None:
                yield drafting, None
                continue
            key = id(draft), drafting.config.draft_sampling
            if key not in scores_by_draft:
                is_whole = drafting.config.draft_sampling is DraftSampling.REQUEST
                drafted_for = responses if is_whole else [response.by_temperature_alone() for response in responses]
                scores_by_draft[key] = self._draft_scores(draft, drafted_for, with_probs=id(draft) in samples)
            yield drafting, scores_by_draft[key]

    def _draft_scores(
        self, draft: LoadedModel | LoadedHeads, responses: Sequence[Response], *, with_probs: bool
    ) -> Scores:
        ends, budget = self._end_token_ids, self._budget
        if isinstance(draft, LoadedModel):
            return self._token_scores(draft, responses, with_probs=with_probs)
        assert self._target is not None, "heads draft from the target's hidden states"
        deepest = max(self._depths)
        depth = min(deepest, draft.max_speculative_tokens or deepest)
        return start_scores(
            self._target.model, draft.heads, responses, ends, depth, with_probs=with_probs, budget=budget
        )

    def _counts(
        self, drafting: Drafting, judged: Sequence[_Judged], scores: Scores | None
    ) -> list[tuple[ExpectedCounts, ...]]:
        counts: dict[int, tuple[ExpectedCounts, ...]] = {}
        for rows in group_by_length(
            [len(judged_response.response.output) for judged_response in judged], LAW_POSITIONS
        ):
            group = [judged[row] for row in rows]
            chances = self._chances(drafting.config, group, scores and [scores[row] for row in rows])
            law = _law(drafting.config, chances, group, self._depths)
            for index, row in enumerate(rows):
                counts[row] = expected_counts(law, index, len(judged[row].response.request.prompt))
        return [counts[row] for row in range(len(judged))]

    def _suffix_counts(
        self, config: SpeculationConfig, recent: RecentOutputs | None, judged: Sequence[_Judged]
    ) -> list[tuple[ExpectedCounts, ...]]:
        """In the order of the responses, each of which is remembered for those after it."""
        options = SuffixOptions.of(config)
        steps: list[SuffixSteps] = []
        for judged_response in judged:
            response = judged_response.response
            index = None if recent is None else recent.without({response.key})
            steps.append(suffix_steps(response, options, index, self._depths))
            if recent is not None:
                recent.add(response.key, response.output)
        counts: list[list[ExpectedCounts]] = [[] for _ in judged]
        for rows in group_by_length(
            [len(judged_response.response.output) for judged_response in judged], LAW_POSITIONS
        ):
            for number, depth in enumerate(self._depths):
                chances = suffix_chances([steps[row] for row in rows], number, depth)
                law = _law(config, chances, [judged[row] for row in rows], [depth])
                for place, row in enumerate(rows):
                    counts[row] += expected_counts(law, place, len(judged[row].response.request.prompt))
        return [tuple(count) for count in counts]

    def _chances(self, config: SpeculationConfig, group: Sequence[_Judged], scores: Scores | None) -> StepChances:
        """By the start of a step and the depth, for responses of like length."""
        responses, deepest = [judged_response.response for judged_response in group], max(self._depths)
        if scores is None:
            return lookup_chances(responses, config.ngram_min, config.ngram_max, deepest, config.ngram_occurrence)
        rule = config.verify_rule
        by_start = [response_scores for response_scores in scores if isinstance(response_scores, StartScores)]
        if by_start:
            probs = [
                judged_response.target_probs if needs_probs(rule, judged_response.response) else None
                for judged_response in group
            ]
            return start_chances(responses, by_start, probs, deepest)
        by_token = [response_scores for response_scores in scores if isinstance(response_scores, TokenScores)]
        accepts = [
            prefix_accept(rule, judged_response.response, token_scores, judged_response.target_probs)
            for judged_response, token_scores in zip(group, by_token, strict=True)
        ]
        return StepChances.of_prefix(accepts, deepest)


def _law(config: SpeculationConfig, chances: StepChances, group: Sequence[_Judged], depths: Sequence[int]) -> StepLaw:
    """The law of the steps of these responses, by the config's rule for drafts near a request's limit."""
    if config.drafts_within_limit:
        chances = chances.within([judged_response.response.request.sampling.max_tokens for judged_response in group])
    return step_law(chances, depths)


def require_replayable(config: SpeculationConfig) -> None:
    """
    Raises:
        ConfigError: its drafts depend on more than a response shows, or a server makes them.
    """
    if config.is_served_method:
        raise ConfigError(
            f"candidate {config.name!r}: a server drafts it by its method {config.proposer}, which cannot be replayed: "
            "measure it with `shadowspec run`"
        )
    if config.is_adaptive:
        raise ConfigError(
            f"candidate {config.name!r}: draft_confidence_threshold cannot be replayed: how many tokens the draft "
            "adds to one that is rejected is not in the response. Measure it with `shadowspec run`, or replay it "
            "with a threshold of 0"
        )

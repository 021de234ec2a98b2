"""How serving engines draft: lookups by vLLM's own code, a draft by temperature alone, in the loop and in replay."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from shadowspec import metrics
from shadowspec.engine.batch import Request
from shadowspec.engine.candidate import Candidate
from shadowspec.engine.decode import Decoded, decode_batch
from shadowspec.engine.models import LoadedModel
from shadowspec.engine.proposers import Proposer
from shadowspec.engine.proposers.draft_model import DraftModelProposer
from shadowspec.engine.proposers.ngram import NgramProposer, lookup
from shadowspec.engine.replay.replayer import Drafting, Replayed, Replayer
from shadowspec.engine.replay.response_tokens import Response
from shadowspec.types import (
    DraftSampling,
    ExpectedCounts,
    FingerprintedConfig,
    NgramOccurrence,
    RecordKey,
    SamplingParameters,
    SpeculationConfig,
    VerifyRule,
)
from tests.builders.lookup_oracle import longest_by_prefixes
from tests.builders.verification import LEVEL, SAMPLING, draw, exact_distribution, p_value

ENDS = frozenset({1})
DEPTH = 3
TRUNCATED = SamplingParameters(temperature=1.2, top_p=0.6, max_tokens=24)
PENALISED = SamplingParameters(temperature=0.0, frequency_penalty=0.7, max_tokens=24, min_tokens=6)
EARLIEST, LATEST = NgramOccurrence.EARLIEST, NgramOccurrence.LATEST
COUNTED = ("num_drafts", "num_plain_steps", "num_draft_tokens", "num_accepted_tokens", "acceptance_histogram")
NGRAM = SpeculationConfig("n", "t", None, "ngram", DEPTH, VerifyRule.GREEDY_DRAFT, ngram_min=1, ngram_max=3)
PAIR = SpeculationConfig("d", "t", "d", "draft_model", DEPTH, VerifyRule.REJECTION)
CERTAIN_PAIR = replace(PAIR, verify_rule=VerifyRule.GREEDY_DRAFT)
SUFFIX = replace(NGRAM, proposer="suffix", suffix_memory_tokens=0)


@given(st.lists(st.integers(0, 2), min_size=1, max_size=40), st.integers(1, 4), st.integers(0, 3), st.integers(1, 6))
def test_the_earliest_occurrence_is_the_one_that_vllm_finds(
    tokens: list[int], shortest: int, more: int, count: int
) -> None:
    found = lookup(np.array(tokens), shortest, shortest + more, count, EARLIEST)
    assert found.tolist() == longest_by_prefixes(tokens, shortest, shortest + more, count)


def test_of_several_occurrences_the_configured_one_is_copied() -> None:
    tokens = np.array([5, 6, 7, 5, 6, 8, 5, 6])
    assert lookup(tokens, 2, 4, 1, EARLIEST).tolist() == [7]
    assert lookup(tokens, 2, 4, 1, LATEST).tolist() == lookup(tokens, 2, 4, 1).tolist() == [8]


def test_what_no_occurrence_fills_drafts_the_last_token_again() -> None:
    """vLLM's `_ngram_finalize_kernel`: a draft of all its tokens in every step, by the latest occurrence."""
    filled = NgramOccurrence.LATEST_FILLED
    assert lookup(np.array([5, 6, 7, 5, 6, 8, 5, 6]), 2, 4, 4, filled).tolist() == [8, 5, 6, 6]
    assert lookup(np.array([5, 6, 7]), 2, 4, 2, filled).tolist() == [7, 7]
    assert lookup(np.array([5]), 1, 4, 3, filled).tolist() == [5, 5, 5]


def requests(count: int, sampling: SamplingParameters) -> list[Request]:
    rng = np.random.default_rng(3)
    return [Request(tuple(rng.integers(2, 12, 2 + row % 11).tolist()), sampling, row) for row in range(count)]


def looped(target: Any, wanted: list[Request], proposer: Proposer, rule: VerifyRule) -> list[Decoded]:
    result = decode_batch(
        target, wanted, proposer=proposer, num_speculative_tokens=DEPTH, verify_rule=rule, end_token_ids=ENDS
    )
    return list(result.decoded)


def loaded(name: str, model: Any) -> LoadedModel:
    return LoadedModel(name, model, None, ENDS, "", "", "")  # type: ignore[arg-type]  # no tokenizer is needed


def candidate_of(config: SpeculationConfig, draft: Any) -> Candidate:
    fingerprinted = FingerprintedConfig(config, "e", "cpu", "float32", {}, "fp")
    return Candidate(fingerprinted, None if draft is None else loaded("d", draft))


def proposer_of(config: SpeculationConfig, draft: Any) -> Proposer:
    """The proposer of a candidate with this config."""
    return candidate_of(config, draft).proposer()


def replayed(
    target: Any, draft: Any, wanted: list[Request], loop: list[Decoded], config: SpeculationConfig
) -> list[ExpectedCounts]:
    drafting = Drafting(config, None if draft is None else loaded("d", draft))
    replayer = Replayer([drafting], [DEPTH], end_token_ids=ENDS, target=loaded("t", target))
    responses = [
        Response(RecordKey("file", 0, row), request, each.output)
        for row, (request, each) in enumerate(zip(wanted, loop, strict=True))
    ]
    found = replayer.replay(responses)
    assert all(isinstance(each, Replayed) for each in found)
    return [each.counts[0][0] for each in found if isinstance(each, Replayed)]


def num_equal(loop: list[Decoded], expected: list[ExpectedCounts]) -> int:
    """Requests of which replay says what the loop counted."""
    return sum(
        all(np.allclose(getattr(item.counts, name), getattr(one, name)) for name in COUNTED)
        for item, one in zip(loop, expected, strict=True)
    )


def searched_backwards(tokens: list[int], size: int, count: int) -> list[int]:
    """`common_ngram_simple_draft` of llama.cpp 0c1e570 in our own words; its history lacks the token sampled last."""
    history, sampled = tokens[:-1], tokens[-1]
    length = len(history)
    if length <= size + count + 1:
        return []
    pattern = [*history[length - size + 1 :], sampled]
    place = length - size - 1
    while place > 0 and history[place : place + size] != pattern:
        place -= 1
    copied = min(count, length - (place + size))
    if place == 0 or copied < size:
        return []
    return history[place + size : place + size + copied]


def test_latest_followed_is_llama_cpps_lookup() -> None:
    draw = random.Random(3)
    found = 0
    for _ in range(4_000):
        size, count = draw.randint(1, 4), draw.randint(1, 6)
        tokens = [draw.randrange(draw.choice((2, 5))) for _ in range(draw.randint(2, 40))]
        expected = searched_backwards(tokens, size, count)
        proposed = lookup(np.array(tokens), size, size, count, NgramOccurrence.LATEST_FOLLOWED)
        assert proposed.tolist() == expected, (tokens, size, count)
        found += len(expected) > 0
    assert 500 < found < 3_500


@pytest.mark.parametrize("occurrence", list(NgramOccurrence))
def test_replay_looks_up_the_occurrence_that_the_loop_looks_up(target: Any, occurrence: NgramOccurrence) -> None:
    wanted = requests(40, SamplingParameters(temperature=0.5, max_tokens=24))
    config = replace(NGRAM, ngram_occurrence=occurrence)
    loop = looped(target, wanted, proposer_of(config, None), VerifyRule.GREEDY_DRAFT)
    assert sum(each.counts.num_accepted_tokens for each in loop) > 0
    assert num_equal(loop, replayed(target, None, wanted, loop, config)) == len(wanted)
    assert (sum(each.counts.num_plain_steps for each in loop) == 0) is config.drafts_in_every_step
    other = replace(NGRAM, ngram_occurrence=LATEST if occurrence is EARLIEST else EARLIEST)
    assert num_equal(loop, replayed(target, None, wanted, loop, other)) < len(wanted), "the two can be told apart"


@pytest.mark.parametrize("rule", [VerifyRule.REJECTION, VerifyRule.GREEDY_DRAFT])
def test_a_draft_by_temperature_alone_ignores_penalties_in_loop_and_replay(
    target: Any, draft: Any, rule: VerifyRule
) -> None:
    wanted = requests(24, PENALISED)
    config = replace(PAIR, verify_rule=rule, draft_sampling=DraftSampling.TEMPERATURE)
    loop = looped(target, wanted, proposer_of(config, draft), rule)
    assert num_equal(loop, replayed(target, draft, wanted, loop, config)) == len(wanted)
    assert num_equal(loop, replayed(target, draft, wanted, loop, replace(PAIR, verify_rule=rule))) < len(wanted)


@pytest.mark.parametrize(
    ("max_tokens", "steps"),
    [
        (9, (2, 3 + 3, 0)),  # 1 + 4 + 4 tokens: of the last 4 the target gives one
        (10, (2, 3 + 3, 1)),  # 1 + 4 + 4 + 1: the last one is the target's
        (12, (3, 3 + 3 + 2, 0)),  # 1 + 4 + 4 + 3: of the last 3 two are drafted
    ],
)
def test_drafts_are_cut_to_one_token_less_than_may_still_be_emitted(
    target: Any, max_tokens: int, steps: tuple[int, int, int]
) -> None:
    sampling = SamplingParameters(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)
    wanted = requests(2, sampling) + requests(1, structs.replace(sampling, max_tokens=30))
    plain = decode_batch(target, wanted, end_token_ids=ENDS)
    beyond, within = (
        looped(target, wanted, proposer_of(replace(CERTAIN_PAIR, drafts_within_limit=each), target), VerifyRule.GREEDY)
        for each in (False, True)
    )
    assert (
        [each.output for each in plain.decoded] == [each.output for each in beyond] == [each.output for each in within]
    )
    for each in within[:2]:
        assert (each.counts.num_drafts, each.counts.num_draft_tokens, each.counts.num_plain_steps) == steps
        assert (each.counts.num_cut_draft_tokens, each.counts.num_cut_steps) == (0, 0)
    assert (within[2].counts.num_draft_tokens, within[2].counts.num_plain_steps) == (7 * 3, 1), "each by its own limit"


@pytest.mark.parametrize("config", [NGRAM, SUFFIX, CERTAIN_PAIR], ids=lambda config: str(config.proposer))
def test_replay_cuts_drafts_where_the_loop_cuts_them(target: Any, draft: Any, config: SpeculationConfig) -> None:
    wanted = [
        replace(each, sampling=structs.replace(each.sampling, max_tokens=10 + row % 7))
        for row, each in enumerate(requests(40, SamplingParameters(temperature=0.0)))
    ]
    model = None if config.draft is None else draft
    within = replace(config, drafts_within_limit=True)
    loop = looped(target, wanted, proposer_of(within, model), VerifyRule.GREEDY_DRAFT)
    assert sum(each.counts.num_accepted_tokens for each in loop) > 0
    assert num_equal(loop, replayed(target, model, wanted, loop, within)) == len(wanted)
    assert num_equal(loop, replayed(target, model, wanted, loop, config)) < len(wanted), "the two can be told apart"


def test_a_step_near_the_limit_may_verify_any_number_of_tokens(draft: Any) -> None:
    assert candidate_of(PAIR, draft).num_verified() == (DEPTH + 1,)
    assert candidate_of(replace(PAIR, drafts_within_limit=True), draft).num_verified() == (1, 2, 3, 4)


def standard_errors(loop: list[Decoded], expected: list[ExpectedCounts]) -> float:
    """Of the mean acceptance length: how far the loop lies from replay of its outputs."""
    accepted = sum(each.num_accepted_tokens for each in expected)
    length = metrics.ratio(accepted, sum(each.num_drafts for each in expected))
    assert length is not None
    difference = sum(
        (each.counts.num_accepted_tokens - one.num_accepted_tokens) - length * (each.counts.num_drafts - one.num_drafts)
        for each, one in zip(loop, expected, strict=True)
    )
    variance = sum(
        one.accepted_variance - 2.0 * length * one.drafts_accepted_covariance + length**2 * one.drafts_variance
        for one in expected
    )
    return float(difference / variance**0.5)


@pytest.mark.all
@pytest.mark.slow
def test_sampled_drafts_are_accepted_as_replay_of_the_same_rule_says(target: Any, draft: Any) -> None:
    wanted = requests(400, TRUNCATED)
    shares = {}
    for draft_sampling in DraftSampling:
        proposer = DraftModelProposer(draft, DEPTH, is_sampling=True, draft_sampling=draft_sampling)
        loop = looped(target, wanted, proposer, VerifyRule.REJECTION)
        errors = {
            each: standard_errors(loop, replayed(target, draft, wanted, loop, replace(PAIR, draft_sampling=each)))
            for each in DraftSampling
        }
        assert abs(errors.pop(draft_sampling)) < 4.0
        (other,) = errors.values()
        assert abs(other) > 4.0, "the two rules can be told apart here"
        counts = [each.counts for each in loop]
        shares[draft_sampling] = sum(each.num_accepted_tokens for each in counts) / sum(
            each.num_draft_tokens for each in counts
        )
    assert shares[DraftSampling.TEMPERATURE] < shares[DraftSampling.REQUEST], "it proposes what the target forbids"


@pytest.mark.slow
def test_sampled_drafts_within_the_limit_are_accepted_as_replay_says(target: Any, draft: Any) -> None:
    wanted = requests(400, structs.replace(TRUNCATED, max_tokens=6))
    within = replace(PAIR, drafts_within_limit=True)
    loop = looped(target, wanted, proposer_of(within, draft), VerifyRule.REJECTION)

    def errors(config: SpeculationConfig) -> float:
        """How far the loop's accepted tokens lie from those expected, in standard errors."""
        expected = replayed(target, draft, wanted, loop, config)
        difference = sum(
            each.counts.num_accepted_tokens - one.num_accepted_tokens for each, one in zip(loop, expected, strict=True)
        )
        return float(difference / sum(one.accepted_variance for one in expected) ** 0.5)

    assert abs(errors(within)) < 4.0
    assert abs(errors(PAIR)) > 4.0, "the two can be told apart"


@pytest.mark.slow
@pytest.mark.representative("0.0")
@pytest.mark.parametrize("threshold", [0.0, 0.3])
def test_a_draft_by_temperature_alone_leaves_the_targets_distribution(
    target: Any, draft: Any, threshold: float
) -> None:
    sampling = structs.replace(SAMPLING, temperature=1.2, top_p=0.7)
    outputs = draw(
        target,
        sampling,
        VerifyRule.REJECTION,
        lambda: DraftModelProposer(
            draft,
            2,
            is_sampling=True,
            draft_sampling=DraftSampling.TEMPERATURE,
            confidence_threshold=threshold,
        ),
    )
    assert p_value(outputs, exact_distribution(target, sampling)) > LEVEL


@pytest.mark.all
def test_lookups_of_the_earliest_occurrence_leave_the_targets_distribution(target: Any) -> None:
    outputs = draw(target, SAMPLING, VerifyRule.GREEDY_DRAFT, lambda: NgramProposer(2, 1, 3, EARLIEST))
    assert p_value(outputs, exact_distribution(target, SAMPLING)) > LEVEL


def test_what_the_target_forbids_is_proposed_and_never_accepted(target: Any, draft: Any) -> None:
    sampling = structs.replace(TRUNCATED, top_p=0.01)  # the arg-max alone
    wanted = requests(20, sampling)
    proposer = DraftModelProposer(draft, DEPTH, is_sampling=True, draft_sampling=DraftSampling.TEMPERATURE)
    loop = looped(target, wanted, proposer, VerifyRule.REJECTION)
    greedy = [replace(request, sampling=structs.replace(sampling, temperature=0.0)) for request in wanted]
    plain = decode_batch(
        target, greedy, proposer=None, num_speculative_tokens=0, verify_rule=VerifyRule.GREEDY, end_token_ids=ENDS
    )
    assert [each.output for each in loop] == [each.output for each in plain.decoded]
    assert any(each.counts.num_accepted_tokens < each.counts.num_draft_tokens for each in loop)

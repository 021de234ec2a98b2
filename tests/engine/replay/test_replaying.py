"""Replay against the loop: what the loop did on its own outputs is what replay says of them."""

from __future__ import annotations

import contextlib
import copy
import gzip
import itertools
import json
from dataclasses import asdict
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.benchmarks.shifted import Shifted
from shadowspec import demo
from shadowspec.engine.batch import Request
from shadowspec.engine.decode import Decoded, decode_batch
from shadowspec.engine.llama import DirectLlama
from shadowspec.engine.models import LoadedModel, load_model
from shadowspec.engine.proposers import Proposer
from shadowspec.engine.proposers.draft_model import DraftModelProposer
from shadowspec.engine.proposers.ngram import NgramProposer, lookup
from shadowspec.engine.proposers.recent_outputs import RecentOutputs
from shadowspec.engine.proposers.suffix import SuffixOptions, SuffixProposer
from shadowspec.engine.replay.acceptance import (
    LogprobsMode,
    check_target,
    logged_target_probs,
    lookup_chances,
    prefix_accept,
)
from shadowspec.engine.replay.law import StepChances, expected_counts, step_law
from shadowspec.engine.replay.replayer import Drafting, Replayed, Replayer
from shadowspec.engine.replay.response_tokens import Response
from shadowspec.engine.replay.scoring import Budget, TokenScores, group_by_length, pack, token_scores
from shadowspec.errors import ConfigError, RecordError
from shadowspec.types import (
    ExpectedCounts,
    RecordKey,
    SamplingParameters,
    SpeculationConfig,
    VerifyRule,
)
from tests.builders.replayed_requests import COUNTED, ENDS, SAMPLINGS, assert_counts_equal, requests, responses_of
from tests.small_models import disturbed, tiny_llama


def decoded(
    target: Any, wanted: list[Request], proposer: Proposer | None, depth: int, rule: VerifyRule
) -> list[Decoded]:
    return list(
        decode_batch(
            target, wanted, proposer=proposer, num_speculative_tokens=depth, verify_rule=rule, end_token_ids=ENDS
        ).decoded
    )


def replayed(
    target: Any, draft: Any, rule: VerifyRule, responses: list[Response], depth: int, budget: Budget | None = None
) -> list[ExpectedCounts]:
    plain_scores = token_scores(target, responses, ENDS, with_probs=True, budget=budget)
    drafts = token_scores(draft, responses, ENDS, with_probs=True, budget=budget)
    for response, scores in zip(responses, plain_scores, strict=True):
        assert check_target(response, scores, near_tie_logit=0.0) == 0
    accepts = [
        prefix_accept(rule, response, scores, of_target.probs)
        for response, scores, of_target in zip(responses, drafts, plain_scores, strict=True)
    ]
    law = step_law(StepChances.of_prefix(accepts, 8), [depth, 8])
    return [expected_counts(law, row, len(response.request.prompt))[0] for row, response in enumerate(responses)]


@pytest.mark.representative("greedy_draft-3", "exact_match-8")
@pytest.mark.parametrize("depth", [1, 3, 8])
@pytest.mark.parametrize("rule", [VerifyRule.GREEDY_DRAFT, VerifyRule.EXACT_MATCH])
def test_drafts_that_are_certain_are_replayed_to_the_count(
    target: Any, draft: Any, rule: VerifyRule, depth: int
) -> None:
    wanted = requests(48)
    loop = decoded(target, wanted, DraftModelProposer(draft, depth, is_sampling=False), depth, rule)
    expected = replayed(target, draft, rule, responses_of(wanted, loop), depth)
    for item, counts in zip(loop, expected, strict=True):
        assert_counts_equal(item.counts, counts)
    assert sum(decoded.counts.num_cut_steps for decoded in loop) > 3
    assert (
        0
        < sum(decoded.counts.num_accepted_tokens for decoded in loop)
        < sum(decoded.counts.num_draft_tokens for decoded in loop)
    )


@pytest.mark.representative("rejection", "exact_match", "server")
@pytest.mark.parametrize("rule", list(VerifyRule))
def test_greedy_requests_are_replayed_to_the_count_by_every_rule(target: Any, draft: Any, rule: VerifyRule) -> None:
    wanted = requests(16, ("greedy", "greedy penalised"))
    loop = decoded(target, wanted, DraftModelProposer(draft, 4, is_sampling=rule is VerifyRule.REJECTION), 4, rule)
    expected = replayed(target, draft, rule, responses_of(wanted, loop), 4)
    for item, counts in zip(loop, expected, strict=True):
        assert_counts_equal(item.counts, counts)


@pytest.mark.representative("rejection-2", "exact_match-5")
@pytest.mark.parametrize("depth", [2, 5])
@pytest.mark.parametrize("rule", [VerifyRule.REJECTION, VerifyRule.EXACT_MATCH])
def test_lookup_is_replayed_to_the_count(target: Any, rule: VerifyRule, depth: int) -> None:
    wanted = requests(48)
    loop = decoded(target, wanted, NgramProposer(depth, 1, 3), depth, rule)
    responses = responses_of(wanted, loop)
    law = step_law(lookup_chances(responses, 1, 3, 8), [depth])
    for row, item in enumerate(loop):
        assert_counts_equal(item.counts, expected_counts(law, row, len(wanted[row].prompt))[0])
    assert sum(decoded.counts.num_plain_steps for decoded in loop) > 0
    assert sum(decoded.counts.num_accepted_tokens for decoded in loop) > 0


def looped_with_memory(target: Any, wanted: list[Request], config: SpeculationConfig) -> list[Decoded]:
    """One request after the other, each drafted for from what was emitted before it."""
    recent, depth = RecentOutputs.of(config), config.num_speculative_tokens
    loop = []
    for row, request in enumerate(wanted):
        key = RecordKey("file", 0, row)
        index = None if recent is None else recent.without({key})
        proposer = SuffixProposer(depth, SuffixOptions.of(config), index)
        loop += decoded(target, [request], proposer, depth, config.verify_rule)
        if recent is not None:
            recent.add(key, loop[-1].output)
    return loop


def assert_replayed_to_the_count(
    target: Any, wanted: list[Request], config: SpeculationConfig, depths: list[int], ends: frozenset[int] = ENDS
) -> list[Decoded]:
    """Replayed in two parts, as a file is read, all depths at once; the loop's own depth is among them."""
    loop = looped_with_memory(target, wanted, config)
    replayer = Replayer([Drafting(config, None)], depths, end_token_ids=ends, target=None)
    responses = responses_of(wanted, loop)
    found = replayer.replay(responses[:20]) + replayer.replay(responses[20:])
    for decoded, each in zip(loop, found, strict=True):
        assert isinstance(each, Replayed)
        assert_counts_equal(decoded.counts, each.counts[0][depths.index(config.num_speculative_tokens)])
    return loop


@pytest.mark.representative("2-greedy_draft-60")
@pytest.mark.parametrize("memory", [0, 60, 100_000])
@pytest.mark.parametrize(("depth", "rule"), [(2, VerifyRule.GREEDY_DRAFT), (5, VerifyRule.EXACT_MATCH)])
def test_suffix_drafts_are_replayed_to_the_count(target: Any, rule: VerifyRule, depth: int, memory: int) -> None:
    config = SpeculationConfig(
        "s", "t", None, "suffix", depth, rule, suffix_memory_tokens=memory, suffix_decoding_max_spec_factor=1.5
    )
    loop = assert_replayed_to_the_count(target, requests(48), config, [1, 2, 5, 8])
    assert sum(decoded.counts.num_plain_steps for decoded in loop) > 0
    assert sum(decoded.counts.num_cut_steps for decoded in loop) > 0
    assert sum(decoded.counts.num_accepted_tokens for decoded in loop) > 0


@pytest.mark.all
def test_suffix_drafts_are_replayed_to_the_count_on_the_bundled_pair() -> None:
    target = load_model(str(demo.TARGET), torch.device("cpu"), torch.float32)
    prompts = [prompt for prompt in bundled_prompts() if len(prompt) < 200][:160:5]
    greedy = SamplingParameters(temperature=0.0, max_tokens=32)
    wanted = [Request(prompt, greedy, 0) for prompt in prompts]
    config = SpeculationConfig("s", "t", None, "suffix", 4, VerifyRule.GREEDY_DRAFT)
    loop = assert_replayed_to_the_count(target.model, wanted, config, [4, 8])
    assert len(loop) == 32
    assert sum(decoded.counts.num_accepted_tokens for decoded in loop) > 100


def bundled_prompts() -> list[tuple[int, ...]]:
    """Prompts of the bundled traffic in its order."""
    prompts = []
    with gzip.open(demo.TRAFFIC, "rt", encoding="utf-8") as file:
        for line in itertools.islice(file, 2_000):
            with contextlib.suppress(ValueError, KeyError, TypeError):  # bad on purpose, or without token ids
                prompts.append(tuple(json.loads(line)["response"]["choices"][0]["prompt_token_ids"]))
    return prompts


def test_a_refused_response_is_not_remembered(target: Any) -> None:
    """Only what may be the target's feeds the drafts of those after it."""
    config = SpeculationConfig("s", "t", None, "suffix", 4, VerifyRule.GREEDY_DRAFT)
    loaded = LoadedModel("t", target, None, ENDS, "", "", "")  # type: ignore[arg-type]  # no tokenizer is needed

    def counts_of_the_last(first: tuple[int, ...]) -> Any:
        asked = Request((2, 3, 4), SAMPLINGS["greedy"], 0)
        answer = decoded(target, [asked], None, 0, VerifyRule.GREEDY)[0].output
        before = Response(RecordKey("file", 0, 1), asked, first or answer)
        replayer = Replayer([Drafting(config, None)], [4], end_token_ids=ENDS, target=loaded)
        refused, last = replayer.replay([before, Response(RecordKey("file", 0, 2), asked, answer)])
        assert isinstance(last, Replayed)
        return isinstance(refused, RecordError), last.counts[0][0].num_accepted_tokens

    (was_refused, cold), (was_taken_badly, warm) = counts_of_the_last((11, 10, 9, 8)), counts_of_the_last(())
    assert was_refused
    assert not was_taken_badly
    assert warm > cold


def test_adaptive_depth_is_refused() -> None:
    config = SpeculationConfig("sure", "t", "d", "draft_model", 4, VerifyRule.REJECTION, draft_confidence_threshold=0.4)
    with pytest.raises(ConfigError, match="'sure': draft_confidence_threshold cannot be replayed"):
        Replayer([Drafting(config, None)], [4], end_token_ids=ENDS, target=None)


def rejection_z(target: Any, draft: Any, scored_draft: Any, depth: int, count: int) -> float:
    """How many standard errors the loop's accepted tokens, less what their mean step gives, lie from replay's."""
    wanted = requests(count, ("plain", "warm", "cut", "penalised"))
    loop = decoded(target, wanted, DraftModelProposer(draft, depth, is_sampling=True), depth, VerifyRule.REJECTION)
    expected = replayed(target, scored_draft, VerifyRule.REJECTION, responses_of(wanted, loop), depth)
    length = sum(e.num_accepted_tokens for e in expected) / sum(e.num_drafts for e in expected)
    differences = [
        (decoded.counts.num_accepted_tokens - e.num_accepted_tokens)
        - length * (decoded.counts.num_drafts - e.num_drafts)
        for decoded, e in zip(loop, expected, strict=True)
    ]
    variance = sum(
        e.accepted_variance - 2 * length * e.drafts_accepted_covariance + length**2 * e.drafts_variance
        for e in expected
    )
    return float(sum(differences) / np.sqrt(variance))


@pytest.mark.representative("4")
@pytest.mark.parametrize("depth", [1, 4])
def test_rejection_is_replayed_in_expectation(target: Any, draft: Any, depth: int) -> None:
    assert abs(rejection_z(target, draft, draft, depth, 400)) < 3.5


@pytest.mark.all
def test_a_shift_by_one_position_is_caught(target: Any) -> None:
    near = disturbed(tiny_llama(1), share=0.05)
    assert abs(rejection_z(target, near, near, 4, 300)) < 3.5
    assert abs(rejection_z(target, near, Shifted(near), 4, 300)) > 6.0


def test_the_same_chances_whatever_fits_into_memory(target: Any, draft: Any) -> None:
    wanted = requests(24)
    responses = responses_of(wanted, decoded(target, wanted, None, 0, VerifyRule.EXACT_MATCH))
    assert max(len(rows) for rows in pack(responses, 40)) < max(len(rows) for rows in pack(responses, 10_000))
    for model in (target, draft):
        whole = token_scores(model, responses, ENDS, with_probs=True)
        parts = token_scores(model, responses, ENDS, with_probs=True, budget=Budget(tokens=60, logits=100))
        for one, other in zip(whole, parts, strict=True):
            assert (one.is_best == other.is_best).all()
            assert np.allclose(one.gaps, other.gaps, atol=1e-3)
            assert (one.probs is None) == (other.probs is None)
            if one.probs is not None and other.probs is not None:
                assert np.allclose(one.probs, other.probs, atol=1e-4)


def test_a_direct_forward_scores_whole_texts_as_passes_over_columns_do(target: Any, draft: Any) -> None:
    """Every kind of sampling, in several batches and with several passes of the head to a response."""
    wanted = requests(24)
    responses = responses_of(wanted, decoded(target, wanted, None, 0, VerifyRule.EXACT_MATCH))
    for model in (target, draft):
        expected = token_scores(model, responses, ENDS, with_probs=True)
        direct = DirectLlama(copy.deepcopy(model))
        for budget in (None, Budget(tokens=60, logits=100)):
            found = token_scores(direct, responses, ENDS, with_probs=True, budget=budget)
            for one, other in zip(expected, found, strict=True):
                assert (one.is_best == other.is_best).all()
                assert np.allclose(one.gaps, other.gaps, atol=1e-3)
                assert (one.probs is None) == (other.probs is None)
                if one.probs is not None and other.probs is not None:
                    assert np.allclose(one.probs, other.probs, atol=1e-4)


def test_scores_are_those_of_a_plain_forward_pass(target: Any) -> None:
    wanted = requests(8, ("plain", "greedy"))
    responses = responses_of(wanted, decoded(target, wanted, None, 0, VerifyRule.EXACT_MATCH))
    for response, scores in zip(responses, token_scores(target, responses, ENDS, with_probs=True), strict=True):
        tokens = torch.tensor([[*response.request.prompt, *response.output]])
        with torch.inference_mode():
            logits = target(input_ids=tokens).logits[0, len(response.request.prompt) - 1 : -1]
        chosen = torch.tensor(response.output)[:, None]
        assert (scores.is_best == (logits.argmax(-1) == chosen[:, 0]).numpy()).all()
        assert np.allclose(scores.gaps, (logits.amax(-1) - logits.gather(1, chosen)[:, 0]).numpy(), atol=1e-3)
        if response.request.sampling.temperature > 0.0:
            assert scores.probs is not None
            assert np.allclose(scores.probs, logits.softmax(-1).gather(1, chosen)[:, 0].numpy(), atol=1e-4)
        else:
            assert scores.probs is None


@settings(max_examples=80, deadline=None)
@given(
    st.lists(st.integers(0, 3), min_size=1, max_size=12),
    st.lists(st.integers(0, 3), min_size=1, max_size=20),
    st.integers(1, 3),
    st.integers(0, 2),
    st.integers(1, 5),
)
def test_lookup_proposes_what_the_loop_looks_up(
    prompt: list[int], output: list[int], shortest: int, more: int, depth: int
) -> None:
    response = Response(RecordKey("f", 0, 1), Request(tuple(prompt), SamplingParameters(), 0), tuple(output))
    chances = lookup_chances([response], shortest, shortest + more, depth)
    tokens = np.array([*prompt, *output], dtype=np.int64)
    for place in range(len(output)):
        now = len(prompt) + place
        found = lookup(tokens[:now], shortest, shortest + more, depth)
        assert chances.proposed[0, place] == len(found)
        matches = [float(one == other) for one, other in zip(found, tokens[now:], strict=False)]
        assert chances.accept[0, place, : len(matches)].tolist() == matches


def logged(sampling: SamplingParameters, logprobs: tuple[float, ...] | None) -> Response:
    return Response(RecordKey("file", 0, 7), Request((3,), sampling, 0), (4, 5), logprobs)


def test_logged_logprobs_are_used_where_they_are_of_what_was_sampled() -> None:
    given = (-0.5, -1.5)
    assert np.allclose(logged_target_probs(logged(SamplingParameters(), given), LogprobsMode.RAW), np.exp([-0.5, -1.5]))
    warm = logged(SamplingParameters(temperature=0.7, top_p=0.9), given)
    assert np.allclose(logged_target_probs(warm, LogprobsMode.PROCESSED), np.exp([-0.5, -1.5]))


@pytest.mark.parametrize(
    ("changes", "logprobs", "mode", "reason"),
    [
        ({}, None, LogprobsMode.RAW, "no_logprobs"),
        ({}, (-0.5,), LogprobsMode.RAW, "no_logprobs"),
        ({}, (-0.5, -9999.0), LogprobsMode.RAW, "zero_probability"),
        *(
            (changes, (-0.5, -1.5), LogprobsMode.RAW, "raw_logprobs")
            for changes in (
                {"temperature": 0.9}, {"top_p": 0.9}, {"top_k": 3}, {"min_p": 0.1}, {"repetition_penalty": 1.1},
                {"presence_penalty": 0.1}, {"frequency_penalty": 0.1}, {"min_tokens": 1},
            )
        ),
    ],
)  # fmt: skip
def test_logged_logprobs_are_refused_otherwise(
    changes: dict[str, Any], logprobs: tuple[float, ...] | None, mode: LogprobsMode, reason: str
) -> None:
    with pytest.raises(RecordError, match=r"file\[0\]@7") as raised:
        logged_target_probs(logged(SamplingParameters(**changes), logprobs), mode)
    assert raised.value.reason == reason


def test_a_response_of_another_target_is_refused() -> None:
    sampled, greedy = logged(SamplingParameters(), None), logged(SamplingParameters(temperature=0.0), None)
    impossible = TokenScores(np.array([0.5, 0.0]), np.array([True, False]), np.array([0.0, 9.0]))
    with pytest.raises(RecordError, match=r"file\[0\]@7.*output token 1 has probability 0") as raised:
        check_target(sampled, impossible, 0.1)
    assert raised.value.reason == "zero_probability"
    with pytest.raises(RecordError, match=r"file\[0\]@7.*output token 1 .* 9 below it") as raised:
        check_target(greedy, impossible, 0.1)
    assert raised.value.reason == "not_argmax"
    near = TokenScores(None, np.array([True, False]), np.array([0.0, 0.05]))
    assert check_target(greedy, near, 0.1) == 1


def test_groups_hold_each_response_once_and_stay_small() -> None:
    lengths = [5, 900, 1, 40, 40, 3, 2_000]
    groups = list(group_by_length(lengths, 1_000))
    assert sorted(row for rows in groups for row in rows) == list(range(len(lengths)))
    assert all(len(rows) * max(lengths[row] for row in rows) <= 1_000 or len(rows) == 1 for rows in groups)


def test_expected_counts_say_what_they_are() -> None:
    assert set(COUNTED) <= set(asdict(expected_counts(step_law(StepChances.of_prefix([np.ones(3)], 2), [2]), 0, 1)[0]))

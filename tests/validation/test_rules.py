"""vLLM's drafting rules as they are reproduced: its n-gram against a transcript of it, its sampled drafts by law."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs
from transformers import LlamaForCausalLM

from kernels.benchmarks.validation.comparing import standard_errors
from kernels.benchmarks.validation.mend.vllm_cpu_expand import expand
from kernels.benchmarks.validation.servers import FIX_FOLDER
from kernels.benchmarks.validation.vllm_rules import (
    UntruncatedDraftProposer,
    earliest_chances,
    earliest_lookup,
    untruncated,
)
from shadowspec.engine.batch import Request
from shadowspec.engine.decode import Decoded, decode_batch
from shadowspec.engine.proposers import Proposer
from shadowspec.engine.proposers.draft_model import DraftModelProposer
from shadowspec.engine.proposers.ngram import NgramProposer, lookup
from shadowspec.engine.replay.acceptance import prefix_accept
from shadowspec.engine.replay.law import StepChances, expected_counts, step_law
from shadowspec.engine.replay.response_tokens import Response
from shadowspec.engine.replay.scoring import token_scores
from shadowspec.types import ExpectedCounts, RecordKey, SamplingParameters, VerifyRule
from tests.small_models import disturbed, tiny_llama

ENDS = frozenset({1})
TRUNCATED = SamplingParameters(temperature=1.2, top_p=0.7, max_tokens=24)


def longest_by_prefixes(tokens: list[int], shortest: int, longest: int, count: int) -> list[int]:
    """`_find_longest_matched_ngram_and_propose_tokens` of vLLM 0.32, transcribed: KMP over the reversed tokens."""
    total = len(tokens)
    if total < shortest:
        return []
    reverse = tokens[::-1]
    prefixes = [0] * longest
    found, position, previous, i = 0, 0, 0, 1
    while i < total:
        if reverse[previous] == reverse[i]:
            previous += 1
            if previous >= found:
                found, position = previous, i
            if i < longest:
                prefixes[i] = previous
            if previous == longest:
                previous = prefixes[longest - 1]
            i += 1
        elif previous:
            previous = prefixes[previous - 1]
        else:
            i += 1
    if found < shortest:
        return []
    start = total - 1 - position + found
    return tokens[start : start + min(count, total - start)]


@given(st.lists(st.integers(0, 2), min_size=1, max_size=40), st.integers(1, 4), st.integers(0, 3), st.integers(1, 6))
def test_ngrams_are_looked_up_as_vllm_does(tokens: list[int], shortest: int, more: int, count: int) -> None:
    found = earliest_lookup(np.array(tokens), shortest, shortest + more, count)
    assert found.tolist() == longest_by_prefixes(tokens, shortest, shortest + more, count)


def test_of_several_occurrences_the_earliest_is_copied_and_ours_copies_the_latest() -> None:
    tokens = np.array([5, 6, 7, 5, 6, 8, 5, 6])
    assert earliest_lookup(tokens, 2, 4, 1).tolist() == [7]
    assert lookup(tokens, 2, 4, 1).tolist() == [8]


@pytest.fixture(scope="module")
def target() -> LlamaForCausalLM:
    return tiny_llama(1)


@pytest.fixture(scope="module")
def draft() -> LlamaForCausalLM:
    return disturbed(tiny_llama(1))


def requests(count: int, sampling: SamplingParameters) -> list[Request]:
    rng = np.random.default_rng(3)
    return [Request(tuple(rng.integers(2, 12, 2 + row % 11).tolist()), sampling, row) for row in range(count)]


def looped(
    target: LlamaForCausalLM, wanted: list[Request], proposer: Proposer, rule: VerifyRule, depth: int
) -> tuple[list[Decoded], list[Response]]:
    result = decode_batch(
        target, wanted, proposer=proposer, num_speculative_tokens=depth, verify_rule=rule, end_token_ids=ENDS
    )
    logged = [
        Response(RecordKey("file", 0, row), request, each.output)
        for row, (request, each) in enumerate(zip(wanted, result.decoded, strict=True))
    ]
    return list(result.decoded), logged


def expected(chances: StepChances, logged: list[Response], depth: int) -> list[ExpectedCounts]:
    law = step_law(chances, [depth])
    return [expected_counts(law, row, len(response.request.prompt))[0] for row, response in enumerate(logged)]


@pytest.mark.parametrize("depth", [2, 5])
def test_earliest_lookups_are_replayed_to_the_count(target: LlamaForCausalLM, depth: int) -> None:
    wanted = requests(40, SamplingParameters(temperature=0.5, max_tokens=24))
    proposer = NgramProposer(depth, 1, 3, earliest_lookup)
    decoded, logged = looped(target, wanted, proposer, VerifyRule.GREEDY_DRAFT, depth)
    found = expected(earliest_chances(logged, 1, 3, depth), logged, depth)
    names = ("num_drafts", "num_plain_steps", "num_draft_tokens", "num_accepted_tokens", "acceptance_histogram")
    for item, one in zip(decoded, found, strict=True):
        for name in names:
            assert np.allclose(getattr(item.counts, name), getattr(one, name)), name
    assert sum(decoded.counts.num_accepted_tokens for decoded in decoded) > 0
    assert sum(decoded.counts.num_plain_steps for decoded in decoded) > 0


def replayed_z(
    target: LlamaForCausalLM, draft: LlamaForCausalLM, proposer: Proposer, *, is_untruncated: bool
) -> tuple[float, float]:
    """How far the loop lies from replay, in standard errors, and the share of drafted tokens that it accepted."""
    wanted = requests(400, TRUNCATED)
    decoded, logged = looped(target, wanted, proposer, VerifyRule.REJECTION, 3)
    plain_scores = token_scores(target, logged, ENDS, with_probs=True)
    drafted_for = [untruncated(each) for each in logged] if is_untruncated else logged
    drafts = token_scores(draft, drafted_for, ENDS, with_probs=True)
    accepts = [
        prefix_accept(VerifyRule.REJECTION, response, scores, of_target.probs)
        for response, scores, of_target in zip(logged, drafts, plain_scores, strict=True)
    ]
    counts = [each.counts for each in decoded]
    found = expected(StepChances.of_prefix(accepts, 3), logged, 3)
    share = sum(each.num_accepted_tokens for each in counts) / sum(each.num_draft_tokens for each in counts)
    return standard_errors(counts, found), share


def test_drafts_sampled_by_temperature_alone_are_accepted_as_replay_says(
    target: LlamaForCausalLM, draft: LlamaForCausalLM
) -> None:
    theirs = UntruncatedDraftProposer(draft, 3, is_sampling=True)
    ours = DraftModelProposer(draft, 3, is_sampling=True)
    own_z, own_share = replayed_z(target, draft, theirs, is_untruncated=True)
    assert abs(own_z) < 4.0
    other_z, _ = replayed_z(target, draft, theirs, is_untruncated=False)
    assert abs(other_z) > 4.0, "the two rules can be told apart here"
    z, share = replayed_z(target, draft, ours, is_untruncated=False)
    assert abs(z) < 4.0
    assert own_share < share, "a draft that is not cut proposes what the target forbids"


def test_truncation_is_left_to_the_target(target: LlamaForCausalLM, draft: LlamaForCausalLM) -> None:
    """A token that top-p forbids is proposed, and never accepted."""
    sampling = structs.replace(TRUNCATED, top_p=0.01)  # the arg-max alone
    wanted = requests(20, sampling)
    proposer = UntruncatedDraftProposer(draft, 3, is_sampling=True)
    decoded, _ = looped(target, wanted, proposer, VerifyRule.REJECTION, 3)
    greedy = [replace(request, sampling=structs.replace(sampling, temperature=0.0)) for request in wanted]
    plain = decode_batch(
        target, greedy, proposer=None, num_speculative_tokens=0, verify_rule=VerifyRule.GREEDY, end_token_ids=ENDS
    )
    assert [each.output for each in decoded] == [each.output for each in plain.decoded]
    assert any(each.counts.num_accepted_tokens < each.counts.num_draft_tokens for each in decoded)


def test_the_mend_expands_as_the_gpus_kernel_does() -> None:
    """Each request's value for each of its tokens, with zeros (of greedy requests) replaced, and fractions kept."""
    output = torch.full((7,), 99.0)
    expand(output, torch.tensor([0.8, 0.0, 0.3]), torch.tensor([2, 4, 7], dtype=torch.int32), 0, 1)
    assert output.tolist() == pytest.approx([0.8, 0.8, 1.0, 1.0, 0.3, 0.3, 0.3])


def test_the_mend_replaces_one_function_of_one_module(tmp_path: Path) -> None:
    """In a process that has it on its path, as vLLM's have."""
    package = tmp_path / "vllm" / "utils"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (tmp_path / "vllm" / "__init__.py").write_text("")
    (package / "cpu_triton_utils.py").write_text("other = 5\ndef _expand_kernel_impl(): pass\n")
    program = "from vllm.utils import cpu_triton_utils as own; print(own._expand_kernel_impl.__name__, own.other)"
    for path, name in ((f"{FIX_FOLDER}{os.pathsep}{tmp_path}", "expand"), (str(tmp_path), "_expand_kernel_impl")):
        ran = subprocess.run(
            [sys.executable, "-c", program], env={"PYTHONPATH": path}, capture_output=True, text=True, check=True
        )
        assert ran.stdout.split() == [name, "5"]

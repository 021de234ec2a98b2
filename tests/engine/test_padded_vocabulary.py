"""Drafts of their target's tokenizer whose vocabulary is padded to another size: nothing is lost by either padding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from shadowspec.engine.batch import Request
from shadowspec.engine.candidate import Candidate, Models
from shadowspec.engine.models import LoadedModel
from shadowspec.engine.proposers.draft_model import DraftModelProposer
from shadowspec.engine.replay.replayer import Drafting, Replayer
from shadowspec.engine.replay.response_tokens import Response
from shadowspec.types import RecordKey, SamplingParameters, SpeculationConfig, VerifyRule
from shadowspec.types.settings import EngineSettings
from tests.builders.decoded_prompts import decode_greedy
from tests.builders.verification import LEVEL, SAMPLING, draw, exact_distribution, p_value
from tests.small_models import disturbed, letter_tokenizer, save_model, tiny_llama

LETTERS = 10  # tokens of the tokenizer that both have
SIZES = {"longer_target": (14, 12), "longer_draft": (12, 14)}  # rows of target and draft
RULES = (
    VerifyRule.REJECTION,
    pytest.param(VerifyRule.GREEDY_DRAFT, marks=pytest.mark.all),
    pytest.param(VerifyRule.EXACT_MATCH, marks=pytest.mark.all),
)


def padded(size: int, *, is_draft: bool) -> Any:
    """The same model but for the rows past the letters, which a padding holds and which may be likely."""
    model, rows = tiny_llama(size, vocabulary=size), tiny_llama(1, vocabulary=LETTERS).state_dict()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name in ("model.embed_tokens.weight", "lm_head.weight"):
                weight[:LETTERS] = rows[name]
            else:
                weight.copy_(rows[name])
    return disturbed(model, share=0.1) if is_draft else model


@pytest.fixture(scope="module", params=SIZES)
def sizes(request: pytest.FixtureRequest) -> tuple[int, int]:
    return SIZES[request.param]


@pytest.fixture(scope="module")
def plain(sizes: tuple[int, int]) -> Any:
    return padded(sizes[0], is_draft=False)


@pytest.fixture(scope="module")
def warnings() -> list[str]:
    return []


@pytest.fixture(scope="module")
def ready(
    sizes: tuple[int, int], plain: Any, tmp_path_factory: pytest.TempPathFactory, warnings: list[str]
) -> tuple[LoadedModel, Candidate, Models]:
    root = tmp_path_factory.mktemp("padded")
    target = save_model(root / "target", plain, letter_tokenizer(LETTERS))
    draft = save_model(root / "draft", padded(sizes[1], is_draft=True), letter_tokenizer(LETTERS))
    config = SpeculationConfig("p", str(target), str(draft), "draft_model", 3, VerifyRule.REJECTION)
    models = Models(EngineSettings("cpu", "float32"))
    loaded, (candidate,) = models.candidates(str(target), [config], warnings.append, 1, {})
    return loaded, candidate, models


def proposer_of(candidate: Candidate, depth: int, *, is_sampling: bool) -> DraftModelProposer:
    assert isinstance(candidate.draft, LoadedModel)
    return DraftModelProposer(candidate.draft.model, depth, is_sampling=is_sampling)


def test_the_pair_is_accepted_and_said(
    ready: tuple[LoadedModel, Candidate, Models], sizes: tuple[int, int], warnings: Sequence[str]
) -> None:
    _, candidate, models = ready
    assert any(f"({sizes[1]} and {sizes[0]} rows): it drafts no token past 11" in warning for warning in warnings)
    assert candidate.config.details["shared_tokens"] == "12"
    assert isinstance(candidate.draft, LoadedModel)
    assert candidate.draft.model.embedding is models.load(candidate.draft.path).model.embedding


def test_greedy_output_is_the_targets_and_replay_counts_it(ready: tuple[LoadedModel, Candidate, Models]) -> None:
    """With prompts and outputs that hold ids of the padding."""
    target, candidate, _ = ready
    sampling = SamplingParameters(temperature=0.0, max_tokens=24, ignore_eos=True)
    size = target.tokenizer.vocabulary_size
    rng = torch.Generator().manual_seed(3)
    prompts = [tuple(torch.randint(2, size, (length,), generator=rng).tolist()) for length in (4, 9, 23, 6, 5, 7)]
    requests = [Request(prompt, sampling, row) for row, prompt in enumerate(prompts)]
    drafted = decode_greedy(target.model, requests, proposer_of(candidate, 3, is_sampling=False), 3)
    assert [row.output for row in drafted] == [row.output for row in decode_greedy(target.model, requests, None, 0)]
    assert sum(row.counts.num_accepted_tokens for row in drafted) > 0
    assert any(token >= LETTERS for row in drafted for token in row.output), "the padding is emitted too"
    assert isinstance(candidate.draft, LoadedModel)
    drafting = Drafting(candidate.config.config, candidate.draft)
    replayer = Replayer([drafting], [3], end_token_ids=frozenset({1}), target=target)
    responses = [
        Response(RecordKey("f", 0, row), request, decoded.output)
        for row, (request, decoded) in enumerate(zip(requests, drafted, strict=True))
    ]
    for decoded, replayed in zip(drafted, replayer.replay(responses), strict=True):
        counts = replayed.counts[0][0]  # type: ignore[union-attr]
        assert counts.num_accepted_tokens == pytest.approx(decoded.counts.num_accepted_tokens)


@pytest.mark.slow
@pytest.mark.parametrize("rule", RULES)
def test_outputs_follow_the_targets_distribution(
    ready: tuple[LoadedModel, Candidate, Models], plain: Any, rule: VerifyRule
) -> None:
    """The target's own padding included: a token that the draft cannot propose keeps its probability."""
    _, candidate, _ = ready
    is_sampling = rule is VerifyRule.REJECTION
    outputs = draw(plain, SAMPLING, rule, lambda: proposer_of(candidate, 2, is_sampling=is_sampling))
    exact = exact_distribution(plain, SAMPLING)
    assert p_value(outputs, exact) > LEVEL
    size = int(plain.config.vocab_size)
    if size > 12:
        past = sum(probability for output, probability in exact.items() if max(output) >= 12)
        assert past > 0.05, "the test sees what the draft cannot propose"

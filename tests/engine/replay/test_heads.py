"""Replay of heads against the loop: what the loop did on its own outputs is what replay says of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from shadowspec.engine.candidate import Models
from shadowspec.engine.decode import decode_batch
from shadowspec.engine.heads.loading import LoadedHeads
from shadowspec.engine.models import LoadedModel, load_model
from shadowspec.engine.replay.replayer import Drafting, Replayed, Replayer
from shadowspec.engine.replay.scoring import Budget
from shadowspec.types import ExpectedCounts, SpeculationConfig, VerifyRule
from shadowspec.types.settings import EngineSettings
from tests.builders.head_candidates import KINDS, candidate
from tests.builders.replayed_requests import ENDS, assert_counts_equal, requests, responses_of
from tests.engine.heads.reference import Eagle3, Medusa, Speculator
from tests.small_models import letter_tokenizer, save_model, tiny_llama

HEADS = 4


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    folder = save_model(tmp_path_factory.mktemp("target"), tiny_llama(1, layers=3), letter_tokenizer())
    return load_model(str(folder), torch.device("cpu"), torch.float32)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("heads")
    torch.manual_seed(3)
    return {
        "medusa": Medusa(HEADS, 1).save(root / "medusa", 1),
        "mlp_speculator": Speculator(HEADS, 24).save(root / "mlp"),
        "eagle3": Eagle3([0, 2, 3, 5, 6, 7, 8, 10]).save(root / "eagle"),
    }


def looped(target: LoadedModel, folders: dict[str, Path], kind: str, rule: VerifyRule, wanted: Any, depth: int) -> Any:
    drafting = candidate(kind, folders, target, depth, rule)
    return decode_batch(
        target.model, wanted, proposer=drafting.proposer(), num_speculative_tokens=depth, verify_rule=rule,
        end_token_ids=ENDS,
    ).decoded  # fmt: skip


def replayed(
    target: LoadedModel, folders: dict[str, Path], kind: str, rule: VerifyRule, responses: Any, depths: list[int],
    budget: Budget | None = None,
) -> list[tuple[ExpectedCounts, ...]]:  # fmt: skip
    config = SpeculationConfig("h", target.path, str(folders[kind]), kind, 1, rule)
    draft = Models(EngineSettings("cpu", "float32")).draft(config, target)
    assert isinstance(draft, LoadedHeads)
    replayer = Replayer([Drafting(config, draft)], depths, end_token_ids=ENDS, target=target, budget=budget)
    results = replayer.replay(responses)
    return [result.counts[0] for result in results if isinstance(result, Replayed)]


@pytest.mark.representative(
    "eagle3-4-greedy_draft", "medusa-3-exact_match", "mlp_speculator-1-greedy_draft", "mlp_speculator-4-exact_match"
)
@pytest.mark.parametrize("rule", [VerifyRule.GREEDY_DRAFT, VerifyRule.EXACT_MATCH])
@pytest.mark.parametrize("depth", [1, 3, 4])
@pytest.mark.parametrize("kind", KINDS)
def test_heads_that_are_certain_are_replayed_to_the_count(
    kind: str, depth: int, rule: VerifyRule, target: LoadedModel, folders: dict[str, Path]
) -> None:
    wanted = requests(36)
    loop = looped(target, folders, kind, rule, wanted, depth)
    counts = replayed(target, folders, kind, rule, responses_of(wanted, loop), [depth])
    for item, (expected,) in zip(loop, counts, strict=True):
        assert_counts_equal(item.counts, expected)
    assert (
        0 < sum(item.counts.num_accepted_tokens for item in loop) < sum(item.counts.num_draft_tokens for item in loop)
    )


@pytest.mark.parametrize("kind", KINDS)
def test_greedy_requests_are_replayed_to_the_count_under_rejection(
    kind: str, target: LoadedModel, folders: dict[str, Path]
) -> None:
    wanted = requests(16, ("greedy", "greedy penalised"))
    loop = looped(target, folders, kind, VerifyRule.REJECTION, wanted, 3)
    counts = replayed(target, folders, kind, VerifyRule.REJECTION, responses_of(wanted, loop), [3])
    for item, (expected,) in zip(loop, counts, strict=True):
        assert_counts_equal(item.counts, expected)


def rejection_z(target: LoadedModel, folders: dict[str, Path], kind: str, count: int, depth: int) -> float:
    """How many standard errors the loop's accepted tokens, less what their mean step gives, lie from replay's."""
    wanted = requests(count, ("plain", "warm", "cut", "penalised"))
    loop = looped(target, folders, kind, VerifyRule.REJECTION, wanted, depth)
    counts = replayed(target, folders, kind, VerifyRule.REJECTION, responses_of(wanted, loop), [depth])
    found = [
        (item.counts.num_accepted_tokens - float(expected.num_accepted_tokens), expected.accepted_variance)
        for item, (expected,) in zip(loop, counts, strict=True)
    ]
    differences, variances = np.array(found).T
    assert variances.sum() > 10
    return float(differences.sum() / np.sqrt(variances.sum()))


@pytest.mark.representative("eagle3")
@pytest.mark.parametrize("kind", KINDS)
def test_the_loop_lies_as_far_from_replay_as_the_law_says(
    kind: str, target: LoadedModel, folders: dict[str, Path]
) -> None:
    assert abs(rejection_z(target, folders, kind, 240, 3)) < 4


@pytest.mark.representative("medusa")
@pytest.mark.parametrize("kind", KINDS)
def test_a_small_budget_changes_nothing(kind: str, target: LoadedModel, folders: dict[str, Path]) -> None:
    wanted = requests(12)
    responses = responses_of(wanted, looped(target, folders, kind, VerifyRule.REJECTION, wanted, 2))
    whole = replayed(target, folders, kind, VerifyRule.REJECTION, responses, [1, 2, 4])
    small = replayed(target, folders, kind, VerifyRule.REJECTION, responses, [1, 2, 4], Budget(tokens=60, logits=36))
    for first, second in zip(whole, small, strict=True):
        for one, other in zip(first, second, strict=True):
            assert one.num_accepted_tokens == pytest.approx(other.num_accepted_tokens, abs=1e-4)


def test_no_more_is_proposed_than_there_are_heads(target: LoadedModel, folders: dict[str, Path]) -> None:
    wanted = requests(12)
    responses = responses_of(wanted, looped(target, folders, "medusa", VerifyRule.GREEDY_DRAFT, wanted, 4))
    for whole, beyond in replayed(target, folders, "medusa", VerifyRule.GREEDY_DRAFT, responses, [HEADS, HEADS + 2]):
        assert beyond.num_accepted_tokens == whole.num_accepted_tokens
        assert beyond.num_draft_tokens == whole.num_draft_tokens

"""Every rule leaves the target's distribution unchanged: the whole loop against exact enumeration."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from msgspec import structs

from shadowspec.engine import verify
from shadowspec.engine.batch import Batch, Request
from shadowspec.engine.decode import decode_batch
from shadowspec.engine.kv_cache import ColumnSpan
from shadowspec.engine.parity import z_scores
from shadowspec.engine.proposers import Proposal
from shadowspec.engine.proposers.draft_model import DraftModelProposer
from shadowspec.engine.proposers.ngram import NgramProposer
from shadowspec.engine.proposers.recent_outputs import RecentOutputs
from shadowspec.engine.proposers.suffix import SuffixOptions, SuffixProposer
from shadowspec.engine.randomness import sample
from shadowspec.engine.verify import Verification, verify_sampled
from shadowspec.types import RecordKey, SamplingParameters, VerifyRule
from tests.builders.verification import DRAWS, LEVEL, PROMPT, SAMPLING, draw, exact_distribution, p_value

pytestmark = pytest.mark.slow  # all of them together


def proposer_for(rule: VerifyRule, draft: Any) -> Callable[[], Any]:
    return lambda: DraftModelProposer(draft, 2, is_sampling=rule is VerifyRule.REJECTION)


@pytest.mark.representative("rejection-t0.8", "greedy_draft-top_p")
@pytest.mark.parametrize(
    "sampling", [SAMPLING, structs.replace(SAMPLING, temperature=1.2, top_p=0.9)], ids=["t0.8", "top_p"]
)
@pytest.mark.parametrize("rule", [VerifyRule.REJECTION, VerifyRule.GREEDY_DRAFT, VerifyRule.EXACT_MATCH])
def test_outputs_follow_the_targets_distribution(
    target: Any, draft: Any, rule: VerifyRule, sampling: SamplingParameters
) -> None:
    outputs = draw(target, sampling, rule, proposer_for(rule, draft))
    assert p_value(outputs, exact_distribution(target, sampling)) > LEVEL


@pytest.mark.all
def test_ngram_drafts_follow_the_targets_distribution(target: Any) -> None:
    outputs = draw(target, SAMPLING, VerifyRule.GREEDY_DRAFT, lambda: NgramProposer(2, 1, 3))
    assert p_value(outputs, exact_distribution(target, SAMPLING)) > LEVEL


@pytest.mark.all
@pytest.mark.representative("greedy_draft")
@pytest.mark.parametrize("rule", [VerifyRule.GREEDY_DRAFT, VerifyRule.EXACT_MATCH])
def test_suffix_drafts_follow_the_targets_distribution(target: Any, rule: VerifyRule) -> None:
    recent = RecentOutputs(24, 1_000)
    for number, output in enumerate([(5, 3, 7, 7, 2), (3, 9, 4, 4, 4), (3, 9, 5)]):
        recent.add(RecordKey("f", 0, number), output)
    index = recent.without(set())
    drafted = []

    class Counted(SuffixProposer):
        def propose(self, batch: Batch, span: ColumnSpan) -> Proposal:
            proposal = super().propose(batch, span)
            drafted.append(int(proposal.num_drafted.sum()))
            return proposal

    outputs = draw(target, SAMPLING, rule, lambda: Counted(2, SuffixOptions(max_spec_factor=2.0), index))
    assert p_value(outputs, exact_distribution(target, SAMPLING)) > LEVEL
    assert sum(drafted) > DRAWS, "enough is drafted for a fault to show"


@pytest.mark.representative("exact_match-t0.8")
@pytest.mark.parametrize(
    ("sampling", "threshold"),
    [(SAMPLING, 0.6), (structs.replace(SAMPLING, temperature=1.2, top_p=0.9), 0.45)],
    ids=["t0.8", "top_p"],
)
@pytest.mark.parametrize("rule", [VerifyRule.REJECTION, VerifyRule.GREEDY_DRAFT, VerifyRule.EXACT_MATCH])
def test_adaptive_depth_leaves_the_targets_distribution(
    target: Any, draft: Any, rule: VerifyRule, sampling: SamplingParameters, threshold: float
) -> None:
    seen: Counter[int] = Counter()

    class Counted(DraftModelProposer):
        def propose(self, batch: Batch, span: ColumnSpan) -> Proposal:
            proposal = super().propose(batch, span)
            seen.update(count for row, count in enumerate(proposal.num_drafted.tolist()) if batch.is_active(row))
            return proposal

    def make() -> DraftModelProposer:
        return Counted(draft, 2, is_sampling=rule is VerifyRule.REJECTION, confidence_threshold=threshold)

    outputs = draw(target, sampling, rule, make)
    assert p_value(outputs, exact_distribution(target, sampling)) > LEVEL
    assert min(seen[0], seen[1], seen[2]) > DRAWS / 40, "every depth occurs"


class OwnProbability(DraftModelProposer):
    """Wrong on purpose: a row stops at the first drawn token that is itself improbable, and drops that token."""

    def propose(self, batch: Batch, span: ColumnSpan) -> Proposal:
        proposal = super().propose(batch, span)
        assert proposal.draft_probs is not None
        draft_chances = proposal.draft_probs.gather(2, proposal.tokens[:, :, None])[..., 0]
        return replace(proposal, num_drafted=(draft_chances >= 0.45).to(torch.int64).cumprod(1).sum(1))


@pytest.mark.all
def test_stopping_by_the_drawn_token_is_biased(target: Any, draft: Any) -> None:
    """Why the depth is decided before the token is drawn."""
    outputs = draw(target, SAMPLING, VerifyRule.REJECTION, lambda: OwnProbability(draft, 2, is_sampling=True))
    assert p_value(outputs, exact_distribution(target, SAMPLING)) < 1e-12


def without_residual(rule: VerifyRule, target_probs: torch.Tensor, *args: Any) -> Verification:
    """Broken on purpose: after a rejection it samples the target instead of the residual."""
    verification = verify_sampled(rule, target_probs, *args)
    rows = torch.arange(target_probs.shape[0])
    uniform = args[4].gather(1, verification.num_accepted[:, None]).squeeze(1)
    return Verification(verification.num_accepted, sample(target_probs[rows, verification.num_accepted], uniform))


def hotter(rule: VerifyRule, target_probs: torch.Tensor, *args: Any) -> Verification:
    """Broken on purpose: verifies against the target at another temperature."""
    probs = target_probs**0.8
    return verify_sampled(rule, probs / probs.sum(-1, keepdim=True), *args)


@pytest.mark.all
@pytest.mark.parametrize("broken", [without_residual, hotter])
def test_a_broken_rule_fails_chi_square_and_z(
    target: Any, draft: Any, broken: Callable[..., Verification], monkeypatch: pytest.MonkeyPatch
) -> None:
    rule = VerifyRule.REJECTION
    exact = exact_distribution(target, SAMPLING)

    def mean_z() -> tuple[float, float]:
        """Mean and standard error of the teacher-forced z over requests."""
        outputs = draw(target, SAMPLING, rule, proposer_for(rule, draft))
        requests = [Request(PROMPT, SAMPLING, seed) for seed in range(len(outputs))]
        (scores,) = z_scores(target, requests, frozenset({1}), outputs)
        values = np.array([score.total / score.tokens for score in scores])
        return float(values.mean()), float(values.std() / np.sqrt(len(values)))

    mean, error = mean_z()
    assert abs(mean) < 4 * error, "the right rule has z of mean zero"
    monkeypatch.setattr(verify, "verify_sampled", broken)
    assert p_value(draw(target, SAMPLING, rule, proposer_for(rule, draft)), exact) < 1e-12
    mean, error = mean_z()
    assert abs(mean) > 6 * error


def test_exact_match_gives_the_baselines_own_samples(target: Any, draft: Any) -> None:
    sampling = structs.replace(SAMPLING, max_tokens=20)
    requests = [Request(PROMPT[: 2 + seed % 4], sampling, seed) for seed in range(64)]
    arguments: dict[str, Any] = {"verify_rule": VerifyRule.EXACT_MATCH, "end_token_ids": frozenset({1})}
    plain = decode_batch(target, requests, proposer=None, num_speculative_tokens=0, **arguments)
    drafted = decode_batch(
        target,
        requests,
        proposer=DraftModelProposer(draft, 4, is_sampling=False),
        num_speculative_tokens=4,
        **arguments,
    )
    assert [d.output for d in drafted.decoded] == [d.output for d in plain.decoded]
    assert sum(d.counts.num_accepted_tokens for d in drafted.decoded) > 0


def test_sample_never_draws_a_token_of_weight_zero() -> None:
    probs = torch.tensor([[0.0, 0.5, 0.0, 0.5, 0.0]]).expand(4, 5)
    uniform = torch.tensor([0.0, 0.4999, 0.5, np.nextafter(np.float32(1.0), np.float32(0.0))])
    assert sample(probs, uniform).tolist() == [1, 1, 3, 3]


@pytest.mark.parametrize(("vocabulary", "rows"), [(7, 4_096), pytest.param(151_936, 512, marks=pytest.mark.all)])
def test_acceptance_probabilities_of_the_three_rules(vocabulary: int, rows: int) -> None:
    """E[accept] is 1 - TV for rejection, but target(argmax draft) for the one-hot rules."""
    generator = torch.Generator().manual_seed(3)
    target_probs = torch.softmax(4 * torch.randn(1, 1, vocabulary, generator=generator), -1)
    draft_probs = torch.softmax(torch.log(target_probs) + torch.randn(1, 1, vocabulary, generator=generator), -1)
    both = target_probs.expand(rows, 2, vocabulary)
    accept_uniform = torch.rand((rows, 1), generator=generator)
    target_uniform = torch.rand((rows, 2), generator=generator)
    drafted_one = torch.full((rows, 1), int(draft_probs.argmax()))
    count = torch.ones(rows, dtype=torch.int64)

    def share(rule: VerifyRule, drafted: torch.Tensor, probs: torch.Tensor | None) -> float:
        outcome = verify_sampled(rule, both, drafted, probs, count, accept_uniform, target_uniform)
        return float(outcome.num_accepted.float().mean())

    sampled = sample(draft_probs[:, 0].expand(rows, vocabulary), torch.rand(rows, generator=generator))[:, None]
    overlap = float(torch.minimum(target_probs, draft_probs).sum())
    one_hot = float(target_probs[0, 0, int(draft_probs.argmax())])
    margin = 4 * 0.5 / np.sqrt(rows)
    assert abs(overlap - one_hot) > 2 * margin, "the two formulas must differ for this test to tell them apart"
    assert share(VerifyRule.REJECTION, sampled, draft_probs.expand(rows, 1, vocabulary)) == pytest.approx(
        overlap, abs=margin
    )
    assert share(VerifyRule.GREEDY_DRAFT, drafted_one, None) == pytest.approx(one_hot, abs=margin)
    assert share(VerifyRule.EXACT_MATCH, drafted_one, None) == pytest.approx(one_hot, abs=margin)

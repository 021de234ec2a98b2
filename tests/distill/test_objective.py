"""The objective against plain forward passes of transformers, row by row and without padding."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from shadowspec.distill.draft_folder import load_trainable
from shadowspec.distill.examples import Example
from shadowspec.distill.training import divergence, draft_logits, overlaps, target_logits
from shadowspec.engine.batch import Request
from shadowspec.engine.models import LoadedModel
from shadowspec.engine.replay.response_tokens import Response
from shadowspec.types import RecordKey, SamplingParameters


def plain_logits(path: Path, responses: list[Response]) -> torch.Tensor:
    """Of each token of each response, alone; [tokens, vocabulary]."""
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    rows = []
    for response in responses:
        tokens = torch.tensor([[*response.request.prompt, *response.output]])
        with torch.no_grad():
            rows.append(model(tokens).logits[0, len(response.request.prompt) - 1 : -1])
    return torch.cat(rows)


@pytest.fixture
def responses(examples: tuple[Example, ...]) -> list[Response]:
    logged = [each.response for each in examples[:9]]
    assert len({len(each.request.prompt) for each in logged}) > 2, "prompts differ in length, so that padding shows"
    assert len({len(each.output) for each in logged}) > 2
    return logged


def test_the_targets_logits_are_those_of_a_plain_pass(
    pair: tuple[Path, Path], target: LoadedModel, responses: list[Response]
) -> None:
    torch.testing.assert_close(
        target_logits(target.model, responses), plain_logits(pair[0], responses), atol=1e-4, rtol=1e-4
    )


def test_the_drafts_logits_are_those_of_a_plain_pass_and_have_a_gradient(
    pair: tuple[Path, Path], responses: list[Response]
) -> None:
    draft, _ = load_trainable(str(pair[1]), torch.device("cpu"))
    found = draft_logits(draft, responses)
    torch.testing.assert_close(found.detach(), plain_logits(pair[1], responses), atol=1e-4, rtol=1e-4)
    torch.autograd.backward(found.sum())
    assert all(parameter.grad is not None for parameter in draft.parameters())


def answered(num_tokens: int, temperature: float) -> Response:
    request = Request((1, 2), SamplingParameters(temperature=temperature, max_tokens=99), 0)
    return Response(RecordKey("test", 0, 0), request, (3,) * num_tokens)


def test_the_divergence_is_summed_over_tokens_and_words() -> None:
    generator = torch.Generator().manual_seed(3)
    target, draft = (2.0 * torch.randn(5, 7, generator=generator) for _ in range(2))
    target_probs, draft_probs = target.double().softmax(-1), draft.double().softmax(-1)
    wanted = float((target_probs * (target_probs / draft_probs).log()).sum())
    assert float(divergence(target, draft)) == pytest.approx(wanted, rel=1e-5)


def test_a_token_overlaps_at_the_temperature_of_its_request() -> None:
    generator = torch.Generator().manual_seed(3)
    target, draft = (2.0 * torch.randn(6, 7, generator=generator) for _ in range(2))
    draft[5] = target[5] + torch.linspace(-0.1, 0.1, 7) * (target[5] < target[5].max())  # the same likeliest
    found = overlaps(target, draft, [answered(2, 1.0), answered(1, 0.3), answered(3, 0.0)])
    for row, temperature in ((0, 1.0), (1, 1.0), (2, 0.3)):
        draft_probs, wanted = ((logits[row].double() / temperature).softmax(-1) for logits in (draft, target))
        assert float(found[row]) == pytest.approx(float(torch.minimum(draft_probs, wanted).sum()), rel=1e-5)
    same = [int(target[row].argmax()) == int(draft[row].argmax()) for row in (3, 4, 5)]
    assert found[3:].tolist() == [float(item) for item in same]
    assert set(same) == {True, False}


def test_the_same_distribution_diverges_by_nothing_and_overlaps_wholly() -> None:
    logits = torch.randn(4, 6, generator=torch.Generator().manual_seed(1))
    moved = logits + 3.0  # a constant changes no distribution
    assert float(divergence(logits, moved)) == pytest.approx(0.0, abs=1e-5)
    assert overlaps(logits, moved, [answered(2, 0.7), answered(2, 0.0)]).tolist() == pytest.approx([1.0] * 4)


def test_words_that_only_pad_an_embedding_are_left_out() -> None:
    logits = torch.randn(4, 6, generator=torch.Generator().manual_seed(1))
    padded = torch.cat((logits, torch.full((4, 2), 50.0)), 1)
    assert float(divergence(logits, padded)) == pytest.approx(0.0, abs=1e-5)
    assert overlaps(logits, padded, [answered(2, 1.0), answered(2, 0.0)]).tolist() == pytest.approx([1.0] * 4)

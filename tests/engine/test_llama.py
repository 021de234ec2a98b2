"""The direct forward of the Llama family against transformers' own, and which models it leaves alone."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
)

from shadowspec.engine.candidate import fingerprint_candidate
from shadowspec.engine.llama import DirectLlama, why_not_direct
from shadowspec.engine.models import load_model
from shadowspec.engine.runner import Runner
from shadowspec.types import SpeculationConfig, VerifyRule
from tests.builders.llama_models import CONTEXT, KINDS, ROPES, VOCABULARY, model_of, plain_logits
from tests.small_models import letter_tokenizer, save_model


@pytest.mark.parametrize("kind", KINDS)
@torch.inference_mode()
def test_logits_are_those_of_transformers(kind: str) -> None:
    """Ragged rows through padded prefill and several widths of step, up to the last position of the context."""
    model = KINDS[kind]()
    assert why_not_direct(model) is None
    generator = torch.Generator().manual_seed(1)
    prompts = [5, 1, CONTEXT - 12, 9]
    texts = torch.randint(0, VOCABULARY, (len(prompts), CONTEXT), generator=generator).tolist()
    expected = [plain_logits(model, text) for text in texts]

    runner = Runner(DirectLlama(model), len(prompts), CONTEXT)
    first = runner.prefill([text[:length] for text, length in zip(texts, prompts, strict=True)])
    torch.testing.assert_close(
        first, torch.stack([expected[row][length - 1] for row, length in enumerate(prompts)]), atol=1e-4, rtol=1e-4
    )
    lengths = torch.tensor(prompts)
    for width, keep in [(1, 1), (4, 4), (3, 1), (4, 2)]:
        tokens = torch.tensor(
            [text[start : start + width] for text, start in zip(texts, lengths.tolist(), strict=True)]
        )
        logits = runner.step(tokens, lengths, int(lengths.max()), keep)
        lengths = lengths + width
        wanted = [expected[row][end - keep : end] for row, end in enumerate(lengths.tolist())]
        torch.testing.assert_close(logits, torch.stack(wanted), atol=1e-4, rtol=1e-4)
    assert int(lengths.max()) == CONTEXT


@pytest.mark.parametrize("kind", KINDS)
@torch.inference_mode()
def test_states_of_whole_texts_give_the_same_logits(kind: str) -> None:
    """Of any places of ragged rows, up to the last position of the context."""
    model = KINDS[kind]()
    texts = [torch.randint(0, VOCABULARY, (length,)).tolist() for length in (5, 1, CONTEXT, 9)]
    expected = [plain_logits(model, text) for text in texts]
    direct = DirectLlama(model)
    padded = torch.tensor([[*text, *[0] * (CONTEXT - len(text))] for text in texts])
    places = [(0, 4), (0, 2), (1, 0), (2, CONTEXT - 1), (2, 0), (3, 7), (3, 8)]
    states = direct.final_states(padded, torch.tensor([row * CONTEXT + column for row, column in places]))
    wanted = torch.stack([expected[row][column] for row, column in places])
    torch.testing.assert_close(direct.logits(states), wanted, atol=1e-4, rtol=1e-4)


@torch.inference_mode()
def test_rejected_tokens_leave_no_trace() -> None:
    """Columns written past a row's length are masked and overwritten, whatever they held."""
    model = KINDS["llama_grouped"]()
    texts = [list(range(10, 22)), list(range(30, 42))]
    expected = [plain_logits(model, text) for text in texts]
    runner = Runner(DirectLlama(model), 2, 32)
    runner.prefill([texts[0][:4], texts[1][:7]])
    lengths = torch.tensor([4, 7])
    runner.step(torch.tensor([[1, 2, 3], [4, 5, 6]]), lengths, 7, 1)
    logits = runner.step(torch.tensor([texts[0][4:6], texts[1][7:9]]), lengths, 7, 2)
    torch.testing.assert_close(logits, torch.stack((expected[0][4:6], expected[1][7:9])), atol=1e-4, rtol=1e-4)


@torch.inference_mode()
def test_kept_slots_go_on_as_before() -> None:
    model = KINDS["llama_grouped"]()
    texts = [list(range(10 + row, 30 + row)) for row in range(4)]
    runner = Runner(DirectLlama(copy.deepcopy(model)), 4, 32)
    runner.prefill([text[: 4 + row] for row, text in enumerate(texts)])
    runner.keep([1, 3])
    logits = runner.step(torch.tensor([texts[1][5:7], texts[3][7:9]]), torch.tensor([5, 7]), 7, 2)
    wanted = torch.stack((plain_logits(model, texts[1])[5:7], plain_logits(model, texts[3])[7:9]))
    torch.testing.assert_close(logits, wanted, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("kind", ["llama_grouped", "qwen3_head_norms"])
@torch.inference_mode()
def test_bfloat16_is_no_further_from_the_truth_than_transformers(kind: str) -> None:
    truth = KINDS[kind]()
    text = torch.randint(0, VOCABULARY, (24,), generator=torch.Generator().manual_seed(2)).tolist()
    exact = plain_logits(truth, text)[15:]
    rounded = KINDS[kind]().to(torch.bfloat16)
    theirs = plain_logits(rounded, text)[15:].float()
    runner = Runner(DirectLlama(rounded), 1, 32)
    runner.prefill([text[:15]])
    ours = runner.step(torch.tensor([text[15:]]), torch.tensor([15]), 15, 9)[0].float()
    assert (ours - exact).square().mean() < 1.5 * (theirs - exact).square().mean()


@pytest.mark.parametrize("kind", ["llama", "llama_tied", "qwen2_biases", "qwen3_head_norms"])
def test_weights_are_taken_over_and_counted_once(kind: str) -> None:
    model = KINDS[kind]()
    count = model.num_parameters()
    direct = DirectLlama(model)
    assert direct.num_parameters() == count
    linears = [module for layer in model.model.layers for module in layer.modules() if type(module) is torch.nn.Linear]
    assert all(linear.weight is None for linear in linears), "the model's own copies would be held beside the fused"


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: model_of(LlamaForCausalLM, LlamaConfig, rope_parameters=ROPES["dynamic"]), "rotary"),
        (lambda: model_of(LlamaForCausalLM, LlamaConfig, attention_bias=True), "biases"),
        (lambda: model_of(LlamaForCausalLM, LlamaConfig, mlp_bias=True), "biases"),
        (lambda: model_of(LlamaForCausalLM, LlamaConfig, hidden_act="gelu"), "activation"),
        (lambda: model_of(type("Child", (LlamaForCausalLM,), {}), LlamaConfig), "family"),
        (
            lambda: GPTNeoXForCausalLM(
                GPTNeoXConfig(hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2)
            ),
            "family",
        ),
    ],
)
def test_other_models_go_through_their_own_forward(make: Any, why: str) -> None:
    assert why in str(why_not_direct(make()))


def test_a_replaced_layer_is_left_to_transformers() -> None:
    class Adapter(torch.nn.Linear):
        """What an adapter does: another class in the place of a linear layer."""

    model = KINDS["llama"]()
    model.model.layers[1].mlp.down_proj = Adapter(80, 48, bias=False)
    assert "plain linear" in str(why_not_direct(model))


@pytest.mark.parametrize(("changed", "name"), [({}, "direct_llama"), ({"attention_bias": True}, "transformers")])
def test_the_forward_in_use_is_part_of_the_fingerprint(tmp_path: Path, changed: dict[str, Any], name: str) -> None:
    model = model_of(LlamaForCausalLM, LlamaConfig, vocab_size=12, **changed)
    folder = save_model(tmp_path / "model", model, letter_tokenizer())
    loaded = load_model(str(folder), torch.device("cpu"), torch.float32)
    config = SpeculationConfig("a", "t", None, "ngram", 2, VerifyRule.GREEDY_DRAFT)
    assert fingerprint_candidate(config, loaded, None, 1, {}).details["target_forward"] == name
    weights = sum(parameter.numel() * 4 for parameter in model.parameters())
    # What is multiplied with is held in two forms by the direct one, beside a table of angles.
    assert weights <= loaded.weight_bytes <= (2 * weights if name == "direct_llama" else weights) + CONTEXT * 16 * 4

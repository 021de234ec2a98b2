"""The forwards of published heads equal an independent reference to 1e-4, and the target hands out what they read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaForCausalLM

from shadowspec.engine import runner as runner_module
from shadowspec.engine.forward import FINAL, HiddenStates
from shadowspec.engine.heads import StagedHeads
from shadowspec.engine.heads.eagle3 import Eagle3Draft
from shadowspec.engine.heads.loading import load_heads
from shadowspec.engine.kv_cache import ColumnSpan, RaggedCache
from shadowspec.engine.models import LoadedModel
from shadowspec.engine.runner import Runner
from tests.builders.head_candidates import TOLERANCE
from tests.engine.heads.reference import HIDDEN, VOCABULARY, Eagle3, Medusa, Speculator


def staged(folder: Path, kind: str, target: LoadedModel) -> StagedHeads:
    heads = load_heads(str(folder), kind, target).heads
    assert not isinstance(heads, Eagle3Draft)
    return heads


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("layout", ["own", "vllm"])
@torch.inference_mode()
def test_medusa_heads_of_both_layouts(layers: int, layout: str, target: LoadedModel, tmp_path: Path) -> None:
    torch.manual_seed(1)
    reference = Medusa(3, layers, bias=layout == "own")
    folder = reference.save(tmp_path, layers) if layout == "own" else reference.save_for_vllm(tmp_path, layers)
    heads, hidden = staged(folder, "medusa", target), torch.randn(5, HIDDEN)
    for count in (1, 3):
        state = heads.start(hidden, count)
        for index in range(count):
            logits, state = heads.stage(index, state, torch.zeros(5, dtype=torch.int64))
            torch.testing.assert_close(logits, reference.logits(hidden, index), **TOLERANCE)


@pytest.mark.parametrize("is_cut", [False, True])
@torch.inference_mode()
def test_medusa_heads_that_share_a_head_over_a_reduced_vocabulary(
    is_cut: bool, target: LoadedModel, tmp_path: Path
) -> None:
    torch.manual_seed(1)
    reference = Medusa(2, 1, bias=False)
    reference[1][1] = reference[0][1]
    kept = torch.tensor([9, 1, 4])
    folder = reference.save_for_vllm(tmp_path, 1, original_lm_head=True, truncated_vocab_size=3)
    weights = {f"medusa_heads.blocks.{index}.layers.0.weight": reference[index][0].linear.weight for index in (0, 1)}
    head = reference[0][1].weight
    weights |= {"medusa_heads.lm_heads.0.weight": head[kept] if is_cut else head, "token_map": kept}
    save(folder, weights)
    heads, hidden = staged(folder, "medusa", target), torch.randn(5, HIDDEN)
    state = heads.start(hidden, 2)
    for index in range(2):
        logits, state = heads.stage(index, state, torch.zeros(5, dtype=torch.int64))
        expected = torch.full((5, VOCABULARY), float("-inf"))
        expected[:, kept] = reference.logits(hidden, index)[:, kept]
        torch.testing.assert_close(logits, expected, **TOLERANCE)


def save(folder: Path, weights: dict[str, torch.Tensor]) -> None:
    from safetensors.torch import save_file

    save_file({name: weight.contiguous() for name, weight in weights.items()}, folder / "model.safetensors")


@pytest.mark.parametrize("is_tied", [False, True])
@pytest.mark.parametrize("scales_input", [False, True])
@pytest.mark.parametrize(("inner", "with_copies"), [(HIDDEN, False), (20, False), (20, True)])
@torch.inference_mode()
def test_mlp_speculator(
    is_tied: bool, scales_input: bool, inner: int, with_copies: bool, target: LoadedModel, tmp_path: Path
) -> None:
    torch.manual_seed(2)
    reference = Speculator(3, inner, is_tied=is_tied, scales_input=scales_input)
    heads = staged(reference.save(tmp_path, with_copies=with_copies), "mlp_speculator", target)
    hidden, tokens = torch.randn(5, HIDDEN), list(torch.randint(0, VOCABULARY, (3, 5)))
    state = heads.start(hidden, 3)
    for index, expected in enumerate(reference.logits(hidden, tokens)):
        logits, state = heads.stage(index, state, tokens[index])
        torch.testing.assert_close(logits, expected, **TOLERANCE)
    held = sum(tensor.numel() for tensor in heads.tensors())
    assert held == sum(parameter.numel() for parameter in reference.parameters())


@pytest.mark.parametrize("norm_before_residual", [False, True])
@pytest.mark.parametrize("drafted", [None, [1, 4, 5, 11]])
@pytest.mark.parametrize("heads", [2, 4])
@torch.inference_mode()
def test_eagle3_layer(
    norm_before_residual: bool, drafted: list[int] | None, heads: int, target: LoadedModel, tmp_path: Path
) -> None:
    torch.manual_seed(4)
    reference = Eagle3(drafted, norm_before_residual=norm_before_residual, heads=heads)
    draft = load_heads(str(reference.save(tmp_path)), "eagle3", target).heads
    assert isinstance(draft, Eagle3Draft)
    tokens, hidden = torch.randint(0, VOCABULARY, (9,)), torch.randn(9, 3 * HIDDEN)
    cache = RaggedCache(1, 1, 16, torch.device("cpu"))
    span = ColumnSpan.after(torch.tensor([0]), 0, 9, torch.float32)
    mask = cache.begin_step(span, 0, 9)
    states = draft.forward(tokens[None], draft.fuse(hidden[None]), draft.angles(span.columns), mask, cache)
    expected = reference.states(tokens, reference.fc(hidden))
    torch.testing.assert_close(states[0], expected, **TOLERANCE)
    logits = torch.full((9, VOCABULARY), float("-inf"))
    logits[:, reference.ids] = reference.lm_head(reference.norm(expected))
    torch.testing.assert_close(draft.logits(states[0]), logits, **TOLERANCE)


@torch.inference_mode()
def test_rotary_angles_as_older_configs_write_them(target: LoadedModel, tmp_path: Path) -> None:
    torch.manual_seed(4)
    reference = Eagle3()
    reference.config.rope_parameters = {"rope_type": "default", "rope_theta": 500.0}
    older = reference.config.to_diff_dict() | {"model_type": "llama", "rope_theta": 500.0, "rope_scaling": None}
    del older["rope_parameters"]
    folder = reference.save(tmp_path, transformer_layer_config=older)
    draft = load_heads(str(folder), "eagle3", target).heads
    assert isinstance(draft, Eagle3Draft)
    tokens, hidden = torch.randint(0, VOCABULARY, (30,)), torch.randn(30, 3 * HIDDEN)
    cache = RaggedCache(1, 1, 30, torch.device("cpu"))
    span = ColumnSpan.after(torch.tensor([0]), 0, 30, torch.float32)
    mask = cache.begin_step(span, 0, 30)
    states = draft.forward(tokens[None], draft.fuse(hidden[None]), draft.angles(span.columns), mask, cache)
    torch.testing.assert_close(states[0], reference.states(tokens, reference.fc(hidden)), **TOLERANCE)


def test_an_embedding_that_is_left_out_is_the_targets(target: LoadedModel, plain: Any, tmp_path: Path) -> None:
    reference = Eagle3()
    heads = load_heads(str(reference.save(tmp_path / "own")), "eagle3", target)
    shared = load_heads(str(reference.save(tmp_path / "shared", with_embedding=False)), "eagle3", target)
    assert isinstance(shared.heads, Eagle3Draft)
    torch.testing.assert_close(shared.heads.embedding, plain.model.embed_tokens.weight)
    assert heads.weight_bytes - shared.weight_bytes == VOCABULARY * HIDDEN * 4
    assert heads.kv_bytes_per_token == 2 * 2 * (HIDDEN // 4) * 4


@pytest.mark.parametrize("form", ["direct", "transformers"])
@pytest.mark.parametrize("layers", [(FINAL,), (0, 1, 2), (1,)])
@pytest.mark.parametrize("chunk", [512, 10])
@torch.inference_mode()
def test_hidden_states_are_those_of_transformers(
    form: str,
    layers: tuple[int, ...],
    chunk: int,
    target: LoadedModel,
    plain: LlamaForCausalLM,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of ragged rows, prefilled in several groups, perhaps in chunks, and of a step of several tokens behind them."""
    monkeypatch.setattr(runner_module, "CHUNK", chunk)
    model = target.model if form == "direct" else plain
    rng = torch.Generator().manual_seed(0)
    texts = [torch.randint(2, VOCABULARY, (length,), generator=rng) for length in (7, 40, 9, 8, 33)]
    of_prompt = layers != (FINAL,)
    runner = Runner(model, len(texts), 48, HiddenStates(layers, of_prompt))
    runner.prefill([text[:-3].tolist() for text in texts])
    prefilled = runner.hidden_states
    lengths = torch.tensor([len(text) - 3 for text in texts])
    runner.step(torch.stack([text[-3:] for text in texts]), lengths, longest=37, keep=3)
    stepped = runner.hidden_states
    assert prefilled is not None
    assert stepped is not None
    for row, text in enumerate(texts):
        every = plain(input_ids=text[None], use_cache=False, output_hidden_states=True).hidden_states
        expected = torch.cat([every[layer][0] for layer in layers], -1)
        torch.testing.assert_close(stepped[row], expected[-3:], **TOLERANCE)
        before = expected[:-3]
        torch.testing.assert_close(
            prefilled[row, : len(before) if of_prompt else 1], before[0 if of_prompt else -1 :], **TOLERANCE
        )


@torch.inference_mode()
def test_nobody_who_does_not_ask_is_given_hidden_states(target: LoadedModel) -> None:
    runner = Runner(target.model, 1, 8)
    runner.prefill([[2, 3]])
    assert runner.hidden_states is None
    runner.step(torch.tensor([[4]]), torch.tensor([2]), longest=2, keep=1)
    assert runner.hidden_states is None

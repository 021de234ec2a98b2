"""Products over packed weights are those of plain ones, and both forms are accounted for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from shadowspec.engine import llama_layer
from shadowspec.engine.llama_layer import PACKED_ALONE, PACKED_WORK, Matrix
from shadowspec.engine.models import load_model
from tests.small_models import letter_tokenizer, save_model, tiny_llama


@pytest.mark.parametrize("shape", [(48, 32), (640, 320), (4_096, 320)])
@pytest.mark.parametrize("rows", [1, 2, 5, 8, 40, 300])
@torch.inference_mode()
def test_products_are_those_of_a_linear_layer(shape: tuple[int, int], rows: int) -> None:
    torch.manual_seed(rows)
    weight, states = torch.randn(shape), torch.randn(rows, shape[1])
    expected = torch.nn.functional.linear(states, weight)
    matrix = Matrix.of(weight)
    torch.testing.assert_close(matrix(states), expected, atol=1e-4, rtol=1e-4)
    total = torch.randn(rows, shape[0])
    matrix.add_to(result := total.clone(), states)
    torch.testing.assert_close(result, total + expected, atol=1e-4, rtol=1e-4)
    held = Matrix.of(weight, is_held=True)
    torch.testing.assert_close(held(states), expected, atol=1e-4, rtol=1e-4)


def test_a_large_weight_is_held_once_and_a_small_one_in_both_forms() -> None:
    small, large = Matrix.of(torch.zeros(640, 320)), Matrix.of(torch.zeros(PACKED_ALONE // 256, 256))
    assert small.plain is not None
    assert [copy.numel() for copy in small.copies()] == [640 * 320] == [small.weight().numel()]
    assert large.plain is None
    assert large.weight().numel() == PACKED_ALONE
    assert list(large.copies()) == []
    half = Matrix.of(torch.zeros(64, 32, dtype=torch.bfloat16))
    assert half.packed is None
    assert list(half.copies()) == []


def test_which_form_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Packed where there is enough to multiply, and plain for one row of a small weight."""
    packed: list[int] = []
    linear = torch.ops.mkldnn._linear_pointwise

    def counted(states: torch.Tensor, *given: Any) -> Any:
        packed.append(len(states))
        return linear(states, *given)

    monkeypatch.setattr(llama_layer.torch.ops.mkldnn, "_linear_pointwise", counted)
    small, large = Matrix.of(torch.randn(320, 320)), Matrix.of(torch.randn(4_096, 320))
    least = -(-PACKED_WORK // 320**2)
    for rows in (1, least - 1, least):
        small(torch.randn(rows, 320))
    assert packed == [least]
    between = Matrix.of(torch.randn(1_728, 320))
    assert PACKED_WORK < 1_728 * 320 < PACKED_ALONE
    between(torch.randn(1, 320))
    assert packed == [least]
    large(torch.randn(1, 320))
    assert packed == [least, 1]


@pytest.mark.parametrize("is_tied", [True, False])
def test_a_model_counts_its_weights_once_and_its_memory_in_full(tmp_path: Path, is_tied: bool) -> None:
    plain = tiny_llama(1)
    if is_tied:
        plain.config.tie_word_embeddings = True
        plain.tie_weights()
    count = sum(parameter.numel() for parameter in plain.parameters())
    norms = sum(parameter.numel() for parameter in plain.parameters() if parameter.ndim == 1)
    loaded = load_model(str(save_model(tmp_path, plain, letter_tokenizer())), torch.device("cpu"), torch.float32)
    assert loaded.num_parameters == count
    embedding = plain.model.embed_tokens.weight.numel()
    rotations = 8 * plain.config.max_position_embeddings * (plain.config.hidden_size // 2 // 2)
    # All that is multiplied with is there twice; of the embedding only where it is the head too.
    copies = count - norms - (0 if is_tied else embedding)
    assert loaded.weight_bytes == 4 * (count + copies) + rotations

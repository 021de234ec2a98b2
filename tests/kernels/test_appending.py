"""Ragged append against the twin, and against the engine's own cache."""

from __future__ import annotations

import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from shadowspec.engine.kv_cache import ColumnSpan, RaggedCache
from shadowspec_kernels import appending, reference
from shadowspec_kernels.errors import OperandError


@settings(max_examples=10, deadline=None, derandomize=True, phases=(Phase.explicit, Phase.generate))
@given(
    lengths=st.lists(st.integers(0, 5), min_size=1, max_size=4),
    tokens=st.integers(1, 3),
    heads=st.integers(1, 3),
    head_dim=st.integers(1, 9),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
    is_slice=st.booleans(),
)
def test_any_lengths(lengths, tokens, heads, head_dim, dtype, is_slice, device) -> None:
    rows = len(lengths)
    generator = torch.Generator().manual_seed(tokens)
    wide = torch.randn((rows, tokens, heads + 2, head_dim), generator=generator).to(device, dtype)
    states = wide[:, :, 1 : heads + 1] if is_slice else wide[:, :, :heads].contiguous()
    slots = torch.randperm(rows + 1, generator=generator)[:rows].to(device)
    columns = (torch.tensor(lengths)[:, None] + torch.arange(tokens)).to(device)
    columns[0, 0] = -1  # padding
    memory = torch.randn((rows + 1, heads, 9, head_dim + 2), generator=generator).to(device, dtype)
    expected = memory.clone()
    reference.append(expected[..., 1:-1], states, slots, columns)
    appending.append(memory[..., 1:-1], states, slots, columns)
    assert torch.equal(memory, expected)


def test_a_state_larger_than_a_block(device) -> None:
    states = torch.arange(3 * 700, dtype=torch.float32, device=device).view(1, 1, 3, 700)
    cache = torch.zeros((1, 3, 2, 700), device=device)
    one = torch.ones((1, 1), dtype=torch.int64, device=device)
    appending.append(cache, states, torch.zeros(1, dtype=torch.int64, device=device), one)
    assert torch.equal(cache[:, :, 1], states[:, 0])
    assert not cache[:, :, 0].any()


def test_it_writes_what_the_engine_s_cache_writes(device) -> None:
    cache = RaggedCache(layers=1, slots=3, capacity=7, device=device)
    (layer,) = cache.layers
    lengths = torch.tensor([4, 0, 2], device=device)
    states = torch.randn((3, 2, 4, 5), device=device)  # keys and values of two heads
    span = ColumnSpan.after(lengths, longest=4, count=2, dtype=torch.float32)
    cache.begin_step(span, 0, 2)
    layer.append(states)
    ours = torch.zeros_like(layer.states)
    appending.append(ours, states, torch.arange(3, device=device), span.columns)
    assert torch.equal(ours, layer.states)


def test_nothing_is_written_outside_the_cache(device) -> None:
    memory = torch.zeros((5, 2, 6, 4), device=device)
    cache = memory[1:4, :, 1:5]  # with columns and slots of others around it
    states = torch.ones((4, 1, 2, 4), device=device)
    slots = torch.tensor([-1, 3, 0, 2], device=device)
    columns = torch.tensor([[1], [1], [4], [-2]], device=device)
    appending.append(cache, states, slots, columns)
    assert not memory.any()
    with pytest.raises(IndexError):
        reference.append(torch.zeros((3, 2, 4, 4)), torch.ones((1, 1, 2, 4)), torch.tensor([3]), torch.tensor([[1]]))


@pytest.mark.parametrize(
    ("cache", "states", "slots", "named"),
    [
        (torch.zeros((2, 2, 4, 3)), torch.zeros((2, 1, 3, 3)), torch.zeros(2, dtype=torch.int64), "3 heads"),
        (torch.zeros((2, 2, 4, 3)), torch.zeros((2, 1, 2, 3)).half(), torch.zeros(2, dtype=torch.int64), "float16"),
        (torch.zeros((2, 2, 3, 4)).transpose(2, 3), torch.zeros((2, 1, 2, 3)), torch.zeros(2).long(), "heads of cache"),
        (torch.zeros((2, 2, 4, 3)), torch.zeros((2, 1, 2, 3)), torch.zeros(1, dtype=torch.int64), "slots"),
    ],
)
def test_tensors_that_do_not_fit_are_named(cache, states, slots, named) -> None:
    with pytest.raises(OperandError, match=named):
        appending.append(cache, states, slots, torch.zeros((2, 1), dtype=torch.int64))

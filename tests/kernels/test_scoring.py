"""Replay scoring against the twin, which holds rows x vocabulary."""

from __future__ import annotations

import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from shadowspec_kernels import reference, scoring
from shadowspec_kernels.errors import OperandError
from shadowspec_kernels.scoring import Tiling

SMALL = Tiling(rows=16, tokens=16, inner=16, splits=2)
# Sums of at most 70 float32 products in another order, of logits up to some thousands; relative to the logits.
CLOSE = 1e-6


def draw_values(seed: int, rows: int, size: int, vocabulary: int, dtype: torch.dtype, spread: float = 1.0):
    """Hidden states, head, tokens and temperatures."""
    generator = torch.Generator().manual_seed(seed)
    hidden = (spread * torch.randn((rows, size), generator=generator)).to(dtype)
    head = torch.randn((vocabulary, size), generator=generator).to(dtype)
    tokens = torch.randint(vocabulary, (rows,), generator=generator)
    return hidden, head, tokens, torch.rand(rows, generator=generator) + 0.3


def compare(hidden, head, tokens, temperature, tiling: Tiling | None = SMALL) -> None:
    expected = reference.score(hidden, head, tokens, temperature)
    scored = scoring.score(hidden, head, tokens, temperature, tiling)
    logits = hidden.double() @ head.double().t()
    tolerance = CLOSE * (1.0 + logits.abs().max().item() / temperature.min().item())
    torch.testing.assert_close(scored.log_probs, expected.log_probs, rtol=0.0, atol=tolerance)
    torch.testing.assert_close(scored.best_log_probs, expected.best_log_probs, rtol=0.0, atol=tolerance)
    top = logits.topk(min(2, logits.shape[1]), -1).values
    is_clear = top[:, 0] - top[:, -1] > tolerance if top.shape[1] > 1 else top[:, 0] == top[:, 0]
    assert torch.equal(scored.best_tokens[is_clear], expected.best_tokens[is_clear])
    assert is_clear.float().mean() > 0.9


@settings(max_examples=8, deadline=None, derandomize=True, phases=(Phase.explicit, Phase.generate))
@given(
    rows=st.integers(1, 20),
    size=st.integers(1, 40),
    vocabulary=st.integers(1, 70),
    splits=st.integers(1, 6),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float16]),
    spread=st.sampled_from([0.1, 1.0, 300.0]),
    seed=st.integers(0, 1000),
)
def test_any_size(rows, size, vocabulary, splits, dtype, spread, seed, device) -> None:
    given_tensors = draw_values(seed, rows, size, vocabulary, dtype, spread)
    compare(*(tensor.to(device) for tensor in given_tensors), Tiling(16, 16, 16, splits))


def test_the_first_and_the_last_token_of_every_tile_and_split(device) -> None:
    hidden, head, _, _ = draw_values(1, 1, 8, 70, torch.float32)
    tokens = torch.tensor([0, 15, 16, 47, 48, 63, 64, 69])
    hidden = hidden.expand(len(tokens), -1).contiguous()
    compare(*(each.to(device) for each in (hidden, head, tokens, torch.full((len(tokens),), 0.5))))


def test_equals_give_the_first(device) -> None:
    hidden, head = torch.ones((1, 16), device=device), torch.zeros((70, 16), device=device)
    head[[20, 30, 40, 60]] = 1.0  # two in one tile, one in the next, one in the other split
    scored = scoring.score(hidden, head, torch.tensor([60], device=device), torch.ones(1, device=device), SMALL)
    assert scored.best_tokens.tolist() == [20]
    torch.testing.assert_close(scored.log_probs, scored.best_log_probs, rtol=0.0, atol=0.0)


def test_sums_that_overflow_without_the_running_maximum(device) -> None:
    hidden = torch.full((2, 16), 50.0, device=device)
    head = torch.arange(48, device=device, dtype=torch.float32)[:, None].expand(-1, 16) / 48  # grows tile by tile
    tokens = torch.tensor([47, 0], device=device)
    compare(hidden, head.contiguous(), tokens, torch.tensor([0.1, 1.0], device=device))


def test_rows_of_a_larger_tensor(device) -> None:
    hidden, head, tokens, temperature = (each.to(device) for each in draw_values(3, 5, 20, 40, torch.bfloat16))
    wide = torch.full((5, 2, 33), float("nan"), dtype=torch.bfloat16, device=device)
    wide[:, 1, 4:24] = hidden
    tall = torch.full((80, 20), float("nan"), dtype=torch.bfloat16, device=device)
    tall[1::2] = head
    pairs = torch.stack((tokens, tokens + 1), 1)
    compare(wide[:, 1, 4:24], tall[1::2], pairs[:, 0], temperature)


def test_the_tiles_that_a_gpu_gets(device) -> None:
    compare(*(each.to(device) for each in draw_values(4, 70, 130, 300, torch.bfloat16)), None)


def test_what_it_allocates_does_not_grow_with_the_vocabulary(device, monkeypatch) -> None:
    allocated: list[int] = []
    plain_empty = torch.empty

    def noted_empty(*args, **kwargs):
        tensor = plain_empty(*args, **kwargs)
        allocated.append(tensor.numel())
        return tensor

    monkeypatch.setattr(torch, "empty", noted_empty)
    totals = []
    for vocabulary in (40, 400):
        allocated.clear()
        scoring.score(*(each.to(device) for each in draw_values(5, 3, 4, vocabulary, torch.float32)), SMALL)
        totals.append(sum(allocated))
    assert totals[0] == totals[1] == 4 * 2 * 3  # four figures a row and split


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda h, w, t, s: (h, w[:, :-1], t, s), "hidden"),
        (lambda h, w, t, s: (h, w.bfloat16(), t, s), "bfloat16"),
        (lambda h, w, t, s: (h.t().contiguous().t(), w, t, s), "rows of hidden are not contiguous"),
        (lambda h, w, t, s: (h, w, t.int(), s), "tokens"),
        (lambda h, w, t, s: (h, w, t, s[:1]), "temperature"),
    ],
)
def test_tensors_that_do_not_fit_are_named(change, named) -> None:
    with pytest.raises(OperandError, match=named):
        scoring.score(*change(*draw_values(1, 3, 4, 5, torch.float32)))

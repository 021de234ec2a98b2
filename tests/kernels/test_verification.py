"""Fused verification emits the twin's tokens, token for token, in every regime that the twin has.

A token could differ by right where a uniform number lies within rounding of an edge between two tokens, which the
seeds below do not hit.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from shadowspec_kernels import reference, verification
from shadowspec_kernels.errors import OperandError
from shadowspec_kernels.step import RULES, Step
from tests.kernels.steps import a_step, moved, with_minimum_length, with_penalties

CASES = (("rejection", True), ("greedy_draft", False), ("exact_match", False), ("greedy", False))
ONE_BELOW = 1.0 - 2.0**-24  # the largest uniform number


def outcome(step: Step, device: torch.device, tile: int = 16) -> list[list[int]]:
    """Accepted tokens and next token of each row, after having been compared with the twin's."""
    step = moved(step, device)
    step.check()
    expected = reference.verify(step)
    verified = verification.verify(step, tile=tile)
    assert verified.num_accepted.tolist() == expected.num_accepted.tolist()
    assert verified.next_tokens.tolist() == expected.next_tokens.tolist()
    return torch.stack((verified.num_accepted, verified.next_tokens), 1).tolist()


@pytest.mark.representative("rejection-True-dtype0", "exact_match-False-dtype1", "greedy_draft-False-dtype0")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("rule", "has_draft_probs"), CASES)
def test_every_rule_with_everything_on(rule, has_draft_probs, dtype, device) -> None:
    step = a_step(rule, 1, has_draft_probs=has_draft_probs, dtype=dtype)
    outcome(with_minimum_length(with_penalties(step, 1), 1), device)


@pytest.mark.parametrize(("rule", "has_draft_probs"), CASES)
def test_the_prefill_and_the_baseline_draft_nothing(rule, has_draft_probs, device) -> None:
    outcomes = outcome(a_step(rule, 2, depth=0, has_draft_probs=has_draft_probs), device)
    assert [accepted for accepted, _ in outcomes] == [0, 0, 0]


@settings(max_examples=12, deadline=None, derandomize=True, phases=(Phase.explicit, Phase.generate))
@given(
    rule=st.sampled_from(RULES),
    has_draft_probs=st.booleans(),
    rows=st.integers(1, 3),
    depth=st.integers(0, 3),
    vocabulary=st.integers(1, 50),
    parts=st.integers(1, 5),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float16]),
    spread=st.sampled_from([0.0, 1.0, 5.0, 1e4]),
    masked_share=st.sampled_from([0.0, 0.5, 0.99]),
    penalised=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_any_step(
    rule, has_draft_probs, rows, depth, vocabulary, parts, dtype, spread, masked_share, penalised, seed, device
) -> None:
    step = a_step(
        rule,
        seed,
        rows=rows,
        depth=depth,
        vocabulary=vocabulary,
        has_draft_probs=has_draft_probs,
        dtype=dtype,
        spread=spread,
        masked_share=masked_share,
    )
    tile = 2 ** ((vocabulary - 1) // parts).bit_length()
    outcome(with_penalties(step, seed) if penalised else step, device, tile)


@pytest.mark.all
def test_a_real_vocabulary(device) -> None:
    step = a_step("rejection", 0, rows=1, depth=1, vocabulary=151_936, has_draft_probs=True, dtype=torch.bfloat16)
    outcome(replace(step, temperature=torch.tensor([0.3])), device, verification.TILE)


def sure(favourite: int, second: int, *, gap: float, vocabulary: int = 40) -> torch.Tensor:
    """Logits of one row at two positions: one token above a second, both far above the rest; [1, 2, vocabulary]."""
    logits = torch.full((1, 2, vocabulary), -1e30)
    logits[:, :, favourite], logits[:, :, second] = gap, 0.0
    return logits


def one_draft(logits: torch.Tensor, token: int, accept: float, target: float) -> Step:
    """One sampled row with one one-hot draft."""
    return Step(
        "greedy_draft",
        logits,
        torch.tensor([[token]]),
        torch.tensor([1]),
        None,
        torch.tensor([[accept]]),
        torch.tensor([[target, target]]),
        torch.tensor([1.0]),
    )


def test_what_is_left_of_a_sure_token_is_no_difference_of_large_numbers(device) -> None:
    # At a gap of 17 a second token has probability 4e-8: less than a rounding error of the favourite's tile.
    step = one_draft(sure(3, 5, gap=17.0), 3, ONE_BELOW, 0.5)
    logits = step.logits.clone()
    logits[:, :, 30] = 0.0  # as likely, in another tile
    step = replace(step, logits=logits)
    rejecting = torch.tensor([[1.0]])  # no uniform number, to reject a token of probability 1 - 8e-8
    for target, token in ((0.1, 5), (0.9, 30)):
        drawn = replace(step, accept_uniform=rejecting, target_uniform=torch.full((1, 2), target))
        assert outcome(drawn, device) == [[0, token]]


def test_a_rejection_with_nothing_left_draws_from_the_target(device) -> None:
    step = one_draft(sure(3, 5, gap=200.0), 3, 1.0, 0.5)  # the second token's probability is 0 in float32
    assert outcome(step, device) == [[0, 3]]
    draft_probs = torch.softmax(step.logits[:, :1], -1)  # a draft that is the target
    assert outcome(replace(step, rule="rejection", draft_probs=draft_probs), device) == [[0, 3]]
    even = one_draft(sure(5, 30, gap=0.0), 5, 1.0, 0.9)  # of two tokens alike; the draw falls on the second
    draft_probs = torch.softmax(even.logits[:, :1], -1)
    assert outcome(replace(even, rule="rejection", draft_probs=draft_probs), device) == [[0, 30]]


@pytest.mark.parametrize("rule", ["greedy_draft", "exact_match", "greedy"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_all_but_one_masked(rule, dtype, device) -> None:
    logits = torch.full((2, 3, 40), float("-inf"), dtype=dtype)
    logits[:, :, 21] = -3e4
    drafted = torch.tensor([[21, 21], [21, 4]])
    uniform = torch.tensor([[0.0, ONE_BELOW, 0.5], [0.5, 0.0, 0.5]])
    step = Step(rule, logits, drafted, torch.tensor([2, 2]), None, uniform[:, :2], uniform, torch.tensor([0.0, 0.3]))
    assert outcome(step, device) == [[2, 21], [1, 21]]


@pytest.mark.parametrize(("uniform", "token"), [(0.0, 2), (ONE_BELOW, 36)])
def test_the_ends_of_the_unit_interval_draw_the_first_and_last_token_with_weight(uniform, token, device) -> None:
    logits = torch.zeros((2, 1, 40))
    logits[:, :, :2] = logits[:, :, 37:] = logits[:, :, 10:25] = float("-inf")
    empty = torch.empty((2, 0))
    step = Step(
        "exact_match",
        logits,
        empty.to(torch.int64),
        torch.tensor([0, 0]),
        None,
        empty,
        torch.full((2, 1), uniform),
        torch.tensor([1.0, 0.01]),
    )
    assert outcome(step, device) == [[0, token], [0, token]]


def test_equals_give_the_first(device) -> None:
    logits = torch.zeros((1, 3, 40))
    logits[:, 1, 20] = logits[:, 1, 39] = 1.0  # of different tiles, and of one
    logits[:, 2, 35] = logits[:, 2, 36] = 1.0
    drafted = torch.tensor([[0, 20]])
    uniform = torch.zeros((1, 3))
    step = Step("greedy", logits, drafted, torch.tensor([2]), None, uniform[:, :2], uniform, torch.tensor([0.0]))
    assert outcome(step, device) == [[2, 35]]


def test_rows_of_a_larger_tensor(device) -> None:
    step = moved(with_minimum_length(with_penalties(a_step("rejection", 5, has_draft_probs=True), 5), 5), device)

    def embedded(tensor: torch.Tensor) -> torch.Tensor:
        """The same values, rows far apart and out of line, among others that would spoil the result."""
        if tensor.dim() == 1:
            return torch.stack((tensor, tensor + 1), 1)[:, 0]
        wide = torch.full([size + 3 for size in tensor.shape], 1, dtype=tensor.dtype, device=tensor.device)
        wide = wide.transpose(0, 1).contiguous().transpose(0, 1) if tensor.dim() == 3 else wide
        view = wide[tuple(slice(1, size + 1) for size in tensor.shape)]
        view.copy_(tensor)
        assert not view.is_contiguous()
        return view

    assert step.penalties is not None
    assert step.minimum_length is not None
    assert step.draft_probs is not None
    strided = replace(
        step,
        logits=embedded(step.logits),
        drafted=embedded(step.drafted),
        num_drafted=embedded(step.num_drafted),
        draft_probs=embedded(step.draft_probs),
        accept_uniform=embedded(step.accept_uniform),
        target_uniform=embedded(step.target_uniform),
        temperature=embedded(step.temperature),
        penalties=replace(
            step.penalties,
            repetition=embedded(step.penalties.repetition),
            in_prompt=embedded(step.penalties.in_prompt),
            output_counts=embedded(step.penalties.output_counts),
        ),
        minimum_length=replace(step.minimum_length, ends=embedded(step.minimum_length.ends)),
    )
    assert outcome(strided, device) == outcome(step, device)


def test_a_vocabulary_that_is_not_contiguous_is_refused(device) -> None:
    step = moved(a_step("greedy", 1), device)
    backwards = step.logits.transpose(1, 2).contiguous().transpose(1, 2)
    with pytest.raises(OperandError, match="the vocabulary of logits is not contiguous"):
        verification.verify(replace(step, logits=backwards))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("drafted", torch.zeros((3, 3), dtype=torch.int64)),
        ("num_drafted", torch.zeros(3)),
        ("draft_probs", torch.zeros((3, 2, 36))),
        ("logits", torch.zeros((3, 3, 37), dtype=torch.float64)),
        ("temperature", torch.zeros((3, 1))),
    ],
)
def test_tensors_that_do_not_fit_are_named(field, value) -> None:
    with pytest.raises(OperandError, match=field):
        replace(a_step("rejection", 1), **{field: value}).check()

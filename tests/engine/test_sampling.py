"""The processed distribution against transformers' own logits processors, applied in production's order."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.generation.logits_process import (
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from shadowspec.engine.sampling import TOP_P_HEAD, BatchSampling, highest_first
from shadowspec.types import SamplingParameters

VOCABULARY = 40
CPU = torch.device("cpu")


def processed_probs(
    sampling: SamplingParameters, prompt: list[int], output: list[int], logits: torch.Tensor
) -> torch.Tensor:
    """Our distribution for one row whose `output` was emitted; float32 [vocabulary]."""
    batch = BatchSampling([sampling], [prompt], [[1]], VOCABULARY, CPU)
    batch.note_emitted([output])
    nothing = torch.zeros((1, 0), dtype=torch.int64)
    processed = batch.processed_logits(logits[None, None], nothing, torch.tensor([len(output)]))
    return batch.probs(processed)[0, 0]


def oracle_probs(
    sampling: SamplingParameters, prompt: list[int], output: list[int], logits: torch.Tensor
) -> torch.Tensor:
    """transformers' processors, and the OpenAI definition of presence and frequency penalties."""
    scores = logits[None].clone()
    seen = torch.tensor([[*prompt, *output]])
    if sampling.repetition_penalty != 1.0:
        scores = RepetitionPenaltyLogitsProcessor(sampling.repetition_penalty)(seen, scores)
    for token in set(output):
        scores[0, token] -= sampling.frequency_penalty * output.count(token) + sampling.presence_penalty
    scores = TemperatureLogitsWarper(sampling.temperature)(seen, scores)
    if sampling.min_p > 0:
        scores = MinPLogitsWarper(sampling.min_p)(seen, scores)
    if sampling.top_k > 0:
        scores = TopKLogitsWarper(sampling.top_k)(seen, scores)
    if sampling.top_p < 1.0:
        scores = TopPLogitsWarper(sampling.top_p)(seen, scores)
    return torch.softmax(scores, -1)[0]


@settings(max_examples=200, deadline=None)
@given(
    sampling=st.builds(
        SamplingParameters,
        temperature=st.floats(0.2, 2.0),
        top_p=st.sampled_from([1.0, 0.9, 0.5]),
        top_k=st.sampled_from([0, 1, 5, 39, 100]),
        min_p=st.sampled_from([0.0, 0.05, 0.3]),
        repetition_penalty=st.sampled_from([1.0, 1.3]),
        presence_penalty=st.sampled_from([0.0, 0.7]),
        frequency_penalty=st.sampled_from([0.0, 0.4]),
    ),
    prompt=st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=8),
    output=st.lists(st.integers(0, VOCABULARY - 1), max_size=8),
    seed=st.integers(0, 10_000),
)
def test_equals_transformers_processors(
    sampling: SamplingParameters, prompt: list[int], output: list[int], seed: int
) -> None:
    logits = 3 * torch.randn(VOCABULARY, generator=torch.Generator().manual_seed(seed))
    torch.testing.assert_close(
        processed_probs(sampling, prompt, output, logits),
        oracle_probs(sampling, prompt, output, logits),
        atol=1e-5,
        rtol=1e-4,
    )


def test_top_p_over_a_large_vocabulary_falls_back_to_the_whole_sort() -> None:
    """A nearly flat distribution needs more entries than the head that is looked at first."""
    vocabulary = 5_000
    logits = 0.01 * torch.randn(vocabulary, generator=torch.Generator().manual_seed(0))
    batch = BatchSampling([SamplingParameters(top_p=0.9)], [[0]], [[1]], vocabulary, CPU)
    probs = batch.probs(logits[None, None])[0, 0]
    assert (probs > 0).sum() == pytest.approx(0.9 * vocabulary, rel=0.02)


def test_a_penalty_sees_the_tokens_drafted_before_it() -> None:
    sampling = SamplingParameters(temperature=1.0, presence_penalty=2.0)
    batch = BatchSampling([sampling], [[3]], [[1]], VOCABULARY, CPU)
    logits = torch.zeros(1, 3, VOCABULARY)
    processed = batch.processed_logits(logits, torch.tensor([[7, 9]]), torch.tensor([0]))
    expected = torch.zeros(1, 3, VOCABULARY)
    expected[0, 1:, 7] = expected[0, 2, 9] = -2.0
    torch.testing.assert_close(processed, expected)
    torch.testing.assert_close(
        batch.draft_logits(logits[:, 0], torch.tensor([[7, 9]]), torch.tensor([0]))[0], expected[0, 2]
    )


def test_ends_are_impossible_before_min_tokens() -> None:
    sampling = SamplingParameters(temperature=1.0, min_tokens=2)
    batch = BatchSampling([sampling], [[3]], [[1, 4]], VOCABULARY, CPU)
    processed = batch.processed_logits(torch.zeros(1, 3, VOCABULARY), torch.tensor([[7, 9]]), torch.tensor([0]))
    probs = batch.probs(processed)[0]
    assert probs[:2, [1, 4]].sum() == 0.0
    assert (probs[2, [1, 4]] > 0).all()


def test_a_greedy_row_beside_a_sampled_one_is_one_hot() -> None:
    rows = [SamplingParameters(temperature=0.0), SamplingParameters(temperature=1.0)]
    batch = BatchSampling(rows, [[3], [3]], [[1], [1]], VOCABULARY, CPU)
    logits = torch.randn(2, 1, VOCABULARY, generator=torch.Generator().manual_seed(1))
    probs = batch.probs(logits)
    assert probs[0, 0].max() == 1.0
    assert int(probs[0, 0].argmax()) == int(logits[0, 0].argmax())
    torch.testing.assert_close(probs[1, 0], torch.softmax(logits[1, 0], -1))


@pytest.mark.parametrize("vocabulary", [60, 600, 5_000])
def test_top_p_of_rows_that_need_heads_of_any_length(vocabulary: int) -> None:
    """Peaked, middling and flat rows, rows without top-p and greedy ones, in one batch of several tokens."""
    spread = [6.0, 2.0, 0.5, 0.01, 3.0, 3.0]
    rows = [SamplingParameters(temperature=1.0, top_p=top_p) for top_p in (0.9, 0.8, 0.95, 0.99, 1.0)]
    rows.append(SamplingParameters(temperature=0.0, top_p=0.5))
    generator = torch.Generator().manual_seed(vocabulary)
    logits = torch.randn(len(rows), 3, vocabulary, generator=generator) * torch.tensor(spread)[:, None, None]
    probs = BatchSampling(rows, [[0]] * len(rows), [[1]] * len(rows), vocabulary, CPU).probs(logits)
    for row, sampling in enumerate(rows):
        for token in range(3):
            scores = logits[row, token][None]
            if sampling.temperature == 0.0:
                expected = torch.nn.functional.one_hot(scores.argmax(-1), vocabulary).float()
            else:
                warped = TopPLogitsWarper(sampling.top_p)(None, scores) if sampling.top_p < 1.0 else scores
                expected = torch.softmax(warped, -1)
            # Where the mass is reached to the last bits, either side of the edge is right.
            assert (probs[row, token] - expected[0]).abs().sum() < 2e-3
            assert (probs[row, token].count_nonzero() - expected.count_nonzero()).abs() <= 1


@pytest.mark.parametrize("count", [None, 1, 7, 60])
def test_the_highest_entries_are_torchs_own(count: int | None) -> None:
    values = torch.randn(3, 4, 60, generator=torch.Generator().manual_seed(1))
    values[0, 0, :20] = values[0, 0, 20]  # equal ones
    values[1, 1, 5:] = float("-inf")
    before = values.clone()
    assert torch.equal(highest_first(values, count), values.topk(count or 60, -1).values)
    assert torch.equal(values, before)


TRUNCATED = {
    "plain": SamplingParameters(temperature=0.7),
    "top-p": SamplingParameters(temperature=0.8, top_p=0.9),
    "little top-p": SamplingParameters(temperature=1.0, top_p=0.01),
    "top-k": SamplingParameters(temperature=1.1, top_k=7),
    "min-p": SamplingParameters(temperature=1.0, min_p=0.1),
    "all": SamplingParameters(temperature=1.2, top_p=0.8, top_k=9, min_p=0.02, presence_penalty=0.6, min_tokens=2),
    "penalties": SamplingParameters(temperature=0.9, repetition_penalty=1.3, frequency_penalty=0.4, top_p=0.95),
    "greedy": SamplingParameters(temperature=0.0, top_p=0.5),
}


@pytest.mark.parametrize("vocabulary", [VOCABULARY, 1_500])
@pytest.mark.parametrize("names", [*([name] for name in TRUNCATED), list(TRUNCATED)], ids=str)
def test_a_chosen_tokens_probability_is_that_of_the_whole_distribution(names: list[str], vocabulary: int) -> None:
    """Of every token, alone and in one batch; among them equal logits at the edge of what is kept, and flat rows."""
    rows, tokens = len(names), 4
    logits = 2.0 * torch.randn(rows, tokens, vocabulary, generator=torch.Generator().manual_seed(vocabulary))
    logits[:, 1] = logits[:, 1].round()  # ties, many of them
    logits[:, 2] = 1.0  # all alike
    logits[:, 3] *= 0.01  # a head as long as the vocabulary
    batch = BatchSampling([TRUNCATED[name] for name in names], [[3, 4]] * rows, [[1]] * rows, vocabulary, CPU)
    batch.note_emitted([[5, 5, 6]] * rows)
    drafted = torch.tensor([[7, 8, 7]] * rows)
    processed = batch.processed_logits(logits, drafted, torch.full((rows,), 1))
    whole = batch.probs(processed)
    torch.testing.assert_close(whole.sum(-1), torch.ones(rows, tokens))
    for token in range(0, vocabulary, 1 if vocabulary == VOCABULARY else 37):
        chosen = torch.full((rows, tokens), token)
        found = batch.chosen_probs(processed, chosen)
        torch.testing.assert_close(found, whole[:, :, token], atol=0.0, rtol=1e-6)


def test_top_p_keeps_all_that_are_as_probable_as_the_last() -> None:
    """Also where they are more than are looked at first."""
    vocabulary = 2 * TOP_P_HEAD
    logits = torch.zeros(1, 1, vocabulary)
    logits[..., 0] = 1.0
    batch = BatchSampling([SamplingParameters(temperature=1.0, top_p=0.25)], [[0]], [[1]], vocabulary, CPU)
    expected = torch.softmax(logits, -1)
    torch.testing.assert_close(batch.probs(logits), expected)
    for token in (0, vocabulary - 1):
        chosen = batch.chosen_probs(logits, torch.tensor([[token]]))
        torch.testing.assert_close(chosen, expected[..., token])

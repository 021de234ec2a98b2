"""The twins compute what the engine computes, to the last bit, so that the kernels are held against the engine."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from shadowspec.engine.sampling import BatchSampling, greedy_tokens
from shadowspec.engine.verify import verify_matching, verify_sampled
from shadowspec.types import SamplingParameters, VerifyRule
from shadowspec_kernels import reference
from shadowspec_kernels.step import MinimumLength, Penalties, Truncation
from tests.kernels.steps import a_step

ROWS, VOCABULARY = 64, 40
PLAIN = (SamplingParameters(temperature=0.7), SamplingParameters(temperature=0.0))
PENALISED = (
    SamplingParameters(temperature=0.7, repetition_penalty=1.4, presence_penalty=0.5, frequency_penalty=-0.3),
    SamplingParameters(temperature=0.0, repetition_penalty=0.8),
    SamplingParameters(temperature=1.2, min_tokens=4),
)
TRUNCATED = (
    SamplingParameters(temperature=0.7, top_p=0.7),
    SamplingParameters(temperature=1.3, top_k=3),
    SamplingParameters(temperature=1.0, min_p=0.2, top_k=20, top_p=0.9),
    SamplingParameters(temperature=1.0),
)


@pytest.mark.parametrize("has_draft_probs", [False, True])
@pytest.mark.parametrize("rule", [VerifyRule.REJECTION, VerifyRule.GREEDY_DRAFT, VerifyRule.EXACT_MATCH])
@pytest.mark.parametrize("kinds", [PLAIN, PENALISED, TRUNCATED])
def test_verify(kinds, rule, has_draft_probs) -> None:
    sampling = [kinds[row % len(kinds)] for row in range(ROWS)]
    prompts = [[(7 * row + index) % VOCABULARY for index in range(5)] for row in range(ROWS)]
    ends = [[row % VOCABULARY, 1] for row in range(ROWS)]
    batch = BatchSampling(sampling, prompts, ends, VOCABULARY, torch.device("cpu"))
    emitted = torch.tensor([row % 6 for row in range(ROWS)])
    batch.note_emitted(
        [[(3 * row + index) % VOCABULARY for index in range(count)] for row, count in enumerate(emitted.tolist())]
    )

    step = a_step(rule.value, 11, rows=ROWS, vocabulary=VOCABULARY, has_draft_probs=has_draft_probs)
    step = replace(step, temperature=torch.tensor([each.temperature for each in sampling]))
    if batch.has_penalties:
        columns = (batch.repetition, batch.presence, batch.frequency)
        penalties = Penalties(*(each[:, 0] for each in columns), batch.in_prompt, batch.output_counts)
        step = replace(step, penalties=penalties)
    if batch.has_min_tokens:
        step = replace(step, minimum_length=MinimumLength(batch.min_tokens, emitted, batch.ends))
    if batch.has_top_p:
        top_p = torch.tensor([each.top_p for each in sampling])
        step = replace(step, truncation=Truncation(batch.min_p[:, 0], batch.top_k[:, 0], top_p, tuple(range(ROWS))))

    processed = batch.processed_logits(step.logits, step.drafted, emitted)
    expected = verify_sampled(
        rule,
        batch.probs(processed),
        step.drafted,
        step.draft_probs,
        step.num_drafted,
        step.accept_uniform,
        step.target_uniform,
    )
    step.check()
    verified = reference.verify(step)
    assert torch.equal(verified.num_accepted, expected.num_accepted)
    assert torch.equal(verified.next_tokens, expected.next_tokens)
    assert 0 < int(verified.num_accepted.sum()) < int(step.num_drafted.sum())

    matched = verify_matching(greedy_tokens(processed), step.drafted, step.num_drafted)
    greedy = reference.verify(replace(step, rule="greedy"))
    assert torch.equal(greedy.num_accepted, matched.num_accepted)
    assert torch.equal(greedy.next_tokens, matched.next_tokens)


def test_the_rows_of_a_step_are_the_rows_of_its_outcome() -> None:
    step = a_step("rejection", 3, rows=6, has_draft_probs=True)
    slots = torch.tensor([4, 1])
    whole, part = reference.verify(step), reference.verify(step.take(slots))
    assert torch.equal(whole.next_tokens[slots], part.next_tokens)
    assert torch.equal(whole.num_accepted[slots], part.num_accepted)

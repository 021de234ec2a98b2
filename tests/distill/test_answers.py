"""The target's further answers: as many as are wanted, each as the engine gives it, none longer than may be."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from msgspec import structs

from shadowspec.distill import answers
from shadowspec.distill.answers import MIN_TEMPERATURE, sample_answers
from shadowspec.distill.examples import Example
from shadowspec.engine.decode import decode_batch
from shadowspec.engine.models import LoadedModel
from shadowspec.engine.replay.response_tokens import Response
from shadowspec.types import VerifyRule

RARE, COMMON = "letters prompt_class=prose", "letters prompt_class=code"


def anew(
    target: LoadedModel, examples: tuple[Example, ...], rare: int = 3, *, context_length: int = 64, seed: int = 0
) -> list[Response]:
    times = {RARE: rare, COMMON: 1}
    return sample_answers(
        target, examples, times, context_length=context_length, seed=seed, on_progress=lambda *_: None
    )


def changed(example: Example, **changes: object) -> Example:
    response = example.response
    sampling = structs.replace(response.request.sampling, **changes)  # type: ignore[arg-type]
    return replace(example, response=replace(response, request=replace(response.request, sampling=sampling)))


def rare_one(examples: tuple[Example, ...]) -> Example:
    return next(each for each in examples if each.place == RARE and len(each.response.output) > 8)


def test_with_the_logged_one_a_rare_slices_prompt_has_as_many_answers_as_it_counts(
    target: LoadedModel, examples: tuple[Example, ...]
) -> None:
    found = anew(target, examples)
    assert Counter(response.key for response in found) == {
        each.response.key: 2 for each in examples if each.place == RARE
    }
    prompts = {each.response.key: each.response.request.prompt for each in examples}
    assert all(response.request.prompt == prompts[response.key] for response in found)
    assert anew(target, examples, rare=1) == []


def test_an_answer_is_the_engines_own_whatever_it_is_decoded_with(
    target: LoadedModel, examples: tuple[Example, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = {response.request.seed: response for response in anew(target, examples)}
    for response in found.values():
        (alone,) = decode_batch(
            target.model, [response.request], proposer=None, num_speculative_tokens=0, verify_rule=VerifyRule.REJECTION,
            end_token_ids=target.end_token_ids,
        ).decoded  # fmt: skip
        assert response.output == alone.output
        assert response.token_logprobs is None
    monkeypatch.setattr(answers, "TOKENS_PER_BATCH", 50)
    assert {response.request.seed: response for response in anew(target, examples)} == found


def test_answers_differ_by_turn_and_seed_and_are_repeated_by_both(
    target: LoadedModel, examples: tuple[Example, ...]
) -> None:
    first = anew(target, examples)
    assert first == anew(target, examples)
    assert len({response.request.seed for response in [*first, *anew(target, examples, seed=1)]}) == 2 * len(first)
    assert len({response.output for response in first if response.key == rare_one(examples).response.key}) == 2


def test_what_was_answered_greedily_is_answered_otherwise_and_what_was_sampled_as_it_was(
    target: LoadedModel, examples: tuple[Example, ...]
) -> None:
    greedy, hot = changed(rare_one(examples), temperature=0.0), changed(rare_one(examples), temperature=0.9)
    for example, temperature in ((greedy, MIN_TEMPERATURE), (hot, 0.9)):
        assert {response.request.sampling.temperature for response in anew(target, (example,))} == {temperature}


def test_no_answer_is_longer_than_asked_twice_what_was_logged_or_the_context(
    target: LoadedModel, examples: tuple[Example, ...]
) -> None:
    example = changed(rare_one(examples), ignore_eos=True, max_tokens=200, min_tokens=150)
    prompt, logged = len(example.response.request.prompt), len(example.response.output)
    assert {len(response.output) for response in anew(target, (example,))} == {2 * logged}
    assert {len(response.output) for response in anew(target, (example,), context_length=prompt + logged + 1)} == {
        logged + 1
    }
    asked = changed(example, max_tokens=logged + 2)
    assert {len(response.output) for response in anew(target, (asked,))} == {logged + 2}


def test_progress_ends_at_what_is_wanted_and_no_batch_holds_too_much(
    target: LoadedModel, examples: tuple[Example, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    def list_lengths() -> list[tuple[int, int]]:
        found: list[tuple[int, int]] = []
        sample_answers(
            target, examples, dict.fromkeys((RARE, COMMON), 2), context_length=64, seed=0,
            on_progress=lambda *item: found.append(item),
        )  # fmt: skip
        return found

    assert list_lengths() == [(64, 120), (120, 120)]
    # Prompts of 3 to 6 tokens and answers of at most 16: three rows are 57 to 66 tokens, four at least 76.
    monkeypatch.setattr(answers, "TOKENS_PER_BATCH", 66)
    assert list_lengths() == [(number, 120) for number in range(3, 121, 3)]

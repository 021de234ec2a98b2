"""Contamination: what occurs in the training text is found, wherever a run begins, and nothing else is."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.benchmarks.bundled_pair import Document, Turn
from kernels.benchmarks.contamination import RUN_LENGTH, TrainingText, checked, words_of

# Two words only, so that long runs really coincide; "c" is never in training.
TRAINING_WORDS = st.lists(st.sampled_from("ab"), max_size=40)
TEXT_WORDS = st.lists(st.sampled_from("aabbc"), max_size=40)


def occurs_by_definition(text: list[str], documents: list[list[str]]) -> bool:
    length = min(RUN_LENGTH, len(text))
    runs = {tuple(text[i : i + length]) for i in range(len(text) - length + 1)} if text else set()
    return any(tuple(row[i : i + length]) in runs for row in documents for i in range(len(row) - length + 1))


@settings(max_examples=300, deadline=None)
@given(st.lists(TRAINING_WORDS, max_size=4), st.lists(TEXT_WORDS, max_size=4))
def test_occurrence_is_the_definition(documents: list[list[str]], texts: list[list[str]]) -> None:
    training = TrainingText(" ".join(row) for row in documents)
    found = [training.occurs(", ".join(row).upper()) for row in texts]
    assert found == [occurs_by_definition(row, documents) for row in texts]


def test_every_thirteen_words_of_a_training_text_are_found() -> None:
    rng = random.Random(0)
    row = [f"w{rng.randrange(500)}" for _ in range(400)]
    training = TrainingText([" ".join(row)])
    runs = [" ".join(["new", *row[i : i + RUN_LENGTH], "new"]) for i in range(len(row) - RUN_LENGTH + 1)]
    assert all(map(training.occurs, runs))
    almost = [" ".join(["new", *row[i : i + RUN_LENGTH - 1], "new"]) for i in range(len(row) - RUN_LENGTH + 1)]
    assert not any(map(training.occurs, almost))


def test_a_run_across_two_documents_is_none() -> None:
    training = TrainingText(["one two three", "four five six"])
    texts = ("two three", "four five", "three four", "six one")
    assert [training.occurs(text) for text in texts] == [True, True, False, False]


def test_turns_of_a_conversation_are_one_text() -> None:
    turns = (Turn("one two three four five six seven", "eight nine ten eleven twelve thirteen"),)
    training = TrainingText([Document("maths", "m", False, turns=turns).whole()])
    assert training.occurs("one two three four five six seven eight nine ten eleven twelve thirteen")


def test_a_record_is_checked_whole_and_piece_by_piece() -> None:
    sentence = "the quick brown fox jumps over the lazy dog while nine cats look on"
    training = TrainingText([f"So {sentence} in silence."])
    first, second = sentence[:30], sentence[30:]
    records = [
        ("a prompt that nobody has ever written before", sentence),  # a copied continuation
        (f"Lo! {first}", f"{second} today"),  # a run across the border
        ("a prompt that nobody has ever written before", "nine cats"),  # short, whole
        (("a prompt that nobody has ever written before", "cats look"), "never written either"),  # a short message
        ("a prompt that nobody has ever written before", "nine dogs"),
        ("a prompt that nobody has ever written before", ""),
    ]
    occurring = [any(map(training.occurs, checked(prompt, answer))) for prompt, answer in records]
    assert occurring == [True, True, True, True, False, False]


def test_words_are_lower_cased_and_bare() -> None:
    assert words_of("Self._x = 'Ångström', 3.5") == ["self", "_x", "ångström", "3", "5"]

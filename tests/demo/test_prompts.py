"""The sessions: held-out text, one shared thing per session, nothing that the training text contains."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

import pytest

from kernels.benchmarks.bundled_pair import (
    DOMAIN_SHARES,
    ENDPOINTS,
    Document,
    Endpoint,
    candidate_sessions,
    chat_sessions,
    code_sessions,
    json_question,
)
from kernels.benchmarks.contamination import Prompt, TrainingText, checked
from shadowspec.demo import SERVED_MODELS
from shadowspec.tap.prompt_class import classify_text

NOTHING = TrainingText([])


def unchecked(*_texts: str) -> bool:
    return True


EXPECTED_CLASS = {
    "code": "code",
    "sql": "structured",
    "json": "structured",
    "maths": "maths",
    "prose": "creative",
    "translation": "translation",
}


def count_tokens(text: str) -> int:
    return len(text) // 3  # about what the bundled tokenizer makes of it


def sessions_of(domain: str, documents: Sequence[Document]) -> list[list[Prompt]]:
    in_domain = [document for document in documents if document.domain == domain]
    sessions = code_sessions if domain == "code" else chat_sessions
    return list(sessions(in_domain, unchecked, count_tokens, random.Random(4)))


def test_endpoints_are_those_that_the_demo_serves() -> None:
    assert {endpoint.name: endpoint.served_model for endpoint in ENDPOINTS} == SERVED_MODELS
    assert {endpoint.domain for endpoint in ENDPOINTS} == set(DOMAIN_SHARES)


def test_a_code_session_is_a_definition_growing_under_the_cursor(held_out: Sequence[Document]) -> None:
    whole = "\n".join(document.text for document in held_out if document.domain == "code")
    sessions = sessions_of("code", held_out)
    assert len(sessions) > 10
    end = 0
    for prompts in sessions:
        assert all(later.startswith(earlier) and later != earlier for earlier, later in pairwise(prompts))
        start = whole.index(prompts[0], end)  # sessions of a file do not overlap
        end = start + len(prompts[-1])
        assert prompts[0].lstrip().startswith("def ")
        assert count_tokens(prompts[0]) >= 60
        for prompt in prompts:
            assert whole[start + len(prompt)].isspace()
            assert not prompt[-1].isspace()


def test_sql_sessions_ask_about_one_schema(held_out: Sequence[Document]) -> None:
    for session in sessions_of("sql", held_out):
        contents = [content for (content,) in session]
        assert len({content.split("\n\nQuestion: ")[0] for content in contents}) == 1
        assert len(set(contents)) == len(contents)


@pytest.mark.parametrize("domain", ["maths", "translation"])
def test_conversations_grow_by_the_documents_own_turns(domain: str, held_out: Sequence[Document]) -> None:
    answers = {turn.user: turn.assistant for document in held_out for turn in document.turns}
    sessions = sessions_of(domain, held_out)
    assert {len(session) for session in sessions} >= {2, 3}
    for session in sessions:
        for prompt in session:
            assert len(prompt) % 2 == 1
            for asked, answered in zip(prompt[:-1:2], prompt[1::2], strict=True):
                assert answers[asked] == answered
        for earlier, later in pairwise(session):
            assert later[: len(earlier)] == earlier


def test_a_json_question_keeps_the_name_and_shortens_the_purpose() -> None:
    question = "Return the API document as a JSON object.\nName: Cedar\nPurpose: " + "word " * 30
    assert json_question(question) == "Return the API document as one JSON object.\nName: Cedar\nPurpose: " + " ".join(
        ["word"] * 9
    )


@pytest.mark.parametrize("endpoint", ENDPOINTS, ids=lambda endpoint: endpoint.name)
def test_prompts_in_the_training_text_are_dropped_and_no_others(
    endpoint: Endpoint, held_out: Sequence[Document]
) -> None:
    everything, texts = candidate_sessions(endpoint, held_out, NOTHING, count_tokens, seed=1)
    assert not any(texts.values())
    known = everything[0][-1]
    training = TrainingText(["Well: " + checked(known)[-1] + "!"])
    remaining, texts = candidate_sessions(endpoint, held_out, training, count_tokens, seed=1)
    kept = [prompt for session in remaining for prompt in session]
    assert known not in kept
    assert kept
    assert not any(training.occurs(piece) for prompt in kept for piece in checked(prompt))
    assert 1 <= sum(texts.values()) < len(texts) / 2
    assert len(remaining) >= len(everything) / 2
    assert all(len(session) >= 1 for session in remaining)


@pytest.mark.parametrize("endpoint", ENDPOINTS, ids=lambda endpoint: endpoint.name)
def test_prompts_class_as_their_endpoint_says(endpoint: Endpoint, held_out: Sequence[Document]) -> None:
    sessions, _ = candidate_sessions(endpoint, held_out, NOTHING, count_tokens, seed=1)
    prompts = [prompt for session in sessions for prompt in session]
    classes = Counter(classify_text(prompt if isinstance(prompt, str) else prompt[-1]) for prompt in prompts)
    assert classes.most_common(1)[0][0] == EXPECTED_CLASS[endpoint.domain]
    assert classes[EXPECTED_CLASS[endpoint.domain]] >= 0.95 * classes.total()


def test_the_seed_decides_everything(held_out: Sequence[Document]) -> None:
    first, again, other = (candidate_sessions(ENDPOINTS[0], held_out, NOTHING, count_tokens, n) for n in (1, 1, 2))
    assert first == again
    assert first != other


def test_long_definitions_give_long_prompts() -> None:
    body = "\n".join(f"    step_{index} = first_{index} + second_{index * 7}" for index in range(4_000))
    long_file = Document("code", "long.py", True, text="\n".join(f"def f{n}(x):\n{body}\n" for n in range(1)) * 60)
    lengths = [
        count_tokens(session[0]) for session in code_sessions([long_file], unchecked, count_tokens, random.Random(1))
    ]
    assert 1 <= sum(length >= 600 for length in lengths) <= 12
    assert all(length < 1_500 for length in lengths)

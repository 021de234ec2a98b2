"""The sessions: held-out text, one shared thing per session, nothing that the training text contains."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

import pytest

from kernels.benchmarks.bundled_pair.contamination import TrainingText
from kernels.benchmarks.bundled_pair.corpora import Document
from kernels.benchmarks.bundled_pair.prompts import (
    CODE_FIRST_TOKENS,
    ENDPOINTS,
    JSON_INSTRUCTION,
    SESSION_BUILDERS,
    CheckedTexts,
    EndpointPlan,
    Session,
    candidate_sessions,
    code_sessions,
    json_question,
)
from shadowspec.demo import SERVED_MODELS
from shadowspec.tap.prompt_class import classify_text
from tests.demo.conftest import training_document

NOTHING = TrainingText([])
UNCHECKED = CheckedTexts(NOTHING)
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


def sessions_of(domain: str, documents: Sequence[Document]) -> list[Session]:
    rng = random.Random(4)
    in_domain = [document for document in documents if document.domain == domain]
    return list(SESSION_BUILDERS[domain](in_domain, UNCHECKED, count_tokens, rng))


def test_endpoints_are_those_that_the_demo_serves() -> None:
    assert {plan.name: plan.served_model for plan in ENDPOINTS} == SERVED_MODELS
    assert {plan.domain for plan in ENDPOINTS} == set(SESSION_BUILDERS)


def test_a_code_session_is_a_definition_growing_under_the_cursor(held_out: Sequence[Document]) -> None:
    texts = {document.group: document.text for document in held_out}
    sessions = sessions_of("code", held_out)
    assert len(sessions) > 10
    ends: dict[str, int] = {}
    for session in sessions:
        whole = texts[session.document]
        prompts = [prompt.text for prompt in session.prompts]
        assert all(later.startswith(earlier) and later != earlier for earlier, later in pairwise(prompts))
        start = whole.index(prompts[0], ends.get(session.document, 0))  # sessions of a file do not overlap
        ends[session.document] = start + len(prompts[-1])
        assert prompts[0].lstrip().startswith("def ")
        assert count_tokens(prompts[0]) >= CODE_FIRST_TOKENS[0]
        for prompt in prompts:
            cut = whole[start + len(prompt)]
            assert cut.isspace()
            assert not prompt[-1].isspace()


def test_sql_sessions_ask_about_one_schema(held_out: Sequence[Document]) -> None:
    for session in sessions_of("sql", held_out):
        contents = [prompt.pieces[0] for prompt in session.prompts]
        assert len({content.split("\n\nQuestion: ")[0] for content in contents}) == 1
        assert len(set(contents)) == len(contents)


@pytest.mark.parametrize("domain", ["maths", "translation"])
def test_conversations_grow_by_the_documents_own_turns(domain: str, held_out: Sequence[Document]) -> None:
    answers = {turn.user: turn.assistant for document in held_out for turn in document.turns}
    sessions = sessions_of(domain, held_out)
    assert {len(session.prompts) for session in sessions} >= {2, 3}
    for session in sessions:
        for prompt in session.prompts:
            assert [message["role"] for message in prompt.messages] == ["user", "assistant"] * (
                len(prompt.messages) // 2
            ) + ["user"]
            for asked, answered in zip(prompt.pieces[:-1:2], prompt.pieces[1::2], strict=True):
                assert answers[asked] == answered
        for earlier, later in pairwise(session.prompts):
            assert later.messages[: len(earlier.messages)] == earlier.messages


def test_a_json_question_keeps_the_name_and_shortens_the_purpose() -> None:
    question = "Return the API document as a JSON object.\nName: Cedar\nPurpose: " + "word " * 30
    assert json_question(question) == f"{JSON_INSTRUCTION}\nName: Cedar\nPurpose: " + " ".join(["word"] * 9)


@pytest.mark.parametrize("plan", ENDPOINTS, ids=lambda plan: plan.name)
def test_prompts_in_the_training_text_are_dropped_and_no_others(
    plan: EndpointPlan, held_out: Sequence[Document]
) -> None:
    everything = candidate_sessions(plan, held_out, NOTHING, count_tokens, seed=1)
    assert everything.num_texts_dropped == 0
    known = everything.sessions[0].prompts[-1]
    training = TrainingText([training_document("Well: " + "\n".join(known.pieces) + "!")])
    remaining = candidate_sessions(plan, held_out, training, count_tokens, seed=1)
    kept = [prompt for session in remaining.sessions for prompt in session.prompts]
    assert known not in kept
    assert kept
    assert not any(training.occurs([piece for prompt in kept for piece in prompt.pieces]))
    assert 1 <= remaining.num_texts_dropped < remaining.num_texts / 2
    assert len(remaining.sessions) >= len(everything.sessions) / 2
    assert all(len(session.prompts) >= 1 for session in remaining.sessions)


@pytest.mark.parametrize("plan", ENDPOINTS, ids=lambda plan: plan.name)
def test_prompts_class_as_their_endpoint_says(plan: EndpointPlan, held_out: Sequence[Document]) -> None:
    sessions = candidate_sessions(plan, held_out, NOTHING, count_tokens, seed=1).sessions
    classes = Counter(classify_text(prompt.pieces[-1]) for session in sessions for prompt in session.prompts)
    assert classes.most_common(1)[0][0] == EXPECTED_CLASS[plan.domain]
    assert classes[EXPECTED_CLASS[plan.domain]] >= 0.95 * classes.total()


def test_the_seed_decides_everything(held_out: Sequence[Document]) -> None:
    plan = ENDPOINTS[0]
    first, again, other = (candidate_sessions(plan, held_out, NOTHING, count_tokens, seed) for seed in (1, 1, 2))
    assert first == again
    assert first != other


def test_long_definitions_give_long_prompts(held_out: Sequence[Document]) -> None:
    body = "\n".join(f"    step_{index} = first_{index} + second_{index * 7}" for index in range(4_000))
    long_file = Document("code", "long.py", True, text="\n".join(f"def f{n}(x):\n{body}\n" for n in range(1)) * 60)
    lengths = [
        count_tokens(session.prompts[0].text)
        for session in code_sessions([long_file], UNCHECKED, count_tokens, random.Random(1))
    ]
    assert 1 <= sum(length >= 600 for length in lengths) <= 12
    assert all(length < 1_500 for length in lengths)

"""Logged responses: the text of an answer, whichever way its message was read."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from shadowspec.tap.hashing import KeyedHash
from shadowspec.tap.responses import LoggedCall, ResponseReader
from shadowspec.types import FunnelCounter, LoggedResponse
from tests.tap.mirror import RULE, SECRET, ByteTokenizer, chat, messages, raw, responses

SAID = {"role": "assistant", "content": "Because."}


@pytest.mark.parametrize(
    ("choice", "text"),
    [
        ({"message": SAID}, "Because."),
        ({"text": "Because."}, "Because."),
        ({"message": SAID, "token_ids": [1, 2]}, "Because."),
        ({"message": {**SAID, "tool_calls": [{"id": "a"}]}}, None),  # tokens that are not in the text
        ({"message": {"content": 3}}, None),
        ({"message": "Because."}, None),
        ({}, None),
    ],
)
@pytest.mark.parametrize("is_nested", [False, True])
def test_the_text_of_the_answer_is_kept(choice: dict[str, Any], text: str | None, is_nested: bool) -> None:
    """Nested: with more brackets than a message may have that is decoded without its document."""
    record = chat(response_choices=[choice], other=[[]] * 200 if is_nested else None)
    reader = ResponseReader([RULE], {RULE.name: ByteTokenizer()}, KeyedHash(SECRET))
    (found,) = reader.read(raw(record))
    assert isinstance(found, LoggedCall)
    assert found.text == text


@pytest.mark.parametrize("takes_constraints", [False, True])
def test_a_constrained_response_is_not_replayed_at_any_endpoint(takes_constraints: bool) -> None:
    """Replay knows no masks: the target's distribution under one is another."""
    rule = replace(RULE, takes_constraints=takes_constraints)
    reader = ResponseReader([rule], {rule.name: ByteTokenizer()}, KeyedHash(SECRET))
    (found,) = reader.read(raw(chat(request_response_format={"type": "json_object"})))
    assert not isinstance(found, LoggedCall)
    assert found[1][1:] == (FunnelCounter.UNSUPPORTED, "grammar")


@pytest.mark.parametrize("record", [responses(answer="Because."), messages(answer="Because.")])
def test_answers_of_the_other_apis_are_read_with_their_text(record: dict[str, Any]) -> None:
    (found,) = ResponseReader([RULE], {RULE.name: ByteTokenizer()}, KeyedHash(SECRET)).read(raw(record))
    assert isinstance(found, LoggedCall)
    assert (found.text, found.prompt.response) == ("Because.", LoggedResponse(None, None, "stop", 3))

"""Logged responses: the text of an answer, whichever way its message was read."""

from __future__ import annotations

from typing import Any

import pytest

from shadowspec.tap.hashing import KeyedHash
from shadowspec.tap.responses import LoggedCall, ResponseReader
from tests.tap.mirror import RULE, SECRET, ByteTokenizer, chat, raw

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

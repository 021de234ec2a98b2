"""Rules that are tried together hold where each of them holds by itself."""

from __future__ import annotations

import pytest
import re2
from hypothesis import given, settings
from hypothesis import strategies as st

from shadowspec.tap import prompt_class_patterns as patterns

WORDS = [
    *("translate this", "to German\n", "write a", "summary of", "select x", "from t", "where", "create table", ";"),
    *("return", "json", "in the format", "prove that", "numbers", "are even", "solve", "how many apples", "what is"),
    *("the total cost", "please", "?", ".", "def f(x):", "import os", "x = 1", "{ }", "# heading", "// call"),
    *("#", "/", "//", "\n", "  ", "self.", "a[i]", "f()", "%("),
    *("available", "functions", "'parameters': {", "übersetz", "1 2 3", "object", "story", "code", "in python"),
]
TEXTS = st.lists(st.sampled_from(WORDS), max_size=40).map(" ".join) | st.text(max_size=60)


@settings(max_examples=300, deadline=None)
@given(TEXTS.map(str.encode))
@pytest.mark.parametrize("rules", [patterns.TEXT, patterns.FUNCTIONS, patterns.LINES, patterns.BODY, patterns.NUMBER])
def test_what_holds_is_possible_and_nothing_else_is_confirmed(rules: patterns.PatternRules, text: bytes) -> None:
    possible = rules.possible(text)
    for place, rule in enumerate(rules.rules):
        holds = re2.search("|".join(rule), text) is not None
        assert (place in possible and rules.holds(place, text)) == holds


def test_words_too_far_apart_are_possible_and_do_not_hold() -> None:
    near = b"write a short program"
    far = b"write " + b"very " * 30 + b"short program"
    assert patterns.CODE_ASKED in patterns.TEXT.possible(near)
    assert patterns.CODE_ASKED in patterns.TEXT.possible(far)
    assert patterns.TEXT.holds(patterns.CODE_ASKED, near)
    assert not patterns.TEXT.holds(patterns.CODE_ASKED, far)


def test_a_rule_about_a_line_ends_with_it() -> None:
    assert not patterns.BODY.possible(b"class A(\nB):")
    assert patterns.BODY.possible(b"class A(B):") == [patterns.SOURCE_LINE]


@settings(max_examples=500, deadline=None)
@given(TEXTS.map(lambda text: "\n".join(text.splitlines()).encode()))
def test_a_program_line_is_a_code_line_that_is_no_comment(text: bytes) -> None:
    code_lines = [found.group().lstrip(patterns.SPACES) for found in patterns.CODE_LINES.finditer(text)]
    has_program = any(not line.startswith((b"#", b"//")) for line in code_lines)
    assert (patterns.PROGRAM_LINE in patterns.BODY.possible(text)) == has_program

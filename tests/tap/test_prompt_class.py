"""The classifier on labelled prompts that its rules were not written against, and on the bundled traffic's shapes.

The measured matrix is tests/data/prompt_class_matrix.md; the floor lies a little below its 94.6 % (334 prompts).
"""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shadowspec.tap.context_buckets import context_bucket
from shadowspec.tap.prompt_class import PROMPT_CLASSES, classify_text, prompt_class
from shadowspec.types import format_slice_key, parse_slice_key

SAMPLE = Path(__file__).parents[1] / "data" / "labelled_prompts.jsonl"
DOCUMENT = Path(__file__).parents[2] / "tests" / "data" / "prompt_class_matrix.md"
FLOOR = 0.93
CLASS_FLOOR = 0.80  # of every class on its own: "chat" and "other" have no words of their own to be known by


def confusion() -> Counter[tuple[str, str]]:
    rows = [json.loads(line) for line in SAMPLE.read_text(encoding="utf-8").splitlines()]
    return Counter((row["label"], prompt_class(row["texts"])) for row in rows)


def test_accuracy_on_the_labelled_prompts() -> None:
    matrix = confusion()
    assert {label for label, _ in matrix} == set(PROMPT_CLASSES)
    right = sum(count for (label, found), count in matrix.items() if label == found)
    assert right / matrix.total() >= FLOOR
    for name in PROMPT_CLASSES:
        total = sum(count for (label, _), count in matrix.items() if label == name)
        assert matrix[name, name] / total >= CLASS_FLOOR, name


def test_the_documented_matrix_is_the_measured_one() -> None:
    matrix = confusion()
    rows = re.findall(r"^\| `(\w+)` \|((?: *\d+ \|)+)$", DOCUMENT.read_text(encoding="utf-8"), re.MULTILINE)
    documented = {
        (label, found): int(count)
        for label, counts in rows
        for found, count in zip(PROMPT_CLASSES, counts.split("|")[:-1], strict=True)
    }
    assert {pair: count for pair, count in documented.items() if count} == dict(matrix)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("    def get(self, key):\n        value = self.entries[key]\n        return", "code"),
        ("        for part in parts:\n            total += int(part)\n        if total > limit:\n", "code"),
        ("CREATE TABLE hives (\n  id INTEGER,\n  name TEXT\n);\n\nQuestion: How many hives are there?", "structured"),
        ("Return the API document as a JSON object.\nName: Translate text\nPurpose: Translate to German", "structured"),
        ("Ann has 3 apples and buys twice as many. How many apples does she have now?", "maths"),
        ("Continue the story:\n\nThe Time Traveller summarised what he had seen: four shapes in the dark.", "creative"),
        ("Translate to German:\ncould not open file \"%s\": %m", "translation"),
        ("Translate to French:\nSELECT DISTINCT is not supported", "translation"),
    ],
)  # fmt: skip
def test_the_bundled_traffics_shapes(text: str, expected: str) -> None:
    assert classify_text(text) == expected


def test_a_request_that_says_what_it_is_is_believed() -> None:
    poem = ["Write a haiku about snow."]
    assert prompt_class(poem) == "creative"
    assert prompt_class(poem, asks_for_json=True) == "structured"
    assert prompt_class(poem, asks_for_json=True, offers_tools=True) == "tool_calling"
    assert prompt_class(poem, declared="maths", offers_tools=True) == "maths"
    assert prompt_class(poem, declared="legal") == "creative"  # not a class: the rules decide


def test_a_follow_up_belongs_to_what_it_follows_up() -> None:
    schema = "CREATE TABLE hives (\n  id INTEGER\n);\n\nQuestion: How many hives are there?"
    assert prompt_class([schema, "And what about last year?"]) == "structured"
    assert prompt_class([schema, "Translate to Spanish:\nthank you"]) == "translation"
    assert prompt_class(["Hello there", "thanks"]) == "chat"
    assert prompt_class([]) == "other"


def test_buckets_have_names_that_fit_a_slice_key() -> None:
    names = [context_bucket(tokens) for tokens in (0, 511, 512, 2_047, 2_048, 8_191, 8_192, 32_768, 131_072, 10**9)]
    assert names == ["<512", "<512", "512-2k", "512-2k", "2k-8k", "2k-8k", "8k-32k", "32k-128k", "128k+", "128k+"]
    for name in names:
        labels = {"prompt_class": "code", "context_bucket": name}
        assert parse_slice_key(format_slice_key(labels, tuple(labels))) == labels
        assert not set(name) & set(",=")


@settings(max_examples=200, deadline=None)
@given(text=st.text(max_size=300) | st.text(alphabet="def select from write a(=)\n,.?1", max_size=2_000))
def test_any_text_has_one_class(text: str) -> None:
    assert classify_text(text) in PROMPT_CLASSES


def test_no_line_begins_in_the_middle_of_a_text() -> None:
    """Of a text that lies near its two ends as a whole, no cut makes a word the first of a line."""
    assert classify_text("word " * 40 + "show " + "word " * 79) == "other"


LINE_ENDS = "\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029"  # of `str.splitlines`, by Python's documentation


@pytest.mark.parametrize("end", [*LINE_ENDS, "\r\n"], ids=ascii)
def test_a_line_of_source_text_is_one_whatever_ended_the_line_before(end: str) -> None:
    assert classify_text(f"A note on wool{end}def knit(yarn):{end}    return yarn") == "code"
    assert classify_text(f"A note on wool, def knit(yarn):{end}and its end") == "other"


def test_an_instruction_may_stand_behind_empty_lines() -> None:
    assert classify_text("\n \n  Translate to German:\nimport os") == "translation"
    assert classify_text("  import os\nTranslate to German") == "code"

"""The fast parser against the standard library's."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shadowspec.errors import RecordError
from shadowspec.tap.documents import parse_document, split_message

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=12,
)


@given(json_values, st.booleans())
def test_what_is_written_is_read(value: Any, is_ascii: bool) -> None:
    text = json.dumps(value, ensure_ascii=is_ascii)
    try:
        assert parse_document(text.encode()) == value
    except UnicodeEncodeError:
        assert not is_ascii


def read_by_the_standard_library(value: bytes) -> Any:
    """What the standard library reads, if it is Unicode and finite; else ValueError."""

    def refuse(name: str) -> None:
        raise ValueError(name)

    document = json.loads(value.decode("utf-8-sig"), parse_constant=refuse)
    json.dumps(document, ensure_ascii=False).encode()
    return document


JSON_LIKE = st.lists(
    st.sampled_from(
        list(b'{}[]:,"\\u0ndtrefalsi -+.eE123\n\t\x00\x1f\xff\xc3\xa9') + list(b'"a":') + list(b"\\ud83d\\ude00")
    ),
    max_size=30,
).map(bytes)


@given(JSON_LIKE | st.binary(max_size=40) | st.text(max_size=30).map(str.encode))
def test_both_read_the_same_or_nothing(value: bytes) -> None:
    try:
        expected = read_by_the_standard_library(value)
    except ValueError:
        with pytest.raises(RecordError):
            parse_document(value)
        return
    found = parse_document(value)
    assert found == expected or _is_infinite(found)
    assert json.dumps(found) == json.dumps(expected)  # which tells 1 from 1.0 and from True


def _is_infinite(value: Any) -> bool:
    return isinstance(value, float) and math.isinf(value)


def test_nesting_is_read_to_200_levels() -> None:
    assert parse_document(b"[" * 200 + b"]" * 200) is not None
    with pytest.raises(RecordError, match="not_json"):
        parse_document(b"[" * 300 + b"]" * 300)


@pytest.mark.parametrize("value", [b"NaN", b"[-Infinity]", b'{"a": Infinity}'])
def test_what_is_no_number_is_refused(value: bytes) -> None:
    with pytest.raises(RecordError, match="not_json"):
        parse_document(value)


def test_errors_quote_nothing() -> None:
    with pytest.raises(RecordError) as caught:
        parse_document(b'{"secret": canary}')
    assert str(caught.value) == "not_json"
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__


@given(st.lists(json_values.filter(lambda value: not isinstance(value, list)), min_size=2, max_size=5))
def test_lines_are_split_like_an_array(values: list[Any]) -> None:
    lines = [json.dumps(value).encode() for value in values]
    assert split_message(b"\n".join(lines)) == split_message(b"[" + b",".join(lines) + b"]") == values

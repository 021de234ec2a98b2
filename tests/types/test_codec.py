"""The codec gives back what it was given, and its errors name a place and no content."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from shadowspec.errors import InputError
from shadowspec.types import codec


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


@dataclass(frozen=True, slots=True)
class Part:
    colour: Colour
    pair: tuple[str, int]


@dataclass(frozen=True, slots=True)
class Whole:
    number: float
    by_number: Mapping[int, float]
    by_colour: Mapping[Colour, int]
    parts: tuple[Part, ...]
    members: frozenset[tuple[str, str]]
    at: datetime | None = None
    figures: Mapping[str, float | int | str | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Arrays:
    first: NDArray[np.float64]
    second: NDArray[np.float64]
    column: NDArray[np.float64]
    whole: Whole
    third: NDArray[np.float64] | None = None


NUMBERS = st.floats(allow_nan=False, allow_infinity=False)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
COUNTS = st.integers(0, 2**62)
WHOLES = st.builds(
    Whole,
    number=NUMBERS,
    by_number=st.dictionaries(COUNTS, NUMBERS),
    by_colour=st.dictionaries(st.sampled_from(Colour), COUNTS),
    parts=st.lists(st.builds(Part, st.sampled_from(Colour), st.tuples(TEXTS, COUNTS))).map(tuple),
    members=st.frozensets(st.tuples(TEXTS, TEXTS)),
    at=st.none() | st.datetimes(timezones=st.just(UTC)),
    figures=st.dictionaries(TEXTS, st.none() | NUMBERS | COUNTS | TEXTS),
)


@given(WHOLES)
def test_text_and_tree_give_the_value_back(whole: Whole) -> None:
    assert codec.decode(codec.encode(whole), Whole) == whole
    assert codec.from_builtins(codec.to_builtins(whole), Whole) == whole
    assert codec.from_document(codec.to_document(whole, 3), Whole, 3) == whole


def test_a_figure_keeps_its_type() -> None:
    figures: dict[str, Any] = {"a": 1, "b": 1.0, "c": "2026-01-01T00:00:00Z", "d": None}
    read = codec.decode(codec.encode(figures), dict[str, float | int | str | None])
    assert [type(figure) for figure in read.values()] == [int, float, str, type(None)]
    assert list(read) == list(figures)  # in the order of the fields


def test_times_are_text_that_names_utc() -> None:
    assert codec.to_builtins(datetime(2026, 1, 31, 12, tzinfo=UTC)) == "2026-01-31T12:00:00Z"
    assert codec.from_builtins("2026-01-31T12:00:00+00:00", datetime) == datetime(2026, 1, 31, 12, tzinfo=UTC)


@pytest.mark.parametrize("dtype", [np.float64, np.int64])
def test_arrays_are_nested_lists(dtype: Any) -> None:
    array = np.arange(6, dtype=dtype).reshape(2, 3)
    assert codec.to_builtins({"a": array}) == {"a": array.tolist()}
    read = codec.decode(codec.encode(array), NDArray[dtype], "an array")
    assert read.dtype == dtype
    assert np.array_equal(read, array)


def test_an_error_names_the_document_and_the_place_but_no_content() -> None:
    text = b'{"colour":"secret","pair":["a",1]}'
    with pytest.raises(InputError) as caught:
        codec.decode(text, Part, "part 7", "measure it again")
    message = str(caught.value)
    assert message.startswith("part 7 cannot be read: ")
    assert message.endswith("; measure it again")
    assert "$.colour" in message
    assert "secret" not in message
    with pytest.raises(InputError, match=r"^part 7 cannot be read: .*`pair`"):
        codec.from_builtins({"colour": "red"}, Part, "part 7")
    with pytest.raises(InputError, match="cannot be read"):
        codec.decode(b'{"colour', Part)
    with pytest.raises(InputError, match="UTF-8"):
        codec.decode(b'{"colour":"\xff"}', Part)


@pytest.mark.parametrize("document", [{"version": 2}, {"version": "secret"}, {}])
def test_a_document_of_another_version_is_refused(document: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="this version of ShadowSpec reads version 1: fold it again") as caught:
        codec.from_document(document, Part, 1, "evidence", "fold it again")
    assert "secret" not in str(caught.value)


@given(WHOLES, st.lists(st.floats(), max_size=6))
def test_a_packed_value_is_given_back_with_its_arrays(whole: Whole, numbers: list[float]) -> None:
    array = np.array(numbers, dtype=np.float64)
    value = Arrays(array, array, array.reshape(-1, 1)[::2], whole)
    content = codec.pack(value, 3)
    read = codec.unpack(content, Arrays, 3)
    assert codec.packed_version(content) == 3
    for name in ("first", "second", "column"):
        assert getattr(read, name).tobytes() == getattr(value, name).tobytes()
        assert getattr(read, name).shape == getattr(value, name).shape
    assert (read.third, read.whole) == (None, whole)
    assert read.first is read.second  # stored once


@pytest.mark.parametrize("content", [b"", b"{}", b"\x92\x02\x01", codec.pack({}, 2), codec.encode({"version": 1})])
def test_a_packed_value_of_another_version_or_of_none_is_refused(content: bytes) -> None:
    with pytest.raises(InputError, match="this version of ShadowSpec reads version 1: fold it again"):
        codec.unpack(content, Part, 1, "evidence", "fold it again")


def test_packed_bytes_that_hold_no_such_value_are_refused() -> None:
    with pytest.raises(InputError, match=r"^evidence cannot be read: .*`pair`"):
        codec.unpack(codec.pack({"colour": "red"}, 1), Part, 1, "evidence")
    with pytest.raises(InputError, match=r"^evidence cannot be read: .*`\$.colour`") as caught:
        codec.unpack(codec.pack({"colour": "secret", "pair": ["a", 1]}, 1), Part, 1, "evidence")
    assert "secret" not in str(caught.value)
    with pytest.raises(InputError, match="evidence cannot be read"):
        codec.unpack(
            codec.pack({"first": [2, b"1234"], "second": [0, b""], "column": [0, b""]}, 1), Arrays, 1, "evidence"
        )
    with pytest.raises(InputError, match="an array that it does not hold"):
        codec.unpack(codec.pack({"first": [0, b""], "second": 7, "column": 0}, 1), Arrays, 1, "evidence")


def test_a_value_without_a_json_form_is_a_mistake_of_the_caller() -> None:
    with pytest.raises(TypeError, match="a object has no JSON form"):
        codec.encode({"a": object()})

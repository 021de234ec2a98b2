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


def test_a_value_without_a_json_form_is_a_mistake_of_the_caller() -> None:
    with pytest.raises(TypeError, match="a object has no JSON form"):
        codec.encode({"a": object()})

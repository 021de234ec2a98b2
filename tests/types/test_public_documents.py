"""Parts of documents are made of the values inside ShadowSpec: by name, by path, by what a part shows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Self

import pytest

from shadowspec.types.codec import to_builtins
from shadowspec.types.public_documents import AtLoad, Labels, PublicDocument, PublicValue, public, shows


@dataclass(frozen=True, slots=True)
class Costs:
    seconds: float
    secret: str = ""


@dataclass(frozen=True, slots=True)
class Cell:
    slice_key: str
    concurrency: int | None
    costs: Costs | None
    by_name: Mapping[str, Costs]
    secret: str = ""


class CostsPart(PublicValue, frozen=True, kw_only=True):
    """Costs."""

    milliseconds: float

    @classmethod
    def of(cls, value: Costs) -> Self:
        return cls(milliseconds=1_000.0 * value.seconds)


@shows(Cell, "secret")
class CellPart(PublicValue, frozen=True, kw_only=True):
    """A cell."""

    by_name: Mapping[str, CostsPart]
    seconds: Annotated[float | None, "costs.seconds"]


class CellsDocument(PublicDocument, frozen=True, kw_only=True):
    """Cells."""

    slice: Labels
    load: AtLoad | None
    cells: Sequence[CellPart]
    first: Annotated[CostsPart | None, "cells.costs"] = None


CELL = Cell("tier=a", 8, Costs(2.0), {"one": Costs(1.0)})
BARE = Cell("", None, None, {})


def test_a_document_is_made_of_values_by_name_and_by_path() -> None:
    document = public(CellsDocument, CELL, None, cells=[CELL, BARE])
    assert to_builtins(document) == {
        "schema_version": 1,
        "slice": {"tier": "a"},
        "load": {"concurrency": 8},
        "cells": [
            {
                "by_name": {"one": {"milliseconds": 1_000.0}},
                "seconds": 2.0,
                "slice": {"tier": "a"},
                "load": {"concurrency": 8},
            },
            {"by_name": {}, "seconds": None, "slice": {}, "load": None},
        ],
        "first": None,
    }


def test_the_first_value_that_has_a_field_gives_it_and_what_is_given_comes_before_all() -> None:
    assert public(CellsDocument, CELL, BARE, cells=()).load == AtLoad(concurrency=8)
    assert public(CellsDocument, CELL, load=None, cells=(), first=Costs(0.5)).load is None
    assert public(CellsDocument, CELL, cells=(), first=Costs(0.5)).first == CostsPart(milliseconds=500.0)


def test_a_field_that_no_value_has_is_a_mistake_of_the_caller() -> None:
    with pytest.raises(TypeError, match="cells"):
        public(CellsDocument, CELL)

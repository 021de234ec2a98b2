"""Frozen dataclasses that are made by the fast constructor are what they are otherwise."""

from __future__ import annotations

import pickle
from dataclasses import FrozenInstanceError, dataclass, field, replace
from typing import Any

import pytest

from shadowspec.types import FunnelCounter, LoggedResponse, RecordKey, StoredRecord, fast_constructor

KEY = RecordKey("topic", 1, 2)


@dataclass(frozen=True, slots=True)
class Pair:
    first: int
    second: list[int] = field(default_factory=list, repr=False)


@pytest.mark.parametrize(
    ("kind", "given"),
    [(Pair, (1,)), (Pair, (1, [2])), (LoggedResponse, ()), (StoredRecord, (KEY, FunnelCounter.MEASURED, None, "chat"))],
)
def test_it_is_an_instance_like_every_other(kind: Any, given: tuple[Any, ...]) -> None:
    made, other = fast_constructor(kind)(*given), kind(*given)
    assert type(made) is kind
    assert made == other
    assert repr(made) == repr(other)
    assert pickle.loads(pickle.dumps(made)) == made
    assert replace(made) == made


def test_it_is_frozen_and_shares_nothing() -> None:
    made, other = fast_constructor(Pair)(first=1), fast_constructor(Pair)(first=1)
    with pytest.raises(FrozenInstanceError):
        made.first = 2  # type: ignore[misc]
    assert made.second is not other.second


def test_what_is_not_frozen_or_does_more_is_refused() -> None:
    @dataclass(slots=True)
    class Loose:
        first: int

    @dataclass(frozen=True, slots=True)
    class Checked:
        first: int

        def __post_init__(self) -> None:
            assert self.first > 0

    for kind in (Loose, Checked):
        with pytest.raises(TypeError):
            fast_constructor(kind)

"""Which slices are shown beside their whole endpoint."""

from __future__ import annotations

from shadowspec.text import distinct_slices


def test_an_only_slice_is_shown_where_it_differs_and_nowhere_else() -> None:
    several = ["", "a", "", "a", "b"]
    assert distinct_slices(several, str) == several
    assert distinct_slices(["", "a", "", "a"], str) == ["", ""]
    items = [("", False), ("a", True), ("a", False)]
    assert distinct_slices(items, lambda item: item[0], lambda item: item[1]) == items[:2]
    assert distinct_slices([("a", True), ("b", False)], lambda item: item[0], lambda item: item[1]) == [
        ("a", True),
        ("b", False),
    ]

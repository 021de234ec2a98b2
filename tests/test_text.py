"""Which slices are shown beside their whole endpoint, and files that are written whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from shadowspec.text import distinct_slices, whole_file, write_whole


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
    assert distinct_slices(["a"], str) == ["a"]  # alone it repeats nothing


def test_a_file_is_written_whole_or_stays_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "routes.yaml"
    write_whole(path, "old")
    path.chmod(0o640)
    with pytest.raises(OSError, match="full"), whole_file(path) as file:  # noqa: PT012 - what it leaves is the point
        file.write("half of the new")
        assert path.read_text() == "old"
        raise OSError("the disk is full")
    assert path.read_text() == "old"
    link = tmp_path / "link.yaml"
    link.symlink_to(path)
    write_whole(link, "new")
    assert (path.read_text(), path.stat().st_mode & 0o777, link.is_symlink()) == ("new", 0o640, True)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["link.yaml", "routes.yaml"]


def test_a_device_is_written_to_and_stays_one() -> None:
    write_whole(Path(os.devnull), "text")
    assert Path(os.devnull).is_char_device()

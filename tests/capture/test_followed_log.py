"""A followed log gives every line once, in order, over rotation, truncation and restarts."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shadowspec.capture import followed_log
from shadowspec.capture.followed_log import FollowedLog, read_position, write_position
from shadowspec.errors import InputError

BEGIN_NS = 10**18  # in 2001; files that are rotated within one tick of the system's clock would be of one time
OPEN: list[FollowedLog] = []


@pytest.fixture(autouse=True)
def without_grace(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Rotation is noticed at once, and nothing stays open."""
    monkeypatch.setattr(followed_log, "ROTATION_GRACE_S", 0.0)
    yield
    while OPEN:
        OPEN.pop().close()


def follow(*arguments: Any, **limits: Any) -> FollowedLog:
    OPEN.append(FollowedLog(*arguments, **limits))
    return OPEN[-1]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "traffic.jsonl"


def add(path: Path, text: str) -> None:
    with path.open("a") as file:
        file.write(text)


def rotate(path: Path, number: int) -> None:
    """Rename the log; the higher the number, the later."""
    os.utime(path, ns=(BEGIN_NS + number, BEGIN_NS + number))
    path.rename(path.with_name(f"traffic.jsonl.{100 - number}"))


def rest(followed: FollowedLog) -> list[str]:
    """All lines that there are now; a look between two files may be empty."""
    found: list[str] = []
    looks = 0
    while looks < 3:
        lines = followed.lines()
        looks = 0 if lines else looks + 1
        found += [line.decode() for line in lines]
    return found


def test_a_line_is_given_with_its_end(path: Path) -> None:
    followed = follow(path)
    assert rest(followed) == []
    add(path, "a\n\nb\r\nc")
    assert rest(followed) == ["a", "b"]
    add(path, "d\n")
    assert rest(followed) == ["cd"]


def test_a_restart_goes_on_where_it_ended(path: Path) -> None:
    add(path, "a\nb\npart")
    followed = follow(path)
    assert rest(followed) == ["a", "b"]
    stored = path.with_name("position")
    assert followed.position is not None
    write_position(stored, followed.position)
    add(path, " whole\nc\n")
    assert rest(follow(path, read_position(stored))) == ["part whole", "c"]


def test_a_rotated_file_is_read_to_its_end(path: Path) -> None:
    add(path, "a\n")
    followed = follow(path)
    assert rest(followed) == ["a"]
    path.rename(path.with_name("traffic.jsonl.1"))
    add(path.with_name("traffic.jsonl.1"), "b\nwithout an end")
    assert rest(followed) == ["b"]
    add(path, "c\n")
    assert rest(followed) == ["without an end", "c"]


def test_rotations_while_it_was_stopped_lose_nothing(path: Path) -> None:
    add(path, "a\nb\n")
    followed = follow(path)
    assert rest(followed) == ["a", "b"]
    position = followed.position
    for number in range(2):
        add(path, f"{number}\n")
        rotate(path, number)
    add(path, "c\n")
    path.with_name("traffic.jsonl.3.gz").write_bytes(b"packed\n")
    path.with_name("traffic.jsonl.position").write_text("{}\n")
    assert rest(follow(path, position)) == ["0", "1", "c"]
    assert rest(followed) == ["0", "1", "c"]


@pytest.mark.parametrize("refill", ["x\n", "longer than it was before\n" * 9])
def test_a_truncated_log_begins_again(path: Path, refill: str) -> None:
    add(path, "a\nb\nc\n")
    followed = follow(path)
    assert rest(followed) == ["a", "b", "c"]
    path.write_text(refill)
    assert rest(followed) == refill.splitlines()


def test_a_copy_before_truncation_is_found_after_a_restart(path: Path) -> None:
    add(path, "a\nb\n")
    followed = follow(path)
    assert rest(followed) == ["a", "b"]
    add(path, "c\n")
    path.with_name("traffic.jsonl.1").write_bytes(path.read_bytes())
    path.write_text("d\n")
    assert rest(follow(path, followed.position)) == ["c", "d"]


def test_a_position_of_a_lost_file_begins_at_the_first_line(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    add(path, "a\nb\n")
    followed = follow(path)
    rest(followed)
    path.unlink()
    add(path, "c\nd\n")
    assert rest(follow(path, followed.position)) == ["c", "d"]
    assert "begins at the first line" in caplog.text


def test_lines_that_are_too_long_are_counted(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(followed_log, "CHUNK_BYTES", 4)
    add(path, "0123456789 too long\nok\n" + "y" * 50)
    followed = follow(path, max_line_bytes=8)
    assert rest(followed) == ["ok"]
    assert followed.position is not None
    assert followed.position.offset == len("0123456789 too long\nok\n")
    add(path, "\nb\n")
    assert rest(followed) == ["b"]
    assert followed.num_too_long == 2


def test_a_position_that_is_none_says_so(path: Path) -> None:
    path.write_text("{}")
    with pytest.raises(InputError, match="delete it"):
        read_position(path)
    assert read_position(path.with_name("missing")) is None


@pytest.mark.parametrize("seed", range(20))
def test_whatever_happens_each_line_is_given_once_and_in_order(path: Path, seed: int) -> None:
    draw = random.Random(seed)
    add(path, "line 0\n")  # what was rotated before the first look is not the log's
    followed, written, num_rotated = follow(path), 1, 0
    given = [line.decode() for line in followed.lines()]
    for _ in range(60):
        match draw.randrange(5):
            case 0 | 1:
                count = draw.randrange(1, 40)
                add(path, "".join(f"line {number}\n" for number in range(written, written + count)))
                written += count
            case 2:
                given += [line.decode() for line in followed.lines()]
            case 3 if path.exists():
                num_rotated += 1
                rotate(path, num_rotated)
            case 4 if followed.position is not None:
                followed = follow(path, followed.position)
    add(path, "end\n")
    given += rest(followed)
    assert given == [*(f"line {number}" for number in range(written)), "end"]

"""Rows, one of which ends every process that judges it, and a file whose reading breaks off; judged on a cluster.

Run as a process of its own: what it prints are the rows that come back, and processes are told by their ids.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence

from shadowspec.backfill.cluster import Actors, judge_rows
from shadowspec.backfill.connection import connect
from shadowspec.errors import ServiceUnavailableError

SECRET = "the prompt that nobody may read"
FILES = ("one", "broken", "two", "three")
ROWS = 6  # of each file


def read(place: str) -> Iterator[str]:
    for number in range(ROWS):
        if place == "broken" and number == 2:
            raise RuntimeError(SECRET)
        yield f"{place} {number}"


def build() -> Callable[[str], tuple[str, int]]:
    return judge


def build_slow() -> Callable[[str], tuple[str, int]]:
    def judge_slowly(row: str) -> tuple[str, int]:
        time.sleep(1)
        return judge(row)

    return judge_slowly


def judge(row: str) -> tuple[str, int]:
    if row == "two 3":
        os._exit(7)
    return row, os.getpid()


def give_up(row: str) -> tuple[str, None]:
    return row, None


def main() -> None:
    """All files."""
    _judge(FILES)


def harmless() -> None:
    """Those that end nothing, judged slowly."""
    try:
        _judge(("one", "three"), build_slow)
    except ServiceUnavailableError as error:
        sys.stderr.write(str(error))
        sys.exit(3)


def _judge(files: Sequence[str], build: Callable[[], Callable[[str], tuple[str, int]]] = build) -> None:
    with connect(None) as resources:
        found = list(judge_rows(files, read, build, give_up, Actors(2, cpus=resources.cpus / 2), readers=2))
    print(json.dumps(found))

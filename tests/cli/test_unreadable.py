"""What is told of lines that hold no record: where, how many, and nothing of what they say."""

from __future__ import annotations

import pytest

from shadowspec.app.measure_files import unreadable_in
from shadowspec.tap.sources import STANDARD_INPUT, RawRecord
from shadowspec.types import RecordKey


def read_messages(capsys: pytest.CaptureFixture[str], path: str, *sent: tuple[int, str]) -> list[str]:
    with unreadable_in(path) as found:
        for line, reason in sent:
            found.send(RawRecord(RecordKey("digest", 0, line), b"what nobody is to see"), "tap", {reason: 1})
    return capsys.readouterr().err.splitlines()


def test_a_line_that_is_an_array_counts_once_however_many_of_its_records_are_none(
    capsys: pytest.CaptureFixture[str],
) -> None:
    sent = [(3, "not_json"), (3, "not_json"), (3, "not_json"), (5, "not_json"), (5, "not_json")]
    assert read_messages(capsys, "t.jsonl", *sent) == ["not_json: t.jsonl, line 3, and 1 more line"]
    assert read_messages(capsys, "t.jsonl", *sent[:3]) == ["not_json: t.jsonl, line 3"]


def test_the_first_line_is_named_though_a_half_that_waited_comes_late(capsys: pytest.CaptureFixture[str]) -> None:
    sent = [(9, "not_json"), (2, "no_request"), (4, "not_json"), (12, "not_json")]
    assert read_messages(capsys, "t.jsonl", *sent) == [
        "not_json: t.jsonl, line 4, and 2 more lines",
        "no_request: t.jsonl, line 2",
    ]


def test_rows_are_called_rows_and_standard_input_what_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert read_messages(capsys, "logs/t.parquet", (7, "not_json")) == ["not_json: logs/t.parquet, row 7"]
    assert read_messages(capsys, STANDARD_INPUT, (7, "not_json")) == ["not_json: standard input, line 7"]
    assert read_messages(capsys, "t.jsonl") == []


def test_they_are_told_though_the_file_is_not_read_to_its_end(capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted() -> None:
        with unreadable_in("t.jsonl") as found:
            found.send(RawRecord(RecordKey("digest", 0, 1), b""), "tap", {"not_json": 1})
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert capsys.readouterr().err == "not_json: t.jsonl, line 1\n"

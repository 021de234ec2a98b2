"""Files, archives and standard input: the same content gives the same keys, and nothing bad ends in a traceback."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shadowspec.errors import InputError, NoDataError, ShadowSpecError
from shadowspec.tap.sources import RawRecord, read_records

LINES = b'{"a": 1}\n\n  \n{"b": 2}\r\nlast without end'


def write(path: Path, content: bytes) -> str:
    path.write_bytes(content)
    return str(path)


def test_keys_are_content_and_line(tmp_path: Path) -> None:
    plain = list(read_records(write(tmp_path / "a.jsonl", LINES)))
    digest = hashlib.sha256(LINES).hexdigest()
    assert [(r.key.source, r.key.partition, r.key.offset, r.value) for r in plain] == [
        (digest, 0, 1, b'{"a": 1}'),
        (digest, 0, 4, b'{"b": 2}'),
        (digest, 0, 5, b"last without end"),
    ]
    packed = list(read_records(write(tmp_path / "other-name.gz", gzip.compress(LINES))))
    unnamed = list(read_records(write(tmp_path / "no-suffix", gzip.compress(LINES, compresslevel=1))))
    assert packed == plain == unnamed


DOCUMENT: list[Any] = [{"a": 1}, {"b": "é"}, [3]]


@pytest.mark.parametrize("start", ["", "\n  \n"])
def test_an_array_over_several_lines_is_its_items(tmp_path: Path, start: str) -> None:
    content = (start + json.dumps(DOCUMENT, indent=2)).encode()
    plain = list(read_records(write(tmp_path / "a.json", content)))
    digest = hashlib.sha256(content).hexdigest()
    assert [(r.key.source, r.key.offset, json.loads(r.value or b"")) for r in plain] == [
        (digest, number, item) for number, item in enumerate(DOCUMENT, start=1)
    ]
    assert plain == list(read_records(write(tmp_path / "a.json.gz", gzip.compress(content))))
    rows = "[\n" + ",\n".join(map(json.dumps, DOCUMENT)) + "\n]\n"  # an item a line, as some exports write
    assert [r.value for r in read_records(write(tmp_path / "rows.json", rows.encode()))] == [r.value for r in plain]


def test_another_document_over_several_lines_is_one_record(tmp_path: Path) -> None:
    path = write(tmp_path / "a.json", json.dumps({"data": DOCUMENT}, indent=2).encode())
    (only,) = read_records(path)
    assert json.loads(only.value or b"") == {"data": DOCUMENT}
    with pytest.raises(InputError, match=r"one JSON object of more than 0 MB; write the items of its list as lines"):
        list(read_records(path, max_record_bytes=20))


def test_a_large_item_of_an_array_affects_no_other(tmp_path: Path) -> None:
    path = write(tmp_path / "a.json", json.dumps([{"a": "x" * 90}, {"b": 1}], indent=2).encode())
    assert [r.problem for r in read_records(path, max_record_bytes=50)] == ["too_large", None]


def test_a_document_that_is_none_is_read_by_its_lines(tmp_path: Path) -> None:
    content = b'[\n{"a": 1}\n{"b": 2}\n'
    assert [r.key.offset for r in read_records(write(tmp_path / "a.jsonl", content))] == [1, 2, 3]
    with pytest.raises(NoDataError, match="empty list"):
        list(read_records(write(tmp_path / "b.json", b"[\n]\n")))


def test_a_document_that_is_too_large_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shadowspec.tap.sources.MAX_DOCUMENT_BYTES", 20)
    with pytest.raises(InputError, match="one JSON document of more than 0 MB; write the items of its list as lines"):
        list(read_records(write(tmp_path / "a.json", json.dumps(DOCUMENT, indent=2).encode())))


def test_standard_input_is_a_file_like_any_other(tmp_path: Path) -> None:
    program = "from shadowspec.tap.sources import read_records\nfor r in read_records('-'): print(r.key, r.value)"
    expected = [f"{r.key} {r.value!r}" for r in read_records(write(tmp_path / "a.jsonl", LINES))]
    for content in (LINES, gzip.compress(LINES)):
        result = subprocess.run([sys.executable, "-c", program], input=content, capture_output=True, check=True)
        assert result.stdout.decode().splitlines() == expected


def test_standard_input_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(LINES)))
    assert len(list(read_records("-"))) == 3
    assert list(tmp_path.iterdir()) == []


def test_a_flood_of_blank_lines_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shadowspec.tap.sources.MAX_BLANK_LINES", 20)
    record = b'{"a": 1}\n'
    assert len(list(read_records(write(tmp_path / "some.jsonl", record + b"\n \n" * 10 + record)))) == 2
    with pytest.raises(InputError, match="more than 20 blank lines; give one record a line"):
        list(read_records(write(tmp_path / "many.jsonl", gzip.compress(record + b"\n \n" * 11))))


# A fixed mtime: the contents name the tests, and every process of a run has to find the same names.
@pytest.mark.parametrize("content", [b"", b"\n\n \n", gzip.compress(b"", mtime=0), gzip.compress(b"\n", mtime=0)])
def test_an_empty_file_is_no_data(tmp_path: Path, content: bytes) -> None:
    path = write(tmp_path / "empty.jsonl", content)
    with pytest.raises(NoDataError, match=r"empty\.jsonl") as caught:
        list(read_records(path))
    assert caught.value.exit_code == 4


def test_what_cannot_be_read_is_named(tmp_path: Path) -> None:
    packed = gzip.compress(b'{"a": 1}\n' * 1000)
    cases = {
        str(tmp_path / "missing.jsonl"): "no such file",
        str(tmp_path): "is a folder",
        write(tmp_path / "cut.gz", packed[: len(packed) // 2]): "broken gzip",
        write(tmp_path / "bent.gz", packed[:20] + b"\xff\xff\xff" + packed[23:]): "broken gzip",
        write(tmp_path / "sum.gz", packed[:-8] + b"\0" * 8): "broken gzip",
        write(tmp_path / "text.gz", b'{"a": 1}\n'): "not gzip",
        "nul\0byte": "cannot be read",
    }
    for path, what in cases.items():
        with pytest.raises(InputError, match=what) as caught:
            list(read_records(path))
        assert path in str(caught.value)
        assert caught.value.exit_code == 2


def test_a_broken_archive_is_refused_before_its_first_record(tmp_path: Path) -> None:
    packed = gzip.compress(b"".join(b'{"line": %d}\n' % line for line in range(100_000)))
    records = read_records(write(tmp_path / "late.gz", packed[:-20]))
    with pytest.raises(InputError, match="broken gzip"):
        next(records)


def test_a_file_that_changes_under_the_reader_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "growing.jsonl", b"x" * 200_000 + b"\n" + b'{"a": 1}\n')
    records = read_records(path)
    next(records)
    with Path(path).open("ab") as stream:
        stream.write(b'{"b": 2}\n')
    with pytest.raises(InputError, match="changed while it was read"):
        list(records)


def test_a_long_line_is_read_and_a_longer_one_is_malformed(tmp_path: Path) -> None:
    long_line = b'"' + b"x" * 5_000_000 + b'"'
    path = write(tmp_path / "long.jsonl", long_line + b"\n" + b"{}\n" + b"y" * 3_000 + b"\n{}")
    assert [len(record.value) for record in read_records(path)] == [len(long_line), 2, 3_000, 2]
    short = list(read_records(path, max_record_bytes=2_999))
    assert [(record.value, record.problem, record.key.offset) for record in short] == [
        (b"", "too_large", 1),
        (b"{}", None, 2),
        (b"", "too_large", 3),
        (b"{}", None, 4),
    ]


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b""])
def test_the_limit_is_on_the_record_without_its_end(tmp_path: Path, end: bytes) -> None:
    for size, problem in ((9, None), (10, None), (11, "too_large"), (12, "too_large")):
        path = write(tmp_path / "limit.jsonl", b"x" * size + end)
        assert [record.problem for record in read_records(path, max_record_bytes=10)] == [problem]


@settings(max_examples=60, deadline=None)
@given(content=st.binary(max_size=400), limit=st.integers(1, 50))
def test_any_bytes_give_records_or_one_clear_error(
    tmp_path_factory: pytest.TempPathFactory, content: bytes, limit: int
) -> None:
    path = write(tmp_path_factory.mktemp("fuzz") / "junk", content)
    try:
        records = list(read_records(path, max_record_bytes=limit))
    except ShadowSpecError as error:
        assert path in str(error)  # noqa: PT017 - most inputs raise nothing
        return
    assert all(isinstance(record, RawRecord) and len(record.value) <= limit for record in records)
    lines = [line for line in content.split(b"\n") if line.strip() or len(line.rstrip(b"\r")) > limit]
    assert len(records) == len(lines)

"""Where logs lie: folders, an S3, web servers; and what is said of one that cannot be read never holds a secret."""

from __future__ import annotations

import gzip
import io
import logging
import os
import random
import socket
from collections.abc import Iterator
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from shadowspec.backfill.logs import read_log
from shadowspec.backfill.places import describe_place, find_files, open_stream
from shadowspec.errors import InputError, NoDataError
from tests.backfill.servers import Bucket, Web, bucket, web_server

LINE = b'{"prompt": "a"}\n'
SECRETS = ("password", "signature", "topsecret")


@pytest.fixture(autouse=True)
def _own_machine_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("AWS_") or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "topsecret")


def parquet_of(values: list[bytes]) -> bytes:
    sink = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table({"value": values}), sink, compression="none")
    return sink.getvalue()


def values_at(place: str) -> list[bytes | None]:
    return [raw.value for raw in read_log(place)]


def all_values(places: list[str]) -> list[bytes | None]:
    return [value for file in find_files(places) for value in values_at(file)]


def refusal(place: str) -> str:
    with pytest.raises(InputError) as caught:
        all_values([place])
    assert not any(secret in str(caught.value) for secret in SECRETS)
    return str(caught.value)


# folders of this machine


def test_folders_are_searched_and_files_taken_as_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["b.jsonl", "a/z.parquet", "a/y.json.gz", "a/dt=2026/x.ndjson", "notes.txt", "a/y.json.gz.crc", "odd"]
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(LINE)
    (tmp_path / "folder.jsonl").mkdir()
    logs = [str(tmp_path / name) for name in ("a/dt=2026/x.ndjson", "a/y.json.gz", "a/z.parquet", "b.jsonl")]
    assert find_files([str(tmp_path)]) == logs
    assert find_files([f"{tmp_path}/", str(tmp_path / "odd")]) == [*logs, str(tmp_path / "odd")]
    monkeypatch.chdir(tmp_path)
    assert find_files(["b.jsonl", "a", str(tmp_path / "b.jsonl")]) == [logs[3], *logs[:3]]
    assert find_files([f"file://{tmp_path}/b.jsonl"]) == [f"file://{tmp_path}/b.jsonl"]
    assert values_at(f"file://{tmp_path}/b.jsonl") == [LINE.strip()]


def test_names_may_hold_what_addresses_do_not(tmp_path: Path) -> None:
    names = ["100%25.jsonl", "a b#c?d.jsonl", "x:y.jsonl", "ü.jsonl"]
    for name in names:
        (tmp_path / name).write_bytes(LINE)
    for place in (str(tmp_path), f"file://{tmp_path}"):
        found = find_files([place])
        assert len(found) == 4
        assert [values_at(file) for file in found] == [[LINE.strip()]] * 4


def test_what_is_not_there_is_named(tmp_path: Path) -> None:
    assert refusal(str(tmp_path / "none")) == f"{tmp_path / 'none'}: no such file"
    with pytest.raises(NoDataError, match=r"holds no logs \(files that end in \.jsonl, "):
        find_files([str(tmp_path)])
    assert refusal("s4://bucket/x") == "s4://bucket/x: cannot be read (ArrowInvalid)"
    assert "cannot be read" in refusal("\0")


@pytest.mark.parametrize(
    ("place", "says"),
    [
        ("a/b c.jsonl", "a/b c.jsonl"),
        ("/a?b#c@d", "/a?b#c@d"),
        ("s3://bucket/a/b", "s3://bucket/a/b"),
        ("s3://key:password@bucket/a?secret=password#password", "s3://bucket/a"),
        ("https://user:password@host:8080/a?X-Amz-Signature=signature", "https://host:8080/a"),
        ("https://host/a@b?signature", "https://host/a@b"),
        ("s3://key:pass/word@bucket/a", "s3://..."),
        ("http://[::1/a?signature", "http://..."),
        ("s3://?secret_key=topsecret", "s3:"),
    ],
)
def test_what_may_be_secret_is_not_shown(place: str, says: str) -> None:
    assert describe_place(place) == says


# S3


@pytest.fixture(scope="module")
def s3() -> Iterator[Bucket]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        patch.setenv("AWS_ACCESS_KEY_ID", "key")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "topsecret")
        with bucket() as made:
            yield made


def test_a_folder_of_s3_is_searched_and_read(s3: Bucket) -> None:
    lines, rows = LINE * 3, [b"%d" % number for number in range(1000)]
    s3.upload("logs/dt=2026-01-01/a.jsonl", lines)
    s3.upload("logs/dt=2026-01-01/b.jsonl.gz", gzip.compress(lines))
    s3.upload("logs/c.parquet", parquet_of(rows))
    s3.upload("logs/readme.txt", b"none")
    s3.upload("elsewhere/d.jsonl", lines)
    expected = [s3.url(f"logs/{name}") for name in ("c.parquet", "dt=2026-01-01/a.jsonl", "dt=2026-01-01/b.jsonl.gz")]
    for folder in ("logs", "logs/"):
        assert find_files([s3.url(folder), expected[0]]) == expected
    assert find_files([expected[1]]) == [expected[1]]
    assert [len(values_at(file)) for file in expected] == [1000, 3, 3]
    assert values_at(expected[0]) == rows
    assert {raw.key.source for file in expected[1:] for raw in read_log(file)} == {
        next(read_log(expected[1])).key.source
    }


def test_keys_may_hold_what_addresses_do_not(s3: Bucket) -> None:
    names = ["100%25", "a b", "h#1", "p+q", "x?y", "ü", "a=b&c"]
    for name in names:
        s3.upload(f"odd/{name}.jsonl", b'{"name": "%b"}\n' % name.encode())
    assert sorted(all_values([s3.url("odd")]), key=str) == sorted(
        (b'{"name": "%b"}' % name.encode() for name in names), key=str
    )


def test_what_s3_refuses_is_said_without_secrets(s3: Bucket) -> None:
    assert refusal(s3.url("none.jsonl")) == "s3://bucket/none.jsonl: no such file"
    address = f"s3://key:password@bucket/none.jsonl?{s3.query}"
    assert refusal(address) == "s3://bucket/none.jsonl: no such file"
    with pytest.raises(InputError, match=r"^s3://bucket/none\.jsonl: no such file$"):
        values_at(address)
    assert refusal(f"s3://other/none.jsonl?{s3.query}") == "s3://other/none.jsonl: no such file"
    assert refusal(f"{s3.url('a')}&secret_key=topsecret") == "s3://bucket/a: cannot be read (ArrowInvalid)"


# web servers


@pytest.fixture(params=[True, False], ids=["ranges", "no-ranges"])
def web(request: pytest.FixtureRequest) -> Iterator[Web]:
    with web_server(has_ranges=request.param) as server:
        yield server


def test_lines_are_read_from_any_web_server(web: Web) -> None:
    content = random.Random(1).randbytes(3_000_000).hex().encode() + b"\n" + LINE
    for name, packed in (("t.jsonl", content), ("t.jsonl.gz", gzip.compress(content, 1)), ("s.jsonl", LINE)):
        place = web.add(name, packed)
        assert find_files([place, place]) == [place]
        expected = [LINE.strip()] if name == "s.jsonl" else [*content.split()[:1], LINE.strip()]
        assert values_at(place) == expected
        asked = [
            request for request in web.requests if request[0] == f"/{name}" and request[1] not in ("bytes=0-0", None)
        ]
        assert bool(asked) == web.has_ranges
    empty = web.add("e.jsonl", b"")
    with pytest.raises(NoDataError, match="is empty"):
        values_at(empty)


def test_parquet_is_read_where_there_are_parts() -> None:
    rows = [random.Random(number).randbytes(1000) for number in range(3000)]
    with web_server(has_ranges=True) as web:
        assert values_at(web.add("t.parquet", parquet_of(rows))) == rows
        assert all(part for _, part, _ in web.requests)
    with web_server(has_ranges=False) as web:
        place = web.add("t.parquet", parquet_of(rows))
        assert refusal(f"{place}?X-Amz-Signature=signature") == (
            f"{place}: Parquet is read in parts, and this web server sends no parts of files"
        )


def test_what_web_servers_refuse_is_said_without_secrets(web: Web, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    for status in (403, 404, 500, 503):
        place = web.add(f"{status}.jsonl", LINE)
        web.statuses[f"/{status}.jsonl"] = status
        assert refusal(f"{place}?X-Amz-Signature=signature") == f"{place}: cannot be read (HTTP status {status})"
    assert not any(secret in caplog.text for secret in SECRETS)


def test_user_and_query_reach_the_server_and_no_log(web: Web, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    web.add("t.jsonl", LINE)
    place = f"http://user:password@127.0.0.1:{web.port}/t.jsonl?X-Amz-Signature=a%2Fb%3D+signature"
    assert values_at(place) == [LINE.strip()]
    assert {(path, login) for path, _, login in web.requests} == {
        ("/t.jsonl?X-Amz-Signature=a%2Fb%3D+signature", "Basic dXNlcjpwYXNzd29yZA==")
    }
    assert not any(secret in caplog.text for secret in SECRETS)


def test_names_of_web_addresses_may_be_unquoted(web: Web) -> None:
    web.add("a%20b%C3%BC.jsonl", LINE)
    assert values_at(web.url("a bü.jsonl?c d")) == [LINE.strip()]
    assert {path for path, _, _ in web.requests} == {"/a%20b%C3%BC.jsonl?c%20d"}


def test_a_part_that_is_no_part_is_not_the_end_of_the_file() -> None:
    with web_server(has_ranges=True) as web, open_stream(web.add("t.jsonl", LINE * 1_000_000)) as stream:
        stream.read(10)
        web.files["/t.jsonl"] = LINE
        with pytest.raises(OSError, match="another part"):
            stream.read()
        web.has_ranges = False
        web.add("t.jsonl", LINE * 1_000_000)
        with pytest.raises(ValueError, match="range requests"):
            stream.read()


def test_an_answer_that_breaks_off_is_an_error(web: Web) -> None:
    place = web.add("t.jsonl", LINE * 1000)
    web.cut_off = 100
    assert refusal(place).startswith(f"{place}: cannot be read (")


def test_nobody_answers() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        place = f"http://127.0.0.1:{closed.getsockname()[1]}/t.jsonl"
        assert refusal(f"{place}?signature") == f"{place}: cannot be read (ClientConnectorError)"


def test_a_stream_can_begin_again_and_nothing_else(web: Web) -> None:
    with open_stream(web.add("t", b"abcdef")) as stream:
        assert stream.read(4) == b"abcd"
        assert stream.seek(0) == 0
        assert stream.read() == b"abcdef"
        assert stream.tell() == 6
        with pytest.raises(io.UnsupportedOperation):
            stream.seek(2_000_000)

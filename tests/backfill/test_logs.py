"""What a file of logs holds: JSON lines and rows of Parquet, by the same keys, and never an error that is not ours."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import math
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shadowspec.backfill.logs import ROWS, read_log
from shadowspec.errors import InputError, NoDataError, ShadowSpecError
from shadowspec.tap.formats import FieldMap, MessageFormat, open_message
from shadowspec.tap.sources import RawRecord, is_parquet, read_records, require_file
from shadowspec.types import RecordKey

SECRET = "the prompt that nobody may read"
LINES = b'{"prompt": "a"}\n\n{"prompt": "b\xc3\xbc"}\r\nnot json\n{"prompt": "c"}'


def written(path: Path, columns: dict[str, Any], **options: Any) -> Path:
    pyarrow.parquet.write_table(pyarrow.table(columns), path, **options)
    return path


def documents(path: Path) -> list[Any]:
    return [json.loads(raw.value or b"") for raw in read_log(str(path))]


@pytest.mark.parametrize(("name", "is_packed"), [("t.jsonl", False), ("t.jsonl.gz", True), ("t", True), ("t", False)])
def test_lines_are_the_records_that_other_commands_read(tmp_path: Path, name: str, is_packed: bool) -> None:
    path = tmp_path / name
    path.write_bytes(gzip.compress(LINES) if is_packed else LINES)
    found = list(read_log(str(path)))
    assert found == list(read_records(str(path)))
    digest = hashlib.sha256(LINES).hexdigest()
    assert [raw.key for raw in found] == [RecordKey(digest, 0, line) for line in (1, 3, 4, 5)]
    assert [raw.value for raw in found[1:3]] == ['{"prompt": "bü"}'.encode(), b"not json"]


def test_an_archive_of_several_members_is_read_to_its_end(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl.gz"
    path.write_bytes(gzip.compress(b'{"a": 1}\n') + gzip.compress(b'{"a": 2}\n' * 3000))
    found = list(read_log(str(path)))
    assert len(found) == 3001
    assert found == list(read_records(str(path)))


MESSAGES = [b'{"request": {"prompt": "a"}}', None, b'{"request": {"prompt": "b"}}', b"\xff not utf-8"]


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("value", pyarrow.binary()),
        ("value", pyarrow.large_binary()),
        ("value", pyarrow.binary_view()),
        ("value", pyarrow.string()),
        ("value", pyarrow.large_string()),
        ("value", pyarrow.string_view()),
        ("value", pyarrow.dictionary(pyarrow.int32(), pyarrow.string())),
        ("message", pyarrow.binary()),
    ],
)
def test_a_column_holds_whole_messages(tmp_path: Path, name: str, kind: pyarrow.DataType) -> None:
    is_bytes = pyarrow.types.is_binary(kind) or pyarrow.types.is_large_binary(kind) or kind == pyarrow.binary_view()
    messages = MESSAGES if is_bytes else MESSAGES[:3]
    values = messages if is_bytes else [None if each is None else each.decode() for each in messages]
    other = pyarrow.array([SECRET] * len(values))
    path = written(tmp_path / "t.parquet", {"key": other, name: pyarrow.array(values, kind), "request": other})
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    assert list(read_log(str(path))) == [
        RawRecord(RecordKey(digest, 0, number), value) for number, value in enumerate(messages, start=1)
    ]


def test_value_comes_before_message(tmp_path: Path) -> None:
    path = written(tmp_path / "t.parquet", {"message": ['{"a": 1}'], "value": ['{"a": 2}']})
    assert documents(path) == [{"a": 2}]
    path = written(tmp_path / "u.parquet", {"message": ['{"a": 1}'], "value": [2]})
    assert documents(path) == [{"a": 1}]


def test_columns_are_a_record(tmp_path: Path) -> None:
    rows = [
        {
            "timestamp": datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
            "session_id": "s",
            "request": {"model": "m", "max_tokens": 5, "messages": [{"role": "user", "content": "ä"}], "stop": None},
            "response": {"choices": [{"token_ids": [3, 4], "logprobs": None}]},
            "metadata": None,
        },
        {
            "timestamp": None,
            "session_id": None,
            "request": {"model": "m", "max_tokens": None, "messages": [], "stop": ["x", None]},
            "response": None,
            "metadata": {"cost": 0.5},
        },
    ]
    path = tmp_path / "t.parquet"
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    assert documents(path) == [
        {
            "timestamp": "2026-01-02T03:04:05+00:00",
            "session_id": "s",
            "request": {"model": "m", "max_tokens": 5, "messages": [{"role": "user", "content": "ä"}]},
            "response": {"choices": [{"token_ids": [3, 4]}]},
        },
        {"request": {"model": "m", "messages": [], "stop": ["x", None]}, "metadata": {"cost": 0.5}},
    ]


def test_what_json_has_no_form_of(tmp_path: Path) -> None:
    value = UUID(int=5)
    columns = {
        "request": [{"model": "m"}],
        "date": [date(2026, 1, 2)],
        "time": [time(3, 4)],
        "span": [timedelta(seconds=1.5)],
        "price": [Decimal("1.25")],
        "bytes": [b"a\xff"],
        "id": pyarrow.array([value.bytes], pyarrow.uuid()),
        "naive": [datetime(2026, 1, 2)],
    }
    assert documents(written(tmp_path / "t.parquet", columns)) == [
        {
            "request": {"model": "m"},
            "date": "2026-01-02",
            "time": "03:04:00",
            "span": 1.5,
            "price": 1.25,
            "bytes": "a\ufffd",
            "id": str(value),
            "naive": "2026-01-02T00:00:00",
        }
    ]


def test_a_map_is_an_object(tmp_path: Path) -> None:
    kind = pyarrow.map_(pyarrow.string(), pyarrow.string())
    tools = pyarrow.array(
        [[[("city", {"type": "string"})]]], pyarrow.list_(pyarrow.map_("string", pyarrow.map_("string", "string")))
    )
    request = pyarrow.StructArray.from_arrays(
        [tools, pyarrow.array([[("session_id", "s"), ("tier", None)]], kind)], names=["tools", "metadata"]
    )
    columns = {"request": request, "metadata": pyarrow.array([[("a", "1"), ("a", "2")]], kind)}
    assert documents(written(tmp_path / "t.parquet", columns)) == [
        {
            "request": {"tools": [{"city": {"type": "string"}}], "metadata": {"session_id": "s"}},
            "metadata": {"a": "2"},
        }
    ]


def test_numbers_as_tables_hold_them(tmp_path: Path) -> None:
    """Pandas makes doubles of integers beside a missing one; a prompt shows numbers as they are written."""
    tool = {"function": {"parameters": {"maximum": 5.0}}}
    request = {"top_k": 5.0, "top_p": 0.5, "seed": math.nan, "max_tokens": Decimal(8), "tools": [tool]}
    columns = {
        "request": [request], "latency": [math.nan], "ratio": [math.inf], "status": [200.0], "session_id": [7.0],
        "response": [{"usage": {"prompt_tokens": 3.0}}], "cost": [1e300],
    }  # fmt: skip
    (found,) = documents(written(tmp_path / "t.parquet", columns))
    assert found == {
        "request": {"top_k": 5, "top_p": 0.5, "max_tokens": 8, "tools": [tool]}, "ratio": "inf", "status": 200,
        "session_id": 7, "response": {"usage": {"prompt_tokens": 3}}, "cost": 1e300,
    }  # fmt: skip
    assert [type(found["request"][name]) for name in ("top_k", "max_tokens")] == [int, int]
    assert isinstance(found["request"]["tools"][0]["function"]["parameters"]["maximum"], float)


@pytest.mark.parametrize("names", [("request", "response"), ("request_body", "response_body")])
@pytest.mark.parametrize("kind", [pyarrow.string(), pyarrow.binary(), pyarrow.large_string()])
def test_bodies_may_be_json_text(tmp_path: Path, names: tuple[str, str], kind: pyarrow.DataType) -> None:
    """As inference tables have them, under their names of the other fields."""
    bodies = {"request": {"model": "m", "messages": []}, "response": {"model": "m", "choices": []}}
    texts = {
        name: pyarrow.array([json.dumps(body).encode()]).cast(kind)
        for name, body in zip(names, bodies.values(), strict=True)
    }
    at = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    others = {
        "request_time": [at],
        "client_request_id": ["r-1"],
        "status_code": [200],
        "metadata": ['{"tier": "gold"}'],
    }
    (raw,) = read_log(str(written(tmp_path / "t.parquet", texts | others)))
    (opened,) = open_message(raw, MessageFormat.AUTO)
    record = opened.record
    assert record is not None
    assert (record.request, record.response, record.status) == (*bodies.values(), 200)
    assert (record.event_time(0), record.call_id(), record.annotation("tier")) == (at, ("request", "r-1"), "gold")


def test_a_body_of_text_beside_a_struct(tmp_path: Path) -> None:
    stream = 'data: {"choices": [{"index": 0, "delta": {"content": "x"}, "finish_reason": "stop"}]}\n\n'
    columns = {"request": [{"model": "m", "prompt": "a"}], "response": [stream], "timestamp": [5_000_000_000.0]}
    (raw,) = read_log(str(written(tmp_path / "t.parquet", columns)))
    (opened,) = open_message(raw, MessageFormat.AUTO)
    assert opened.record is not None
    assert opened.record.request == {"model": "m", "prompt": "a"}
    assert opened.record.in_response("choices") == [{"index": 0, "finish_reason": "stop", "text": "x"}]


@pytest.mark.parametrize("unit", ["ms", "us", "ns"])
@pytest.mark.parametrize("zone", [None, "UTC", "Asia/Tokyo"])
def test_columns_of_sparks_kafka_source(tmp_path: Path, unit: str, zone: str | None) -> None:
    at = (
        pyarrow.array([1_767_323_045_678, None]).cast(pyarrow.timestamp("ms", zone)).cast(pyarrow.timestamp(unit, zone))
    )
    headers = [[{"key": "X-Session-Id", "value": b"s-1"}, {"key": "empty", "value": None}], None]
    columns = {"key": [b"k"] * 2, "value": MESSAGES[:1] * 2, "topic": ["t"] * 2, "timestamp": at, "headers": headers}
    first, second = read_log(str(written(tmp_path / "t.parquet", columns)))
    assert (first.key.timestamp_ms, second.key.timestamp_ms) == (1_767_323_045_678, 0)
    assert (first.headers, second.headers) == ((("X-Session-Id", b"s-1"), ("empty", None)), ())
    record = {"request": [{"model": "m"}], "timestamp": at[:1]}
    (raw,) = read_log(str(written(tmp_path / "u.parquet", record)))
    time_of = open_message(raw, MessageFormat.OPENAI)[0].record
    assert time_of is not None
    assert time_of.event_time(0) == datetime(2026, 1, 2, 3, 4, 5, 678_000, tzinfo=UTC)


def test_rows_are_numbered_through_batches_and_groups(tmp_path: Path) -> None:
    number = 2 * ROWS + 7
    path = written(tmp_path / "t.parquet", {"value": [str(each) for each in range(number)]}, row_group_size=100)
    assert [(raw.key.offset, raw.value) for raw in read_log(str(path))] == [
        (each + 1, str(each).encode()) for each in range(number)
    ]


def test_what_is_too_large_is_said_and_not_kept(tmp_path: Path) -> None:
    lines = tmp_path / "t.jsonl"
    lines.write_bytes(b"12345\n123456\n")
    rows = written(tmp_path / "t.parquet", {"value": ["12345", "123456"]})
    for path in (lines, rows):
        found = list(read_log(str(path), max_record_bytes=5))
        assert [(raw.key.offset, raw.value, raw.problem) for raw in found] == [
            (1, b"12345", None),
            (2, b"", "too_large"),
        ]


@pytest.mark.parametrize(
    "columns",
    [
        {"prompt": [SECRET], "answer": [SECRET]},
        {"value": [5], "answer": [SECRET]},
        {"value": [{"text": SECRET}], "answer": [SECRET]},
    ],
)
def test_columns_that_say_nothing_are_named(tmp_path: Path, columns: dict[str, Any]) -> None:
    path = written(tmp_path / "t.parquet", columns)
    names = ", ".join(columns)
    with pytest.raises(InputError) as caught:
        list(read_log(str(path)))
    assert str(caught.value) == (
        f"{path}: has no column value, message, request, request_body with messages or requests (its columns: "
        f"{names}); say with --map where they are"
    )


def test_a_map_reads_columns_of_any_names(tmp_path: Path) -> None:
    body, answer = {"model": "m", "prompt": "a", "max_tokens": 3.0}, json.dumps({"choices": [{"text": "b"}]})
    columns = {"request_time": [None], "request": [json.dumps(body)], "said": [answer], "at": [datetime(2026, 1, 1)]}
    path = written(tmp_path / "t.parquet", columns)
    with pytest.raises(InputError, match="say with --map where they are"):
        list(read_log(str(written(tmp_path / "other.parquet", {"call": [json.dumps(body)]}))))
    (raw,) = read_log(str(path), is_mapped=True)
    (opened,) = open_message(raw, FieldMap.parse_option("request=request,response=said,time=at"))
    assert opened.record is not None
    assert opened.record.request == body
    assert opened.record.response == {"choices": [{"text": "b"}]}
    assert opened.record.event_time(0) == datetime(2026, 1, 1, tzinfo=UTC)


def test_a_name_that_two_columns_have_is_none(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    both = pyarrow.table([pyarrow.array([SECRET])] * 4, names=["value", "value", "request", "request"])
    pyarrow.parquet.write_table(both, path)
    with pytest.raises(InputError, match=r"its columns: value, value, request, request"):
        list(read_log(str(path)))


def parquet_bytes() -> bytes:
    sink = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table({"value": [SECRET] * 20, "number": range(20)}), sink)
    return sink.getvalue()


PACKED = gzip.compress(LINES, mtime=0)
PARQUET = parquet_bytes()
FAR = pyarrow.array([2**61], pyarrow.timestamp("us"))  # in the year 75,000


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "is empty"),
        (gzip.compress(b"\n\n", mtime=0), "is empty"),
        (PACKED[:-9], "broken gzip"),
        (PACKED[:30] + b"\0" + PACKED[31:], "broken gzip"),
        (b"\x1f\x8b" + SECRET.encode(), "broken gzip"),
        (b"PAR1", "cannot be read"),
        (b"PAR1" + SECRET.encode() + b"PAR1", "cannot be read"),
        (PARQUET[:-1], "cannot be read"),
        (PARQUET[: len(PARQUET) // 2], "cannot be read"),
        (PARQUET[:10] + b"\xff" * 20 + PARQUET[30:], "cannot be read"),
    ],
    ids=range(10),
)
def test_broken_files(tmp_path: Path, content: bytes, says: str) -> None:
    path = tmp_path / "t"
    path.write_bytes(content)
    with pytest.raises((InputError, NoDataError)) as caught:
        list(read_log(str(path)))
    assert str(caught.value).startswith(f"{path}: {says}")
    assert SECRET not in str(caught.value)


def test_only_backfill_reads_parquet(tmp_path: Path) -> None:
    path = str(written(tmp_path / "t.parquet", {"request": [SECRET]}))
    lines = tmp_path / "t.jsonl"
    lines.write_bytes(LINES)
    assert [is_parquet(place) for place in (path, str(lines), str(tmp_path), str(tmp_path / "none"), "-")] == [
        True, False, False, False, False,
    ]  # fmt: skip
    with pytest.raises(InputError, match="only `shadowspec backfill` reads"):
        require_file(path)


def test_files_without_rows_or_with_values_that_are_none(tmp_path: Path) -> None:
    empty = written(tmp_path / "t.parquet", {"value": pyarrow.array([], pyarrow.string())})
    with pytest.raises(NoDataError, match="has no row"):
        list(read_log(str(empty)))
    far = written(tmp_path / "u.parquet", {"request": [{"a": 1}], "time": FAR})
    with pytest.raises(InputError, match=r"u\.parquet: cannot be read"):
        list(read_log(str(far)))
    text = pyarrow.Array.from_buffers(
        pyarrow.string(), 1, [None, pyarrow.py_buffer(b"\0\0\0\0\2\0\0\0"), pyarrow.py_buffer(b"\xff\xfe")]
    )
    with pytest.raises(InputError, match=r"v\.parquet: cannot be read"):
        list(read_log(str(written(tmp_path / "v.parquet", {"value": text}))))
    with pytest.raises(InputError, match=r"w\.parquet: no such file"):
        list(read_log(str(tmp_path / "w.parquet")))
    with pytest.raises(InputError, match="cannot be read"):
        list(read_log(str(tmp_path)))
    misnamed = tmp_path / "t.jsonl.gz"
    misnamed.write_bytes(LINES)
    with pytest.raises(InputError, match="is not gzip"):
        list(read_log(str(misnamed)))


@given(content=st.binary(max_size=200))
def test_any_bytes_after_the_magic_raise_nothing_but_our_errors(
    tmp_path_factory: pytest.TempPathFactory, content: bytes
) -> None:
    path = tmp_path_factory.getbasetemp() / "any"
    path.write_bytes(b"PAR1" + content)
    with pytest.raises(ShadowSpecError):
        list(read_log(str(path)))


@settings(max_examples=300)
@given(changes=st.lists(st.tuples(st.integers(0, len(PARQUET) - 1), st.integers(0, 255)), min_size=1, max_size=8))
def test_a_file_with_some_bytes_changed_raises_nothing_but_our_errors(
    tmp_path_factory: pytest.TempPathFactory, changes: list[tuple[int, int]]
) -> None:
    content = bytearray(PARQUET)
    for place, value in changes:
        content[place] = value
    path = tmp_path_factory.getbasetemp() / "changed"
    path.write_bytes(bytes(content))
    try:
        found, said = list(read_log(str(path))), ""
    except ShadowSpecError as error:
        found, said = [], str(error)
    assert SECRET not in said
    assert [raw.key.offset for raw in found] == list(range(1, len(found) + 1))
    assert found or said


columns = st.sampled_from(["value", "message", "request", "other", "timestamp", "headers", "metadata", "request_body"])
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**40), 2**40) | st.floats() | st.text() | st.binary() | st.datetimes(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(min_size=1), inner, max_size=3),
    max_leaves=6,
)


@given(table=st.dictionaries(columns, values, min_size=1))
def test_any_row_is_a_record_or_an_error_of_ours(
    tmp_path_factory: pytest.TempPathFactory, table: dict[str, Any]
) -> None:
    path = tmp_path_factory.getbasetemp() / "any.parquet"
    try:
        made = pyarrow.Table.from_pylist([table])
        pyarrow.parquet.write_table(made, path)
    except (pyarrow.ArrowException, UnicodeEncodeError):
        return  # no Parquet file has such a row
    try:
        (found,) = read_log(str(path))
    except ShadowSpecError:
        return
    assert found.value is None or isinstance(found.value, bytes)

"""`shadowspec produce`: every line as it stands, keyed by session, paced by rate or by the recorded times."""

from __future__ import annotations

import gzip
import json
import threading
import time
from collections.abc import Iterable
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner, Result

from shadowspec.cli import produce as produce_command
from shadowspec.cli import tail as tail_command
from shadowspec.cli.main import app
from shadowspec.errors import ServiceUnavailableError, UsageError
from shadowspec.tap.kafka.arrivals import Arrival, Pace, arrival, batches
from shadowspec.tap.kafka.producer import OutgoingMessage
from shadowspec.tap.sources import RawRecord
from shadowspec.types import RecordKey
from tests.kafka_topics import Topics, read_topic
from tests.services import PATIENCE_S

BEGIN = datetime(2025, 1, 1, tzinfo=UTC)
BODY = {"request": {"model": "m", "messages": []}}


def line(**fields: object) -> bytes:
    return json.dumps(BODY | fields).encode()


def keyed(value: bytes) -> bytes | None:
    return arrival(RawRecord(RecordKey("file", 0, 1), value)).message.key


def test_a_key_is_the_session_else_the_user_else_the_request() -> None:
    assert keyed(line(session_id="s", user="u", request_id="r")) == b"s"
    assert keyed(line(metadata={"session_id": "s"}, user="u")) == b"s"
    assert keyed(line(headers={"X-Session-Id": "s"})) == b"s"
    assert keyed(line(user="u", request_id="r")) == b"u"
    assert keyed(line(request_id="r")) == b"r"
    assert keyed(line()) is None


@pytest.mark.parametrize("value", [b"rubbish", b"\xff", b"[]", b"{}", b'{"request": 3}', b'"\\ud800"'])
def test_nothing_is_refused_for_what_it_holds(value: bytes) -> None:
    found = arrival(RawRecord(RecordKey("file", 0, 1), value))
    assert (found.message.key, found.message.value, found.time) == (None, value, None)


def test_a_half_is_keyed_by_what_joins_it() -> None:
    event = {
        "specversion": "1.0", "id": "call-1", "source": "s", "type": "org.kubeflow.serving.inference.request",
        "time": "2025-01-01T00:00:00Z", "data": {"model": "m", "messages": []},
    }  # fmt: skip
    found = arrival(RawRecord(RecordKey("file", 0, 1), json.dumps(event).encode()))
    assert (found.message.key, found.time) == (b"call-1", BEGIN)


def at(seconds: float | None) -> Arrival:
    time_ = None if seconds is None else BEGIN + timedelta(seconds=seconds)
    return Arrival(OutgoingMessage(None, b"x"), time_)


@given(
    times=st.lists(st.none() | st.floats(0, 1e6), min_size=1, max_size=30),
    rate=st.none() | st.floats(0.01, 1e5),
    speed=st.none() | st.floats(0.01, 1e5),
    tick=st.floats(0, 10),
    size=st.integers(1, 5),
)
def test_batches_keep_every_message_in_order_and_none_early(
    times: list[float | None], rate: float | None, speed: float | None, tick: float, size: int
) -> None:
    if rate is not None:
        speed = None
    arrivals = [Arrival(OutgoingMessage(b"%d" % n, b"x"), at(seconds).time) for n, seconds in enumerate(times)]
    clock = Pace(rate=rate, trace_speed=speed)
    dues = [clock.due_s(one) for one in arrivals]
    assert dues == sorted(dues)
    assert dues[0] == 0
    pace = Pace(rate=rate, trace_speed=speed)
    made = list(batches(iter(arrivals), pace, max_messages=size, max_bytes=10**6, tick_s=tick))
    assert [message.key for _, batch in made for message in batch] == [one.message.key for one in arrivals]
    place = 0
    for due, batch in made:
        assert 1 <= len(batch) <= size
        for _ in batch:
            assert due <= dues[place] <= due + tick
            place += 1


def test_the_recorded_times_are_kept_times_the_speed() -> None:
    pace = Pace(trace_speed=4.0)
    assert [pace.due_s(at(seconds)) for seconds in (None, 100, 102, None, 101, 110)] == [0, 0, 0.5, 0.5, 0.5, 2.5]


def test_a_rate_is_a_rate() -> None:
    pace = Pace(rate=10.0)
    assert [pace.due_s(at(None)) for _ in range(3)] == [0.0, 0.1, 0.2]


def produce(*words: object) -> Result:
    return CliRunner().invoke(app, ["produce", *map(str, words)])


@pytest.mark.integration
def test_files_are_put_on_a_topic(topics: Topics, tmp_path: Path) -> None:
    topic = topics.create(3)
    plain, packed = tmp_path / "a.jsonl", tmp_path / "b.jsonl.gz"
    plain.write_bytes(line(session_id="s1", n=1) + b"\nrubbish\n\n" + line(session_id="s1", n=2) + b"\n")
    packed.write_bytes(gzip.compress(line(user="\u00fc", n=3)))
    before_ms = time.time() * 1000
    result = produce(plain, packed, "--topic", topic, "--bootstrap-servers", topics.bootstrap, "--json")
    assert result.exit_code == 0, result.output
    said = json.loads(result.stdout)
    assert (said["messages"], said["messages_without_key"], said["topic"]) == (4, 1, topic)
    found = read_topic(topics.bootstrap, topic, "%p\x1f%k\x1f%T\x1f%s")
    by_value = {text.split("\x1f")[3]: text.split("\x1f")[:3] for text in found}
    assert set(by_value) == {
        line(session_id="s1", n=1).decode(), "rubbish", line(session_id="s1", n=2).decode(),
        line(user="\u00fc", n=3).decode(),
    }  # fmt: skip
    assert by_value["rubbish"][1] == ""
    assert [by_value[line(session_id="s1", n=n).decode()][1] for n in (1, 2)] == ["s1", "s1"]
    assert by_value[line(user="\u00fc", n=3).decode()][1] == "\u00fc"
    assert all(float(stamp) >= before_ms - 1000 for _, _, stamp in by_value.values())


@pytest.mark.integration
def test_a_session_stays_in_order_in_one_partition(topics: Topics, tmp_path: Path) -> None:
    topic = topics.create(4)
    file = tmp_path / "a.jsonl"
    file.write_bytes(b"\n".join(line(session_id=f"s{n % 7}", n=n) for n in range(210)))
    assert produce(file, "--topic", topic, "--bootstrap-servers", topics.bootstrap).exit_code == 0
    sessions: dict[str, list[tuple[str, int]]] = {}
    for text in read_topic(topics.bootstrap, topic, "%p\x1f%k\x1f%s"):
        partition, key, value = text.split("\x1f")
        sessions.setdefault(key, []).append((partition, json.loads(value)["n"]))
    assert len(sessions) == 7
    for found in sessions.values():
        assert len({partition for partition, _ in found}) == 1
        assert [n for _, n in found] == sorted(n for _, n in found)


@pytest.mark.integration
def test_rate_and_trace_speed_take_their_time(topics: Topics, tmp_path: Path) -> None:
    topic = topics.create()
    file = tmp_path / "a.jsonl"
    times = [(BEGIN + timedelta(seconds=30 * n)).isoformat() for n in range(4)]
    file.write_bytes(b"\n".join(line(timestamp=stamp) for stamp in times))
    for words, seconds in ((["--rate", 2, "--max-messages", 3], 1.0), (["--trace-speed", 60], 1.5)):
        result = produce(file, "--topic", topic, "--bootstrap-servers", topics.bootstrap, "--json", *words)
        assert seconds <= json.loads(result.stdout)["duration_s"] < PATIENCE_S
    assert len(read_topic(topics.bootstrap, topic)) == 7


class Written:
    """Takes the place of the topic's writer."""

    def __init__(self, *_: object, **__: object) -> None:
        pass

    def __enter__(self) -> Written:
        return self

    def __exit__(self, *_: object) -> None:
        pass


def test_a_trace_says_when_each_line_is_sent(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file, trace = tmp_path / "t.jsonl", tmp_path / "trace.csv"
    lines = [line(timestamp=(BEGIN + timedelta(days=number)).isoformat()) for number in range(3)]
    file.write_bytes(b"\n".join(lines))
    trace.write_text("TIMESTAMP,ContextTokens\n2024-05-10 00:00:00,1\n2024-05-10 00:00:20,1\n", encoding="utf-8")
    clock, sent = [0.0], list[tuple[float, bytes | None]]()
    monkeypatch.setattr(produce_command, "TopicWriter", Written)
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(time, "sleep", lambda seconds: clock.__setitem__(0, clock[0] + seconds))
    monkeypatch.setattr(
        produce_command, "deliver", lambda _, batch: sent.extend((clock[0], message.value) for message in batch)
    )
    words = (file, "--topic", "t", "--bootstrap-servers", "localhost:1", "--arrivals", trace)
    result = produce(*words)
    assert result.exit_code == 0, result.output
    assert sent == list(zip([0.0, 20.0, 40.0], lines, strict=True))
    assert "The trace is repeated, because 3 records are 1.5 times its arrivals." in result.stderr
    assert "A record that holds a time keeps it" in result.stderr
    del sent[:]
    clock[0] = 0.0
    assert produce(*words, "--trace-speed", 10).exit_code == 0
    assert [at for at, _ in sent] == [0.0, 2.0, 4.0]
    both = produce(*words, "--rate", 1)
    assert isinstance(both.exception, UsageError)
    assert "--rate and --arrivals exclude each other" in str(both.exception)


@pytest.mark.parametrize("is_configured", [False, True])
def test_a_map_says_where_the_key_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, is_configured: bool) -> None:
    file, config = tmp_path / "t.jsonl", tmp_path / "shadowspec.toml"
    file.write_text(json.dumps({"body": {"model": "m", "prompt": "a"}, "client": "s"}) + "\n", encoding="utf-8")
    table = 'map = { request = "body", session = "client" }' if is_configured else ""
    config.write_text(
        f'[kafka]\nbootstrap_servers = ["localhost:1"]\ntopics = ["t"]\ngroup_id = "g"\n{table}\n', encoding="utf-8"
    )
    keys: list[bytes | None] = []
    monkeypatch.setattr(produce_command, "TopicWriter", Written)
    monkeypatch.setattr(produce_command, "deliver", lambda _, batch: keys.extend(message.key for message in batch))
    mapped = () if is_configured else ("--map", "request=body,session=client")
    result = produce(file, "--topic", "t", "--config", config, *mapped)
    assert result.exit_code == 0, result.output
    assert keys == [b"s"]


def test_a_map_says_where_the_key_of_a_followed_line_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    log, stop, keys = tmp_path / "own.jsonl", threading.Event(), list[bytes | None]()
    log.write_text(json.dumps({"body": {"model": "m", "prompt": "a"}, "client": "s"}) + "\n", encoding="utf-8")

    def deliver(_: object, sent: Iterable[OutgoingMessage], **__: object) -> None:
        keys.extend(message.key for message in sent)
        stop.set()

    monkeypatch.setattr(tail_command, "TopicWriter", Written)
    monkeypatch.setattr(tail_command, "stopping", lambda: nullcontext(stop))
    monkeypatch.setattr(tail_command, "deliver", deliver)
    words = [
        "tail",
        str(log),
        "--topic",
        "t",
        "--bootstrap-servers",
        "localhost:1",
        "--map",
        "request=body,session=client",
    ]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    assert keys == [b"s"]


@pytest.mark.integration
def test_a_missing_topic_is_not_made(topics: Topics, tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    file.write_bytes(line())
    result = produce(file, "--topic", "no-such-topic", "--bootstrap-servers", topics.bootstrap)
    assert isinstance(result.exception, ServiceUnavailableError)
    assert "no-such-topic" not in topics.admin.list_topics()


def test_rate_and_trace_speed_exclude_each_other(tmp_path: Path) -> None:
    result = produce("x", "--topic", "t", "--rate", 1, "--trace-speed", 1, "--bootstrap-servers", "localhost:1")
    assert isinstance(result.exception, UsageError)

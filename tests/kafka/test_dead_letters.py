"""Dead letters: whole, with Kafka Connect's headers, safe when flushed; listed without what they hold; replayed."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.admin import ConfigResource, ConfigResourceType
from typer.testing import CliRunner, Result

from shadowspec.cli.main import app
from shadowspec.errors import DeadLetterError, ServiceUnavailableError, UsageError
from shadowspec.tap.dead_letter_topic import (
    DeadLetterWriter,
    error_headers,
    make_retry_message,
    read_dead_letters,
    split_headers,
)
from shadowspec.tap.kafka import KafkaSettings
from shadowspec.tap.kafka.batches import TOO_LARGE_HEADER
from shadowspec.tap.kafka.consumer import KafkaTap
from shadowspec.tap.sources import RawRecord
from shadowspec.types import RecordKey
from tests.kafka.reading import Reader, settings_for
from tests.kafka_topics import Message, Topics, read_topic

CANARY = "canary-7f3a"


def raw(
    offset: int, *, value: bytes | None = b"rubbish", headers: tuple[tuple[str, bytes | None], ...] = ()
) -> RawRecord:
    return RawRecord(RecordKey("source-id", 1, offset, 1_700_000_000_000 + offset), value, None, b"key", headers)


@pytest.fixture
def settings(topics: Topics) -> KafkaSettings:
    mirror, retry, dead = topics.create(2), topics.create(2), topics.create(2)
    return settings_for(topics.bootstrap, mirror, retry_topics=(retry,), dead_letter_topic=dead)


@pytest.mark.integration
def test_a_dead_letter_is_the_message_and_what_connect_says_beside_it(topics: Topics, settings: KafkaSettings) -> None:
    with DeadLetterWriter(settings) as writer:
        writer.send(raw(7, headers=(("h", b"1"), ("h", b"2"))), "decode", {"not_json": 1}, "mirror")
        assert read_topic(topics.bootstrap, settings.dead_letter_topic) == []
        writer.flush()
    (letter,) = read_topic(topics.bootstrap, settings.dead_letter_topic, "%k|%s|%T|%h")
    key, value, timestamp, headers = letter.split("|")
    assert (key, value, timestamp) == ("key", "rubbish", "1700000000007")
    assert headers.split(",") == [
        "h=1",
        "h=2",
        "__connect.errors.topic=mirror",
        "__connect.errors.partition=1",
        "__connect.errors.offset=7",
        f"__connect.errors.connector.name={settings.group_id}",
        "__connect.errors.task.id=0",
        "__connect.errors.stage=decode",
        "__connect.errors.class.name=shadowspec.worker.pipeline.Pipeline",
        "__connect.errors.exception.class.name=shadowspec.errors.RecordError",
        "__connect.errors.exception.message=not_json",
    ]


@pytest.mark.integration
def test_what_a_producer_cannot_say_becomes_empty(topics: Topics, settings: KafkaSettings) -> None:
    with DeadLetterWriter(settings) as writer:
        bare = RawRecord(
            RecordKey("source-id", 0, 3), None, "unreadable", None, (("null", None), ("\\xff", b"odd name"))
        )
        writer.send(bare, "decode", {"unreadable": 1}, "mirror")
        writer.flush()
    (letter,) = read_dead_letters(settings)
    assert (letter.message.key, letter.message.value) == (None, b"")
    assert letter.message.headers == (("null", b""), ("\\xff", b"odd name"))
    assert letter.time is not None  # of writing, where the message had none


@pytest.mark.integration
def test_what_came_compressed_goes_compressed(topics: Topics) -> None:
    """A topic limits a batch as it is compressed: what passed through the mirror's topic passes through this one."""
    megabyte = 1024 * 1024
    dead = topics.create(max_message_bytes=megabyte)
    settings = settings_for(topics.bootstrap, "mirror", dead_letter_topic=dead)
    with DeadLetterWriter(settings) as writer:
        writer.send(raw(1, value=b"the quick brown fox " * 500_000), "tap", {"not_json": 1}, "mirror")
        writer.flush()
    (letter,) = read_dead_letters(settings)
    assert letter.message.value == b"the quick brown fox " * 500_000
    assert letter.num_omitted_bytes is None


@pytest.mark.integration
def test_no_message_stops_its_dead_letter_or_its_neighbours(topics: Topics, command: Callable[..., Result]) -> None:
    """A value or a header that the topic refuses is left out, and its size is said."""
    megabyte = 1024 * 1024
    settings = settings_for(topics.bootstrap, "mirror", dead_letter_topic=topics.create(max_message_bytes=megabyte))
    noise = random.Random(1).randbytes(2 * megabyte)
    with DeadLetterWriter(settings) as writer:
        for offset, value, header in ((1, b"small", b""), (2, noise, b"kept"), (3, b"value", noise), (4, b"last", b"")):
            writer.send(raw(offset, value=value, headers=(("h", header),)), "tap", {"not_json": 1}, "mirror")
        writer.flush()
    letters = {letter.source_offset: letter for letter in read_dead_letters(settings)}
    assert sorted(letters) == [1, 2, 3, 4]
    assert [letters[offset].message.value for offset in (1, 4)] == [b"small", b"last"]
    assert (letters[2].message.value, letters[2].num_omitted_bytes) == (None, len(noise))
    assert (letters[2].message.key, letters[2].message.headers) == (b"key", (("h", b"kept"),))
    assert (letters[3].message.key, letters[3].message.headers) == (None, ())
    assert (letters[3].num_omitted_bytes, letters[3].reason) == (len(b"value"), "not_json")


@pytest.mark.integration
def test_a_letter_without_its_value_is_listed_and_not_replayed(
    settings: KafkaSettings, command: Callable[..., Result]
) -> None:
    size = (TOO_LARGE_HEADER, b"17000000")
    with DeadLetterWriter(settings) as writer:
        writer.send(raw(1, value=b"", headers=(size,)), "tap", {"too_large": 1}, "mirror")
        writer.send(raw(2), "tap", {"not_json": 3, "no_request": 1}, "mirror")
        writer.flush()
    assert "17,000,000" in command("list").output
    result = json.loads(command("replay", "--to", settings.retry_topics[0], "--json").output)
    assert (result["replayed"], result["without_value"]) == (1, 1)


def test_many_reasons_are_counted_in_one_header() -> None:
    many = {f"reason_{number}": 1 for number in range(30)} | {"not_json": 9_970}
    _, said = split_headers(error_headers(raw(1), "tap", many, "mirror", "group"))
    assert said["exception.message"] == "not_json"
    assert said["reasons"].startswith("not_json=9970 reason_0=1 ")
    assert said["reasons"].endswith(" others=11")
    _, said = split_headers(error_headers(raw(1), "tap", {"not_json": 1}, "mirror", "group"))
    assert "reasons" not in said


@pytest.mark.integration
def test_a_time_ahead_of_the_clock_stops_no_letter(settings: KafkaSettings) -> None:
    with DeadLetterWriter(settings) as writer:
        for timestamp_ms in (2**62, 1_700_000_000_000):
            writer.send(
                RawRecord(RecordKey("source-id", 0, 1, timestamp_ms), b"x"), "decode", {"not_json": 1}, "mirror"
            )
        writer.flush()
    assert len(list(read_dead_letters(settings))) == 2


@pytest.mark.integration
def test_a_topic_that_is_missing_ends_it_at_the_start(topics: Topics) -> None:
    with pytest.raises(ServiceUnavailableError, match="there is no topic no-such-dead-letters") as caught:
        DeadLetterWriter(settings_for(topics.bootstrap, "mirror", dead_letter_topic="no-such-dead-letters"))
    assert (caught.value.exit_code, caught.value.is_retryable) == (5, False)
    assert "no-such-dead-letters" not in topics.admin.list_topics()


@pytest.mark.all
@pytest.mark.integration
def test_a_topic_that_goes_ends_it_at_the_next_letter(
    topics: Topics, settings: KafkaSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shadowspec.tap.kafka.producer.DELIVERY_TIMEOUT_S", 4.0)
    monkeypatch.setattr("shadowspec.tap.kafka.broker_clients.REQUEST_TIMEOUT_MS", 2_000)
    with DeadLetterWriter(settings) as writer:
        topics.delete(settings.dead_letter_topic)
        writer.send(raw(1), "decode", {"not_json": 1}, "mirror")
        with pytest.raises(DeadLetterError, match=f"topic {settings.dead_letter_topic} is gone"):
            writer.flush()
    assert settings.dead_letter_topic not in topics.admin.list_topics()


HEADERS = st.lists(
    st.tuples(st.sampled_from(["a", "__connect.errors.topic", "__connect.errors.stage", ""]), st.binary(max_size=3)),
    max_size=6,
).map(tuple)


@given(headers=HEADERS, offset=st.integers(0, 2**62))
def test_the_original_headers_come_back_whatever_they_were(headers: tuple[tuple[str, bytes], ...], offset: int) -> None:
    """A message may have been a dead letter of something else before."""
    written_headers = error_headers(raw(offset), "join", {"a_reason": 1}, "mirror", "group")
    original, said = split_headers((*headers, *written_headers))
    assert original == headers
    assert (said["topic"], said["offset"], said["stage"]) == ("mirror", str(offset), "join")
    assert said["exception.message"] == "a_reason"


@given(headers=st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=3)), max_size=4).map(tuple))
def test_a_message_without_error_headers_is_left_as_it_is(headers: tuple[tuple[str, bytes | None], ...]) -> None:
    assert split_headers(headers) == (headers, {})


@pytest.fixture
def command(settings: KafkaSettings, tmp_path: Path) -> Callable[..., Result]:
    """Runs a command with a configuration of the three topics."""
    config = tmp_path / "shadowspec.toml"
    lines = {
        "bootstrap_servers": list(settings.bootstrap_servers),
        "topics": list(settings.topics),
        "retry_topics": list(settings.retry_topics),
        "dead_letter_topic": settings.dead_letter_topic,
        "group_id": settings.group_id,
    }
    config.write_text("[kafka]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in lines.items()))
    return lambda *words: CliRunner().invoke(app, ["dead-letters", *words, "--config", str(config)])


def fill(settings: KafkaSettings) -> None:
    with DeadLetterWriter(settings) as writer:
        secrets = ((CANARY, CANARY.encode()),)
        for offset in range(6):
            stage, reason = ("engine", "engine_died") if offset % 3 == 0 else ("decode", "not_json")
            message = RawRecord(
                RecordKey("source-id", 1, offset, 1_700_000_000_000 + offset), CANARY.encode(), None,
                f"{CANARY}{offset}".encode(), secrets,
            )  # fmt: skip
            writer.send(message, stage, {reason: 1}, settings.topics[0])
        writer.flush()


@pytest.mark.integration
def test_list_says_where_from_and_why_and_nothing_else(settings: KafkaSettings, command: Callable[..., Result]) -> None:
    fill(settings)
    for words in (["list"], ["list", "--json"], ["list", "--stage", "engine"]):
        result = command(*words)
        assert result.exit_code == 0, result.output
        assert CANARY not in result.output
        assert settings.topics[0] in result.output
    found = json.loads(command("list", "--json").output)["dead_letters"]
    assert [letter["source_offset"] for letter in found] == list(range(6))
    assert found[0] == {
        "partition": found[0]["partition"],
        "offset": found[0]["offset"],
        "time": "2023-11-14T22:13:20Z",
        "source_topic": settings.topics[0],
        "source_partition": 1,
        "source_offset": 0,
        "stage": "engine",
        "reason": "engine_died",
        "group": settings.group_id,
        "num_omitted_bytes": None,
    }
    chosen = json.loads(command("list", "--json", "--reason", "not_json", "--max-messages", "2").output)["dead_letters"]
    assert [letter["source_offset"] for letter in chosen] == [4, 5]  # the newest
    assert json.loads(command("list", "--json", "--topic", "other").output)["dead_letters"] == []
    nothing = command("list", "--topic", "other")
    assert (nothing.exit_code, "no such dead letter" in nothing.output) == (0, True)


@pytest.mark.integration
def test_replay_puts_them_back_as_they_came(
    topics: Topics, settings: KafkaSettings, command: Callable[..., Result]
) -> None:
    fill(settings)
    (retry,) = settings.retry_topics
    for refused in (settings.topics[0], settings.dead_letter_topic, "unknown"):
        error = command("replay", "--to", refused).exception
        assert isinstance(error, UsageError)
    assert f"is not one of kafka.retry_topics (configured: {retry})" in str(error)
    result = command("replay", "--to", retry, "--reason", "engine_died", "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.output)["replayed"] == 2
    assert read_topic(topics.bootstrap, settings.topics[0]) == []
    with KafkaTap(settings) as tap:  # which consumes the retry topic too
        records = sorted(Reader(tap).read(2), key=lambda record: record.key.timestamp_ms)
        assert {tap.topic_of(record.key.source) for record in records} == {retry}
    first, _ = records
    assert (first.value, first.message_key) == (CANARY.encode(), f"{CANARY}0".encode())
    assert first.key.timestamp_ms == 1_700_000_000_000
    assert first.headers == (
        (CANARY, CANARY.encode()),
        ("shadowspec.replayed.topic", settings.topics[0].encode()),
        ("shadowspec.replayed.partition", b"1"),
        ("shadowspec.replayed.offset", b"0"),
        ("shadowspec.replayed.reason", b"engine_died"),
    )
    assert json.loads(command("replay", "--to", retry, "--max-messages", "3", "--json").output)["replayed"] == 3


@pytest.mark.integration
def test_what_is_replayed_twice_names_its_last_origin_only(settings: KafkaSettings) -> None:
    with DeadLetterWriter(settings) as writer:
        writer.send(raw(1), "decode", {"not_json": 1}, "mirror")
        writer.flush()
        (letter,) = read_dead_letters(settings)
        again = make_retry_message(letter)
        writer.send(RawRecord(RecordKey("retry-id", 0, 9, 5), again.value, None, again.key, again.headers), "engine",
                    {"engine_died": 1}, "retry")  # fmt: skip
        writer.flush()
    (second,) = [letter for letter in read_dead_letters(settings) if letter.topic == "retry"]
    names = [name for name, _ in make_retry_message(second).headers]
    assert len(names) == len(set(names))
    assert dict(make_retry_message(second).headers)["shadowspec.replayed.topic"] == b"retry"


@pytest.mark.integration
def test_strangers_on_the_topic_are_listed_without_harm(
    topics: Topics, settings: KafkaSettings, command: Callable[..., Result]
) -> None:
    topics.admin.alter_configs([ConfigResource(
        ConfigResourceType.TOPIC, settings.dead_letter_topic, {"message.timestamp.after.max.ms": str(2**63 - 1)}
    )])  # fmt: skip
    odd = (("__connect.errors.topic", b"[red]\x1b[31m\xff"), ("__connect.errors.offset", b"-1x"))
    topics.write(settings.dead_letter_topic, [Message(b"a"), Message(b"b", headers=odd, timestamp_ms=2**62)])
    result = command("list")
    assert result.exit_code == 0, result.output
    assert "\x1b[31m" not in result.output
    assert "[red]" in result.output
    found = json.loads(command("list", "--json").output)["dead_letters"]
    assert {(letter["source_offset"], letter["time"] is None) for letter in found} == {(None, False), (None, True)}

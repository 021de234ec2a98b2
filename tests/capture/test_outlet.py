"""The outlet waits for nobody: without room it drops and counts, and its log says nothing of what it holds."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from shadowspec.capture import outlet as module
from shadowspec.capture.capture_settings import capture_settings
from shadowspec.capture.outlet import CALL_BYTES, Outlet
from shadowspec.errors import ConfigError, RecordError
from shadowspec.tap.kafka.producer import OutgoingMessage
from tests.capture.outlets import CLOSE_S, KeptOutlet, outlet_to, put, settings, until
from tests.kafka_server import KafkaServer
from tests.kafka_topics import Topics, read_topic
from tests.services import free_port
from tests.tap.formats.samples import record_of

ROOT = Path(__file__).parents[2]
SECRET = "the prompt of a client"
WANTED = {"SHADOWSPEC_KAFKA_BOOTSTRAP_SERVERS": "a:1, b:2", "SHADOWSPEC_CAPTURE_TOPIC": "shadow.prompts"}
NewKafka = Callable[[], KafkaServer]


def test_a_broker_that_is_away_costs_copies_and_no_time(caplog: pytest.LogCaptureFixture) -> None:
    size = 1_000
    outlet = Outlet(settings(max_waiting_bytes=10 * (size + CALL_BYTES)), CLOSE_S)
    for _ in range(100):
        put(outlet, b"x" * size)  # nothing is ever sent, so that a call that waited would wait for ever
    assert outlet.counts.dropped_full == 90
    assert outlet.held_bytes == 10 * (size + CALL_BYTES)
    outlet.close()
    assert (outlet.held_bytes, outlet.counts.dropped_at_end) == (0, 10)


def test_what_cannot_be_made_a_message_is_counted_and_not_quoted(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "REPORT_S", 0.0)
    outlet = KeptOutlet()

    def fail() -> OutgoingMessage:
        raise ValueError(SECRET)

    with caplog.at_level(logging.DEBUG):
        outlet.offer(10, fail)
        put(outlet, SECRET.encode())
        until(lambda: outlet.counts.sent == 1 and outlet.held_bytes == 0)
        outlet.close()
    assert outlet.counts.dropped_unreadable == 1
    said = [record.getMessage() for record in caplog.records]
    assert any("sent 1 copies to shadow.prompts, dropped 1 (" in line for line in said)
    assert not any(SECRET in line for line in said)


def test_an_outlet_that_was_closed_goes_on_with_the_next_copy() -> None:
    outlet = KeptOutlet()
    for number in range(3):
        put(outlet, b"%d" % number)
        outlet.close()
        assert [message.value for message in outlet.messages] == [b"%d" % each for each in range(number + 1)]


def test_the_environment_is_checked() -> None:
    found = capture_settings({**WANTED, "SHADOWSPEC_CAPTURE_MAX_BODY_BYTES": "7", "OTHER": "x"})
    assert (found.kafka.bootstrap_servers, found.kafka.topics) == (("a:1", "b:2"), ("shadow.prompts",))
    assert found.max_body_bytes == 7
    login = {
        "SHADOWSPEC_KAFKA_SECURITY_PROTOCOL": "SASL_SSL",
        "SHADOWSPEC_KAFKA_SASL_MECHANISM": "PLAIN",
        "SHADOWSPEC_KAFKA_USERNAME": "u",
        "SHADOWSPEC_KAFKA_PASSWORD": "p",
        "SHADOWSPEC_KAFKA_SSL_CA_FILE": "/ca.pem",
    }
    security = capture_settings({**WANTED, **login}).security
    assert (security.read_password(), str(security.ca_file)) == ("p", "/ca.pem")


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("SHADOWSPEC_CAPTURE_TOPIC", "", "SHADOWSPEC_CAPTURE_TOPIC: is not set"),
        ("SHADOWSPEC_CAPTURE_TOPIC", "a b", "SHADOWSPEC_CAPTURE_TOPIC: "),
        ("SHADOWSPEC_CAPTURE_MAX_BODY_BYTES", "0", "SHADOWSPEC_CAPTURE_MAX_BODY_BYTES: "),
        ("SHADOWSPEC_CAPTURE_TOPICS", "x", "SHADOWSPEC_CAPTURE_TOPICS: is not a setting"),
        ("SHADOWSPEC_KAFKA_SECURITY_PROTOCOL", "TLS", "SHADOWSPEC_KAFKA_SECURITY_PROTOCOL: "),
        ("SHADOWSPEC_KAFKA_CA_FILE", "x", "SHADOWSPEC_KAFKA_CA_FILE: is not a setting"),
    ],
)
def test_a_wrong_variable_is_named(name: str, value: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        capture_settings({**WANTED, name: value})


LIGHT = "annotated_types crc32c cramjam kafka lz4 msgspec pydantic pydantic_core snappy typing_extensions "
LIGHT += "typing_inspection zstandard cython_runtime"


@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("shadowspec.capture.asgi", ""),
        ("shadowspec.capture.envoy_log_service", "grpc"),
        ("shadowspec.cli.tail", "annotated_doc rich shellingham sqlalchemy typer"),
    ],
)
def test_a_gateway_needs_few_packages(name: str, more: str) -> None:
    code = f"import sys, {name}; print(*{{m.split('.')[0] for m in sys.modules if not m.startswith('_')}})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    loaded = set(done.stdout.split()) - sys.stdlib_module_names - {"shadowspec"}
    assert loaded <= {*LIGHT.split(), *more.split()}


@pytest.mark.integration
def test_a_topic_that_is_made_later_gets_what_waited(topics: Topics) -> None:
    topic = "test-0123456789ab"
    with outlet_to(topics.bootstrap, topic) as outlet:
        put(outlet, b"early")
        until(lambda: "there is no topic" in outlet._last_problem)
        topics.create(name=topic)
        until(lambda: outlet.counts.sent == 1)
        assert read_topic(topics.bootstrap, topic) == ["early"]


@pytest.mark.integration
def test_a_copy_that_the_topic_refuses_becomes_a_record_that_the_tap_counts(topics: Topics) -> None:
    topic = topics.create(max_message_bytes=2_000)
    noise = "".join(chr(0x4E00 + number * 7919 % 20_000) for number in range(4_000))  # does not compress
    line = json.dumps({"timestamp": 1_790_000_000, "path": "/v1/chat/completions", "request_body": noise})
    with outlet_to(topics.bootstrap, topic) as outlet:
        put(outlet, line.encode())
        put(outlet, b'{"request": {"prompt": "x"}}')
        until(lambda: outlet.counts.sent == 2)
    texts = sorted(read_topic(topics.bootstrap, topic), key=lambda text: "chat" not in text)  # a refusal changes places
    first, second = (record_of(text.encode()) for text in texts)
    assert (first.request_path, first.event_time(0).year) == ("/v1/chat/completions", 2026)
    with pytest.raises(RecordError, match="truncated"):
        first.check_served()
    assert second.request == {"prompt": "x"}


@pytest.mark.integration
@pytest.mark.slow
def test_a_broker_that_comes_late_goes_and_comes_back_loses_nothing(tmp_path: Path) -> None:
    port = free_port()
    with outlet_to(f"localhost:{port}", "shadow.prompts") as outlet:
        put(outlet, b"0")
        until(lambda: outlet._last_problem != "")
        server = KafkaServer(tmp_path, port=port)
        try:
            server.start()
            with Topics(server.bootstrap, deletes=False) as topics:
                topics.create(name="shadow.prompts")
            until(lambda: outlet.counts.sent == 1)
            server.stop()
            for number in (1, 2, 3):
                put(outlet, b"%d" % number)
            server.start()
            until(lambda: outlet.counts.sent == 4)
            assert sorted(set(read_topic(server.bootstrap, "shadow.prompts"))) == ["0", "1", "2", "3"]
        finally:
            server.kill()
    assert outlet.counts.dropped == 0

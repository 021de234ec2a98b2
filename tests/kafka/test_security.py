"""TLS and logins: the good ones work, the bad ones are refused at once, and no secret is said."""

from __future__ import annotations

import logging
import re
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from kafka.admin import ACL, ACLOperation, ACLPermissionType, ResourcePattern, ResourceType

from shadowspec.errors import ConfigError, DeadLetterError, ServiceUnavailableError
from shadowspec.tap.dead_letter_topic import DeadLetterWriter
from shadowspec.tap.kafka import KafkaSecurity
from shadowspec.tap.kafka.consumer import KafkaTap
from shadowspec.tap.kafka.producer import OutgoingMessage, TopicWriter
from shadowspec.tap.sources import RawRecord
from shadowspec.types import RecordKey
from tests.kafka.reading import Reader, settings_for
from tests.kafka_server import DENIED_PASSWORD, DENIED_USER, MECHANISMS, PASSWORD, USER, Certificates, KafkaServer
from tests.kafka_topics import Message, Topics

pytestmark = [pytest.mark.integration, pytest.mark.slow]
SOON_S = 90.0  # half of the time that connecting is given: no waiting for it, on a busy machine too


@pytest.fixture
def secure_topics(secure_kafka: KafkaServer) -> Iterator[Topics]:
    with Topics(secure_kafka.bootstrap) as made:
        yield made


def certificates_of(server: KafkaServer) -> Certificates:
    assert server.certificates is not None
    return server.certificates


def login(server: KafkaServer, mechanism: str = "PLAIN", **other: object) -> KafkaSecurity:
    given: dict[str, object] = {
        "protocol": "SASL_SSL",
        "mechanism": mechanism,
        "username": USER,
        "password": PASSWORD,
        "ca_file": certificates_of(server).authority,
    }
    return KafkaSecurity(**{**given, **other})  # type: ignore[arg-type]


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_every_login_reads_and_writes(secure_kafka: KafkaServer, secure_topics: Topics, mechanism: str) -> None:
    topic = secure_topics.create()
    settings = settings_for(
        secure_kafka.address("SASL_SSL"), topic, security=login(secure_kafka, mechanism), connect_timeout_ms=30_000
    )
    with TopicWriter(settings, topic, name="test") as writer:
        writer.send(OutgoingMessage(b"key", b"value"))
        assert writer.flush() == 1
    with KafkaTap(settings) as tap:
        reader = Reader(tap)
        assert [record.value for record in reader.read(1)] == [b"value"]
        assert tap.commit(dict.fromkeys(reader.owned, 1)).is_complete


def test_a_client_certificate_is_a_login_too(secure_kafka: KafkaServer, secure_topics: Topics) -> None:
    topic = secure_topics.create()
    secure_topics.write(topic, [Message(b"value")])
    certificates = certificates_of(secure_kafka)
    security = KafkaSecurity(
        "SSL", ca_file=certificates.authority, certificate_file=certificates.client, key_file=certificates.client_key
    )  # fmt: skip
    with KafkaTap(settings_for(secure_kafka.address("SSL"), topic, security=security)) as tap:
        assert [record.value for record in Reader(tap).read(1)] == [b"value"]


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_wrong_password_is_refused_at_once(
    secure_kafka: KafkaServer, secure_topics: Topics, mechanism: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    topic = secure_topics.create()
    address = secure_kafka.address("SASL_SSL")
    security = login(secure_kafka, mechanism, password="not-the-right-one")
    settings = settings_for(address, topic, security=security, connect_timeout_ms=180_000)
    began = time.monotonic()
    with pytest.raises(ServiceUnavailableError, match=r"(?i)authentication") as caught:
        KafkaTap(settings)
    assert time.monotonic() - began < SOON_S
    assert (caught.value.exit_code, caught.value.is_retryable) == (5, False)
    assert address in str(caught.value)
    said = f"{caught.value} {caught.value.__cause__!r} {settings!r} {caplog.text}"
    assert "not-the-right-one" not in said


def test_a_good_login_says_no_password_in_the_log(
    secure_kafka: KafkaServer, secure_topics: Topics, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    logging.getLogger("kafka").setLevel(logging.DEBUG)
    topic = secure_topics.create()
    secure_topics.write(topic, [Message(b"canary-in-the-prompt", b"canary-key")])
    caplog.clear()
    settings = settings_for(secure_kafka.address("SASL_SSL"), topic, security=login(secure_kafka))
    with KafkaTap(settings) as tap:
        Reader(tap).read(1)
    # Not `in`: were it there, pytest would take minutes to compare the texts.
    assert (caplog.text.find(PASSWORD), caplog.text.find("canary")) == (-1, -1)


def test_an_authority_that_did_not_sign_is_not_trusted(secure_kafka: KafkaServer, secure_topics: Topics) -> None:
    topic = secure_topics.create()
    stranger = login(secure_kafka, ca_file=certificates_of(secure_kafka).other_authority)
    settings = settings_for(secure_kafka.address("SASL_SSL"), topic, security=stranger, connect_timeout_ms=180_000)
    began = time.monotonic()
    with pytest.raises(ServiceUnavailableError, match="CERTIFICATE_VERIFY_FAILED") as caught:
        KafkaTap(settings)
    assert not caught.value.is_retryable
    assert time.monotonic() - began < SOON_S


def test_a_broker_under_another_name_is_not_trusted(secure_kafka: KafkaServer, secure_topics: Topics) -> None:
    topic = secure_topics.create()
    address = secure_kafka.address("SASL_SSL").replace("localhost", "127.0.0.1")  # the certificate says localhost
    settings = settings_for(address, topic, security=login(secure_kafka), connect_timeout_ms=60_000)
    with pytest.raises(ServiceUnavailableError, match="CERTIFICATE_VERIFY_FAILED"):
        KafkaTap(settings)


def test_without_encryption_an_encrypted_broker_does_not_answer(
    secure_kafka: KafkaServer, secure_topics: Topics
) -> None:
    settings = settings_for(secure_kafka.address("SASL_SSL"), secure_topics.create(), connect_timeout_ms=3_000)
    with pytest.raises(ServiceUnavailableError, match=re.escape(secure_kafka.address("SASL_SSL"))):
        KafkaTap(settings)


@pytest.fixture
def denied(secure_topics: Topics) -> tuple[str, str]:
    """Two topics that DENIED_USER may see, but neither read nor write."""
    unreadable, unwritable = secure_topics.create(), secure_topics.create()
    # Where a topic has any rule, only what a rule allows is allowed.
    rules = [
        ACL(
            principal=f"User:{DENIED_USER}",
            host="*",
            operation=ACLOperation.DESCRIBE,
            permission_type=ACLPermissionType.ALLOW,
            resource_pattern=ResourcePattern(ResourceType.TOPIC, topic),
        )
        for topic in (unreadable, unwritable)
    ]
    secure_topics.admin.create_acls(rules)
    time.sleep(0.5)  # until the broker has heard of it
    return unreadable, unwritable


def test_a_topic_that_may_not_be_read_ends_it(
    secure_kafka: KafkaServer, secure_topics: Topics, denied: tuple[str, str]
) -> None:
    unreadable, _ = denied
    secure_topics.write(unreadable, [Message(b"value")])
    security = login(secure_kafka, username=DENIED_USER, password=DENIED_PASSWORD)
    settings = settings_for(secure_kafka.address("SASL_SSL"), unreadable, security=security)

    def run() -> None:
        with KafkaTap(settings) as tap:
            Reader(tap).read(1)

    with pytest.raises(ServiceUnavailableError, match=unreadable) as caught:
        run()
    assert f"{DENIED_USER} may not use topic" in str(caught.value)
    assert not caught.value.is_retryable


def test_a_dead_letter_topic_that_may_not_be_written_ends_it(
    secure_kafka: KafkaServer, secure_topics: Topics, denied: tuple[str, str]
) -> None:
    _, unwritable = denied
    security = login(secure_kafka, username=DENIED_USER, password=DENIED_PASSWORD)
    settings = settings_for(
        secure_kafka.address("SASL_SSL"), secure_topics.create(), security=security, dead_letter_topic=unwritable
    )
    with DeadLetterWriter(settings) as writer:
        writer.send(RawRecord(RecordKey("source", 0, 1), b"value"), "decode", {"not_json": 1}, "topic")
        with pytest.raises(DeadLetterError, match=unwritable) as caught:
            writer.flush()
    assert caught.value.exit_code == 5


def test_the_password_is_read_when_somebody_connects(tmp_path: Path) -> None:
    file = tmp_path / "password"
    security = KafkaSecurity("SASL_SSL", "PLAIN", "user", password_file=file)
    with pytest.raises(ConfigError, match=re.escape(f"{file} cannot be read")):
        security.read_password()
    file.write_text("\n")
    with pytest.raises(ConfigError, match="is empty"):
        security.read_password()
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="UTF-8"):
        security.read_password()
    file.write_text("secret words\n")
    assert security.read_password() == "secret words"
    assert KafkaSecurity("SASL_SSL", "PLAIN", "user", "wins", file).read_password() == "wins"
    with pytest.raises(ConfigError, match="SHADOWSPEC_KAFKA_PASSWORD"):
        KafkaSecurity("SASL_SSL", "PLAIN", "user").read_password()


@pytest.mark.parametrize("content", [None, "", "no certificate"])
def test_a_bad_certificate_is_named_before_anything_is_sent(tmp_path: Path, content: str | None) -> None:
    file = tmp_path / "own.pem"
    if content is not None:
        file.write_text(content)
    for security, key in (
        (KafkaSecurity("SSL", ca_file=file), "ssl_ca_file"),
        (KafkaSecurity("SSL", certificate_file=file, key_file=file), "ssl_key_file"),
    ):
        with pytest.raises(ConfigError, match=rf"kafka\..*{key}"):
            KafkaTap(settings_for("localhost:1", "topic", security=security))


@pytest.mark.parametrize("protocol", ["PLAINTEXT", "SSL"])
def test_a_port_that_says_nothing_is_given_up_in_time(protocol: str) -> None:
    with socket.create_server(("localhost", 0)) as silent:
        address = f"localhost:{silent.getsockname()[1]}"
        began = time.monotonic()
        settings = settings_for(address, "topic", security=KafkaSecurity(protocol), connect_timeout_ms=1_500)
        with pytest.raises(ServiceUnavailableError, match=address) as caught:
            KafkaTap(settings)
        assert caught.value.is_retryable
        assert time.monotonic() - began < SOON_S

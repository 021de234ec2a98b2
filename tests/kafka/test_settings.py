"""[kafka] and [worker]: what is wrong is named, what is shown is real, and no secret is said."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from shadowspec.config import Config, config_template, load_config, policy_template
from shadowspec.errors import ConfigError
from shadowspec.tap.kafka import KafkaSecurity, KafkaSettings
from shadowspec.tap.routing import Routing
from shadowspec.types.settings import WorkerSettings, keys_of

KAFKA = '[kafka]\nbootstrap_servers = ["b:9092"]\ntopics = ["t"]\n'
SASL = KAFKA + 'security_protocol = "SASL_SSL"\nsasl_mechanism = "PLAIN"\nusername = "u"\n'


def load(tmp_path: Path, text: str, **environment: str) -> Config:
    path = tmp_path / "shadowspec.toml"
    path.write_text(text, encoding="utf-8")
    return load_config(path, environment)


def test_without_a_mirror_there_is_none(tmp_path: Path) -> None:
    config = load(tmp_path, "")
    assert config.kafka is None
    assert config.worker == WorkerSettings()


def test_the_template_shows_every_key_with_its_default(tmp_path: Path) -> None:
    (tmp_path / "policy.toml").write_text(policy_template(), encoding="utf-8")
    template = config_template(str(tmp_path / "policy.toml"))
    shown = load(tmp_path, re.sub(r"(?m)^# (?=\[{1,2}[a-z]|[a-z_]+ = )", "", template))
    assert shown.worker == WorkerSettings()
    assert shown.kafka is not None
    kafka_settings = KafkaSettings(("localhost:9092",), ("shadow.prompts",), retry_topics=("shadow.retry",))
    assert replace(shown.kafka, security=KafkaSecurity(), group_instance_id=None, map={}) == kafka_settings
    keys = set(re.findall(r"(?m)^# ([a-z_]+) = ", config_template()))
    assert {*keys_of(KafkaSettings), *keys_of(WorkerSettings)} <= keys


def test_the_values_arrive(tmp_path: Path) -> None:
    config = load(
        tmp_path,
        """
        [kafka]
        bootstrap_servers = ["a:1", "b:2"]
        topics = ["one", "two"]
        retry_topics = ["three"]
        dead_letter_topic = "four"
        group_id = "g"
        group_instance_id = "w-1"
        format = "litellm"
        session_from = "header:X-Session"
        endpoint_from = "topic"
        auto_offset_reset = "latest"
        session_timeout_ms = 10000
        heartbeat_interval_ms = 1000
        max_poll_interval_ms = 30000
        max_poll_records = 9
        connect_timeout_ms = 5
        max_record_bytes = 7
        security_protocol = "SASL_SSL"
        sasl_mechanism = "SCRAM-SHA-512"
        username = "u"
        password_file = "p"
        ssl_ca_file = "ca"
        ssl_certificate_file = "crt"
        ssl_key_file = "key"
        [worker]
        devices = ["cuda:0", "cuda:1"]
        max_queued_blocks = 2
        build_timeout_s = 7
        block_timeout_s = 5
        max_attempts = 1
        overload = "shed"
        max_unfinished_messages = 10
        flush_interval_s = 0.5
        refresh_rates_s = 1
        drain_timeout_s = 0
        health_address = "[::1]:0"
        """,
    )
    assert config.kafka == KafkaSettings(
        bootstrap_servers=("a:1", "b:2"),
        topics=("one", "two"),
        retry_topics=("three",),
        dead_letter_topic="four",
        group_id="g",
        group_instance_id="w-1",
        session_timeout_ms=10_000,
        heartbeat_interval_ms=1_000,
        max_poll_interval_ms=30_000,
        max_poll_records=9,
        connect_timeout_ms=5,
        auto_offset_reset="latest",
        max_record_bytes=7,
        format="litellm",
        routing=Routing(endpoint="topic", session="header:X-Session"),
        security=KafkaSecurity(
            "SASL_SSL", "SCRAM-SHA-512", "u", None, Path("p"), Path("ca"), Path("crt"), Path("key")
        ),
    )  # fmt: skip
    assert config.kafka.consumed_topics == ("one", "two", "three")
    assert config.worker == WorkerSettings(("cuda:0", "cuda:1"), 2, 7.0, 5.0, 1, "shed", 10, 0.5, 1.0, 0.0, "[::1]:0")


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("[kafka]\n", "kafka.bootstrap_servers: is missing"),
        (KAFKA + "password = 'x'\n", "kafka.password: is not a known key"),
        (KAFKA + "'(password)' = 'x'\n", "kafka: is not a known key"),
        (KAFKA + "[kafka.security]\nprotocol = 'SSL'\n", "kafka.security: is not a known key"),
        (KAFKA + "protocol = 'SSL'\n", "kafka.protocol: is not a known key"),
        ("kafka = 3\n", "kafka: must be a table"),
        (KAFKA.replace('["t"]', '"t"'), "kafka.topics: must be an array"),
        (KAFKA + "group_id = 1979-05-27\n", "kafka.group_id: must be a string"),
        (KAFKA + "password_file = ''\n", "kafka.password_file: must be the path of a file or folder"),
        (KAFKA.replace('["t"]', "[]"), "kafka.topics"),
        (KAFKA.replace('"t"', '"a b"'), "kafka.topics.0"),
        (KAFKA + 'retry_topics = ["t"]\n', "the same topic is listed twice"),
        (KAFKA + 'dead_letter_topic = "t"\n', "kafka.dead_letter_topic: t is consumed too"),
        (KAFKA + 'retry_topics = ["r"]\ndead_letter_topic = "r"\n', "kafka.dead_letter_topic: r is consumed too"),
        (KAFKA + 'format = "xml"\n', "kafka.format"),
        (KAFKA + 'session_from = "topic"\n', "kafka.session_from"),
        (KAFKA + 'endpoint_from = "header:"\n', "kafka.endpoint_from"),
        (KAFKA + 'auto_offset_reset = "none"\n', "kafka.auto_offset_reset"),
        (KAFKA + "session_timeout_ms = '9'\n", "kafka.session_timeout_ms"),
        (KAFKA + "heartbeat_interval_ms = 30000\n", "kafka.heartbeat_interval_ms must be less than half"),
        (KAFKA + "session_timeout_ms = 400000\n", "must not exceed kafka.max_poll_interval_ms"),
        (KAFKA + 'security_protocol = "TLS"\n', "kafka.security_protocol"),
        (KAFKA + 'security_protocol = "SASL_SSL"\n', "needs kafka.sasl_mechanism"),
        (KAFKA + 'security_protocol = "SASL_SSL"\nsasl_mechanism = "PLAIN"\n', "needs kafka.username"),
        (KAFKA + 'username = "u"\n', "sends no login"),
        (KAFKA + 'password_file = "p"\n', "sends no login"),
        (KAFKA + 'ssl_ca_file = "ca"\n', "does not encrypt"),
        (KAFKA + 'security_protocol = "SSL"\nssl_key_file = "k"\n', "go together"),
        ("[worker]\ndevices = ['tpu']\n", "worker.devices.0"),
        ("[worker]\ndevices = ['cpu', 'cpu']\n", "worker: devices: the same value"),
        ("[worker]\nmax_attempts = 0\n", "worker.max_attempts"),
        ("[worker]\noverload = 'drop'\n", "worker.overload"),
        ("[worker]\nhealth_address = '8080'\n", "worker.health_address"),
        ("[worker]\nhealth_address = 'x:65536'\n", "a port is at most 65535"),
        ("[worker]\nblock_timeout_s = inf\n", "worker.block_timeout_s"),
        ("[worker]\nspeed = 1\n", "worker.speed: is not a known key"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, text: str, wanted: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, text)
    assert wanted in str(caught.value)
    assert str(tmp_path / "shadowspec.toml") in str(caught.value)


def test_a_password_comes_from_environment_or_file_only(tmp_path: Path) -> None:
    secret = "correct-horse-battery"
    kafka = load(tmp_path, SASL, SHADOWSPEC_KAFKA_PASSWORD=secret).kafka
    assert kafka is not None
    assert kafka.security.read_password() == secret
    assert secret not in repr(kafka)
    assert secret not in repr(load(tmp_path, SASL, SHADOWSPEC_KAFKA_PASSWORD=secret))
    # Without one the file can be read all the same: a report connects to no broker.
    without = load(tmp_path, SASL).kafka
    assert without is not None
    with pytest.raises(ConfigError, match="set SHADOWSPEC_KAFKA_PASSWORD"):
        without.security.read_password()

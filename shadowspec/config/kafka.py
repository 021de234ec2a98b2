"""From the [kafka] section to the settings of the tap."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from shadowspec.config.sections import KafkaSection
from shadowspec.errors import ConfigError
from shadowspec.tap.kafka import KafkaSecurity, KafkaSettings
from shadowspec.tap.routing import Routing

PASSWORD_VARIABLE: Final = "SHADOWSPEC_KAFKA_PASSWORD"  # noqa: S105 - the name of a variable, not its value


def kafka_settings(path: Path, section: KafkaSection, environment: Mapping[str, str]) -> KafkaSettings:
    """The settings; the password stays in its file until somebody connects.

    Raises:
        ConfigError: the parts do not fit together.
    """
    plain = section.model_dump(
        include={
            "dead_letter_topic", "group_id", "group_instance_id", "session_timeout_ms", "heartbeat_interval_ms",
            "max_poll_interval_ms", "max_poll_records", "connect_timeout_ms", "auto_offset_reset", "max_record_bytes",
            "format",
        }
    )  # fmt: skip
    try:
        return KafkaSettings(
            bootstrap_servers=tuple(section.bootstrap_servers),
            topics=tuple(section.topics),
            retry_topics=tuple(section.retry_topics),
            routing=Routing(endpoint=section.endpoint_from, session=section.session_from),
            security=KafkaSecurity(
                protocol=section.security_protocol,
                mechanism=section.sasl_mechanism,
                username=section.username,
                password=environment.get(PASSWORD_VARIABLE) or None,
                password_file=_path(section.password_file),
                ca_file=_path(section.ssl_ca_file),
                certificate_file=_path(section.ssl_certificate_file),
                key_file=_path(section.ssl_key_file),
            ),
            **plain,
        )
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


def _path(text: str | None) -> Path | None:
    return None if text is None else Path(text)

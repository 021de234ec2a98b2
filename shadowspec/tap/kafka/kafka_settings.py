"""How to reach the brokers, which topics are mirrored, and how the consumer group behaves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Final, Literal

from pydantic import Field

from shadowspec.errors import ConfigError, UsageError
from shadowspec.tap.formats import FieldMap, MessageFormat
from shadowspec.tap.routing import Routing
from shadowspec.tap.sources import DEFAULT_MAX_RECORD_BYTES
from shadowspec.types.settings import PathText, Positive, Text

MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")

Topic = Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,249}$")]
Milliseconds = Annotated[int, Field(ge=1, lt=2**31)]


@dataclass(frozen=True, slots=True)
class KafkaSecurity:
    """Encryption and login.  Certificates and keys are PEM files; the broker's name is always verified.

    Files are read when a client connects: a report needs none of them.

    Raises:
        ConfigError: the parts do not fit together.
    """

    protocol: Annotated[Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"], Field(alias="security_protocol")] = (
        "PLAINTEXT"
    )
    mechanism: Annotated[Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] | None, Field(alias="sasl_mechanism")] = (
        None
    )
    username: Text | None = None
    password: Annotated[str | None, Field(alias="(password)")] = field(default=None, repr=False)  # wins over the file
    password_file: PathText | None = None
    ca_file: Annotated[PathText | None, Field(alias="ssl_ca_file")] = None  # None: the system's authorities
    certificate_file: Annotated[PathText | None, Field(alias="ssl_certificate_file")] = None
    key_file: Annotated[PathText | None, Field(alias="ssl_key_file")] = None

    def __post_init__(self) -> None:
        if self.is_sasl and self.mechanism not in MECHANISMS:
            raise ConfigError(
                f"kafka.security_protocol = {self.protocol} needs kafka.sasl_mechanism, one of {', '.join(MECHANISMS)}"
            )
        if self.is_sasl and not self.username:
            raise ConfigError(f"kafka.security_protocol = {self.protocol} needs kafka.username")
        if not self.is_sasl and (self.mechanism or self.username or self.password_file):
            raise ConfigError(f"kafka.security_protocol = {self.protocol} sends no login: use SASL_SSL")
        if not self.is_encrypted and (self.ca_file or self.certificate_file or self.key_file):
            raise ConfigError(f"kafka.security_protocol = {self.protocol} does not encrypt: use SSL or SASL_SSL")
        if (self.certificate_file is None) != (self.key_file is None):
            raise ConfigError("kafka.ssl_certificate_file and kafka.ssl_key_file go together")

    @property
    def is_sasl(self) -> bool:
        return self.protocol.startswith("SASL_")

    @property
    def is_encrypted(self) -> bool:
        return self.protocol.endswith("SSL")

    def read_password(self) -> str:
        """The login password.

        Raises:
            ConfigError: no password is set, or its file cannot be read.
        """
        if self.password is not None:
            return self.password
        if self.password_file is None:
            raise ConfigError(
                f"no password for Kafka's user {self.username}: set SHADOWSPEC_KAFKA_PASSWORD or kafka.password_file"
            )
        try:
            password = self.password_file.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "not text in UTF-8"
            raise ConfigError(f"kafka.password_file: {self.password_file} cannot be read ({reason})") from None
        if not password:
            raise ConfigError(f"kafka.password_file: {self.password_file} is empty")
        return password


@dataclass(frozen=True, slots=True)
class KafkaSettings:
    """The mirror.  Times in ms as Kafka names them.

    Nothing is ever produced to `topics` but by `shadowspec produce`; `retry_topics` are consumed like them, and
    are where dead letters may be put back.

    Raises:
        ConfigError: the parts do not fit together.
    """

    bootstrap_servers: Annotated[tuple[Text, ...], Field(min_length=1)]
    topics: Annotated[tuple[Topic, ...], Field(min_length=1)]
    retry_topics: tuple[Topic, ...] = ()
    dead_letter_topic: Topic = "shadow.dead-letters"
    group_id: Text = "shadowspec"
    group_instance_id: Topic | None = None
    session_timeout_ms: Milliseconds = 45_000
    heartbeat_interval_ms: Milliseconds = 3_000
    max_poll_interval_ms: Milliseconds = 300_000
    max_poll_records: Positive = 500
    connect_timeout_ms: Milliseconds = 30_000  # until the first answer of a broker
    # Where a partition begins that neither database nor group knows.
    auto_offset_reset: Literal["earliest", "latest"] = "earliest"
    max_record_bytes: Positive = DEFAULT_MAX_RECORD_BYTES
    format: Literal[
        "auto", "openai", "litellm", "cloudevents", "kong", "otlp", "body", "row", "batch", "langfuse", "sglang",
        "databricks", "sagemaker", "bedrock",
    ] = "auto"  # fmt: skip
    map: Mapping[str, str] = field(default_factory=dict)  # in place of a format: where messages have a record's parts
    routing: Annotated[Routing, Field(alias="(routing)")] = field(default_factory=Routing)
    security: Annotated[KafkaSecurity, Field(alias="(security)")] = field(default_factory=KafkaSecurity)

    def __post_init__(self) -> None:
        for name, values in (("bootstrap_servers", self.bootstrap_servers), ("topics", self.topics)):
            if not values or not all(values):
                raise ConfigError(f"kafka.{name} must name at least one")
        if len(set(self.consumed_topics)) != len(self.consumed_topics):
            raise ConfigError("kafka.topics and kafka.retry_topics: the same topic is listed twice")
        if self.dead_letter_topic in self.consumed_topics:
            raise ConfigError(
                f"kafka.dead_letter_topic: {self.dead_letter_topic} is consumed too; a dead letter would come back"
            )
        if self.heartbeat_interval_ms * 2 >= self.session_timeout_ms:
            raise ConfigError("kafka.heartbeat_interval_ms must be less than half of kafka.session_timeout_ms")
        if self.map:
            if self.format != "auto":
                raise ConfigError("kafka.map and kafka.format exclude each other; remove one")
            self._parse_map()
        if self.session_timeout_ms > self.max_poll_interval_ms:
            raise ConfigError("kafka.session_timeout_ms must not exceed kafka.max_poll_interval_ms")

    @property
    def message_format(self) -> MessageFormat | FieldMap:
        """How messages are written."""
        return self._parse_map() if self.map else MessageFormat(self.format)

    def _parse_map(self) -> FieldMap:
        try:
            return FieldMap.parse(self.map)
        except UsageError as error:
            raise ConfigError(f"kafka.{error}") from error

    @property
    def consumed_topics(self) -> tuple[str, ...]:
        return (*self.topics, *self.retry_topics)

    @property
    def brokers(self) -> str:
        """The brokers as a message names them."""
        return ",".join(self.bootstrap_servers)

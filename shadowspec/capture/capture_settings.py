"""Where copies go and how much memory they may take, by environment variables.

`SHADOWSPEC_KAFKA_` before a key of [kafka] in capitals sets that key: the brokers (`..._BOOTSTRAP_SERVERS`, separated
by commas) and the keys of encryption and login.  `SHADOWSPEC_CAPTURE_` before a field of `CaptureSettings` sets that.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Annotated, Any, Final

from pydantic import Field, TypeAdapter, ValidationError

from shadowspec.errors import ConfigError
from shadowspec.tap.kafka import KafkaSecurity, KafkaSettings
from shadowspec.tap.kafka.kafka_settings import Topic
from shadowspec.types.settings import Positive, Text

KAFKA: Final = "SHADOWSPEC_KAFKA_"
CAPTURE: Final = "SHADOWSPEC_CAPTURE_"
PASSWORD: Final = "password"  # noqa: S105  # of the variables; no key of the file
BROKERS: Final = "bootstrap_servers"


@dataclass(frozen=True, slots=True)
class CaptureSettings:
    """`max_waiting_bytes` bounds all copies together: of calls that go on, and of those that wait for the brokers.

    Of a call whose request is longer than `max_body_bytes` only the head is sent; a longer answer is left out.
    """

    bootstrap_servers: Annotated[tuple[Text, ...], Field(min_length=1)]
    topic: Topic
    max_waiting_bytes: Positive = 64 * 1024 * 1024
    max_body_bytes: Positive = 4 * 1024 * 1024
    security: KafkaSecurity = field(default_factory=KafkaSecurity)

    @property
    def kafka(self) -> KafkaSettings:
        """The brokers as a producer's settings."""
        return kafka_settings(self.bootstrap_servers, self.topic, self.security)


def kafka_settings(
    bootstrap_servers: tuple[str, ...], topic: str, security: KafkaSecurity | None = None
) -> KafkaSettings:
    """Settings of a producer to one topic, which consumes nothing."""
    return KafkaSettings(
        bootstrap_servers,
        (topic,),
        dead_letter_topic=f"{topic}.dead-letters",
        security=security or KafkaSecurity(),
    )


def capture_settings(environment: Mapping[str, str]) -> CaptureSettings:
    """The settings that an environment names.

    Raises:
        ConfigError: a variable is missing, unknown or wrong; the message names it.
    """
    of_kafka, of_capture = _named(environment, KAFKA), _named(environment, CAPTURE)
    login: dict[str, Any] = {name: value for name, value in of_kafka.items() if name != BROKERS}
    if PASSWORD in login:
        login["(password)"] = login.pop(PASSWORD)
    servers = tuple(server.strip() for server in of_kafka.get(BROKERS, "").split(",") if server.strip())
    known = {each.name for each in fields(CaptureSettings)} - {BROKERS, "security"}
    _refuse_unknown(CAPTURE, set(of_capture) - known, known)
    keys = set(_security_keys())
    _refuse_unknown(KAFKA, set(login) - keys, keys | {BROKERS})
    security = _checked(TypeAdapter(KafkaSecurity), login, KAFKA)
    given = {**of_capture, BROKERS: servers, "security": security}
    settings: CaptureSettings = _checked(TypeAdapter(CaptureSettings), given, CAPTURE)
    return settings


def _named(environment: Mapping[str, str], prefix: str) -> dict[str, str]:
    return {name.removeprefix(prefix).lower(): value for name, value in environment.items() if name.startswith(prefix)}


def _security_keys() -> list[str]:
    """The keys of [kafka] that encrypt and log in."""
    schema = TypeAdapter(KafkaSecurity).json_schema(by_alias=True)
    return list(schema["properties"])


def _refuse_unknown(prefix: str, unknown: set[str], known: set[str]) -> None:
    if unknown:
        names = ", ".join(prefix + name.upper() for name in sorted(name.strip("()") for name in known))
        raise ConfigError(f"{prefix}{min(unknown).upper()}: is not a setting of the capture; there are {names}")


def _checked(adapter: TypeAdapter[Any], given: Mapping[str, Any], prefix: str) -> Any:
    try:
        return adapter.validate_python(given)
    except ValidationError as error:
        problem = error.errors(include_url=False, include_input=False)[0]
        key = str(problem["loc"][0]).strip("()") if problem["loc"] else ""
        variable = (KAFKA if key == BROKERS else prefix) + key.upper()
        if not given.get(key):
            raise ConfigError(f"{variable}: is not set; the capture needs it") from None
        raise ConfigError(f"{variable}: {problem['msg']}") from None

"""One mirrored record: the envelope around an OpenAI request and its response.

`decode` turns bytes into a `MirroredRecord` or says that they are none.  What surrounds the bodies is read
leniently (mirrors add fields of their own), what steers the measurement strictly.  Nothing here is stored:
ids leave this module in the clear, for `admission` to hash.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from shadowspec.errors import RecordError
from shadowspec.tap.parameters import malformed, unsupported

# Traffic from outside this span has a broken clock; one such record would make every other one late.
EARLIEST: Final = datetime(2000, 1, 1, tzinfo=UTC)
LATEST: Final = datetime(2100, 1, 1, tzinfo=UTC)
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
# An epoch is told by its size: seconds stay below 1e11 until the year 5138.
EPOCH_UNITS_PER_SECOND: Final = ((1e11, 1.0), (1e14, 1e3), (1e17, 1e6), (1e20, 1e9))
FAILED_STATUS = 400  # HTTP
MAX_REASON_CHARACTERS = 80
HALF_CHARACTER = "\\ud"  # how an escape of one half of a surrogate pair begins

Identifier = str | int | None


class MirroredRecord(BaseModel):
    """The envelope.  Unknown fields are the mirror's own and are ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True, allow_inf_nan=False, hide_input_in_errors=True)

    request: dict[str, Any] = Field(repr=False)
    response: dict[str, Any] | None = Field(default=None, repr=False)
    endpoint: str | None = None
    timestamp: str | int | float | None = None
    session_id: Identifier = Field(default=None, repr=False)
    user: Identifier = Field(default=None, repr=False)
    tenant: Identifier = Field(default=None, repr=False)
    request_id: Identifier = Field(default=None, repr=False)
    path: str | None = None
    url: str | None = None
    status: int | str | None = None
    cache_hit: bool | str | None = None
    is_silent_experiment: bool | str | None = None
    metadata: dict[str, Any] | None = Field(default=None, repr=False)
    headers: dict[str, Any] | None = Field(default=None, repr=False)

    @property
    def request_path(self) -> str | None:
        """The path of the call, without host and query; None if the record does not say."""
        address = self.path or self.url
        if address is None:
            return None
        try:
            return urlsplit(address).path.rstrip("/")
        except ValueError as error:
            raise malformed("invalid:path") from error

    @property
    def model(self) -> str | None:
        """The model that was asked for; None if the record does not say."""
        model = self.request.get("model")
        return model if isinstance(model, str) else None

    def annotation(self, name: str) -> Any:
        """A field of the record's metadata, else of the request's own metadata, else None."""
        for metadata in (self.metadata, self.request.get("metadata")):
            if isinstance(metadata, Mapping) and metadata.get(name) is not None:
                return metadata[name]
        return None

    def header(self, name: str) -> Any:
        """A header by its name in lower case, whatever its case in the record."""
        return next((value for key, value in (self.headers or {}).items() if key.lower() == name), None)

    def session(self) -> str | None:
        return _first(self.session_id, self.annotation("session_id"), self.header("x-session-id"))

    def user_id(self) -> str | None:
        return _first(
            self.user, self.request.get("user"), self.annotation("user"), self.annotation("user_id"),
            self.header("x-user-id"),
        )  # fmt: skip

    def tenant_id(self) -> str | None:
        return _first(self.tenant, self.annotation("tenant"), self.header("x-tenant-id"))

    def request_identity(self) -> str | None:
        return _first(self.request_id, self.annotation("request_id"), self.header("x-request-id"))

    def response_identity(self) -> str | None:
        return _first((self.response or {}).get("id"))

    def event_time(self, fallback_ms: int) -> datetime:
        """When the request was made, UTC.

        The record's timestamp (ISO 8601, without an offset taken as UTC; or epoch seconds, milliseconds,
        microseconds or nanoseconds), else the response's `created`, else the transport's own time.

        Raises:
            RecordError: malformed; there is no time, or none between 2000 and 2100.
        """
        value: Any = self.timestamp
        if value is None:
            value = (self.response or {}).get("created")
        if value is None and fallback_ms > 0:
            value = EPOCH + timedelta(milliseconds=fallback_ms)
        if value is None:
            raise malformed("no_timestamp")
        time = _parse_time(value)
        if time is None or not EARLIEST <= time < LATEST:
            raise malformed("invalid:timestamp")
        return time

    def check_served(self) -> None:
        """Refuse what never was an ordinary answer of the model.

        Raises:
            RecordError: unsupported; the call failed, came from a cache, was cut or is a shadow itself.
        """
        if _is_failure(self.status) or (self.response or {}).get("error") is not None:
            raise unsupported("failed_request")
        if _is_set(self.cache_hit) or _is_set(self.annotation("cache_hit")):
            raise unsupported("cache_hit")
        if _is_set(self.is_silent_experiment) or _is_set(self.annotation("is_silent_experiment")):
            raise unsupported("silent_experiment")
        if _is_set(self.annotation("truncated")):
            raise unsupported("truncated")


def decode(value: bytes) -> MirroredRecord:
    """Read one record.

    Raises:
        RecordError: malformed; no JSON, no object, or a field of the envelope has the wrong type.
    """
    try:
        text = value.decode("utf-8-sig")
        document = json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        raise malformed("not_json") from None  # its message would quote the record
    if not isinstance(document, dict):
        raise malformed("not_an_object")
    if HALF_CHARACTER in text.lower() and not _is_encodable(document):
        raise malformed("invalid_unicode")
    try:
        return MirroredRecord.model_validate(document)
    except ValidationError as error:
        raise invalid_field(error) from None  # its message would quote the record


def invalid_field(error: ValidationError, prefix: str = "") -> RecordError:
    """The first field that is wrong, by the names that the models declare; never by a value."""
    location = error.errors(include_url=False, include_context=False, include_input=False)[0]["loc"]
    names = [prefix] if prefix else []
    names += [str(part) for part in location if isinstance(part, int) or part.isidentifier()]
    return malformed(("invalid:" + ".".join(names))[:MAX_REASON_CHARACTERS])


def _is_encodable(document: dict[str, Any]) -> bool:
    """Whether every string is Unicode text; half of a surrogate pair is none and no tokenizer takes it."""
    try:
        json.dumps(document, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return True


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _first(*candidates: Any) -> str | None:
    """The first candidate that is a usable id (text that is not empty, or a number), as text."""
    for candidate in candidates:
        if isinstance(candidate, str) and candidate.strip():
            return candidate.strip()
        if isinstance(candidate, int) and not isinstance(candidate, bool):
            return str(candidate)
    return None


def _is_set(flag: Any) -> bool:
    return flag is True or (isinstance(flag, str) and flag.lower() in {"true", "1", "yes"})


def _is_failure(status: int | str | None) -> bool:
    if isinstance(status, str):
        if not (status.isascii() and status.isdigit()):
            return status.lower() in {"failure", "failed", "error"}
        status = int(status[:9])
    return status is not None and status >= FAILED_STATUS


def _parse_time(value: Any) -> datetime | None:
    if isinstance(value, datetime):
        return value
    if isinstance(value, str):
        try:
            time = datetime.fromisoformat(value)
            return time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)
        except (ValueError, OverflowError):
            return None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    for limit, units in EPOCH_UNITS_PER_SECOND:
        if 0 <= value < limit:
            return EPOCH + timedelta(seconds=value / units)
    return None

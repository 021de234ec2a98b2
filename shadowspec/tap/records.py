"""One mirrored record: the envelope around an OpenAI request and its response.

`decode` turns bytes into a `MirroredRecord` or says that they are none.  What surrounds the bodies is read
leniently (mirrors add fields of their own), what steers the measurement strictly.  Nothing here is stored:
ids leave this module in the clear, for `admission` to hash.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from math import isfinite
from typing import Any, Final, Generic, TypeVar
from urllib.parse import urlsplit

from msgspec import Struct, convert
from msgspec import ValidationError as MsgspecError
from pydantic import ValidationError

from shadowspec.errors import RecordError
from shadowspec.tap.documents import parse_object
from shadowspec.tap.parameters import malformed, unsupported
from shadowspec.tap.parsed import ParsedResponse
from shadowspec.types import Intervention

# Traffic from outside this span has a broken clock; one such record would make every other one late.
EARLIEST: Final = datetime(2000, 1, 1, tzinfo=UTC)
LATEST: Final = datetime(2100, 1, 1, tzinfo=UTC)
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
# An epoch is told by its size: seconds stay below 1e11 until the year 5138.
EPOCH_UNITS_PER_SECOND: Final = ((1e11, 1.0), (1e14, 1e3), (1e17, 1e6), (1e20, 1e9))
EARLIEST_MS: Final = (EARLIEST - EPOCH) // timedelta(milliseconds=1)
LATEST_MS: Final = (LATEST - EPOCH) // timedelta(milliseconds=1)
FAILED_STATUS = 400  # HTTP
MAX_REASON_CHARACTERS = 80
MAX_REMEMBERED_PATHS = 1_000  # they hardly vary, but for those with ids in them
ENDPOINT_HEADER = "x-endpoint"
# What the adapters found, or the mirror says, for which no record can be measured; the reason code has the same name.
DISQUALIFYING_ANNOTATIONS: Final = ("truncated", "redacted", "no_payload", "provider_dialect")

_NO_ANNOTATIONS: Final[Mapping[str, Any]] = {}

Answer = TypeVar("Answer")


class Envelope(Struct, Generic[Answer], gc=False, kw_only=True):
    """What JSON may hold in each field of the envelope, exactly: True is no int."""

    request: dict[str, Any]
    response: Answer | None = None
    endpoint: str | None = None
    timestamp: str | int | float | None = None
    session_id: str | int | None = None
    user: str | int | None = None
    tenant: str | int | None = None
    request_id: str | int | None = None
    path: str | None = None
    url: str | None = None
    status: int | str | None = None
    cache_hit: bool | str | None = None
    is_silent_experiment: bool | str | None = None
    metadata: dict[str, Any] | None = None
    headers: dict[str, Any] | None = None


_AnyEnvelope = Envelope[dict[str, Any]]
_FIRST_TYPES: Final[Mapping[str, str]] = {  # of fields that may have several; reasons name it
    "timestamp": "str", "session_id": "str", "user": "str", "tenant": "str", "request_id": "str", "status": "int",
    "cache_hit": "bool", "is_silent_experiment": "bool",
}  # fmt: skip


@dataclass(init=False, repr=False, slots=True)
class MirroredRecord:
    """The envelope.  Unknown fields are the mirror's own and are ignored.

    `response` is what is left to be read of the answer, `answer` what was read of it already.  `annotations` are the
    fields of the record's metadata, then of the request's own, that are not null; `headers` stand by their names in
    lower case, of several that differ in case alone the first.
    """

    request: dict[str, Any]
    response: Mapping[str, Any] | None
    answer: ParsedResponse | None
    endpoint: str | None
    timestamp: str | int | float | None
    session_id: str | int | None
    user: str | int | None
    tenant: str | int | None
    request_id: str | int | None
    path: str | None
    url: str | None
    status: int | str | None
    cache_hit: bool | str | None
    is_silent_experiment: bool | str | None
    annotations: Mapping[str, Any]
    headers: Mapping[str, Any]

    def __init__(
        self,
        envelope: Envelope[Any],
        headers: Mapping[str, str],
        response: Mapping[str, Any] | None,
        answer: ParsedResponse | None = None,
    ) -> None:
        """`headers` are the transport's, by lower-case name; they fill what the envelope lacks."""
        self.request = envelope.request
        self.response = response
        self.answer = answer
        self.endpoint = envelope.endpoint if envelope.endpoint is not None else headers.get(ENDPOINT_HEADER)
        self.timestamp = envelope.timestamp
        self.session_id = envelope.session_id
        self.user = envelope.user
        self.tenant = envelope.tenant
        self.request_id = envelope.request_id
        self.path = envelope.path
        self.url = envelope.url
        self.status = envelope.status
        self.cache_hit = envelope.cache_hit
        self.is_silent_experiment = envelope.is_silent_experiment
        self.annotations = _annotations(envelope.metadata, self.request.get("metadata"))
        self.headers = _with_own(headers, envelope.headers)

    def __repr__(self) -> str:
        return f"MirroredRecord(endpoint={self.endpoint!r})"

    @property
    def request_path(self) -> str | None:
        """The path of the call, without host and query; None if the record does not say."""
        address = self.path or self.url
        return None if address is None else _path_of(address)

    @property
    def model(self) -> str | None:
        """The model that was asked for; None if the record does not say."""
        model = self.request.get("model")
        return model if isinstance(model, str) else None

    def session(self) -> str | None:
        return _first(self.session_id, self.annotations.get("session_id"), self.headers.get("x-session-id"))

    def user_id(self) -> str | None:
        return _first(
            self.user, self.request.get("user"), self.annotations.get("user"), self.annotations.get("user_id"),
            self.headers.get("x-user-id"),
        )  # fmt: skip

    def tenant_id(self) -> str | None:
        return _first(self.tenant, self.annotations.get("tenant"), self.headers.get("x-tenant-id"))

    def request_identity(self) -> str | None:
        return _first(self.request_id, self.annotations.get("request_id"), self.headers.get("x-request-id"))

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
        if value is None and fallback_ms <= 0:
            raise malformed("no_timestamp")
        time = transport_time(fallback_ms) if value is None else parse_time(value)
        if time is None or not EARLIEST <= time < LATEST:
            raise malformed("invalid:timestamp")
        return time

    def check_served(self) -> None:
        """Refuse what never was an ordinary answer of the model.

        A call that failed because a layer behind the model rejected its output was an ordinary one until then.

        Raises:
            RecordError: unsupported; the call failed, came from a cache, was cut or is a shadow itself.
        """
        said = self.annotations
        is_failed = _is_failure(self.status) or (self.response or {}).get("error") is not None
        if is_failed and said.get("intervention") != Intervention.REJECTED:
            raise unsupported("failed_request")
        if _is_set(self.cache_hit) or (said and _is_set(said.get("cache_hit"))):
            raise unsupported("cache_hit")
        if _is_set(self.is_silent_experiment) or (said and _is_set(said.get("is_silent_experiment"))):
            raise unsupported("silent_experiment")
        for name in DISQUALIFYING_ANNOTATIONS if said else ():
            if _is_set(said.get(name)):
                raise unsupported(name)


def decode(value: bytes, headers: Mapping[str, str] | None = None) -> MirroredRecord:
    """Read one record.

    Args:
        value: one JSON object.
        headers: what the transport's headers say, as `decoded_headers` gives them.

    Raises:
        RecordError: malformed; no JSON, no object, or a field of the envelope has the wrong type.
    """
    return read_envelope(parse_object(value), headers or {})


def read_envelope(document: dict[str, Any], headers: Mapping[str, str]) -> MirroredRecord:
    """The record of an envelope that is parsed already.  `headers` fill what it lacks: its own fields win.

    Raises:
        RecordError: malformed; a field of the envelope has the wrong type.
    """
    try:
        envelope = convert(document, _AnyEnvelope)
    except MsgspecError:
        raise _wrong_field(document) from None
    if not _is_finite(envelope.timestamp):
        raise _wrong_field(document)
    return MirroredRecord(envelope, headers, envelope.response)


def decoded_headers(headers: Sequence[tuple[str, bytes | None]]) -> dict[str, str]:
    """The transport's headers by lower-case name; those that are not UTF-8 are ignored, of several the last wins."""
    decoded = {}
    for name, value in headers:
        if value is not None:
            try:
                decoded[name.lower()] = value.decode()
            except UnicodeDecodeError:
                continue
    return decoded


@lru_cache(maxsize=MAX_REMEMBERED_PATHS)
def _path_of(address: str) -> str:
    try:
        return urlsplit(address).path.rstrip("/")
    except ValueError as error:
        raise malformed("invalid:path") from error


def _annotations(own: Mapping[str, Any] | None, of_request: Any) -> Mapping[str, Any]:
    if not own and not of_request:
        return _NO_ANNOTATIONS
    found = of_request if isinstance(of_request, dict) else {}
    return {**found, **{name: value for name, value in (own or {}).items() if value is not None}}


def _with_own(headers: Mapping[str, str], own: Mapping[str, Any] | None) -> Mapping[str, Any]:
    if not own:
        return headers
    lowered: dict[str, Any] = {}
    for name, value in own.items():
        lowered.setdefault(name.lower(), value)
    return {**headers, **lowered}


def _wrong_field(document: Mapping[str, Any]) -> RecordError:
    """The first field that is wrong, by name, and by the first of the types that it may have if it may have several."""
    for name in Envelope.__struct_fields__:
        try:
            is_right = _is_finite(convert({"request": {}, name: document.get(name)}, _AnyEnvelope).timestamp)
        except MsgspecError:
            is_right = False
        if not is_right:
            return malformed(f"invalid:{name}.{_FIRST_TYPES[name]}" if name in _FIRST_TYPES else f"invalid:{name}")
    raise AssertionError("no field is wrong")


def _is_finite(value: Any) -> bool:
    return not isinstance(value, float) or isfinite(value)


def invalid_field(error: ValidationError, prefix: str = "") -> RecordError:
    """The first field that is wrong, by the names that the models declare; never by a value."""
    location = error.errors(include_url=False, include_context=False, include_input=False)[0]["loc"]
    names = [prefix] if prefix else []
    names += [str(part) for part in location if isinstance(part, int) or part.isidentifier()]
    return malformed(("invalid:" + ".".join(names))[:MAX_REASON_CHARACTERS])


def _first(*candidates: Any) -> str | None:
    """The first candidate that is a usable id (text that is not empty, or a number), as text."""
    for candidate in candidates:
        if candidate is None:
            continue
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


def transport_time(timestamp_ms: int) -> datetime | None:
    """The transport's own time of a message, UTC; None if it has none or one that no clock shows."""
    if not EARLIEST_MS <= timestamp_ms < LATEST_MS:
        return None
    return datetime.fromtimestamp(timestamp_ms / 1000, UTC)


def parse_time(value: Any) -> datetime | None:
    """A time, UTC, from ISO 8601 or an epoch; None if the value is none."""
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

"""One mirrored record: the envelope around an OpenAI request and its response.

The fields around the bodies are read leniently (mirrors add fields), the fields that steer the measurement strictly.
Nothing here is stored: ids leave this module in the clear, for `admission` to hash.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any, Final
from urllib.parse import urlsplit

from msgspec import UNSET, MsgspecError, Struct, UnsetType, field
from msgspec.json import Decoder, encode

from shadowspec.tap.bodies import Finite, ResponseBody, convert_or_refuse
from shadowspec.tap.parameters import malformed_error, unsupported_error
from shadowspec.types import MAX_CLOCK_AHEAD, Intervention, RecordKey

# Traffic from outside this span has a broken clock; one such record would make every other one late.
EARLIEST: Final = datetime(2000, 1, 1, tzinfo=UTC)
LATEST: Final = datetime(2100, 1, 1, tzinfo=UTC)
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
# An epoch is recognised by its size: seconds stay below 1e11 until the year 5138.
EPOCH_UNITS_PER_SECOND: Final = ((1e11, 1.0), (1e14, 1e3), (1e17, 1e6), (1e20, 1e9))
EARLIEST_MS: Final = (EARLIEST - EPOCH) // timedelta(milliseconds=1)
LATEST_MS: Final = (LATEST - EPOCH) // timedelta(milliseconds=1)
# How writers write that there is no id, in lower case: proxies, JavaScript, SQL, Python, Go, C and pandas.
_NO_IDS: Final = frozenset(
    {"", "-", "undefined", "null", "none", "nil", "n/a", "nan", "(null)", "<nil>", "<null>", "\\n"}
)
_LONGEST_NO_ID: Final = max(map(len, _NO_IDS))
_ZERO_ID: Final = re.compile(r"[0/-]{16,}")  # of W3C's trace context and UUIDs: "no id"
FAILED_STATUS = 400  # HTTP
MAX_REMEMBERED_PATHS = 1_000  # they hardly vary, but for those with ids in them
ENDPOINT_HEADER = "x-endpoint"
NO_SAMPLING: Final = "no_sampling"  # an adapter's: the log has none of the sampling parameters that the model got
NOT_LOGGED: Final = "not_logged"  # an adapter's: names of parameters that no record of the log has, whatever was sent
# Findings of the adapters, or of the mirror, that make a record unmeasurable; the reason code has the same name.
DISQUALIFYING_ANNOTATIONS: Final = ("truncated", "redacted", "no_payload", "no_tool_definitions", "provider_dialect")

MAX_BRACKETS = 200  # the depth to which documents are read: with fewer brackets than that, none is deeper


class MirroredRecord(Struct, gc=False, kw_only=True):
    """The envelope around a request and its response.  Fields that it does not name are the mirror's and ignored.

    `response` is the answer's document until `openai.parse_response` reads it.  `annotations` are the fields of the
    record's metadata: the mirror's, by which labels are made and records excluded.  The request's metadata are the
    client's: they name session and user, and nothing else unless the endpoint says so.  `headers` are the transport's
    and the record's by their names in lower case; of the record's that differ only in case the first.
    """

    request: dict[str, Any]
    response: dict[str, Any] | ResponseBody | None = None
    endpoint: str | None = None
    timestamp: str | int | Finite | None = None
    session_id: str | int | None = None
    user: str | int | None = None
    tenant: str | int | None = None
    request_id: str | int | None = None
    path: str | None = None
    url: str | None = None
    status: int | str | None = None
    cache_hit: bool | str | None = None
    is_silent_experiment: bool | str | None = None
    annotations: dict[str, Any] | None = field(default=None, name="metadata")
    headers: dict[str, Any] | None = None

    def __repr__(self) -> str:
        return f"MirroredRecord(endpoint={self.endpoint!r})"

    def complete(self, headers: Mapping[str, str]) -> None:
        """Fill fields that a decoded record lacks from the transport's headers, given by lower-case name."""
        if headers and self.endpoint is None:
            self.endpoint = headers.get(ENDPOINT_HEADER)
        own, self.headers = self.headers or {}, dict(headers)
        for name, value in reversed(own.items()):
            self.headers[name.lower()] = value

    def annotation(self, name: str) -> Any:
        """The value of that name in the record's metadata; None without one."""
        return None if self.annotations is None else self.annotations.get(name)

    def client_annotation(self, name: str) -> Any:
        """The value of that name in the request's metadata; None without one."""
        metadata = self.request.get("metadata")
        return metadata.get(name) if isinstance(metadata, dict) else None

    def header(self, name: str) -> Any:
        """The header of that lower-case name; None without one."""
        return None if self.headers is None else self.headers.get(name)

    @property
    def is_unsampled(self) -> bool:
        """Whether the log lacks the request's sampling parameters."""
        return _is_set(self.annotation(NO_SAMPLING))

    def in_response(self, name: str) -> Any:
        """The response's field of that name, of any type; None without one."""
        response = self.response
        return response.get(name) if isinstance(response, dict) else getattr(response, name, None)

    @property
    def request_path(self) -> str | None:
        """The path of the call, without host and query; None if the record does not say."""
        address = usable_id(self.path) or usable_id(self.url)
        return None if address is None else _path_of(address)

    @property
    def model(self) -> str | None:
        """The model that was asked for; None if the record does not say."""
        model = self.request.get("model")
        return model if isinstance(model, str) else None

    def session(self) -> str | None:
        return _first(
            self.session_id, self.annotation("session_id"), self.client_annotation("session_id"),
            self.header("x-session-id"),
        )  # fmt: skip

    def user_id(self) -> str | None:
        return _first(
            self.user, self.request.get("user"), self.annotation("user"), self.annotation("user_id"),
            self.client_annotation("user"), self.client_annotation("user_id"), self.header("x-user-id"),
        )  # fmt: skip

    def tenant_id(self) -> str | None:
        return _first(self.tenant, self.annotation("tenant"), self.header("x-tenant-id"))

    def request_identity(self) -> str | None:
        return _first(self.request_id, self.annotation("request_id"), self.header("x-request-id"))

    def call_id(self) -> tuple[str, str] | None:
        """By which, with its body, the call would be known again: a request's id, else the response's, and which it is.

        Servers number responses from small spaces, and clients give all calls of a trace one request id.
        """
        if (request_id := self.request_identity()) is not None:
            return "request", request_id
        response_id = _first(self.in_response("id"))
        return None if response_id is None else ("response", response_id)

    def event_time(self, fallback_ms: int) -> datetime:
        """When the request was made, UTC.

        The record's timestamp (ISO 8601, without an offset taken as UTC; or epoch seconds, milliseconds,
        microseconds or nanoseconds), else the response's `created` or `created_at`, else the transport's time.

        Raises:
            RecordError: malformed; no time, none between 2000 and 2100, or one that is still to come.
        """
        value = self._time()
        if value is None and fallback_ms <= 0:
            raise malformed_error("no_timestamp")
        time = transport_time(fallback_ms) if value is None else parse_time(value)
        return require_time(time, fallback_ms, "timestamp")

    def _time(self) -> Any:
        """The time as it is written; None: nowhere in the record."""
        given = (self.timestamp, self.in_response("created"), self.in_response("created_at"))
        return next((value for value in given if value is not None), None)

    def is_untimed(self, fallback_ms: int) -> bool:
        """Whether neither the record nor the transport has a time."""
        return fallback_ms <= 0 and self._time() is None

    def opening(self) -> str | None:
        """What calls of one conversation share: its messages up to the user's first, or the whole prompt, as JSON."""
        for name in ("messages", "input", "prompt", "prompt_token_ids"):
            given = self.request.get(name)
            if isinstance(given, list) and name in ("messages", "input"):
                roles = [message.get("role") if isinstance(message, dict) else None for message in given]
                given = given[: roles.index("user") + 1] if "user" in roles else given
            if given:
                return encode(given).decode()
        return None

    def check_served(self) -> None:
        """Refuse a record that never was an ordinary answer of the model.

        A call that failed because a layer behind the model rejected its output counts as an ordinary answer.

        Raises:
            RecordError: unsupported; the call failed, came from a cache, was cut or is a shadow itself.
        """
        is_failed = is_failure(self.status) or self.in_response("error") is not None
        if is_failed and self.annotation("intervention") != Intervention.REJECTED:
            raise unsupported_error("failed_request")
        if _is_set(self.cache_hit) or _is_set(self.annotation("cache_hit")):
            raise unsupported_error("cache_hit")
        if _is_set(self.is_silent_experiment) or _is_set(self.annotation("is_silent_experiment")):
            raise unsupported_error("silent_experiment")
        for name in DISQUALIFYING_ANNOTATIONS if self.annotations else ():
            if _is_set(self.annotation(name)):
                raise unsupported_error(name)


class _FromDocument(MirroredRecord, gc=False, kw_only=True):
    response: dict[str, Any] | None = None


class _FromBytes(MirroredRecord, gc=False, kw_only=True):
    """A message with one of the last four fields, of any value, may be in another format."""

    response: ResponseBody | None = None
    call_type: UnsetType = UNSET
    specversion: UnsetType = UNSET
    started_at: UnsetType = UNSET
    resource_logs: UnsetType = field(default=UNSET, name="resourceLogs")
    resource_spans: UnsetType = field(default=UNSET, name="resourceSpans")


_DECODER: Final = Decoder(_FromBytes)


def decode_record(value: bytes, headers: Mapping[str, str]) -> MirroredRecord | None:
    """The one record in our format that a message holds, read without making a document of the whole message.

    None gives no reason: `read_record` reads the documents of the same message by the same types, and refuses it with a
    reason.  Unread parts of the response may hold what documents may not: numbers of thousands of digits.

    Args:
        value: the message.
        headers: the transport's headers, as `decoded_headers` gives them.
    """
    if value.count(b"[") + value.count(b"{") > MAX_BRACKETS:
        return None
    try:
        record = _DECODER.decode(value)
        if not value.isascii():
            value.decode()  # the decoder accepts any bytes in fields that it skips
    except (MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    record.complete(headers)
    return record


def read_record(document: Mapping[str, Any], headers: Mapping[str, str]) -> MirroredRecord:
    """The record of a parsed envelope.  `headers` fill fields that it lacks: the record's fields win.

    Raises:
        RecordError: malformed; a field of the envelope has the wrong type.
    """
    record = convert_or_refuse(document, _FromDocument)
    record.complete(headers)
    return record


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
        raise malformed_error("invalid:path") from error


def usable_id(value: Any) -> str | None:
    """An id as text, from text or a number; None where the value only says that there is none."""
    if isinstance(value, str):
        text = value.strip()
        if len(text) > _LONGEST_NO_ID and text[0] not in "0/-":
            return text
        return None if text.lower() in _NO_IDS or _ZERO_ID.fullmatch(text) else text
    return str(value) if type(value) is int else None


def _first(*candidates: Any) -> str | None:
    """The first candidate that is a usable id."""
    for value in candidates:
        if value is not None and (known := usable_id(value)) is not None:
            return known
    return None


def _is_set(flag: Any) -> bool:
    return flag is True or (isinstance(flag, str) and flag.lower() in {"true", "1", "yes"})


def is_failure(status: int | str | None) -> bool:
    """Whether a status, HTTP's or a mirror's, is that of a call that failed."""
    if isinstance(status, str):
        if not (status.isascii() and status.isdigit()):
            return status.lower() in {"failure", "failed", "error"}
        status = int(status[:9])
    return status is not None and status >= FAILED_STATUS


def transport_time(timestamp_ms: int) -> datetime | None:
    """The transport's time of a message, UTC; None if it has none or an impossible one."""
    if not EARLIEST_MS <= timestamp_ms < LATEST_MS:
        return None
    time = datetime.fromtimestamp(timestamp_ms / 1000, UTC)
    return None if time > datetime.now(UTC) + MAX_CLOCK_AHEAD else time


def order_time(key: RecordKey) -> datetime:
    """A time by the place of a record in its file, a second for each line: for records that have none."""
    return EARLIEST + timedelta(seconds=key.offset, microseconds=100 * key.item)


def require_time(time: datetime | None, timestamp_ms: int, name: str) -> datetime:
    """The time of an event, if it can be that of one that has happened when its message was sent.

    One event of the future would make all evidence look new and every other record old, so that it counts nowhere.

    Raises:
        RecordError: malformed, "invalid:NAME" or "future:NAME".
    """
    if time is None or not EARLIEST <= time < LATEST:
        raise malformed_error(f"invalid:{name}")
    if time > (transport_time(timestamp_ms) or datetime.now(UTC)) + MAX_CLOCK_AHEAD:
        raise malformed_error(f"future:{name}")
    return time


def parse_time(value: Any) -> datetime | None:
    """A time, UTC, from ISO 8601 or an epoch; None if the value is no time."""
    if isinstance(value, str):
        try:
            time = datetime.fromisoformat(value.removesuffix(" UTC"))  # as BigQuery writes it
            return time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)
        except (ValueError, OverflowError):
            return None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    for limit, units in EPOCH_UNITS_PER_SECOND:
        if 0 <= value < limit:
            return EPOCH + timedelta(seconds=value / units)
    return None

"""CloudEvents 1.0 in Kafka: the binary and the structured binding, and batches.

Binary: attributes in headers `ce_*`, the value is the data.  Structured: the value is the event as JSON, marked by a
`content-type` of application/cloudevents*.  The Python SDK's first API writes the data's content type there, so an
object that has an event's attributes counts as one, too.  KServe's inference logger gives a request and its response
the same source and id, and writes a streamed answer as it was streamed.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import Any, Final

from shadowspec.errors import RecordError
from shadowspec.tap.documents import assemble_answer, parse_document
from shadowspec.tap.formats.opened import EventHalf
from shadowspec.tap.parameters import malformed_error, unsupported_error
from shadowspec.tap.records import (
    EPOCH,
    MirroredRecord,
    parse_time,
    read_record,
    require_time,
    transport_time,
    usable_id,
)
from shadowspec.types import RecordKey

STRUCTURED: Final = "application/cloudevents"
JSON_FORMS: Final = frozenset({"application/cloudevents+json", "application/cloudevents-batch+json", STRUCTURED})
ATTRIBUTE_HEADER: Final = "ce_"
REQUIRED: Final = ("id", "source", "specversion", "type")
SCOPE: Final = ("namespace", "inferenceservicename", "component")  # KServe's extensions; its source is a local address


@dataclass(frozen=True, slots=True)
class EventSuffixes:
    """How the types of events end that are a call's request and its response."""

    request: str = ".request"
    response: str = ".response"


EVENT_SUFFIXES: Final = EventSuffixes()  # KServe's types are org.kubeflow.serving.inference.request and .response


class ContentMode(Enum):
    """Where the event's attributes are."""

    BINARY = "binary"
    STRUCTURED = "structured"


def content_mode(headers: Mapping[str, str]) -> ContentMode | None:
    """The mode that the transport's headers (by lower-case name) say; None if they say nothing of events.

    Raises:
        RecordError: unsupported ("event_format"); a structured event in another form than JSON.
    """
    if (given := headers.get("content-type")) is not None:
        content_type = given.split(";", 1)[0].strip().lower()
        if content_type.startswith(STRUCTURED):
            if content_type not in JSON_FORMS:
                raise unsupported_error("event_format")
            return ContentMode.STRUCTURED
    if "ce_specversion" in headers or ("ce_id" in headers and "ce_type" in headers):
        return ContentMode.BINARY
    return None


def is_event(document: Mapping[str, Any]) -> bool:
    """Whether an object has the attributes that every event has."""
    return all(name in document for name in REQUIRED)


def read_binary(
    key: RecordKey, value: bytes, headers: Mapping[str, str], suffixes: EventSuffixes
) -> MirroredRecord | EventHalf:
    """The event whose attributes are in the headers.

    Raises:
        RecordError: malformed, or unsupported.
    """
    attributes = {
        name[len(ATTRIBUTE_HEADER) :]: text for name, text in headers.items() if name.startswith(ATTRIBUTE_HEADER)
    }
    return _read(key, attributes, value, headers, suffixes, len(value))


def read_structured(
    key: RecordKey, document: Mapping[str, Any], headers: Mapping[str, str], suffixes: EventSuffixes, size: int
) -> MirroredRecord | EventHalf:
    """The event in the object; `size` is its part of the message, in bytes.

    Raises:
        RecordError: malformed, or unsupported.
    """
    data = document.get("data")
    if data is None and document.get("data_base64") is not None:
        try:
            data = base64.b64decode(document["data_base64"], validate=True)
        except (TypeError, ValueError, binascii.Error):
            raise malformed_error("invalid:data_base64") from None
    return _read(key, document, data, headers, suffixes, size)


def _read(
    key: RecordKey,
    attributes: Mapping[str, Any],
    data: Any,
    headers: Mapping[str, str],
    suffixes: EventSuffixes,
    size: int,
) -> MirroredRecord | EventHalf:
    for name in REQUIRED:
        if not isinstance(attributes.get(name), str) or not attributes[name]:
            raise malformed_error(f"invalid:ce_{name}")
    if usable_id(attributes["id"]) is None:  # halves of different calls would be joined by it
        raise malformed_error("invalid:ce_id")
    if not attributes["specversion"].startswith("1."):
        raise unsupported_error("event_version")
    is_request = attributes["type"].endswith(suffixes.request)
    body = _body(data)
    headers = {**headers, **_metadata(attributes.get("metadata"))}
    if not is_request and not attributes["type"].endswith(suffixes.response):
        return _whole(attributes, body, headers)
    subject = attributes.get("subject")
    return EventHalf(
        join_id=attributes["id"],
        scope=(attributes["source"], *(str(attributes.get(name) or "") for name in SCOPE)),
        is_request=is_request,
        body=body,
        event_time=_event_time(attributes, key),
        endpoint=_text(attributes.get("inferenceservicename")),
        subject=subject if isinstance(subject, str) else None,
        headers=headers,
        size=size,
    )


def _whole(attributes: Mapping[str, Any], body: dict[str, Any], headers: Mapping[str, str]) -> MirroredRecord:
    """An event of another type is a record if its data is one in our envelope."""
    if not isinstance(body.get("request"), dict):
        raise unsupported_error("event_type")
    given = {
        "timestamp": attributes.get("time"),
        "request_id": attributes["id"],
        "endpoint": _text(attributes.get("inferenceservicename")),
    }
    missing = {name: value for name, value in given.items() if body.get(name) is None}
    return read_record({**body, **missing}, headers)


def _body(data: Any) -> dict[str, Any]:
    """The data as an object: JSON, JSON in a string or in bytes, or a stream."""
    if isinstance(data, dict):
        return data
    if isinstance(data, bytes):
        try:
            text = data.decode("utf-8-sig")
        except UnicodeDecodeError:
            raise malformed_error("invalid:data") from None
    elif isinstance(data, str):
        text = data
    else:
        raise malformed_error("no_data" if data is None else "invalid:data")
    answer = assemble_answer(text)
    if answer is not None:
        return answer
    try:
        body = parse_document(text)
    except RecordError:
        raise malformed_error("invalid:data") from None
    if not isinstance(body, dict):
        raise malformed_error("invalid:data")
    return body


def _metadata(value: Any) -> dict[str, str]:
    """The request's headers that KServe's logger is set to pass on: JSON, lists by name; the last value counts."""
    if isinstance(value, str):
        try:
            value = parse_document(value)
        except RecordError:
            return {}
    headers: dict[str, str] = {}
    for name, given in value.items() if isinstance(value, dict) else ():
        last = given[-1] if isinstance(given, list) and given else given
        if isinstance(last, str):
            headers[name.lower()] = last
    return headers


def _event_time(attributes: Mapping[str, Any], key: RecordKey) -> datetime:
    given = attributes.get("time")
    if given is None:
        return transport_time(key.timestamp_ms) or EPOCH
    return require_time(parse_time(given), key.timestamp_ms, "ce_time")


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None

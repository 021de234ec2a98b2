"""OpenTelemetry's events and spans of calls of a model, in the JSON encoding of OTLP.

In: one document, as the collector's file exporter writes it as a line, or its Kafka exporter as a message: an export
request, of logs or of traces, with any number of records.
Out: each call of a model in our envelope, or why it cannot be read.

A call is a log record of the event `gen_ai.client.inference.operation.details`, a span whose `gen_ai.operation.name` is
an inference (`genai_attributes`), or a span of OpenInference or Traceloop (`flat_attributes`).  All others are skipped.
Event and span of one call share trace and span ids, so the second is a duplicate.  A record that the SDK's limit on the
number of attributes cut is `truncated`: what was dropped may have been a message.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from shadowspec.errors import RecordError
from shadowspec.tap.documents import MAX_RECORDS_PER_MESSAGE
from shadowspec.tap.formats import flat_attributes, genai_attributes
from shadowspec.tap.formats.genai_attributes import LoggedCall
from shadowspec.tap.parameters import malformed_error, unsupported_error
from shadowspec.tap.records import usable_id

SIGNALS: Final = (("resourceLogs", "scopeLogs", "logRecords"), ("resourceSpans", "scopeSpans", "spans"))
EVENT: Final = "gen_ai.client.inference.operation.details"
FAILED_SPAN: Final = (2, "2", "STATUS_CODE_ERROR")
MAX_INTEGER_CHARACTERS: Final = 20  # of a 64-bit integer with its sign
_ASSOCIATED: Final = "traceloop.association.properties."
_SESSIONS: Final = (
    "gen_ai.conversation.id", "session.id",
    *(_ASSOCIATED + name for name in ("session_id", "conversation_id", "chat_id", "thread_id")),
)  # fmt: skip
_USERS: Final = ("user.id", "enduser.id", _ASSOCIATED + "user_id", "gen_ai.user", "llm.user")
_READ: Final = ("gen_ai.", *_SESSIONS, *_USERS, "error.type", "event.name", *flat_attributes.READ)
_NO_SERVICE: Final = "unknown_service"  # how the SDK names a service that was given no name


def is_document(document: Mapping[str, Any]) -> bool:
    """Whether an object is an export request of logs or traces."""
    return any(isinstance(document.get(resources), list) for resources, _, _ in SIGNALS)


def envelopes(document: Mapping[str, Any]) -> list[dict[str, Any] | RecordError]:
    """Each call of a model in our envelope, or why it cannot be read.

    Raises:
        RecordError: unsupported ("no_genai"), the document holds no call of a model; malformed, a list is not one of
            objects, or holds too many records.
    """
    calls: list[dict[str, Any] | RecordError] = []
    for record, resource in _records(document):
        try:
            attributes = _attributes(record.get("attributes"))
            if (read := _reader(record, attributes)) is not None:
                calls.append(_envelope(record, attributes, resource, read(attributes)))
        except RecordError as error:
            calls.append(error.without_traceback())
        if len(calls) > MAX_RECORDS_PER_MESSAGE:
            raise malformed_error("too_many_records")
    if not calls:
        raise unsupported_error("no_genai")
    return calls


def _records(document: Mapping[str, Any]) -> Iterator[tuple[dict[str, Any], Any]]:
    """Log records and spans, each with its resource."""
    for resources, scopes, records in SIGNALS:
        for of_resource in _objects(document.get(resources), resources):
            for of_scope in _objects(of_resource.get(scopes), scopes):
                for record in _objects(of_scope.get(records), records):
                    yield record, of_resource.get("resource")


def _objects(value: Any, name: str) -> list[dict[str, Any]]:
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(element, dict) for element in value):
        raise malformed_error(f"invalid:{name}")
    return value


def _attributes(listed: Any) -> dict[str, Any]:
    """Those attributes of a record that are read, by key; of a repeated key the last."""
    attributes = {}
    for attribute in _objects(listed, "attributes"):
        key = attribute.get("key")
        if isinstance(key, str) and key.startswith(_READ):
            attributes[key] = _value(attribute.get("value"))
    return attributes


def _value(value: Any) -> Any:
    """What an `AnyValue` holds; an integer may be written as a string."""
    if value is None or value == {}:
        return None
    if isinstance(value, dict):
        for kind, content in value.items():
            if kind in ("stringValue", "boolValue", "doubleValue", "bytesValue"):
                return content
            if kind == "intValue":
                return _integer(content)
            if kind == "arrayValue" and isinstance(content, dict):
                values = content.get("values") or []
                if isinstance(values, list):
                    return [_value(element) for element in values]
            if kind == "kvlistValue" and isinstance(content, dict):
                pairs = _objects(content.get("values"), "attributes")
                if all(isinstance(pair.get("key"), str) for pair in pairs):
                    return {pair["key"]: _value(pair.get("value")) for pair in pairs}
    raise malformed_error("invalid:attributes")


def _integer(value: Any) -> Any:
    """An integer from its digits; anything else as it is."""
    if isinstance(value, str) and len(value) <= MAX_INTEGER_CHARACTERS and value.isascii():
        return int(value) if value.removeprefix("-").isdigit() else value
    return value


def _reader(
    record: Mapping[str, Any], attributes: Mapping[str, Any]
) -> Callable[[Mapping[str, Any]], LoggedCall] | None:
    """What reads a record that is one call of a model: an event in the logs, an inference among the spans."""
    if "name" not in record and "kind" not in record:
        return genai_attributes.read_call if EVENT in (record.get("eventName"), attributes.get("event.name")) else None
    operation = attributes.get(genai_attributes.OPERATION)
    if isinstance(operation, str) and operation in genai_attributes.PATHS:
        return genai_attributes.read_call
    return flat_attributes.reader_of(attributes)


def _envelope(
    record: Mapping[str, Any], attributes: Mapping[str, Any], resource: Any, call: LoggedCall
) -> dict[str, Any]:
    return {
        "request": call.request,
        "response": call.response,
        "timestamp": _time(record),
        "session_id": _first(attributes, _SESSIONS),
        "user": _first(attributes, _USERS),
        "tenant": _service(resource),
        "request_id": _call_id(record),
        "path": call.path,
        "status": "error" if attributes.get("error.type") or _has_failed(record) else None,
        "metadata": call.metadata | {"truncated": bool(record.get("droppedAttributesCount"))},
    }


def _time(record: Mapping[str, Any]) -> Any:
    """When the call began; of an event, when it was written."""
    for name in ("startTimeUnixNano", "timeUnixNano", "observedTimeUnixNano"):
        value = _integer(record.get(name))
        if value is not None and value != 0:
            return value
    return None


def _call_id(record: Mapping[str, Any]) -> str | None:
    trace, span = record.get("traceId"), record.get("spanId")
    return f"{trace}/{span}" if isinstance(trace, str) and isinstance(span, str) and trace and span else None


def _has_failed(record: Mapping[str, Any]) -> bool:
    status = record.get("status")
    return isinstance(status, dict) and status.get("code") in FAILED_SPAN


def _service(resource: Any) -> str | None:
    """The service that wrote the record: a tenant, as a consumer of a gateway is."""
    if not isinstance(resource, dict):
        return None
    for attribute in _objects(resource.get("attributes"), "attributes"):
        if attribute.get("key") == "service.name":
            name = _value(attribute.get("value"))
            return name if isinstance(name, str) and not name.startswith(_NO_SERVICE) else None
    return None


def _first(attributes: Mapping[str, Any], names: tuple[str, ...]) -> Any:
    return next((attributes[name] for name in names if usable_id(attributes.get(name)) is not None), None)

"""Opening a message: which format it is in, and how many records it holds.

`auto` recognises a format by fields that only that format has:

| format | is recognised by |
|---|---|
| cloudevents | the headers `ce_specversion`, or `ce_id` and `ce_type`; a `content-type` of application/cloudevents*; \
an object with `specversion`, `id`, `source` and `type` |
| litellm | an object with `call_type` and one of `startTime`, `litellm_call_id`, `model_map_information` |
| kong | an object with `started_at` and one of `latencies`, `ai`, `tries` |
| otlp | an object whose `resourceLogs` or `resourceSpans` is a list |
| openai | an object whose `request` is an object with `model`, `messages`, `prompt`, `prompt_token_ids` or `input`, \
or that has `request_body` and no `request` |

An object in none of them may be in a layout of `layouts`, or the body of a request itself.  A message that matches no
format, or more than one, is malformed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain
from typing import Any, Final, TypeAlias

from shadowspec.errors import RecordError
from shadowspec.tap.documents import MAX_RECORDS_PER_MESSAGE, assemble_answer, parse_document, split_message
from shadowspec.tap.formats import azure_apim, cloudevents, kong, layouts, litellm, load_tools, otlp, vertex
from shadowspec.tap.formats.cloudevents import EVENT_SUFFIXES, EventSuffixes
from shadowspec.tap.formats.field_map import FieldMap
from shadowspec.tap.formats.layouts import LAYOUTS
from shadowspec.tap.formats.opened import EventHalf, MessageFormat, Opened
from shadowspec.tap.parameters import malformed_error, unsupported_error
from shadowspec.tap.records import MirroredRecord, decode_record, decoded_headers, is_failure, read_record
from shadowspec.tap.sources import RawRecord
from shadowspec.types import RecordKey

# One of these is in every object of another format than ours.
_FOREIGN_FIELDS: Final = frozenset({"call_type", "specversion", "started_at", "resourceLogs", "resourceSpans"})
_BODY_FIELDS: Final = frozenset({"model", "messages", "prompt", "prompt_token_ids", "input"})
_REQUEST, _RESPONSE = "request_body", "response_body"
_NO_BODY: Final = (None, "", "-")  # how nginx and Envoy write that there was no body
_Matches: TypeAlias = Callable[[Mapping[str, Any]], bool]


def open_message(
    raw: RawRecord, format: MessageFormat | FieldMap, *, event_suffixes: EventSuffixes = EVENT_SUFFIXES
) -> list[Opened]:
    """The records of one message, at least one.  Never raises for the message's content.

    Several records (a JSON array, ndjson, or an OpenTelemetry document) are numbered by `key.item` in their order, and
    one that cannot be read does not affect others.  The transport's headers fill fields that the body lacks:
    undecodable ones are ignored, and of several of one name the last wins.

    Args:
        raw: the message.
        format: the message's format, or where its objects have the parts of a record.
        event_suffixes: how the types of CloudEvents that are requests and responses end.
    """
    try:
        if raw.problem is not None:
            raise malformed_error(raw.problem)
        if raw.value is None:
            raise unsupported_error("tombstone")
        headers = decoded_headers(raw.headers) if raw.headers else {}
        if format in (MessageFormat.AUTO, MessageFormat.CLOUDEVENTS) and headers:
            mode = cloudevents.content_mode(headers)
            if mode is cloudevents.ContentMode.BINARY:
                read = cloudevents.read_binary(raw.key, raw.value, headers, event_suffixes)
                return [_open(raw.key, read)]
            if mode is cloudevents.ContentMode.STRUCTURED:
                format = MessageFormat.CLOUDEVENTS
        if format in (MessageFormat.AUTO, MessageFormat.OPENAI):
            record = decode_record(raw.value, headers)
            if record is not None and (format is MessageFormat.OPENAI or not _BODY_FIELDS.isdisjoint(record.request)):
                return [Opened(raw.key, record)]
        prefix = layouts.SGLANG_PREFIX.match(raw.value)
        documents = split_message(raw.value[prefix.end() :] if prefix else raw.value)
    except RecordError as error:
        return [Opened(raw.key, error=error.without_traceback())]
    size = len(raw.value) // len(documents)
    opened: list[Opened] = []
    parts = chain.from_iterable(_parts(document, format) for document in documents)
    for number, (part, part_format) in enumerate(parts):
        if number >= MAX_RECORDS_PER_MESSAGE:
            return [Opened(raw.key, error=malformed_error("too_many_records"))]
        key = raw.key._replace(item=number) if number else raw.key
        try:
            opened.append(_open(key, _read(key, part, part_format, headers, event_suffixes, size)))
        except RecordError as error:
            opened.append(Opened(key, error=error.without_traceback()))
    return opened


def _parts(document: Any, format: MessageFormat | FieldMap) -> Iterator[tuple[Any, MessageFormat | FieldMap]]:
    """The records of a document, each with its format: of the formats in _MANY any number, of the others one."""
    try:
        found = _recognise_many(document) if format is MessageFormat.AUTO else format
        if not isinstance(document, dict) or not isinstance(found, MessageFormat) or found not in _MANY:
            yield document, format
            return
        matches, envelopes = _MANY[found]
        if not matches(document):
            raise malformed_error(f"not_{found}")
        is_empty = True
        for envelope in envelopes(document):
            is_empty = False
            yield envelope, MessageFormat.OPENAI
        if is_empty:
            raise malformed_error("empty")
    except RecordError as error:
        yield error.without_traceback(), format


def _recognise_many(document: Any) -> MessageFormat | None:
    """The format of a document with any number of records; None: it is in another, or in none or several."""
    if not isinstance(document, dict) or not any(matches(document) for matches, _ in _MANY.values()):
        return None
    try:
        return recognise(document)
    except RecordError:
        return None


def recognise(document: Mapping[str, Any]) -> MessageFormat:
    """The format that the object is in; the table above.

    Raises:
        RecordError: malformed; "unknown_format" or "ambiguous_format".
    """
    if _FOREIGN_FIELDS.isdisjoint(document):
        formats = [MessageFormat.OPENAI] if _is_openai(document) else []
    else:
        formats = [format for format, matches in _RECOGNISERS if matches(document)]
    if not formats:
        formats = [format for format, matches in _LATER_RECOGNISERS if matches(document)]
    if len(formats) == 1:
        return formats[0]
    raise malformed_error("ambiguous_format" if formats else "unknown_format")


def _read(
    key: RecordKey,
    document: Any,
    format: MessageFormat | FieldMap,
    headers: Mapping[str, str],
    event_suffixes: EventSuffixes,
    size: int,
) -> MirroredRecord | EventHalf:
    if isinstance(document, RecordError):
        raise document
    if not isinstance(document, dict):
        raise malformed_error("not_an_object")
    if isinstance(format, FieldMap):
        return read_record(format.envelope(document), headers)
    if format is MessageFormat.AUTO:
        format = recognise(document)
    elif (matches := _MATCHES.get(format)) is not None and not matches(document):
        raise malformed_error(f"not_{format}")
    if format is MessageFormat.CLOUDEVENTS:
        return cloudevents.read_structured(key, document, headers, event_suffixes, size)
    if format is MessageFormat.BATCH:
        return layouts.batch_half(document, size)
    if format is MessageFormat.APIM and azure_apim.is_piece(document):
        return azure_apim.piece(document, size)
    if (envelope := _ENVELOPES.get(format)) is not None:
        document = envelope(document)
    elif _has_texts(document):
        document = _parse_texts(document)
    return read_record(document, headers)


def _open(key: RecordKey, read: MirroredRecord | EventHalf) -> Opened:
    return Opened(key, half=read) if isinstance(read, EventHalf) else Opened(key, record=read)


def _is_openai(document: Mapping[str, Any]) -> bool:
    if _has_texts(document):
        return True
    request = document.get("request")
    return isinstance(request, dict) and not _BODY_FIELDS.isdisjoint(request)


def _has_texts(document: Mapping[str, Any]) -> bool:
    """Whether an object is an envelope with bodies as texts."""
    return _REQUEST in document and "request" not in document


def _parse_texts(document: Mapping[str, Any]) -> dict[str, Any]:
    """The envelope with its bodies parsed: `request_body` and `response_body` are JSON in a string.

    Proxies write them so, because they copy bodies without reading them.  A streamed answer may be the stream.

    Raises:
        RecordError: malformed; a body is no JSON object.
    """
    rest = {name: value for name, value in document.items() if name not in (_REQUEST, _RESPONSE)}
    status, sent = document.get("status"), document[_REQUEST]
    request = {} if sent in _NO_BODY else _parse_body(sent, _REQUEST)
    metadata = document.get("metadata")
    if not request and (metadata is None or isinstance(metadata, dict)):
        rest["metadata"] = {**(metadata or {}), "no_payload": True}
    try:
        response = _parse_response(document.get(_RESPONSE))
    except RecordError:
        if not isinstance(status, (int, str)) or not is_failure(status):
            raise
        response = None  # a proxy's own words
    return {**rest, "request": request, "response": response}


def _parse_response(body: Any) -> dict[str, Any] | None:
    if body in _NO_BODY:
        return None
    streamed = assemble_answer(body) if isinstance(body, str) else None
    return streamed if streamed is not None else _parse_body(body, _RESPONSE)


def _parse_body(body: Any, name: str) -> dict[str, Any]:
    if isinstance(body, str):
        try:
            body = parse_document(body)
        except RecordError:
            body = None
    if not isinstance(body, dict):
        raise malformed_error(f"invalid:{name}")
    return body


_RECOGNISERS: Final = (
    (MessageFormat.OPENAI, _is_openai),
    (MessageFormat.LITELLM, litellm.is_payload),
    (MessageFormat.CLOUDEVENTS, cloudevents.is_event),
    (MessageFormat.KONG, kong.is_log_entry),
    (MessageFormat.OTLP, otlp.is_document),
)
# Of objects that none of those matches.
_LATER_RECOGNISERS: Final = (
    *((format, layout.matches) for format, layout in LAYOUTS.items()),
    (MessageFormat.DYNAMO, load_tools.is_dynamo),
    (MessageFormat.APIM, azure_apim.is_row),
    (MessageFormat.VERTEX, vertex.is_row),
    (MessageFormat.AIPERF, load_tools.is_aiperf),
    (MessageFormat.GUIDELLM, load_tools.is_guidellm),
    (MessageFormat.BATCH, layouts.is_batch),
    (MessageFormat.BODY, layouts.is_body),
    (MessageFormat.ROW, layouts.is_row),
)
# Of documents with any number of records: how they are known, and their envelopes, which are ours.
_MANY: Final[Mapping[MessageFormat, tuple[_Matches, Callable[[Mapping[str, Any]], Iterable[Any]]]]] = {
    MessageFormat.OTLP: (otlp.is_document, otlp.envelopes),
    MessageFormat.AIPERF: (load_tools.is_aiperf, load_tools.aiperf_envelopes),
    MessageFormat.GUIDELLM: (load_tools.is_guidellm, load_tools.guidellm_envelopes),
}
_ENVELOPES: Final[Mapping[MessageFormat, Callable[[Mapping[str, Any]], dict[str, Any]]]] = {
    **{format: layout.envelope for format, layout in LAYOUTS.items()},
    MessageFormat.LITELLM: litellm.envelope,
    MessageFormat.KONG: kong.envelope,
    MessageFormat.BODY: lambda body: {"request": body},
    MessageFormat.ROW: layouts.row_envelope,
    MessageFormat.DYNAMO: load_tools.dynamo_envelope,
    MessageFormat.APIM: azure_apim.gateway_envelope,
    MessageFormat.VERTEX: vertex.envelope,
}
_MATCHES: Final = dict(_LATER_RECOGNISERS) | {
    MessageFormat.LITELLM: litellm.is_payload,
    MessageFormat.KONG: kong.is_log_entry,
}

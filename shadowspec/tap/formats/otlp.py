"""OpenTelemetry's GenAI events and spans, in the JSON encoding of OTLP.

One document is what the collector's file exporter writes as a line, or its Kafka exporter as a message: an export
request, of logs or of traces, with any number of records.  Those that are a call of a model become records: a log
record of the event `gen_ai.client.inference.operation.details`, and a span whose `gen_ai.operation.name` is an
inference.  All others are skipped.  Event and span of one call share trace and span ids, so the second is a duplicate.

Written from the GenAI semantic conventions of 2026 (attributes and message schemas) and the OTLP specification.
A span may hold structured attributes as JSON in a string.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

from shadowspec.errors import RecordError
from shadowspec.tap.documents import MAX_RECORDS_PER_MESSAGE, parse_document
from shadowspec.tap.formats.opened import text_prompt
from shadowspec.tap.parameters import malformed_error, unsupported_error
from shadowspec.tap.records import usable_id

SIGNALS: Final = (("resourceLogs", "scopeLogs", "logRecords"), ("resourceSpans", "scopeSpans", "spans"))
EVENT: Final = "gen_ai.client.inference.operation.details"
PATHS: Final[Mapping[str, str]] = {
    "chat": "/v1/chat/completions",
    "generate_content": "/v1/chat/completions",
    "text_completion": "/v1/completions",
    "embeddings": "/v1/embeddings",
}
FAILED_SPAN: Final = (2, "2", "STATUS_CODE_ERROR")
MAX_INTEGER_CHARACTERS: Final = 20  # of a 64-bit integer with its sign
# The request's parameters by the end of their attribute's name, `gen_ai.request.NAME`.
_PARAMETERS: Final[Mapping[str, str]] = {
    "model": "model",
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "max_tokens": "max_tokens",
    "stop_sequences": "stop",
    "seed": "seed",
    "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty",
    "choice.count": "n",
}
_WHOLE: Final = frozenset({"top_k", "max_tokens", "seed", "n"})  # `top_k` is a double in the conventions
_STRUCTURED: Final = ("gen_ai.input.messages", "gen_ai.output.messages", "gen_ai.system_instructions")
_TOOLS: Final = "gen_ai.tool.definitions"
_TOOL_FIELDS: Final = ("name", "description", "parameters")
_SESSIONS: Final = ("gen_ai.conversation.id", "session.id")
_USERS: Final = ("user.id", "enduser.id")
_READ: Final = ("gen_ai.", *_SESSIONS, *_USERS, "error.type", "event.name")
_MODALITIES: Final[Mapping[str, str]] = {"image": "image_url", "audio": "input_audio", "video": "video_url"}
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
            if _is_call(record, attributes):
                calls.append(_envelope(record, attributes, resource))
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


def _is_call(record: Mapping[str, Any], attributes: Mapping[str, Any]) -> bool:
    """Whether a record is one call of a model: an event in the logs, an inference among the spans."""
    operation = attributes.get("gen_ai.operation.name")
    if "name" in record or "kind" in record:
        return isinstance(operation, str) and operation in PATHS
    return EVENT in (record.get("eventName"), attributes.get("event.name"))


def _envelope(record: Mapping[str, Any], attributes: Mapping[str, Any], resource: Any) -> dict[str, Any]:
    operation = attributes.get("gen_ai.operation.name")
    for name in (*_STRUCTURED, _TOOLS):
        if isinstance(attributes.get(name), str):
            attributes = {**attributes, name: _parsed(attributes[name], name)}
    given, instructions, tools = (attributes.get(name) for name in (_STRUCTURED[0], _STRUCTURED[2], _TOOLS))
    request = _parameters(attributes)
    messages = _messages(given)
    if instructions:
        system = {"role": "system", "content": _contents(instructions)[0]}
        messages = [system, *messages] if isinstance(messages, list) else messages
    if operation == "text_completion":
        request["prompt"] = text_prompt(messages)
    else:
        request["messages"] = messages or []
    if tools:
        request["tools"] = _tools(tools)
    return {
        "request": request,
        "response": _response(attributes),
        "timestamp": _time(record),
        "session_id": _first(attributes, _SESSIONS),
        "user": _first(attributes, _USERS),
        "tenant": _service(resource),
        "request_id": _call_id(record),
        "path": PATHS.get(operation, "/other") if isinstance(operation, str) else None,
        "status": "error" if attributes.get("error.type") or _has_failed(record) else None,
        "metadata": {
            "no_payload": not given and operation != "embeddings",
            "no_tool_definitions": _lacks_tools(tools, messages),
        },
    }


def _parsed(text: str, name: str) -> Any:
    try:
        return parse_document(text)
    except RecordError:
        raise malformed_error(f"invalid:{name}") from None  # the SDK's limit on the length of values cuts it


def _parameters(attributes: Mapping[str, Any]) -> dict[str, Any]:
    request = {}
    for name, parameter in _PARAMETERS.items():
        value = attributes.get(f"gen_ai.request.{name}")
        if isinstance(value, float) and parameter in _WHOLE and value.is_integer():
            value = int(value)
        if value is not None:
            request[parameter] = value
    kind = attributes.get("gen_ai.output.type")
    if kind is not None and kind != "text":
        request["response_format"] = {"type": "not_logged"}  # the conventions have no place for the schema
    return request


def _messages(given: Any) -> Any:
    """The messages of a chat.  What does not follow the conventions stays as it is, for the parser to refuse."""
    if not isinstance(given, list):
        return given
    messages: list[Any] = []
    for message in given:
        if not isinstance(message, dict) or not isinstance(message.get("parts"), list):
            messages.append(message)
            continue
        content, calls, results, thoughts = _contents(message["parts"])
        for result in results:
            messages.append({"role": "tool", **result})
        if content is None and not calls and not thoughts and results:
            continue
        chat = {"role": message.get("role"), "content": content}
        if message.get("name") is not None:
            chat["name"] = message["name"]
        if calls:
            chat["tool_calls"] = calls
        if thoughts:
            chat["reasoning_content"] = "".join(thoughts)
        messages.append(chat)
    return messages


def _contents(parts: Any) -> tuple[Any, list[dict[str, Any]], list[dict[str, Any]], list[str]]:
    """Content, tool calls, results of tools and reasoning of a message's parts."""
    content: list[Any] = []
    calls, results, thoughts = [], [], []
    for part in parts if isinstance(parts, list) else [parts]:
        kind = part.get("type") if isinstance(part, dict) else None
        if not isinstance(part, dict):
            content.append({"type": "unknown"})
        elif kind == "text":
            content.append({"type": "text", "text": part.get("content")})
        elif kind == "tool_call":
            function = {"name": part.get("name"), "arguments": part.get("arguments") or {}}
            calls.append({"id": part.get("id"), "type": "function", "function": function})
        elif kind == "tool_call_response":
            result = part.get("response", part.get("result"))  # the schema's name, the examples' name
            text = result if isinstance(result, str) else json.dumps(result)
            results.append({"tool_call_id": part.get("id"), "content": text})
        elif kind == "reasoning" and isinstance(part.get("content"), str):
            thoughts.append(part["content"])
        else:
            content.append({"type": _other_type(part)})
    if len(content) == 1 and isinstance(content[0].get("text"), str):
        return content[0]["text"], calls, results, thoughts
    return content or None, calls, results, thoughts


def _other_type(part: Mapping[str, Any]) -> str:
    """The chat's type of a part that is not text; the parser refuses each by its reason."""
    if part.get("type") not in ("blob", "uri", "file"):
        return "unknown"
    modality = part.get("modality")
    return _MODALITIES.get(modality, "file") if isinstance(modality, str) else "file"


def _tools(definitions: Any) -> Any:
    """Tools in the chat's form."""
    if not isinstance(definitions, list):
        return definitions
    return [
        {
            "type": "function",
            "function": {name: definition[name] for name in _TOOL_FIELDS if definition.get(name) is not None},
        }
        if isinstance(definition, dict) and "function" not in definition
        else definition
        for definition in definitions
    ]


def _lacks_tools(definitions: Any, messages: Any) -> bool:
    """Whether the log lacks the tools that the prompt held: it names them without schemas, or shows only calls."""
    if isinstance(definitions, list) and definitions:
        return any(
            isinstance(definition, dict) and not {"parameters", "function"} & definition.keys()
            for definition in definitions
        )
    called = messages if isinstance(messages, list) else []
    return any(isinstance(message, dict) and message.get("tool_calls") for message in called)


def _response(attributes: Mapping[str, Any]) -> dict[str, Any] | None:
    answers, reasons = attributes.get(_STRUCTURED[1]), attributes.get("gen_ai.response.finish_reasons")
    given = answers if isinstance(answers, list) else []
    choices = []
    for index, answer in enumerate(given or (reasons if isinstance(reasons, list) else ())):
        message = _messages([answer])[-1] if given else None
        reason = answer.get("finish_reason") if isinstance(answer, dict) else answer
        choice = {"index": index, "finish_reason": "tool_calls" if reason == "tool_call" else reason}
        choices.append(choice if message is None else {**choice, "message": message})
    usage = {
        "completion_tokens": attributes.get("gen_ai.usage.output_tokens"),
        "prompt_tokens": attributes.get("gen_ai.usage.input_tokens"),
    }
    cached = attributes.get("gen_ai.usage.cache_read.input_tokens")
    response = {
        "id": attributes.get("gen_ai.response.id"),
        "model": attributes.get("gen_ai.response.model"),
        "choices": choices or None,
        "usage": usage if cached is None else {**usage, "prompt_tokens_details": {"cached_tokens": cached}},
    }
    return response if choices or response["model"] else None


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

"""What GenAI's semantic conventions say of one call: its request and its answer.

In: the attributes of a span or of an event, by key.
Out: the parts of our envelope that they hold.

Written from the conventions of 2026 (attributes and message schemas).  A span may hold structured attributes as JSON in
a string.  Traceloop's instrumentation adds the schema of a structured output, which the conventions lack.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from msgspec import Struct

from shadowspec.errors import RecordError
from shadowspec.tap.documents import parse_document
from shadowspec.tap.formats.opened import text_prompt
from shadowspec.tap.parameters import malformed_error
from shadowspec.tap.records import NOT_LOGGED

PATHS: Final[Mapping[str, str]] = {
    "chat": "/v1/chat/completions",
    "generate_content": "/v1/chat/completions",
    "text_completion": "/v1/completions",
    "embeddings": "/v1/embeddings",
}
OPERATION: Final = "gen_ai.operation.name"
# The request's parameters by the end of their attribute's name, `gen_ai.request.NAME`.
_PARAMETERS: Final[Mapping[str, str]] = {
    "model": "model",
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "max_tokens": "max_tokens",
    "max_completion_tokens": "max_completion_tokens",  # Traceloop's
    "reasoning_effort": "reasoning_effort",  # Traceloop's
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
_SCHEMA: Final = "gen_ai.request.structured_output_schema"
_MODALITIES: Final[Mapping[str, str]] = {"image": "image_url", "audio": "input_audio", "video": "video_url"}


class LoggedCall(Struct, frozen=True):
    """The parts of our envelope that a record's attributes hold; `metadata` are an adapter's findings."""

    request: dict[str, Any]
    response: dict[str, Any] | None
    path: str | None
    metadata: dict[str, Any]


def read_call(attributes: Mapping[str, Any]) -> LoggedCall:
    """The call that attributes of the conventions describe.

    Raises:
        RecordError: malformed; an attribute that is JSON in a string is cut, or otherwise none.
    """
    operation = attributes.get(OPERATION)
    for name in (*_STRUCTURED, _TOOLS):
        if isinstance(attributes.get(name), str):
            attributes = {**attributes, name: parsed_attribute(attributes[name], name)}
    given, instructions, tools = (attributes.get(name) for name in (_STRUCTURED[0], _STRUCTURED[2], _TOOLS))
    request = parameters(attributes)
    messages = _messages(given)
    if instructions:
        system = {"role": "system", "content": _contents(instructions)[0]}
        messages = [system, *messages] if isinstance(messages, list) else messages
    if operation == "text_completion":
        request["prompt"] = text_prompt(messages)
    else:
        request["messages"] = messages or []
    if tools:
        request["tools"] = chat_tools(tools)
    return LoggedCall(
        request,
        _response(attributes),
        PATHS.get(operation, "/other") if isinstance(operation, str) else None,
        {
            "no_payload": not given and operation != "embeddings",
            "no_tool_definitions": lacks_tools(tools, messages),
            NOT_LOGGED: "min_p, repetition_penalty, tool_choice and, in most instrumentations, top_k",
        },
    )


def parsed_attribute(text: str, name: str) -> Any:
    """The JSON in an attribute's text.

    Raises:
        RecordError: malformed ("invalid:NAME"); it is none.
    """
    try:
        return parse_document(text)
    except RecordError:
        raise malformed_error(f"invalid:{name}") from None  # the SDK's limit on the length of values cuts it


def parameters(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """The request's parameters, its model among them, and the format that its answer was asked for in."""
    request = {}
    for name, parameter in _PARAMETERS.items():
        value = attributes.get(f"gen_ai.request.{name}")
        if isinstance(value, float) and parameter in _WHOLE and value.is_integer():
            value = int(value)
        if value is not None:
            request[parameter] = value
    kind, schema = attributes.get("gen_ai.output.type"), attributes.get(_SCHEMA)
    if isinstance(schema, str):
        request["response_format"] = _response_format(parsed_attribute(schema, _SCHEMA))
    elif kind is not None and kind != "text":
        request["response_format"] = {"type": "not_logged"}  # the conventions have no place for the schema
    return request


def _response_format(schema: Any) -> dict[str, Any]:
    """A structured output's schema as it was asked for; of a format without one Traceloop's writes the format."""
    if isinstance(schema, dict) and schema.get("type") in ("json_object", "text") and len(schema) == 1:
        return schema
    return {"type": "json_schema", "json_schema": {"name": "logged", "schema": schema}}


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


def chat_tools(definitions: Any) -> Any:
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


def lacks_tools(definitions: Any, messages: Any) -> bool:
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

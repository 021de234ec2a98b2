"""Gemini's `generateContent`: its request as a chat, and its answer.

In: a body, with names as JSON or as Protobuf writes them.
Out: a chat's body, and an answer in its form.

What no chat can say is refused: tools that the provider runs, cached content, thinking, signatures of thoughts, and
schemas of OpenAPI's for the output.  Written from Google's reference of `generateContent`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final

from shadowspec.tap.formats.opened import object_in
from shadowspec.tap.parameters import malformed_error, unsupported_error

_PARAMETERS: Final[Mapping[str, str]] = {
    "temperature": "temperature",
    "topP": "top_p",
    "topK": "top_k",
    "maxOutputTokens": "max_tokens",
    "stopSequences": "stop",
    "seed": "seed",
    "presencePenalty": "presence_penalty",
    "frequencyPenalty": "frequency_penalty",
    "candidateCount": "n",
}
_WHOLE: Final = frozenset({"top_k", "max_tokens", "seed", "n"})  # written as doubles by some clients
_READ: Final = frozenset({"contents", "systemInstruction", "tools", "toolConfig", "generationConfig", "model"})
_HARMLESS: Final = frozenset({"safetySettings", "labels", "responseLogprobs", "logprobs"})
_ROLES: Final[Mapping[str, str]] = {"user": "user", "model": "assistant", "function": "user", "system": "system"}
_MEDIA: Final = ("inlineData", "fileData")
_KINDS: Final[Mapping[str, str]] = {"image": "image_url", "audio": "input_audio", "video": "video_url"}
_CHOICES: Final[Mapping[str, str]] = {"AUTO": "auto", "VALIDATED": "auto", "ANY": "required", "NONE": "none"}
_REASONS: Final[Mapping[str, str]] = {"STOP": "stop", "MAX_TOKENS": "length"}
_CAPITAL: Final = re.compile("([A-Z])")


def _field(given: Any, name: str) -> Any:
    """A field of an object, by its name in JSON or in Protobuf."""
    fields = object_in(given)
    return fields.get(name, fields.get(_CAPITAL.sub(r"_\1", name).lower()))


def chat_body(sent: Mapping[str, Any]) -> dict[str, Any]:
    """The body of the chat that says the same, without its model.

    Raises:
        RecordError: malformed, or unsupported: it says something that no chat can say.
    """
    if _field(sent, "cachedContent"):
        raise unsupported_error("conversation")
    request: dict[str, Any] = {"messages": _messages(sent)}
    for name, value in object_in(_field(sent, "generationConfig")).items():
        _add_parameter(request, _camel(name), value)
    known = _READ | _HARMLESS
    request |= {name: value for name, value in sent.items() if _camel(name) not in known}  # refused by the parser
    tools = _tools(_field(sent, "tools"))
    if tools:
        request["tools"] = tools
    choice = _field(_field(sent, "toolConfig"), "functionCallingConfig")
    if tools and choice:
        request["tool_choice"] = _tool_choice(choice)
    return request


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(part.capitalize() for part in rest)


def _add_parameter(request: dict[str, Any], name: str, value: Any) -> None:
    if name in _PARAMETERS:
        parameter = _PARAMETERS[name]
        is_double = isinstance(value, float) and parameter in _WHOLE and value.is_integer()
        request[parameter] = int(value) if is_double else value
    elif name == "responseMimeType" and value in ("application/json", "text/plain"):
        if value != "text/plain":
            request.setdefault("response_format", {"type": "json_object"})
    elif name in ("responseMimeType", "responseSchema", "responseJsonSchema"):
        request["response_format"] = {"type": "gemini_schema"}  # of OpenAPI's types: refused by the parser
    elif name == "thinkingConfig":
        raise unsupported_error("rendering_parameter:thinking")
    elif name not in _HARMLESS and not (name == "responseModalities" and value == ["TEXT"]):
        request[name] = value  # refused by the parser


def _messages(sent: Mapping[str, Any]) -> list[dict[str, Any]]:
    contents = sent["contents"] if isinstance(sent["contents"], list) else [sent["contents"]]
    system = _field(sent, "systemInstruction")
    messages: list[dict[str, Any]] = []
    calls: list[tuple[Any, str]] = []  # that wait for a result: the function's name, the call's id
    if system:
        contents = [system if not isinstance(system, dict) else system | {"role": "system"}, *contents]
    for content in contents:
        if not isinstance(content, dict) or not isinstance(content.get("parts"), list):
            raise malformed_error("invalid:contents")
        role = content.get("role", "user")
        messages += _of_content(_ROLES.get(role, role) if isinstance(role, str) else "", content["parts"], calls)
    return messages


def _of_content(role: str, parts: list[Any], calls: list[tuple[Any, str]]) -> list[dict[str, Any]]:
    """The messages of one content: the results of tools, then what was said and called."""
    content: list[dict[str, Any]] = []
    called: list[dict[str, Any]] = []
    results: list[dict[str, Any]] = []
    thoughts: list[str] = []
    for part in parts:
        if _field(part, "thoughtSignature"):
            raise unsupported_error("hidden_reasoning")
        call, result, text = (_field(part, name) for name in ("functionCall", "functionResponse", "text"))
        if isinstance(call, dict):
            call_id = call.get("id") or f"call_{len(calls) + len(called)}"
            called.append(_tool_call(call, call_id))
        elif isinstance(result, dict):
            results.append(_result(result, calls))
        elif isinstance(text, str) and _field(part, "thought") is True:
            thoughts.append(text)
        elif isinstance(text, str):
            content.append({"type": "text", "text": text})
        else:
            content.append({"type": _media(part)})
    calls += [(call["function"]["name"], call["id"]) for call in called]
    if not content and not called and not thoughts:
        return results
    is_plain = len(content) == 1 and "text" in content[0]
    message = {"role": role, "content": content[0]["text"] if is_plain else content or None}
    message |= {"tool_calls": called} if called else {}
    message |= {"reasoning_content": "".join(thoughts)} if thoughts else {}
    return [*results, message]


def _tool_call(call: Mapping[str, Any], call_id: str) -> dict[str, Any]:
    return {
        "id": call_id,
        "type": "function",
        "function": {"name": call.get("name"), "arguments": json.dumps(call.get("args") or {}, ensure_ascii=False)},
    }


def _result(result: Mapping[str, Any], calls: list[tuple[Any, str]]) -> dict[str, Any]:
    """A tool's message; without an id it answers the first call of that function that waits."""
    found = next((entry for entry in calls if entry[0] == result.get("name")), None)
    if found is not None:
        calls.remove(found)
    call_id = result.get("id") or (found[1] if found is not None else None)
    text = json.dumps(result.get("response"), ensure_ascii=False)
    return {"role": "tool", "tool_call_id": call_id, "content": text}


def _media(part: Any) -> str:
    """The chat's type of a part that is not text; the parser refuses each by its reason."""
    data = next((found for name in _MEDIA if isinstance(found := _field(part, name), dict)), None)
    if data is None:
        return "unknown"
    kind = str(_field(data, "mimeType")).split("/", 1)[0]
    return _KINDS.get(kind, "file")


def _tools(given: Any) -> list[dict[str, Any]]:
    """Tools in the chat's form.

    Raises:
        RecordError: unsupported ("built_in_tools"); one runs at the provider.
    """
    tools = []
    for tool in given if isinstance(given, list) else []:
        if any(value for name, value in object_in(tool).items() if _camel(name) != "functionDeclarations"):
            raise unsupported_error("built_in_tools")
        declared = _field(tool, "functionDeclarations")
        for function in map(object_in, declared if isinstance(declared, list) else []):
            schema = _field(function, "parametersJsonSchema") or _lowered(_field(function, "parameters"))
            described = {name: function.get(name) for name in ("name", "description") if function.get(name) is not None}
            tools.append({"type": "function", "function": described | ({"parameters": schema} if schema else {})})
    return tools


def _lowered(schema: Any) -> Any:
    """A schema of OpenAPI's with the names of types as JSON Schema has them."""
    if isinstance(schema, list):
        return [_lowered(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        name: value.lower() if name == "type" and isinstance(value, str) else _lowered(value)
        for name, value in schema.items()
    }


def _tool_choice(choice: Any) -> Any:
    mode, names = _field(choice, "mode"), _field(choice, "allowedFunctionNames")
    if names and (mode != "ANY" or not isinstance(names, list) or len(names) != 1):
        return {"type": "allowed_tools"}  # refused by the parser
    if names:
        return {"type": "function", "function": {"name": names[0]}}
    return _CHOICES.get(mode, mode) if isinstance(mode, str) else "auto"


def joined_chunks(chunks: list[dict[str, Any]]) -> dict[str, Any]:
    """The answer that the chunks of a stream make."""
    parts: list[Any] = []
    last: dict[str, Any] = {}
    for chunk in chunks:
        candidate = _candidate(chunk)
        given = object_in(candidate.get("content")).get("parts")
        parts += given if isinstance(given, list) else []
        last |= {name: value for name, value in candidate.items() if value is not None}
    last["content"] = {"role": "model", "parts": parts}
    return {**object_in(chunks[-1]), "candidates": [last]}


def _candidate(answer: Mapping[str, Any]) -> dict[str, Any]:
    given = answer.get("candidates")
    return object_in(given[0]) if isinstance(given, list) and given else {}


def answer(got: Mapping[str, Any]) -> dict[str, Any] | None:
    """The answer in a chat's form; None: there is no candidate."""
    candidates = got.get("candidates")
    if not isinstance(candidates, list) or not candidates:
        return None
    choices = []
    for index, candidate in enumerate(candidates):
        parts, reason = object_in(_field(candidate, "content")).get("parts"), _field(candidate, "finishReason")
        plain = [
            {name: value for name, value in object_in(part).items() if _camel(name) != "thoughtSignature"}
            for part in (parts if isinstance(parts, list) else [])
        ]
        messages = _of_content("assistant", plain, [])
        message = messages[-1] if messages else {"role": "assistant", "content": None}
        texts = message["content"]
        if isinstance(texts, list) and all("text" in text for text in texts):
            message["content"] = "".join(text["text"] for text in texts)
        ended = _REASONS.get(reason, reason.lower()) if isinstance(reason, str) else None
        choices.append({"index": index, "message": message, "finish_reason": ended})
    usage = _field(got, "usageMetadata")
    return {
        "id": _field(got, "responseId"),
        "choices": choices,
        "usage": {
            "prompt_tokens": _field(usage, "promptTokenCount"),
            "completion_tokens": _field(usage, "candidatesTokenCount"),
        },
    }

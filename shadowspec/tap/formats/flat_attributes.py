"""Spans of instrumentations that spread a call's messages over attributes: OpenInference's, and Traceloop's of old.

In: the attributes of a span, by key.
Out: the parts of our envelope that they hold.

OpenInference numbers `llm.input_messages.0.message.role`; its instrumentation of OpenAI's client also writes the whole
body under `input.value`, which then counts, because the numbered messages lack what is neither text nor image.
Traceloop's (OpenLLMetry up to 0.52) numbers `gen_ai.prompt.0.content`; since 0.55 it follows the conventions.

Written from openinference-instrumentation-openai 0.1.66 and opentelemetry-instrumentation-openai 0.40.14.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from shadowspec.errors import RecordError
from shadowspec.tap.documents import parse_document
from shadowspec.tap.formats.field_map import is_chat
from shadowspec.tap.formats.genai_attributes import (
    PATHS,
    LoggedCall,
    chat_tools,
    lacks_tools,
    parameters,
    parsed_attribute,
)
from shadowspec.tap.formats.layouts import is_body
from shadowspec.tap.formats.opened import object_in
from shadowspec.tap.parameters import malformed_error
from shadowspec.tap.records import NO_SAMPLING, NOT_LOGGED

SPAN_KIND: Final = "openinference.span.kind"
REQUEST_TYPE: Final = "llm.request.type"  # Traceloop's
READ: Final = ("llm.", "input.", "output.", SPAN_KIND, "traceloop.association.properties.")  # beginnings of keys
REDACTED: Final = "__REDACTED__"  # OpenInference's, in place of what its configuration hides
MAX_DEPTH: Final = 12  # of names in a key; twice what the instrumentations write
_INVOCATION: Final = "llm.invocation_parameters"
_NO_PARAMETERS: Final = frozenset({"_type", "model_name", "api_key", "base_url"})  # LangChain's own, in the same place
_OPENINFERENCE_PATHS: Final = {"LLM": None, "EMBEDDING": PATHS["embeddings"]}
_TRACELOOP_PATHS: Final[Mapping[str, str]] = {
    "chat": PATHS["chat"],
    "completion": PATHS["text_completion"],
    "embedding": PATHS["embeddings"],
}
_TRACELOOP_PARAMETERS: Final[Mapping[str, str]] = {
    "llm.top_k": "top_k",
    "llm.frequency_penalty": "frequency_penalty",
    "llm.presence_penalty": "presence_penalty",
    "llm.chat.stop_sequences": "stop",
    "llm.request.repetition_penalty": "repetition_penalty",
    "llm.request.reasoning_effort": "reasoning_effort",
}
_PARTS: Final = frozenset({"text", "image_url", "input_audio", "video_url", "file", "refusal"})  # of a chat's content
_TYPES: Final = {"text": "text", "image": "image_url", "audio": "input_audio"}  # OpenInference's types of content


def reader_of(attributes: Mapping[str, Any]) -> Callable[[Mapping[str, Any]], LoggedCall] | None:
    """What reads a span's call, where a span describes one in one of the two forms."""
    kind, asked = attributes.get(SPAN_KIND), attributes.get(REQUEST_TYPE)
    if isinstance(kind, str) and kind in _OPENINFERENCE_PATHS:
        return read_openinference
    if isinstance(asked, str) and asked in _TRACELOOP_PATHS:
        return read_traceloop
    return None


def read_openinference(attributes: Mapping[str, Any]) -> LoggedCall:
    """A span of the kind LLM or EMBEDDING.

    Raises:
        RecordError: malformed; numbered attributes have gaps, or text that should be JSON is none.
    """
    whole = _whole(attributes, "input")
    is_whole = whole is not None and is_body(whole)
    request = whole if whole is not None and is_whole else _openinference_request(attributes)
    answer = _whole(attributes, "output")
    if answer is None or not any(name in answer for name in ("choices", "output", "content")):
        answer = _openinference_answer(attributes)
    tools, messages = request.get("tools"), request.get("messages")
    holds_prompt = any(request.get(name) for name in ("messages", "prompt", "input"))
    return LoggedCall(
        request,
        answer,
        _OPENINFERENCE_PATHS[attributes[SPAN_KIND]],
        {
            "no_payload": not holds_prompt and attributes[SPAN_KIND] == "LLM",
            "redacted": _is_redacted(attributes, messages),
            "no_tool_definitions": lacks_tools(tools, messages),
            NO_SAMPLING: not is_whole and _INVOCATION not in attributes,
            NOT_LOGGED: "extra_body (top_k, min_p, ...)",
        },
    )


def _whole(attributes: Mapping[str, Any], side: str) -> dict[str, Any] | None:
    """The object that a side holds as JSON; None where it holds something else."""
    text = attributes.get(f"{side}.value")
    if attributes.get(f"{side}.mime_type") != "application/json" or not isinstance(text, str):
        return None
    try:
        value = parse_document(text)
    except RecordError:  # cut at the SDK's limit: the numbered attributes may be whole
        return None
    return value if isinstance(value, dict) else None


def _openinference_request(attributes: Mapping[str, Any]) -> dict[str, Any]:
    given = attributes.get(_INVOCATION)
    asked = parsed_attribute(given, _INVOCATION) if isinstance(given, str) else {}
    request = {name: value for name, value in object_in(asked).items() if name not in _NO_PARAMETERS}
    request.setdefault("model", attributes.get("llm.model_name"))
    messages = [_openinference_message(entry) for entry in _numbered(attributes, "llm.input_messages")]
    prompts = [object_in(entry.get("prompt")).get("text") for entry in _numbered(attributes, "llm.prompts")]
    if prompts and not messages:
        request["prompt"] = prompts[0] if len(prompts) == 1 else prompts
    elif messages:
        request["messages"] = messages
    schemas = [object_in(entry.get("tool")).get("json_schema") for entry in _numbered(attributes, "llm.tools")]
    if schemas:
        texts = [text if isinstance(text, str) else "null" for text in schemas]
        request["tools"] = chat_tools([parsed_attribute(text, "llm.tools") for text in texts])
    return request


def _openinference_message(entry: Mapping[str, Any]) -> dict[str, Any]:
    message = object_in(entry.get("message"))
    contents = message.get("contents")
    content = message.get("content")
    if contents is not None:
        content = [_openinference_part(object_in(part).get("message_content")) for part in _listed(contents)]
    calls = [_tool_call(object_in(object_in(call).get("tool_call"))) for call in _listed(message.get("tool_calls"))]
    return _message(message, content, calls)


def _openinference_part(given: Any) -> dict[str, Any]:
    kind = object_in(given).get("type")
    if kind == "text":
        return {"type": "text", "text": given.get("text", "")}
    return {"type": _TYPES.get(kind, "unknown") if isinstance(kind, str) else "unknown"}


def _openinference_answer(attributes: Mapping[str, Any]) -> dict[str, Any] | None:
    messages = [_openinference_message(entry) for entry in _numbered(attributes, "llm.output_messages")]
    texts = [object_in(entry.get("completion")).get("text") for entry in _numbered(attributes, "llm.choices")]
    answers: list[dict[str, Any]] = [{"message": message} for message in messages] or [{"text": text} for text in texts]
    return _answer(
        [answer | {"finish_reason": attributes.get("llm.finish_reason")} for answer in answers],
        attributes.get("llm.model_name"),
        attributes.get("llm.token_count.prompt"),
        attributes.get("llm.token_count.completion"),
    )


def _is_redacted(attributes: Mapping[str, Any], messages: Any) -> bool:
    contents = [message.get("content") for message in messages] if is_chat(messages) else []
    return REDACTED in (attributes.get("input.value"), *(text for text in contents if isinstance(text, str)))


def read_traceloop(attributes: Mapping[str, Any]) -> LoggedCall:
    """A span with the type of its request.

    Raises:
        RecordError: malformed; numbered attributes have gaps, or text that should be JSON is none.
    """
    path = _TRACELOOP_PATHS[attributes[REQUEST_TYPE]]
    request = parameters(attributes)
    for name, parameter in _TRACELOOP_PARAMETERS.items():
        if attributes.get(name) is not None:
            request[parameter] = attributes[name]
    prompts = _numbered(attributes, "gen_ai.prompt")
    messages = [_traceloop_message(prompt) for prompt in prompts]
    if path == PATHS["text_completion"]:
        texts = [prompt.get("user", prompt.get("content")) for prompt in prompts]
        request["prompt"] = texts[0] if len(texts) == 1 else texts
    else:
        request["messages"] = messages
    tools = [_traceloop_tool(entry) for entry in _numbered(attributes, "llm.request.functions")]
    if tools:
        request["tools"] = chat_tools(tools)
    choices = []
    for given in _numbered(attributes, "gen_ai.completion"):
        answer = _traceloop_message({"role": "assistant", **given})
        is_text = path == PATHS["text_completion"]
        choice = {"text": answer["content"]} if is_text else {"message": answer}
        choices.append(choice | {"finish_reason": given.get("finish_reason")})
    return LoggedCall(
        request,
        _answer(
            choices,
            attributes.get("gen_ai.response.model"),
            attributes.get("gen_ai.usage.input_tokens", attributes.get("gen_ai.usage.prompt_tokens")),
            attributes.get("gen_ai.usage.output_tokens", attributes.get("gen_ai.usage.completion_tokens")),
        ),
        path,
        {
            "no_payload": not prompts and path != PATHS["embeddings"],
            "no_tool_definitions": lacks_tools(tools, messages),
            NOT_LOGGED: "top_k, min_p, seed, stop, max_completion_tokens",
        },
    )


def _traceloop_message(given: Mapping[str, Any]) -> dict[str, Any]:
    calls = [_tool_call({**object_in(call), "function": call}) for call in _listed(given.get("tool_calls"))]
    return _message(given, _content(given.get("content")), calls)


def _content(text: Any) -> Any:
    """A message's content: parts are written as their JSON."""
    if not isinstance(text, str) or not text.startswith("[{"):
        return text
    try:
        parts = parse_document(text)
    except RecordError:
        return text
    is_content = isinstance(parts, list) and all(object_in(part).get("type") in _PARTS for part in parts)
    return parts if is_content else text


def _traceloop_tool(given: Mapping[str, Any]) -> dict[str, Any]:
    text = given.get("parameters")
    tool = {name: given[name] for name in ("name", "description") if name in given}
    return tool | {"parameters": parsed_attribute(text, "llm.request.functions")} if isinstance(text, str) else tool


def _message(given: Mapping[str, Any], content: Any, calls: list[dict[str, Any]]) -> dict[str, Any]:
    """A chat's message; an empty text is not written, so that no content is one where nothing was called."""
    message = {"role": given.get("role"), "content": "" if content is None and not calls else content}
    message |= {name: given[name] for name in ("name", "tool_call_id") if given.get(name) is not None}
    return message | {"tool_calls": calls} if calls else message


def _tool_call(given: Mapping[str, Any]) -> dict[str, Any]:
    function = object_in(given.get("function"))
    named = {"name": function.get("name"), "arguments": function.get("arguments") or "{}"}
    return {"id": given.get("id"), "type": "function", "function": named}


def _answer(choices: list[dict[str, Any]], model: Any, num_prompt: Any, num_output: Any) -> dict[str, Any] | None:
    if not choices:
        return None
    numbered = [{"index": index, **choice} for index, choice in enumerate(choices)]
    usage = {"prompt_tokens": num_prompt, "completion_tokens": num_output}
    return {"model": model, "choices": numbered, "usage": usage}


def _numbered(attributes: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    """The objects that attributes `NAME.0. ...`, `NAME.1. ...` spread.

    Raises:
        RecordError: malformed ("invalid:NAME"); a number is missing, or a key contradicts another.
    """
    tree: dict[str, Any] = {}
    for key, value in attributes.items():
        if not key.startswith(f"{name}."):
            continue
        *names, last = key[len(name) + 1 :].split(".", MAX_DEPTH)
        node = tree
        for each in names:
            node = node.setdefault(each, {})
            if not isinstance(node, dict):
                raise malformed_error(f"invalid:{name}")
        if last in node:
            raise malformed_error(f"invalid:{name}")
        node[last] = value
    entries = _listed(tree, name)
    if not all(isinstance(entry, dict) for entry in entries):
        raise malformed_error(f"invalid:{name}")
    return entries


def _listed(tree: Any, name: str = "llm.input_messages") -> list[Any]:
    """The values of a tree whose keys are the numbers from 0 on: a gap is a part that was not logged."""
    given = object_in(tree)
    if tree is not None and set(given) != {str(number) for number in range(len(given))}:
        raise malformed_error(f"invalid:{name}")
    return [given[str(number)] for number in range(len(given))]

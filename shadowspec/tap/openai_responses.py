"""OpenAI's Responses API: its request as a chat, and its answer.

Items become messages as vLLM renders them: the instructions first, the content of one assistant turn in one message,
the output of a call as a tool's message.  Content without a place in a chat is refused by name: parts that are not
text, tools that the server runs itself, state on the server (`previous_response_id`, `conversation`), and reasoning of
which the client has only a summary or a cipher.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from shadowspec.tap.bodies import ResponseBody, UsageBody
from shadowspec.tap.parameters import malformed_error, shared_fields, tool_fields, unsupported_error
from shadowspec.types import LoggedResponse

# The same in a chat, by the same name; the second line vLLM's.
_SHARED: Final = frozenset(
    {
        "model", "temperature", "top_p", "top_logprobs", "stream", "stream_options", "user", "metadata", "store",
        "service_tier", "safety_identifier", "prompt_cache_key", "prompt_cache_retention", "parallel_tool_calls",
        "top_k", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty", "logit_bias", "seed", "stop",
        "ignore_eos", "cache_salt", "request_id", "priority", "include_stop_str_in_output", "skip_special_tokens",
        "return_token_ids", "chat_template_kwargs", "mm_processor_kwargs", "structured_outputs",
    }
)  # fmt: skip
# Delivery fields.  `truncation` cuts prompts that are longer than the context, which are refused anyway, and
# `max_tool_calls` is about tools that the server runs.
_HARMLESS: Final = frozenset(
    {"include", "background", "truncation", "max_tool_calls", "enable_response_messages"}
)  # fmt: skip
# Supported only at None; otherwise the reason names what is missing from the record.
_STATE: Final[Mapping[str, str]] = {
    "previous_response_id": "previous_response",
    "previous_input_messages": "previous_response",
    "conversation": "conversation",
    "prompt": "prompt_template",
    "context_management": "context_management",
}
_READ: Final = frozenset({"input", "instructions", "max_output_tokens", "text", "reasoning", "tools", "tool_choice"})
_MARKS: Final = frozenset({"instructions", "max_output_tokens", "previous_response_id", "conversation"})
_BUILT_IN: Final = (  # how the types begin of items that tools of the server leave
    "web_search", "file_search", "computer", "image_generation", "code_interpreter", "local_shell", "shell", "mcp",
    "apply_patch", "custom_tool", "tool_search",
)  # fmt: skip
_ENDS: Final = ("response.completed", "response.incomplete", "response.failed")  # events with the whole answer
_ITEM_DONE: Final = "response.output_item.done"


def is_body(request: Mapping[str, Any]) -> bool:
    """Whether a body without `input` and `messages` is one of this API: it continues a response, or names a prompt."""
    return not _MARKS.isdisjoint(request) or isinstance(request.get("prompt"), Mapping)


def chat_body(request: Mapping[str, Any]) -> dict[str, Any]:
    """The body of the equivalent chat.

    Raises:
        RecordError: malformed, or unsupported: it has content that no chat can hold.
    """
    body = shared_fields(request, _SHARED, _STATE, ignored=_READ | _HARMLESS)
    body["max_tokens"] = request.get("max_output_tokens")
    body["messages"] = _messages(request)
    body |= _text_parameters(_object(request, "text"))
    body["reasoning_effort"] = _object(request, "reasoning").get("effort")
    body |= tool_fields(request, _tool, _tool_choice)
    return {name: value for name, value in body.items() if value is not None}


def _text_parameters(text: Mapping[str, Any]) -> dict[str, Any]:
    """`text.format` is a chat's `response_format`, but for the schema, which lies a level higher."""
    wanted = text.get("format")
    if wanted is not None and not isinstance(wanted, Mapping):
        raise malformed_error("invalid:request.text.format")
    if wanted is not None and wanted.get("type") == "json_schema":
        wanted = {"type": "json_schema", "json_schema": {"schema": wanted.get("schema")}}
    return {"response_format": wanted, "verbosity": text.get("verbosity")}


def _tool(tool: Any) -> dict[str, Any]:
    if not isinstance(tool, Mapping):
        raise malformed_error("invalid:request.tools")
    if tool.get("type") != "function":
        raise unsupported_error("built_in_tools")
    function = {
        name: tool[name] for name in ("name", "description", "parameters", "strict") if tool.get(name) is not None
    }
    return {"type": "function", "function": function}


def _tool_choice(choice: Any) -> Any:
    if not isinstance(choice, Mapping):
        return choice
    if choice.get("type") != "function":
        raise unsupported_error("forced_tool_choice")
    return {"type": "function", "function": {"name": choice.get("name")}}


def _messages(request: Mapping[str, Any]) -> list[dict[str, Any]]:
    given, instructions = request.get("input"), request.get("instructions")
    messages: list[dict[str, Any]] = []
    if instructions is not None:
        if not isinstance(instructions, str):
            raise malformed_error("invalid:request.instructions")
        messages.append({"role": "system", "content": instructions})
    if isinstance(given, str):
        return [*messages, {"role": "user", "content": given}]
    if not isinstance(given, list) or not given:
        raise malformed_error("invalid:request.input")
    for place, input_item in enumerate(given):
        if not isinstance(input_item, Mapping):
            raise malformed_error(f"invalid:request.input.{place}")
        _add_item(messages, input_item, f"request.input.{place}")
    return messages


def _add_item(messages: list[dict[str, Any]], item: Mapping[str, Any], place: str) -> None:
    """Add an item's content: a new message, or a further part of the assistant's last one."""
    kind = item.get("type", "message")
    if kind == "message":
        role = item.get("role")
        if not isinstance(role, str):
            raise malformed_error(f"invalid:{place}.role")
        message = {"role": role, "content": item.get("content")}
        last = messages[-1] if messages else {}
        if role == "assistant" and last.get("role") == "assistant" and "content" not in last:
            last["content"] = item.get("content")  # after its reasoning
        else:
            messages.append(message)
    elif kind == "function_call":
        function = {"name": item.get("name"), "arguments": item.get("arguments")}
        call = {"id": item.get("call_id"), "type": "function", "function": function}
        _assistant(messages).setdefault("tool_calls", []).append(call)
    elif kind == "function_call_output":
        messages.append({"role": "tool", "tool_call_id": item.get("call_id"), "content": item.get("output")})
    elif kind == "reasoning":
        if (text := _reasoning(item, place)) is not None:
            messages.append({"role": "assistant", "reasoning_content": text})
    elif kind == "item_reference":
        raise unsupported_error("item_reference")
    elif isinstance(kind, str) and kind.startswith(_BUILT_IN):
        raise unsupported_error("built_in_tools")
    else:
        raise unsupported_error("unknown_item")


def _assistant(messages: list[dict[str, Any]]) -> dict[str, Any]:
    """The message of the assistant's present turn."""
    if not messages or messages[-1].get("role") != "assistant":
        messages.append({"role": "assistant"})
    return messages[-1]


def _reasoning(item: Mapping[str, Any], place: str) -> str | None:
    """The text of a reasoning item; None of one that is empty."""
    parts = item.get("content")
    if parts is not None and not isinstance(parts, list):
        raise malformed_error(f"invalid:{place}.content")
    if item.get("encrypted_content") or (not parts and item.get("summary")):
        raise unsupported_error("hidden_reasoning")
    texts = [part.get("text") if isinstance(part, Mapping) else None for part in parts or ()]
    if not all(isinstance(text, str) for text in texts):
        raise malformed_error(f"invalid:{place}.content")
    return "".join(text for text in texts if text) or None


def _object(request: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = request.get(name)
    if value is not None and not isinstance(value, Mapping):
        raise malformed_error(f"invalid:request.{name}")
    return value or {}


def is_answer(response: ResponseBody) -> bool:
    """Whether an answer is one of this API."""
    return response.choices is None and isinstance(response.output, list)


def logged_answer(response: ResponseBody) -> LoggedResponse:
    """Production's answer; no answer of this API has token ids."""
    usage = response.usage or UsageBody()
    return LoggedResponse(None, None, _finish_reason(response), usage.output_tokens, usage.num_cached_tokens)


def _finish_reason(response: ResponseBody) -> str | None:
    """The finish reason, in a chat's terms; None without one."""
    if response.status == "completed":
        is_call = any(
            isinstance(output_item, Mapping) and output_item.get("type") == "function_call"
            for output_item in response.output
        )
        return "tool_calls" if is_call else "stop"
    details = response.incomplete_details
    reason = details.get("reason") if isinstance(details, Mapping) else None
    if response.status != "incomplete" or not isinstance(reason, str):
        return None
    return "length" if reason == "max_output_tokens" else reason


def answer_text(response: ResponseBody) -> str | None:
    """The text of an answer, if all that was generated is in it: one message of text parts, and nothing else."""
    items = response.output
    if response.status == "in_progress":
        return None  # a stream that was cut off
    if not isinstance(items, list) or len(items) != 1 or not isinstance(items[0], Mapping):
        return None
    parts = items[0].get("content") if items[0].get("type") == "message" else None
    if not isinstance(parts, list) or not parts:
        return None
    texts = []
    for part in parts:
        text = part.get("text") if isinstance(part, Mapping) and part.get("type") == "output_text" else None
        if not isinstance(text, str):
            return None
        texts.append(text)
    return "".join(texts)


def answer_messages(response: ResponseBody) -> list[dict[str, Any]]:
    """The messages that the items of an answer are in a chat.

    Raises:
        RecordError: malformed, or unsupported: an item has no place in a chat.
    """
    messages: list[dict[str, Any]] = []
    for place, output_item in enumerate(response.output):
        if not isinstance(output_item, Mapping):
            raise malformed_error(f"invalid:response.output.{place}")
        _add_item(messages, output_item, f"response.output.{place}")
    return messages


def is_event(chunk: Mapping[str, Any]) -> bool:
    """Whether the first chunk of a stream begins an answer of this API."""
    return isinstance(kind := chunk.get("type"), str) and kind.startswith("response.")


def streamed_answer(chunks: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The answer of a stream: its last event holds all of it; of one that was cut off, the items that had ended.

    Raises:
        RecordError: malformed ("invalid:stream"); no event holds an answer.
    """
    answers = [chunk["response"] for chunk in chunks if isinstance(chunk.get("response"), dict)]
    if not answers:
        raise malformed_error("invalid:stream")
    answer: dict[str, Any] = answers[-1]
    if any(chunk.get("type") in _ENDS for chunk in chunks):
        return answer
    return {**answer, "output": [chunk.get("item") for chunk in chunks if chunk.get("type") == _ITEM_DONE]}

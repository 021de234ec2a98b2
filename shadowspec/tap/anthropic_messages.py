"""Anthropic's Messages API, as vLLM and SGLang serve it too: its request as a chat, and its answer.

Blocks become messages as vLLM 0.33 converts them (entrypoints/anthropic/serving.py): all system texts are one message
at the beginning, the results of tools precede the text of their turn, and thinking is the reasoning of its message.
Requested thinking becomes the chat's effort or budget, as in its `_handle_thinking`.  Content without a place in a chat
is refused by name: blocks that are not text, tools that the provider runs, and redacted thinking.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from shadowspec.tap.bodies import ResponseBody, UsageBody
from shadowspec.tap.parameters import malformed_error, shared_fields, tool_fields, unsupported_error
from shadowspec.types import LoggedResponse

_SHARED: Final = frozenset(
    {
        "model", "max_tokens", "temperature", "top_p", "top_k", "stream", "metadata", "service_tier",
        "chat_template_kwargs", "cache_salt", "request_id", "priority",
    }
)  # fmt: skip
_HARMLESS: Final = frozenset(
    {"anthropic_version", "anthropic_beta", "betas", "inference_geo", "speed", "cache_control"}
)
_STATE: Final[Mapping[str, str]] = {
    "container": "container",
    "context_management": "context_management",
    "mcp_servers": "built_in_tools",
}
_READ: Final = frozenset(
    {"messages", "system", "stop_sequences", "tools", "tool_choice", "thinking", "output_config", "output_format"}
)
_MARKS: Final = frozenset({"system", "stop_sequences", "anthropic_version", "anthropic_beta", "output_config"})
_BLOCKS: Final = ("tool_use", "tool_result", "thinking", "redacted_thinking", "document")  # a set would hash any value
_REFUSED_BLOCKS: Final[Mapping[str, str]] = {
    "image": "image_content",
    "document": "file_content",
    "container_upload": "file_content",
    "redacted_thinking": "hidden_reasoning",
}
_THOUGHTS: Final = ("thinking", "redacted_thinking")  # a set would hash any value
_CALLER_TOOLS: Final = (None, "custom")  # types of tools that the client runs and describes itself
_CHOICES: Final[Mapping[str, Any]] = {"auto": "auto", "any": "required", "none": "none"}
_BILLING: Final = "x-anthropic-billing-header"  # a client's mark, another in each request: vLLM leaves it out
_FINISH_REASONS: Final[Mapping[str, str]] = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "tool_use": "tool_calls",
}


def is_body(request: Mapping[str, Any], answer_type: Any) -> bool:
    """Whether a body with `messages` is one of this API: it has a field that no chat has.

    A body without such a field is the same chat in both.
    """
    if answer_type == "message" or not _MARKS.isdisjoint(request):
        return True
    if any("input_schema" in tool for tool in _objects(request.get("tools"))):
        return True
    contents = (message.get("content") for message in _objects(request.get("messages")))
    return any(block.get("type") in _BLOCKS for content in contents for block in _objects(content))


def _objects(value: Any) -> list[Mapping[str, Any]]:
    """The objects in a list; of anything else none."""
    return [element for element in value if isinstance(element, Mapping)] if isinstance(value, list) else []


def chat_body(request: Mapping[str, Any], *, takes_chats: bool) -> dict[str, Any]:
    """The body of the equivalent chat.

    Args:
        request: the body.
        takes_chats: a server renders the chat, so that it may ask for thinking.

    Raises:
        RecordError: malformed, or unsupported: it has content that no chat can hold.
    """
    body = shared_fields(request, _SHARED, _STATE, ignored=_READ | _HARMLESS, unset=(None, []))
    body["stop"] = request.get("stop_sequences")
    body["messages"] = _messages(request)
    body |= _output_parameters(request)
    body |= _thinking(request.get("thinking"), takes_chats=takes_chats)
    body |= tool_fields(request, _tool, _tool_choice)
    return {name: value for name, value in body.items() if value is not None}


def _thinking(thinking: Any, *, takes_chats: bool) -> dict[str, Any]:
    """The parameters of a chat for requested thinking.

    vLLM and SGLang render the effort `none` without thinking.  Their own endpoints differ in what turns it on: SGLang's
    does, as it does for a chat's `reasoning.enabled`, which vLLM ignores; vLLM's sets the budget, which SGLang ignores.
    """
    if thinking is None:
        return {}
    if not isinstance(thinking, Mapping):
        raise malformed_error("invalid:request.thinking")
    kind, budget = thinking.get("type"), thinking.get("budget_tokens")
    if kind == "disabled":
        return {"reasoning_effort": "none"} if takes_chats else {}
    if not takes_chats:
        raise unsupported_error("rendering_parameter:thinking")
    asked: dict[str, Any] = {"reasoning": {"enabled": True}}
    if kind == "adaptive":  # its depth is the model's
        return asked
    if kind != "enabled" or type(budget) is not int or budget < 1:
        raise malformed_error("invalid:request.thinking")
    return asked | {"thinking_token_budget": budget}


def _output_parameters(request: Mapping[str, Any]) -> dict[str, Any]:
    config = request.get("output_config") or {}
    if not isinstance(config, Mapping):
        raise malformed_error("invalid:request.output_config")
    wanted = config.get("format") or request.get("output_format")
    if wanted is None:
        return {"reasoning_effort": config.get("effort")}
    if not isinstance(wanted, Mapping):
        raise malformed_error("invalid:request.output_config.format")
    schema = wanted.get("schema") or wanted.get("json_schema")
    response_format = {"type": wanted.get("type"), "json_schema": {"schema": schema}}
    return {"response_format": response_format, "reasoning_effort": config.get("effort")}


def _tool(tool: Any) -> dict[str, Any]:
    if not isinstance(tool, Mapping):
        raise malformed_error("invalid:request.tools")
    if tool.get("type") not in _CALLER_TOOLS:
        raise unsupported_error("built_in_tools")
    names = {"name": "name", "description": "description", "input_schema": "parameters", "strict": "strict"}
    return {"type": "function", "function": {new: tool[old] for old, new in names.items() if tool.get(old) is not None}}


def _tool_choice(choice: Any) -> Any:
    kind = choice.get("type") if isinstance(choice, Mapping) else None
    if kind == "tool":
        return {"type": "function", "function": {"name": choice.get("name")}}
    if not isinstance(kind, str) or kind not in _CHOICES:
        raise malformed_error("invalid:request.tool_choice")
    return _CHOICES[kind]


def _messages(request: Mapping[str, Any]) -> list[dict[str, Any]]:
    given = request.get("messages")
    if not isinstance(given, list):
        raise malformed_error("invalid:request.messages")
    system = list(_system_texts(request.get("system"), "request.system"))
    messages: list[dict[str, Any]] = []
    for place, message in enumerate(given):
        where = f"request.messages.{place}"
        if not isinstance(message, Mapping) or not isinstance(role := message.get("role"), str):
            raise malformed_error(f"invalid:{where}.role")
        content = message.get("content")
        if role == "system":
            system += _system_texts(content, f"{where}.content")
        elif isinstance(content, str):
            messages.append({"role": role, "content": content})
        else:
            messages += _turn(role, content, f"{where}.content")
    return [{"role": "system", "content": "".join(system)}, *messages] if system else messages


def _system_texts(content: Any, place: str) -> Iterator[str]:
    if isinstance(content, str):
        yield from [content] if content else []
    elif content is not None:
        for block in _blocks(content, place):
            text = _text(block, place)
            if text and not text.startswith(_BILLING):
                yield text


def _turn(role: str, content: Any, place: str) -> Iterator[dict[str, Any]]:
    """The messages that a turn's blocks become."""
    message: dict[str, Any] = {"role": role}
    parts, calls, thoughts = [], [], []
    for block in _blocks(content, place):
        kind = block.get("type")
        if kind == "tool_result" and role == "user":
            yield {"role": "tool", "tool_call_id": block.get("tool_use_id"), "content": _result(block, place)}
        elif kind == "tool_use":
            function = {"name": block.get("name"), "arguments": block.get("input") or {}}
            calls.append({"id": block.get("id"), "type": "function", "function": function})
        elif kind == "thinking":
            thought = block.get("thinking")
            if not isinstance(thought, str):
                raise malformed_error(f"invalid:{place}.thinking")
            thoughts.append(thought)
        elif text := _text(block, place):
            parts.append({"type": "text", "text": text})
    if thoughts:
        message["reasoning_content"] = "".join(thoughts)
    if calls:
        message["tool_calls"] = calls
    if parts:
        message["content"] = parts
    if parts or role != "user":
        yield message


def _result(block: Mapping[str, Any], place: str) -> str:
    content = block.get("content")
    if content is None or isinstance(content, str):
        return content or ""
    return "\n".join(_text(part, place) for part in _blocks(content, place))


def _blocks(content: Any, place: str) -> list[Mapping[str, Any]]:
    if not isinstance(content, list) or not all(isinstance(block, Mapping) for block in content):
        raise malformed_error(f"invalid:{place}")
    return content


def _text(block: Mapping[str, Any], place: str) -> str:
    kind = block.get("type")
    if kind != "text":
        if not isinstance(kind, str):
            raise unsupported_error("unknown_content")
        if kind.startswith(("server_tool", "mcp_")) or kind.endswith("_tool_result"):
            raise unsupported_error("built_in_tools")
        raise unsupported_error(_REFUSED_BLOCKS.get(kind, "unknown_content"))
    text = block.get("text")
    if not isinstance(text, str):
        raise malformed_error(f"invalid:{place}.text")
    return text


def is_answer(response: ResponseBody) -> bool:
    """Whether an answer is one of this API."""
    return response.choices is None and response.type == "message" and isinstance(response.content, list)


def logged_answer(response: ResponseBody) -> LoggedResponse:
    """Production's answer; no answer of this API has token ids."""
    reason = response.stop_reason if isinstance(response.stop_reason, str) else None
    usage = response.usage or UsageBody()
    ended = None if reason is None else _FINISH_REASONS.get(reason, reason)
    return LoggedResponse(None, None, ended, usage.output_tokens, usage.num_cached_tokens)


def has_thinking(response: ResponseBody) -> bool:
    """Whether an answer of this API shows that the model thought."""
    return any(block.get("type") in _THOUGHTS for block in _objects(response.content))


def answer_text(response: ResponseBody) -> str | None:
    """The text of an answer, if all that was generated is in it: one block of text, and nothing else."""
    blocks = response.content
    if response.stop_reason is None:
        return None  # a stream that was cut off
    if not isinstance(blocks, list) or len(blocks) != 1 or not isinstance(blocks[0], Mapping):
        return None
    text = blocks[0].get("text") if blocks[0].get("type") == "text" else None
    return text if isinstance(text, str) else None


def answer_messages(response: ResponseBody) -> list[dict[str, Any]]:
    """The messages that the blocks of an answer are in a chat; a streamed tool's input is read from its parts.

    Raises:
        RecordError: malformed, or unsupported: a block has no place in a chat.
    """
    place = "response.content"
    blocks = []
    for block in _blocks(response.content, place):
        if isinstance(text := block.get("partial_json"), str) and text:
            try:
                block = {**block, "input": json.loads(text)}
            except (ValueError, RecursionError):
                raise malformed_error(f"invalid:{place}.input") from None  # its message would quote the answer
        blocks.append(block)
    return list(_turn("assistant", blocks, place))


def is_event(chunk: Mapping[str, Any]) -> bool:
    """Whether the first chunk of a stream begins an answer of this API."""
    return chunk.get("type") == "message_start"


def streamed_answer(chunks: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The answer of a stream: the message of its first event, and the later events' additions to its blocks.

    Raises:
        RecordError: malformed ("invalid:stream"); an event lacks the content that its type promises.
    """
    answer: dict[str, Any] = {}
    blocks: dict[int, dict[str, Any]] = {}
    for chunk in chunks:
        kind = chunk.get("type")
        if kind == "message_start":
            answer = dict(_part(chunk, "message"))
        elif kind == "content_block_start":
            blocks[_index(chunk)] = dict(_part(chunk, "content_block"))
        elif kind == "content_block_delta":
            _add_delta(blocks.setdefault(_index(chunk), {}), _part(chunk, "delta"))
        elif kind == "message_delta":
            answer |= {name: value for name, value in _part(chunk, "delta").items() if value is not None}
            usages = (answer.get("usage"), chunk.get("usage"))
            answer["usage"] = {
                name: value for usage in usages if isinstance(usage, dict) for name, value in usage.items()
            }
        elif kind == "error":
            answer["error"] = chunk.get("error")
    answer["content"] = [blocks[index] for index in sorted(blocks)]
    return answer


def _add_delta(block: dict[str, Any], delta: Mapping[str, Any]) -> None:
    for name in ("text", "thinking", "partial_json"):
        if isinstance(added := delta.get(name), str):
            before = block.get(name)
            block[name] = (before if isinstance(before, str) else "") + added


def _part(chunk: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    part = chunk.get(name)
    if not isinstance(part, Mapping):
        raise malformed_error("invalid:stream")
    return part


def _index(chunk: Mapping[str, Any]) -> int:
    index = chunk.get("index")
    if not isinstance(index, int) or isinstance(index, bool) or index < 0:
        raise malformed_error("invalid:stream")
    return index
